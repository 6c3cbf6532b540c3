"""A process with a hub that posts until it is told to stop, or is killed.

Whatever it is about to post it writes to a book of its own first, and whatever it was answered at once. When it is
started again it posts anew, under its key, what it has no answer to. It ends with whoever gives it orders.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NoReturn
from zlib import crc32

from striking import Strike, StrikingLog

from otel_assembly.errors import LogUnavailableError, LogUnsureError, ProtocolError
from otel_assembly.sessions import (
    EV_TEXT,
    DiscussionAdapter,
    Envelope,
    FullTranscript,
    Hub,
    PostgresSessionLog,
    SqliteSessionLog,
    TextAdapter,
)


@dataclass(frozen=True)
class ChainState:
    count: int = 0
    said: tuple[tuple[str, int], ...] = ()
    chain: int = 0


def chained(chain: int, sender_id: str, text: str) -> int:
    """A number of all that was said until now, in this order."""
    return crc32(f"{sender_id}: {text}".encode(), chain)


class ChainAdapter(TextAdapter[ChainState]):
    """Anybody speaks at any time; the state tells two logs apart that differ in any text, or in its place."""

    type: ClassVar[str] = "chain"

    def initial_state(self, metadata):
        return ChainState()

    def fold(self, envelope, state):
        if envelope.event_type != EV_TEXT:
            return state
        said = dict(state.said)
        said[envelope.sender_id] = said.get(envelope.sender_id, 0) + 1
        chain = chained(state.chain, envelope.sender_id, envelope.event_data["text"])
        return ChainState(state.count + 1, tuple(sorted(said.items())), chain)

    def default_view_policy(self, metadata, participant_id):
        return FullTranscript()


def adapters():
    return [ChainAdapter(), DiscussionAdapter()]


def open_log(kind: str, at: str):
    return SqliteSessionLog(at, patience=500) if kind == "sqlite" else PostgresSessionLog(at, patience=30)


def said_under(session_id: str, who: str, key: str) -> Envelope:
    """The one envelope of a key: its text follows from it, of some bytes or of some pages."""
    text = f"{key} " + "x" * (crc32(key.encode()) % 9_000 if key.endswith("7") else 40)
    return Envelope(session_id, who, EV_TEXT, {"text": text}, idempotency_key=key)


class Book:
    """What a poster tried, and what it was answered, line by line; a line that was not written whole does not count."""

    def __init__(self, path) -> None:
        self.path = Path(path)
        self._file: int | None = None

    def write(self, *words: object, sync: bool = False) -> None:
        if self._file is None:
            # What a kill left of a line is ended, so that it spoils no other one.
            torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n") and self.path.stat().st_size
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            if torn:
                os.write(self._file, b" torn\n")
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())
        if sync:
            os.fsync(self._file)

    def lines(self) -> list[list[str]]:
        if not self.path.exists():
            return []
        whole = self.path.read_text().split("\n")[:-1]
        return [line.split() for line in whole if not line.endswith(" torn")]

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)

    def unanswered(self) -> list[tuple[str, str]]:
        """What was tried, and neither accepted nor refused: session and key."""
        tried: dict[tuple[str, str], None] = {}
        for word, *rest in self.lines():
            if word == "try":
                tried[rest[0], rest[1]] = None
            elif word in ("ok", "no"):
                tried.pop((rest[0], rest[1]), None)
        return list(tried)


@dataclass(frozen=True)
class Order:
    """What a poster is told when it is started.

    Attributes:
        name: Who it is.
        life: How often it was started before.
        seed: What its choices follow from.
        log: The kind of log, and where it is.
        sessions: The session that most is posted to, and another one.
        book: The file in which it notes what it does.
        ready: A file that it makes when it begins with posts of its own.
        strike: Where it strikes; None for nowhere.
    """

    name: str
    life: int
    seed: float
    log: tuple[str, str]
    sessions: tuple[str, str]
    book: Path
    ready: Path
    strike: Strike | None


class Poster:
    def __init__(self, order: Order) -> None:
        self.name, self.sessions, self.number, self.ready = order.name, order.sessions, order.life, order.ready
        self.random = random.Random(order.seed)
        strike = order.strike
        log = open_log(*order.log)
        self.log = StrikingLog(log, strike) if strike else log
        self.hub = Hub(self.log, adapters(), snapshot_every=37, inbox_limit=5_000)
        self.book = Book(order.book)

    async def post(self, session_id, key) -> None:
        """Post until there is an answer, always under the same key."""
        while True:
            try:
                accepted = await self.hub.post(said_under(session_id, self.name, key), timeout=60)
            except ProtocolError:
                self.book.write("no", session_id, key)
                return
            except (LogUnsureError, LogUnavailableError):
                self.book.write("unsure", session_id, key)
            else:
                self.book.write("ok", session_id, key, accepted.envelope_id, accepted.seq, sync=True)
                return

    async def post_again(self) -> None:
        """Post what there is no answer to, which may have been accepted, or not."""
        for session_id, key in self.book.unanswered():
            there = await self.hub.posted_under(session_id, self.name, key)
            self.book.write("again", session_id, key, "there" if there else "missing")
            await self.post(session_id, key)

    async def read(self, session_id) -> None:
        """Confirm what was delivered, in order, and never what was confirmed before."""
        seq = 0
        for delivery in await self.hub.inbox(session_id, self.name, limit=500):
            assert delivery.envelope.seq > seq
            seq = delivery.envelope.seq
            if self.random.random() < 0.2:
                await self.hub.confirm(delivery)

    async def run(self, stop) -> None:
        await self.post_again()
        self.ready.touch()
        number = 0
        while not stop.is_set():
            session_id = self.sessions[self.random.random() < 0.2]
            key = f"{self.name}-{self.number}-{number}"
            number += 1
            self.book.write("try", session_id, key)
            await self.post(session_id, key)
            if number % 25 == 0:
                await self.read(session_id)
        if isinstance(self.log, StrikingLog):
            self.log.spare()


async def _main(order: Order, orders: int, answers: int) -> None:
    loop, told = asyncio.get_running_loop(), asyncio.Queue()

    def listen():
        with os.fdopen(orders) as lines:
            for line in lines:
                loop.call_soon_threadsafe(told.put_nowait, line.strip())
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    poster, stop = Poster(order), asyncio.Event()
    running = asyncio.create_task(poster.run(stop))
    waiting = asyncio.create_task(told.get())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    stop.set()
    await running
    os.write(answers, b"stopped\n")
    assert [await waiting, await told.get()] == ["stop", "tell"]
    states = [repr(await poster.hub.folded(session)) for session in poster.sessions]
    os.write(answers, json.dumps(states).encode() + b"\n")
    await told.get()


def live(order: Order, orders: int, answers: int) -> NoReturn:
    """The life of a process that was forked for it.

    Args:
        order: What to do.
        orders: Where it is told to ``stop``, and then to ``tell`` what its hub has folded, line by line.
        answers: Where it answers, ``stopped``, and the sessions as JSON.
    """
    try:
        asyncio.run(_main(order, orders, answers))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)
