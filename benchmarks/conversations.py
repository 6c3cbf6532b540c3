"""Five hundred conversations in one process beside one, and what the garbage collector takes of them.

A conversation keeps its texts and some objects of ours. A full collection looks at all objects that were made since the
last `gc.freeze`, so the more conversations are open, the longer it takes, whichever of them has its turn. All is
processor time of the thread.
"""

from __future__ import annotations

import gc
import time
from typing import Any

from benchmarks.harness import Size, Table, Timing, race
from benchmarks.turns import Engine
from benchmarks.workload import messages, pairs
from otel_assembly import History
from otel_assembly.recorder import NullRecorder

#: Conversations, messages of each, turns that are measured.
SIZES: dict[Size, tuple[int, int, int]] = {"full": (500, 400, 2_000), "quick": (100, 200, 400), "tiny": (4, 20, 16)}

ONE, ALL = "one", "all"


class Collections:
    """What the garbage collector did meanwhile."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.all = 0
        self.full = 0
        self._began = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time()
            return
        self.seconds += time.thread_time() - self._began
        self.all += 1
        self.full += info["generation"] == 2


class Many:
    """Conversations that take their turns one after the other, each with what holds its own."""

    def __init__(self, count: int, length: int, seed: int) -> None:
        self._engines = [Engine(History(messages(length, seed + index)), NullRecorder()) for index in range(count)]
        self._turns = 0

    async def turn(self, new: list[dict[str, Any]]) -> None:
        """The next one's."""
        engine = self._engines[self._turns % len(self._engines)]
        self._turns += 1
        await engine.turn(new)


async def _run(open_: dict[str, Many], turns: int, seed: int) -> tuple[dict[str, Timing], Collections]:
    new = {name: pairs(f"{name} {seed}", turns, seed) for name in open_}
    runners = {name: many.turn for name, many in open_.items()}
    gc.collect()
    collections = Collections()
    gc.callbacks.append(collections)
    timings = await race(runners, turns, floor=ONE, before=lambda name, value: new[name][value], clock=time.thread_time)
    gc.callbacks.remove(collections)
    return timings, collections


async def report(size: Size) -> list[Table]:
    """A row for what is open in the process."""
    count, length, turns = SIZES[size]
    table = Table(
        "conversations",
        f"a turn among conversations of {length:,} messages, not recorded",
        [
            "open",
            "median (quartiles), its ratio to a single conversation",
            "mean",
            "longest",
            "of it the collector",
            "full collections",
            "a full collection takes",
        ],
    )

    def row(name: str, timings: dict[str, Timing], collections: Collections, own: str = ALL) -> None:
        taken = timings[own].taken
        everything = sum(sum(timing.taken) for timing in timings.values())
        table.rows[name] = [
            timings[own] if own == ALL else Timing(taken),
            f"{sum(taken) / len(taken) * 1e6:,.0f} µs",
            f"{max(taken) * 1e3:,.1f} ms",
            f"{collections.seconds / everything:.1%}",
            f"{collections.full} of {collections.all:,}",
            f"{_full_collection() * 1e3:,.1f} ms",
        ]

    one = Many(1, length, 1_000)
    await _run({ONE: one}, min(turns, 100), 20)
    row("1", *await _run({ONE: one}, turns, 21), ONE)
    both = {ONE: one, ALL: Many(count, length, 2_000)}
    row(f"{count:,}, their first turns", *await _run(both, count, 22))
    await _run(both, count, 23)
    row(f"{count:,}", *await _run(both, turns, 24))
    gc.collect()
    gc.freeze()
    row(f"{count:,}, after `gc.freeze()`", *await _run(both, turns, 25))
    gc.unfreeze()
    table.notes += ["In the row of first turns, the ratio is to later turns of the single conversation."]
    return [table]


def _full_collection() -> float:
    """Seconds that one takes here and now."""
    began = time.thread_time()
    gc.collect()
    return time.thread_time() - began
