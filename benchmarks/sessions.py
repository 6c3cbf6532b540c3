"""What a post to a session takes beside a bare commit, from the first thousand to the last, and what reading it takes.

The floor is what no log can be without that loses nothing: one INSERT and its commit, synced, of the same body, by a
connection of its own. It runs every few posts in between, so that a disk that slows down slows both.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Size, Table, Timing, race
from otel_assembly import AlertPolicy, Assembler, Context
from otel_assembly.errors import LogConflictError
from otel_assembly.recorder import NullRecorder
from otel_assembly.sessions import (
    EV_TEXT,
    BudgetedView,
    ConversationAdapter,
    Envelope,
    FullTranscript,
    Hub,
    MemorySessionLog,
    ParticipantView,
    PostgresSessionLog,
    SessionLog,
    SqliteSessionLog,
    WindowedSummary,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROOT = Path(__file__).resolve().parents[1]
#: How many posts a session has, how many hubs post at once, how often it is hydrated, how many turns a view has.
SIZES: dict[Size, tuple[int, int, int, int]] = {
    "full": (10_000, 4, 9, 200),
    "quick": (2_000, 4, 5, 60),
    "tiny": (20, 2, 2, 4),
}
#: The floor runs once in so many posts.
FLOOR_EVERY = 5
WHO = ("ann", "bob")
SAID = "m" * 200
BODIES = 512

FLOOR = "floor: an INSERT and its commit"
FIRST, LAST = "a post, of the first tenth", "a post, of the last tenth"
FLAT = "the last tenth ÷ the first, each beside the floor"
OWN_FIRST, OWN_LAST = (
    "processor time of a post, first tenth",
    "processor time of a post, last tenth, ratio to the first",
)
RATE = "posts a second ÷ the floor's, one hub"
RATES = "posts a second ÷ the floor's, several hubs on one session"
CONFLICTS = "conflicts a post, several hubs"
WORST = "the worst post, one hub"
WORST_OF_MANY = "the worst post, several hubs"
FOLD, HYDRATE = "a fold from the start", "hydrating from a snapshot and the longest tail"


class Store:
    """One kind of log, empty at first, and the floor beside it."""

    def __init__(self, kind: str, at: str, commit: Callable[[str], None]) -> None:
        self.kind = kind
        self.at = at
        self.commit = commit

    def log(self) -> SessionLog:
        """A way of one's own into it."""
        return opened(self.kind, self.at)

    def floor(self) -> float:
        """Seconds that one bare commit takes."""
        began = time.perf_counter()
        self.commit("b" * BODIES)
        return time.perf_counter() - began


class Counting:
    """A log that counts how often somebody else was first."""

    def __init__(self, log: SessionLog) -> None:
        self._log = log
        self.conflicts = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append(self, *given: Any) -> None:
        """See `SessionLog.append`."""
        try:
            await self._log.append(*given)
        except LogConflictError:
            self.conflicts += 1
            raise


class WithoutSnapshots:
    """A log that everybody folds from the start."""

    def __init__(self, log: SessionLog) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def snapshot(self, session_id: str, adapter: str) -> None:
        """See `SessionLog.snapshot`."""


def opened(kind: str, at: str) -> SessionLog:
    """A log of this kind."""
    return SqliteSessionLog(at) if kind == "SQLite" else PostgresSessionLog(at)


def _sqlite(stack: ExitStack) -> Store:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-sessions-")))
    db = sqlite3.connect(folder / "floor.db", isolation_level=None)
    stack.callback(db.close)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE floor (seq INTEGER PRIMARY KEY, body TEXT)")

    def commit(body: str) -> None:
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO floor (body) VALUES (?)", (body,))
        db.execute("COMMIT")

    return Store("SQLite", str(folder / "sessions.db"), commit)


def _postgres(stack: ExitStack) -> Store | str:
    """A server of its own; or why there is none."""
    sys.path.append(str(ROOT / "tests"))
    try:
        import psycopg
        from postgres_server import BIN, MISSING, PostgresServer
    except ImportError as missing:
        return f"PostgreSQL was not measured: {missing}"
    if BIN is None:
        return f"PostgreSQL was not measured. {MISSING}"
    server = PostgresServer()
    stack.callback(server.remove)
    server.start()
    db = stack.enter_context(psycopg.connect(server.dsn(), autocommit=True))
    db.execute("CREATE TABLE floor (seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body TEXT)")

    def commit(body: str) -> None:
        db.execute("INSERT INTO floor (body) VALUES (%s)", (body,))

    return Store("PostgreSQL", server.dsn(), commit)


def said(session_id: str, number: int) -> Envelope:
    """The post of this number."""
    return Envelope(session_id, WHO[number % 2], EV_TEXT, {"text": f"{number} {SAID}"})


async def _open(hub: Hub, session_id: str) -> None:
    await hub.create("conversation", WHO[0], WHO, session_id=session_id)
    await hub.join(session_id, WHO[1])


def _hub(log: Any, snapshot_every: int = 500) -> Hub:
    return Hub(log, [ConversationAdapter()], inbox_limit=1_000_000, snapshot_every=snapshot_every)


async def report(size: Size) -> list[Table]:
    """A column for each store; and what a view's turn takes, which no store has a part in."""
    posts, hubs, folds, turns = SIZES[size]
    #: What a hub has by itself, of 10,000 posts.
    every = max(posts // 20, 2)
    table = Table("sessions", f"{posts:,} posts to a session: median (quartiles), ratio to the floor", ["what"])
    with ExitStack() as stack:
        for made in (_sqlite(stack), _postgres(stack)):
            if isinstance(made, str):
                table.notes.append(made)
                continue
            table.columns.append(made.kind)
            for rows in (
                await _one_hub(made, posts, every),
                await _many_hubs(made, posts, hubs),
                await _hydrated(made, folds, every),
            ):
                for row, cell in rows.items():
                    table.put(row, cell)
    table.notes += [
        f"The floor runs once in {FLOOR_EVERY} posts; for {hubs} hubs, each in a process of its own, before and after.",
        f"The longest tail: hydrated right before the next snapshot is due, which one is every {every} envelopes.",
    ]
    return [table, await _views(posts, turns)]


async def _one_hub(store: Store, posts: int, every: int) -> Mapping[str, Any]:
    log = store.log()
    taken: list[float] = []
    own: list[float] = []
    floors: list[float] = []
    async with _hub(log, every) as hub:
        await _open(hub, "one")
        for number in range(posts):
            one = said("one", number)
            if number % FLOOR_EVERY == 0:
                floors.append(store.floor())
            began, own_began = time.perf_counter(), time.process_time()
            await hub.post(one)
            taken.append(time.perf_counter() - began)
            own.append(time.process_time() - own_began)
    await log.close()
    tenth = max(posts // 10, 1)
    beside = [floors[at // FLOOR_EVERY] for at in range(posts)]
    first, last = Timing(taken[:tenth], beside[:tenth]), Timing(taken[-tenth:], beside[-tenth:])
    return {
        FLOOR: Timing(floors),
        FIRST: first,
        LAST: last,
        FLAT: _median_ratio(last) / _median_ratio(first),
        OWN_FIRST: Timing(own[:tenth]),
        OWN_LAST: Timing(own[-tenth:], own[:tenth]),
        RATE: sum(beside) / sum(taken),
        WORST: f"{max(taken) * 1e3:,.0f} ms",
    }


def _median_ratio(timing: Timing) -> float:
    return timing.median / statistics.median(timing.beside)


async def _many_hubs(store: Store, posts: int, hubs: int) -> Mapping[str, Any]:
    log = store.log()
    await _open(_hub(log), "many")
    await log.close()
    return _processes(store, posts // hubs, hubs)


def _processes(store: Store, each: int, count: int) -> Mapping[str, Any]:
    """So many processes that post to one session as fast as they can."""
    command = [sys.executable, "-m", "benchmarks.sessions", store.kind, store.at, str(each)]
    floors = [store.floor() for _ in range(max(each // FLOOR_EVERY, 1))]
    with ExitStack() as stack:
        pipe = subprocess.PIPE
        hubs = [
            stack.enter_context(subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True))
            for _ in range(count)
        ]
        for hub in hubs:
            stack.callback(hub.kill)
        for hub in hubs:
            assert hub.stdout is not None
            assert hub.stdout.readline() == "ready\n"
        for hub in hubs:
            assert hub.stdin is not None
            hub.stdin.write("go\n")
            hub.stdin.flush()
        found = [json.loads(hub.communicate()[0]) for hub in hubs]
    floors += [store.floor() for _ in range(max(each // FLOOR_EVERY, 1))]
    seconds = max(item["ended"] for item in found) - min(item["began"] for item in found)
    return {
        RATES: (count * each / seconds) * statistics.fmean(floors),
        CONFLICTS: sum(item["conflicts"] for item in found) / (count * each),
        WORST_OF_MANY: f"{max(max(item['taken']) for item in found) * 1e3:,.0f} ms",
    }


async def _posting(kind: str, at: str, posts: int) -> None:
    """One of several hubs."""
    log = opened(kind, at)
    counting = Counting(log)
    async with _hub(counting) as hub:
        await hub.folded("many")
        print("ready", flush=True)
        sys.stdin.readline()
        taken, start = [], time.time()
        for number in range(posts):
            one = said("many", number)
            began = time.perf_counter()
            await hub.post(one)
            taken.append(time.perf_counter() - began)
        print(json.dumps({"taken": taken, "conflicts": counting.conflicts, "began": start, "ended": time.time()}))
    await log.close()


async def _hydrated(store: Store, folds: int, every: int) -> Mapping[str, Any]:
    """From the start, and from a snapshot right before the next one is due."""
    log = store.log()
    async with _hub(log, every) as hub:
        seq = (await hub.folded("one")).seq
        snapshot = await log.snapshot("one", "conversation/1")
        while snapshot is not None and seq < snapshot.seq + every - 1:
            seq = (await hub.post(said("one", seq))).seq

    async def fold(given: None) -> None:
        await _hub(WithoutSnapshots(log)).folded("one")

    async def hydrate(given: None) -> None:
        await _hub(log).folded("one")

    found = await race({FOLD: fold, HYDRATE: hydrate}, folds, floor=FOLD, warm_up=1)
    await log.close()
    return {FOLD: Timing(found[FOLD].taken), HYDRATE: found[HYDRATE]}


async def _views(posts: int, turns: int) -> Table:
    """One envelope that is read, and one assembly, in a short session and in a long one."""
    short, long = max(posts // 10, 1), posts
    columns = ["view", f"{short:,} envelopes", f"{long:,} envelopes, its ratio to the others"]
    table = Table("sessions-views", "a turn of a view, when one more was said", columns)
    for view in (WindowedSummary(10), BudgetedView(8_000, 1_000), FullTranscript()):
        log = MemorySessionLog()
        hub = _hub(log)
        seen: dict[str, ParticipantView] = {}
        for count in (short, long):
            name = str(count)
            await _open(hub, name)
            for number in range(count):
                await hub.post(said(name, number))
            seen[name] = await ParticipantView.open(hub, name, WHO[0], view=view)
            await seen[name].read()
        posted = dict.fromkeys(seen, 0)
        runners = {name: _turn(value) for name, value in seen.items()}
        taken: dict[str, list[float]] = {name: [] for name in seen}
        for index in range(turns + 1):
            for name, turn in runners.items():
                posted[name] += 1
                await hub.post(said(name, posted[name]))
                began = time.thread_time()
                await turn()
                if index:
                    taken[name].append(time.thread_time() - began)
        table.rows[view.name] = [Timing(taken[str(short)]), Timing(taken[str(long)], taken[str(short)])]
    table.notes.append(
        "The whole transcript is a prompt ten times as long; it is handed out, and nothing of it is done anew."
    )
    return table


def _turn(view: ParticipantView) -> Callable[[], Any]:
    context = Context(agent_name="bench", model="gpt-4o")
    assembler = Assembler([AlertPolicy(), *view.policies], model="gpt-4o", recorder=NullRecorder())

    async def turn() -> None:
        await view.read()
        assembly = await assembler.assemble([], view.history, context)
        _ = assembly.prompts, assembly.events

    return turn


if __name__ == "__main__":
    asyncio.run(_posting(sys.argv[1], sys.argv[2], int(sys.argv[3])))
