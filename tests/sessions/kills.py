"""``python kills.py [--log sqlite|postgres|both] [--kills 200] [--seed N]``: nothing accepted is lost, or there twice.

Four processes, each with a hub of its own, post to the same two sessions. One after the other they are killed with
SIGKILL, some at a random moment, some at a named point of an append, and started again; and so is the server, where the
log has one. Afterwards every accepted envelope has to be there once, in its place, and every hub has to have folded
the same. The seed settles who dies at which point, and what is posted; how far the machine has come by then, it cannot.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import select
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from functools import reduce
from itertools import pairwise
from pathlib import Path

from poster import Book, Order, adapters, chained, live, open_log, said_under
from postgres_server import BIN, MISSING, PostgresServer
from striking import DURING, POINTS, POINTS_OF_A_STATEMENT, Strike

from otel_assembly.sessions import EV_TEXT, Hub

WHO = ("ann", "bob", "cid", "dan")
SESSIONS = ("common", "in-turn")
#: A run fails that does not come to its end: so many seconds, and so many for each kill.
SECONDS, SECONDS_A_KILL = 400, 6
#: What the answer to an order may take.
ANSWER_SECONDS = 400


def alone() -> None:
    """Wait for the threads of a log that is closed, which have been told to end: who forks has none beside it.

    The system counts a thread a moment longer than Python does, and Python asks the system before it forks.
    """
    for thread in set(threading.enumerate()) - {threading.main_thread()}:
        thread.join()
    tasks, until = Path("/proc/self/task"), time.monotonic() + 10
    while tasks.exists() and len(list(tasks.iterdir())) > 1 and time.monotonic() < until:
        time.sleep(0.001)


class LostError(AssertionError):
    """Something accepted is lost, there twice or elsewhere; or a process failed by itself."""


class Life:
    """One life of a poster: a process that is forked, so that a kill costs no second of imports."""

    def __init__(self, run: Run, name: str, number: int) -> None:
        rng = random.Random(f"{run.seed} {name} {number}")
        self.name, self.number = name, number
        self.strike = run.strike(name, number, rng)
        self.ready = run.folder / f"{name}-{number}.ready"
        self._errors = run.folder / f"{name}-{number}.errors"
        self._code: int | None = None
        self._said = b""
        order = Order(name, number, rng.random(), run.log, SESSIONS, run.book(name).path, self.ready, self.strike)
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            # Nothing of the parent's ends is left open here: who reads from a pipe is to see that its parent is gone.
            for other in [*run.posters.values(), self]:
                other.close()
            os.dup2(os.open(self._errors, os.O_WRONLY | os.O_CREAT), 2)
            live(order, orders, answers)
        os.close(orders)
        os.close(answers)

    @property
    def dead(self) -> bool:
        """Whether it was killed.

        Raises:
            LostError: It ended by itself.
        """
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        if self._code not in (None, -signal.SIGKILL):
            raise LostError(f"{self.name} ended by itself, with {self._code}: {self._errors.read_text()[-2000:]}")
        return self._code is not None

    def kill(self) -> None:
        """Kill it, unless it has ended, and see it end."""
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def tell(self, word: str) -> None:
        """Give it an order, if it lives."""
        with suppress(BrokenPipeError):
            os.write(self._orders, f"{word}\n".encode())

    def answered(self) -> str | None:
        """The line that it answered; None where it has not yet."""
        while select.select([self._answers], [], [], 0)[0] and (more := os.read(self._answers, 1 << 16)):
            self._said += more
        line, ended, rest = self._said.partition(b"\n")
        if not ended:
            return None
        self._said = rest
        return line.decode()

    def close(self) -> None:
        os.close(self._orders)
        os.close(self._answers)


class Run:
    """One run on one kind of log.

    Attributes:
        deaths: How often somebody died: by where.
    """

    def __init__(self, kind: str, kills: int, seed: int, folder: Path) -> None:
        self.kind, self.kills, self.seed, self.folder = kind, kills, seed, folder
        self.random = random.Random(f"{seed} moments")
        self.deaths: Counter[str] = Counter()
        self.server: PostgresServer | None = None
        self.log: tuple[str, str] = (kind, str(folder / "sessions.db"))
        self.posters: dict[str, Life] = {}
        self.until = time.monotonic() + SECONDS + SECONDS_A_KILL * kills
        self.armed = True

    def book(self, name: str) -> Book:
        return Book(self.folder / f"{name}.book")

    def strike(self, name: str, number: int, rng: random.Random) -> Strike | None:
        """Where a poster that is started strikes, point after point; half of them wait for a random moment."""
        points = POINTS_OF_A_STATEMENT if self.server else POINTS
        point = points[(number + WHO.index(name)) % len(points)]
        nth, delay, of_server, struck = rng.randint(1, 25), 10 ** rng.uniform(-4, -2), rng.random(), rng.random()
        if struck < 0.5 or not self.armed:
            return None
        delay = delay if point == DURING else 0.0
        if self.server and of_server < 0.3:
            return Strike(point, min(nth, 5), delay, str(self.server.data))
        return Strike(point, nth, delay)

    def start(self, name: str) -> None:
        before = self.posters.pop(name, None)
        if before is not None:
            before.close()
        self.posters[name] = Life(self, name, before.number + 1 if before else 0)

    def go(self) -> str:
        """Kill so often, then look at what is left.

        Returns:
            What was done and found, in a line.

        Raises:
            LostError: Something is wrong with it.
        """
        began = time.monotonic()
        with ExitStack() as stack:
            if self.kind == "postgres":
                self.server = PostgresServer()
                stack.callback(self.server.remove)
                self.server.start()
                self.log = (self.kind, self.server.dsn())
            stack.callback(self._end_posters)
            asyncio.run(self._open())
            alone()
            for name in WHO:
                self.start(name)
            while self.deaths.total() < self.kills:
                self._kill_one()
                if self.deaths.total() % 25 == 0:
                    print(f"{self.kind}: {self.deaths.total()} kills, {time.monotonic() - began:.0f} s", flush=True)
            found = self._stopped()
            entries = {name: self.book(name).lines() for name in WHO}
            accepted = asyncio.run(self._looked_at(found, entries))
        words = Counter(tuple(line[::3]) for lines in entries.values() for line in lines if line[0] == "again")
        deaths = ", ".join(f"{count} {where}" for where, count in sorted(self.deaths.items()))
        return (
            f"{self.kind}: seed {self.seed}, {self.deaths.total()} kills ({deaths}); {accepted:,} posts accepted, none "
            f"lost, none twice, {len(WHO)} hubs and a fold from the start agree; of the posts that nobody was left to "
            f"hear the answer to, {words['again', 'there']} had been accepted and {words['again', 'missing']} had not; "
            f"{time.monotonic() - began:.0f} s"
        )

    async def _open(self) -> None:
        log = open_log(*self.log)
        async with Hub(log, adapters()) as hub:
            for session_id, kind in zip(SESSIONS, ("chain", "discussion"), strict=True):
                await hub.create(kind, WHO[0], WHO, session_id=session_id)
                for name in WHO[1:]:
                    await hub.join(session_id, name)
        await log.close()

    def _kill_one(self) -> None:
        """Wait for a random moment, and kill somebody then; whoever dies by itself meanwhile counts, and comes back."""
        moment, of_server = time.monotonic() + self.random.uniform(0.05, 0.4), self.random.random() < 0.3
        before = self.deaths.total()
        while self.deaths.total() == before:
            if time.monotonic() > self.until:
                raise LostError(f"{self.deaths.total()} of {self.kills} kills in {SECONDS_A_KILL} s each")
            time.sleep(0.003)
            self._bury()
            if time.monotonic() > moment and self.server and of_server:
                self.server.kill()
                self.server.start()
                self.deaths["the server at a random moment"] += 1
            elif time.monotonic() > moment:
                self._kill_a_poster()

    def _kill_a_poster(self) -> None:
        """One that will not die by itself: who strikes at the server outlives it."""
        mortal = [poster for poster in self.posters.values() if poster.strike is None or poster.strike.server_data]
        waiting = [process for process in mortal if process.ready.exists()]
        if waiting:
            victim = self.random.choice(waiting)
            victim.kill()
            self.deaths["at a random moment"] += 1
            self.start(victim.name)

    def _bury(self) -> None:
        for name, item in list(self.posters.items()):
            if item.dead:
                self.deaths[item.strike.point if item.strike else "at no point that was named"] += 1
                self.start(name)
        if self.server and self.server.process.poll() is not None:
            self.server.kill()
            self.server.start()
            self.deaths["the server during somebody's append"] += 1

    def _stopped(self) -> dict[str, list[str]]:
        """What each hub has folded, once all have stopped; whoever dies of what it was told to, comes back for that."""
        self.armed = False
        self._answers("stop")
        return {name: json.loads(answer) for name, answer in self._answers("tell").items()}

    def _answers(self, word: str) -> dict[str, str]:
        """What each poster answers to an order."""
        found: dict[str, str] = {}
        told: set[int] = set()
        until = time.monotonic() + ANSWER_SECONDS
        while len(found) < len(WHO):
            if time.monotonic() > until:
                raise LostError(
                    f"not all have answered {word!r} for {ANSWER_SECONDS} s, but {', '.join(found) or 'nobody'}"
                )
            self._bury()
            for name, item in self.posters.items():
                if item.pid not in told:
                    told.add(item.pid)
                    item.tell(word)
                elif name not in found and (answer := item.answered()) is not None:
                    found[name] = answer
            time.sleep(0.003)
        return found

    async def _looked_at(self, found: dict[str, list[str]], entries: dict[str, list[list[str]]]) -> int:
        """How many posts were accepted.

        Raises:
            LostError: They are not there, each once, or somebody has folded something else.
        """
        log = open_log(*self.log)
        count, wrong = 0, list[str]()
        for at, session_id in enumerate(SESSIONS):
            tried = {name: [line for line in entries[name] if line[1] == session_id] for name in WHO}
            accepted = {(name, line[2]) for name, lines in tried.items() for line in lines if line[0] == "ok"}
            count += len(accepted)
            hub = Hub(log, adapters())
            envelopes = await hub.envelopes(session_id)
            for item in (
                defects(envelopes, tried, refusable=session_id == "in-turn"),
                await posted_again(hub, session_id, accepted, envelopes),
                await folded_otherwise(log, session_id, envelopes, {name: found[name][at] for name in WHO}),
                confirmed_otherwise(await log.cursors(session_id), envelopes),
            ):
                wrong += [f"{session_id}: {defect}" for defect in item]
        await log.close()
        if wrong:
            raise LostError("\n".join([f"{self.kind}, seed {self.seed}:", *wrong[:20]]))
        return count

    def _end_posters(self) -> None:
        for poster in self.posters.values():
            poster.kill()
            poster.close()


class WithoutSnapshots:
    """A log that everybody folds from the start."""

    def __init__(self, log) -> None:
        self._log = log

    def __getattr__(self, name):
        return getattr(self._log, name)

    async def snapshot(self, session_id, adapter):
        return None


def defects(envelopes, books, *, refusable: bool) -> list[str]:
    """What is wrong with a session, by what its posters were answered.

    Args:
        envelopes: What its log holds, in order.
        books: What each poster wrote down of it.
        refusable: Whether the protocol may refuse a post.
    """
    wrong = []
    if [e.seq for e in envelopes] != list(range(1, len(envelopes) + 1)):
        wrong.append("the rows are not numbered without gaps from 1")
    if not all(a.envelope_id < b.envelope_id and a.created_at <= b.created_at for a, b in pairwise(envelopes)):
        wrong.append("the ids do not grow, or the time goes back")
    texts = [e for e in envelopes if e.event_type == EV_TEXT]
    there = {(e.sender_id, e.idempotency_key): e for e in texts}
    wrong += [f"{count} times there: {key}" for key, count in Counter(_key(e) for e in texts).items() if count > 1]
    known = set()
    for name, lines in books.items():
        open_ = {}
        for word, _, key, *more in lines:
            known.add((name, key))
            one = there.get((name, key))
            if word == "try":
                open_[key] = True
            elif word in ("ok", "no"):
                open_.pop(key, None)
            if word == "ok" and one is None:
                wrong.append(f"lost: {name}'s {key}, accepted as row {more[1]}")
            elif word == "ok" and [one.envelope_id, str(one.seq)] != more:
                wrong.append(f"{name}'s {key} was accepted as row {more[1]}, and is row {one.seq}")
            elif word == "ok" and not one.same_content(said_under(one.session_id, name, key)):
                wrong.append(f"{name}'s {key} says something else")
            elif word == "no" and (one is not None or not refusable):
                wrong.append(f"{name}'s {key} was refused" + (", and is there" if one else ""))
        wrong += [f"{name}'s {key} never had an answer" for key in open_]
    return wrong + [f"nobody posted {key}" for key in there if key not in known]


async def posted_again(hub, session_id, accepted, envelopes) -> list[str]:
    """What is accepted once more, where it is posted again under its key."""
    first = {e.envelope_id for e in envelopes}
    wrong = []
    for name, key in sorted(accepted):
        if (await hub.post(said_under(session_id, name, key))).envelope_id not in first:
            wrong.append(f"{name}'s {key} was accepted once more, when it was posted again")
    return wrong


async def folded_otherwise(log, session_id, envelopes, states) -> list[str]:
    """Who has folded something else than a fold from the start has, and whether that has folded what is in the log."""
    whole = await Hub(WithoutSnapshots(log), adapters()).folded(session_id)
    states = states | {"a new hub": repr(await Hub(log, adapters()).folded(session_id))}
    wrong = [f"{who} has folded {state}, not {whole}" for who, state in states.items() if state != repr(whole)]
    said = [(e.sender_id, e.event_data["text"]) for e in envelopes if e.event_type == EV_TEXT]
    chain = reduce(lambda chain, value: chained(chain, *value), said, 0)
    if getattr(whole.adapter_state, "chain", chain) != chain:
        wrong.append("the fold from the start has not folded what stands in the log")
    return wrong


def confirmed_otherwise(cursors, envelopes) -> list[str]:
    """Whose cursor counts something else than what was addressed to it up to there."""
    wrong = []
    for name, cursor in cursors.items():
        addressed = sum(e.sender_id != name for e in envelopes[: cursor.seq])
        if addressed != cursor.count:
            wrong.append(f"{name} has confirmed {cursor}, and {addressed} were addressed to it")
    return wrong


def _key(envelope) -> str:
    return f"{envelope.sender_id}'s {envelope.idempotency_key}"


def main(arguments: list[str] | None = None) -> int:
    """0 where all is there, once."""
    parser = argparse.ArgumentParser(prog="kills.py", description=__doc__)
    parser.add_argument("--log", choices=["sqlite", "postgres", "both"], default="both")
    parser.add_argument("--kills", type=int, default=200, help="on each log")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    chosen = parser.parse_args(arguments)
    # So that whoever is told to stop still stops all that it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for kind in ["sqlite", "postgres"] if chosen.log == "both" else [chosen.log]:
        if kind == "postgres" and BIN is None:
            print(f"postgres: not run. {MISSING}", flush=True)
            continue
        print(f"{kind}: seed {chosen.seed}, {chosen.kills} kills", flush=True)
        with tempfile.TemporaryDirectory(prefix="kills-") as folder:
            try:
                print(Run(kind, chosen.kills, chosen.seed, Path(folder)).go(), flush=True)
            except LostError as failed:
                print(failed, "did not hold", sep="\n", flush=True)
                return 1
    print("held", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
