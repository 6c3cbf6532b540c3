"""How long an assembly keeps an event loop from everything else, at the longest.

A second task asks for its turn every half a millisecond; the longest that it had to wait beyond that is the stall. The
garbage collector is off, for what that takes is measured where there are many conversations. What a program calls and
does not await stands in columns of its own: its `History.extend`, and a framework's reducer.
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from benchmarks.harness import Size, Table
from benchmarks.prefix import TRANSCRIPTS
from benchmarks.telemetry import recording
from benchmarks.workload import BUDGET, MODEL, SYSTEM, messages
from otel_assembly import Assembler, BudgetPolicy, Context, ConversationPolicy, History
from otel_assembly.instrumentation import Instrumentation
from otel_assembly.recorder import NullRecorder
from otel_assembly.tokens import counter_for
from otel_assembly.tokens.vocabulary import shared_encoding

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from otel_assembly.recorder import Recorder

    Turns = list[list[dict[str, Any]]]

#: Rounds, bytes of the long texts.
SIZES: dict[Size, tuple[int, int]] = {"full": (5, 1 << 20), "quick": (3, 1 << 20), "tiny": (1, 1 << 14)}
_TICK = 0.0005


class Watch:
    """The longest that a loop was kept from a task which was due."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def _tick(self) -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(_TICK)
            now = time.perf_counter()
            self.longest = max(self.longest, now - last - _TICK)
            last = now

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._tick())
        await asyncio.sleep(0.005)
        self.longest = 0.0
        return self

    async def __aexit__(self, *raised: object) -> None:
        await asyncio.sleep(0.002)
        self._task.cancel()


@contextmanager
def _uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def _assembled(turns: Turns, make: Callable[[], Any], recorder: Recorder) -> float:
    """The longest stall of assemblies, one after each of these lists of new messages."""
    assembler = Assembler([ConversationPolicy(), BudgetPolicy(BUDGET, 0)], model=MODEL, recorder=recorder)
    held, context = make(), Context(agent_name="bench")
    longest = 0.0
    for new in turns:
        held.extend(new)
        async with Watch() as watch:
            await assembler.assemble([SYSTEM], held, context)
        longest = max(longest, watch.longest)
    return longest


async def _taken_in(turns: Turns) -> float:
    """The longest that a program's own call takes which puts messages into a history."""
    history, longest = History(), 0.0
    for new in turns:
        started = time.perf_counter()
        history.extend(new)
        longest = max(longest, time.perf_counter() - started)
    return longest


async def _observed(turns: Turns) -> float:
    """The same where a framework's reducer is a function that waits for nothing: all of it is a stall."""
    looker = Instrumentation("bench", recording())
    looker.observed._counter = counter_for(MODEL)
    held: list[dict[str, Any]] = []
    longest = 0.0
    for new in turns:
        held.extend(new)
        started = time.perf_counter()
        assembly = looker.observed.begin(looker, held, prompts=(SYSTEM,), agent_name="bench")
        assert assembly is not None
        with assembly.step("window", kind="reduction") as step:
            step.out(held[-50:])
        assembly.end()
        longest = max(longest, time.perf_counter() - started)
    return longest


def _recorded(seed: int) -> Turns:
    """A conversation's turns: a recorded one's where they lie beside the checkout."""
    if TRANSCRIPTS.is_file():
        said = json.loads(TRANSCRIPTS.read_text(encoding="utf-8").splitlines()[seed])["messages"][1:]
    else:
        said = messages(30, seed)
    return [said[at : at + 2] for at in range(0, len(said), 2)]


def _first_of(size: int, seed: int) -> Turns:
    """A conversation of so many bytes that nobody has seen."""
    made = messages(size // 200, seed)
    upto, total = 0, 0
    while upto < len(made) and total < size:
        total += len(made[upto]["content"] or "")
        upto += 1
    return [made[:upto]]


async def report(size: Size) -> list[Table]:
    """A row for what comes in, a column for how it is held."""
    rounds, long = SIZES[size]
    shared_encoding("o200k_base")
    cases: dict[str, Callable[[int], Turns]] = {
        "a recorded conversation, turn by turn": _recorded,
        "1 MiB of one letter in a message": lambda seed: [_long("abcdefghij"[seed % 10] * long)],
        "1 MiB of one word in a message": lambda seed: [_long(f"word{seed} " * (long // 6))],
        "a first turn of 4 MiB": lambda seed: _first_of(4 * long, 50 + seed),
    }
    ways: dict[str, Callable[[Turns], Awaitable[float]]] = {
        "a History": lambda turns: _assembled(turns, History, NullRecorder()),
        "a list": lambda turns: _assembled(turns, list, NullRecorder()),
        "a History, recording": lambda turns: _assembled(turns, History, recording()),
        "a list, recording": lambda turns: _assembled(turns, list, recording()),
        "the user's `History.extend`": _taken_in,
        "a framework's synchronous reducer, recording": _observed,
    }
    table = Table(
        "stalls",
        "an event loop's longest stall, ms: the median of the rounds (the longest of all)",
        ["what comes in", *ways],
    )
    for way in ways.values():
        await way(_recorded(0))  # what a process does once, it has done
    for name, case in cases.items():
        for at, way in enumerate(ways.values()):
            found = []
            for index in range(rounds):
                turns = case(100 * at + index if "recorded" not in name else index)
                with _uncollected():
                    found.append(await way(turns))
            table.put(name, f"{statistics.median(found) * 1e3:,.1f} ({max(found) * 1e3:,.1f})")
    table.notes += [
        "The first four columns are assemblies. A synchronous hook counts tokens synchronously.",
        "The garbage collector is off.",
    ]
    return [table]


def _long(text: str) -> list[dict[str, Any]]:
    """A message that fits into no prompt, an answer, and a question that does."""
    said = (("user", text), ("assistant", "Too long."), ("user", "And now?"))
    return [{"role": role, "content": content} for role, content in said]
