"""What a turn costs that added two messages, and the first turn of a conversation, at growing lengths.

Each engine and the floor run in turn, turn by turn, in one process. It is the processor time of the thread that counts
in a steady turn, and the clock on the wall in a first one, whose counting has threads of its own.
"""

from __future__ import annotations

import gc
import inspect
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import otel_assembly
from benchmarks.harness import Size, Table, Timing, race, times
from benchmarks.minimal import MinimalEngine
from benchmarks.telemetry import Watch, recording, sampled_out
from benchmarks.workload import BUDGET, MODEL, SYSTEM, Floor, counting, fixed_tokens, messages, pairs
from otel_assembly import (
    Assembler,
    BudgetPolicy,
    Context,
    ContextAssembler,
    ConversationPolicy,
    History,
    Task,
    TokenBudgetPolicy,
)
from otel_assembly.recorder import NullRecorder
from otel_assembly.telemetry import OpenTelemetryRecorder

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from otel_assembly.policies import AssemblyPolicy
    from otel_assembly.recorder import Recorder

    Events = list[dict[str, Any]]

#: Lengths, rounds of a steady turn, rounds of a first one by length.
SIZES: dict[Size, tuple[tuple[int, ...], int, tuple[int, ...]]] = {
    "full": ((1_000, 10_000, 100_000, 1_000_000), 150, (9, 5, 2, 1)),
    "quick": ((1_000, 10_000, 100_000), 100, (5, 3, 1)),
    "tiny": ((60, 120), 4, (1, 1)),
}
WARM_UP = 20
PATIENCE = 2.0
#: Whoever needs more seconds than this for a turn is not asked for ten times as long a conversation.
SLOW = 0.3

FLOOR = "floor: a minimal engine without a record"
SCAN = "tokenize two, scan back"
FLOOR_FIRST = "floor: tokenize all, scan back"
SILENT = "TokenBudgetPolicy"
LISTED = "TokenBudgetPolicy, a list that the user appends to"
RECORDING = "TokenBudgetPolicy, SDK, recording, with metrics"
BY_HAND = "the same spans and points by hand"
OVER_HAND = "(recording − silent) ÷ by hand"
COMPARED = "one comparison of two equal lists, in C"
CALLS_SILENT = "Python calls of a turn, TokenBudgetPolicy"
CALLS_RECORDED = "Python calls of a turn, TokenBudgetPolicy, SDK, recording, with metrics"
#: The floor counts so many of the first messages, the newest ones: more than fit in the budget.
_COUNTED = 400
_PACKAGE = str(Path(otel_assembly.__file__).parent)
#: The turns whose calls are counted, after as many others.
_COUNTED_TURNS = 16


class Engine:
    """Ours: a filter and a reducer over what holds the conversation."""

    def __init__(
        self, events: Any, recorder: Recorder, policy: Callable[[], AssemblyPolicy] = lambda: TokenBudgetPolicy(BUDGET)
    ) -> None:
        self.events = events
        self._assembler = Assembler([ConversationPolicy(), policy()], model=MODEL, recorder=recorder)
        self._context = Context(agent_name="bench")

    async def turn(self, new: Events) -> int:
        """How many messages fit."""
        append = self.events.append
        for event in new:
            append(event)
        assembly = await self._assembler.assemble([SYSTEM], self.events, self._context)
        return len(assembly.events)


class Built:
    """Ours: a `ContextAssembler`, whose task is the newest question over all the turns before it."""

    def __init__(self, events: Any, recorder: Recorder) -> None:
        self._events = events
        self._assembler = ContextAssembler(
            system=SYSTEM,
            window=BUDGET + 500,
            output_reserve=500,
            scopes=lambda user, task: {"all"},
            order="cache",
            model=MODEL,
            recorder=recorder,
        )
        self._context = Context(agent_name="bench")

    async def turn(self, new: Events) -> int:
        """How many messages are sent."""
        append = self._events.append
        for event in new:
            append(event)
        made = await self._assembler.assemble(Task("What now?", recent=self._events), user="ada", context=self._context)
        return len(made.messages)


def engines(events: Events) -> dict[str, Callable[[], Any]]:
    """What makes each way to run ours that a row is about."""
    silent = NullRecorder()

    def budget() -> AssemblyPolicy:
        return BudgetPolicy(BUDGET, 0)

    return {
        SILENT: lambda: Engine(History(events), silent),
        "BudgetPolicy": lambda: Engine(History(events), silent, budget),
        LISTED: lambda: Engine(list(events), silent),
        RECORDING: lambda: Engine(History(events), recording()),
        "ContextAssembler": lambda: Built(History(events), silent),
        "TokenBudgetPolicy, one call in ten abandoned": lambda: Engine(
            History(messages(len(events), abandon_every=10)), silent
        ),
        "BudgetPolicy, a list that the user appends to": lambda: Engine(list(events), silent, budget),
        "ContextAssembler, a list that the user appends to": lambda: Built(list(events), silent),
        "TokenBudgetPolicy, OpenTelemetry not configured": lambda: Engine(History(events), OpenTelemetryRecorder()),
        "TokenBudgetPolicy, SDK, sampled out": lambda: Engine(History(events), sampled_out()),
    }


#: Rows of the longest conversation; the others say the same again.
LONGEST_ROWS = 4


async def _by_hand(events: Sequence[dict[str, Any]]) -> tuple[Callable[[Any], None], str]:
    """A steady turn's spans and points, to be made by hand, and how much that is."""
    watch = Watch()
    engine = Engine(History(events[:1_000]), watch.recorder)
    for new in pairs("by hand", 10):
        watch.forget()
        await engine.turn(new)
    return watch.by_hand(), watch.said


async def steady(size: Size) -> Table:
    """A row for each engine, a column for each length."""
    lengths, rounds, _ = SIZES[size]
    table = Table(
        "turns",
        f"a turn that added two messages, budget {BUDGET:,} tokens: median (quartiles), ratio of means to the floor",
        ["events", *(f"{length:,}" for length in lengths)],
    )
    said = ""
    slow: set[str] = set()
    for length in lengths:
        events = messages(length)
        by_hand, said = await _by_hand(events)
        same = list(events)
        makers = dict(list(engines(events).items())[: LONGEST_ROWS if length >= 1_000_000 else None])
        runners: dict[str, Callable[[Any], Any]] = {
            FLOOR: MinimalEngine(BUDGET, fixed_tokens(), counting(), events, _COUNTED).turn,
            SCAN: Floor(events).turn,
            **{name: make().turn for name, make in makers.items() if name not in slow},
            BY_HAND: by_hand,
            COMPARED: lambda new, value=same, other=list(same): value == other,
        }
        new = {name: pairs(name, rounds + WARM_UP) for name in runners}
        for name, run in runners.items():  # what the first turn keeps is frozen, too
            begun = run(pairs(f"{name}, first", 1)[0])
            if inspect.isawaitable(begun):
                await begun
        gc.collect()
        gc.freeze()
        taken = await race(
            runners,
            rounds,
            floor=FLOOR,
            before=lambda name, value, new=new: new[name][value],
            warm_up=WARM_UP,
            clock=time.thread_time,
            patience=PATIENCE,
        )
        gc.unfreeze()
        taken = {name: replace(timing, of_means=True) for name, timing in taken.items()}
        slow |= {name for name in makers if name not in taken or taken[name].median > SLOW}
        for name in (FLOOR, SCAN, *engines([]), BY_HAND, COMPARED):
            table.put(name, taken.get(name))
        for row, name in ((CALLS_SILENT, SILENT), (CALLS_RECORDED, RECORDING)):
            table.put(row, await _calls(makers[name]()))
        both = (taken.get(name) for name in (RECORDING, SILENT, BY_HAND))
        table.put(OVER_HAND, _over_hand(*both))
    table.notes += [
        "The floor takes the decisions of TokenBudgetPolicy after ConversationPolicy, and keeps no record of them.",
        f"Python calls of this package's functions, counted with `sys.setprofile`: the mean of {_COUNTED_TURNS} turns.",
        f"A recorded turn is {said}; by hand, the SDK alone creates them with precomputed arguments.",
        "In all rows, the garbage collector ignores objects older than the second turn (`gc.freeze`).",
        f"`–`: more than {PATIENCE:.0f} s a turn, or {SLOW} s with a tenth of the messages; or another row shows it.",
    ]
    return table


async def _calls(engine: Any) -> int:
    """Return how many calls of this package's functions a turn makes, as a mean of several turns.

    The functions of the SDK and of the event loop do not count: another release has others.
    """
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(_PACKAGE)

    turns = pairs("calls", 2 * _COUNTED_TURNS)
    for new in turns[:_COUNTED_TURNS]:
        await engine.turn(new)
    before = sys.getprofile()
    for new in turns[_COUNTED_TURNS:]:
        sys.setprofile(count)
        try:
            await engine.turn(new)
        finally:
            sys.setprofile(before)
    return round(calls / _COUNTED_TURNS)


def _over_hand(recorded: Timing | None, silent: Timing | None, by_hand: Timing | None) -> str | None:
    if recorded is None or silent is None or by_hand is None:
        return None
    return f"**{times((recorded.mean - silent.mean) / by_hand.mean)}**"


async def first(size: Size) -> Table:
    """The same for a conversation that is seen for the first time."""
    lengths, _, all_rounds = SIZES[size]
    table = Table(
        "first",
        f"the first turn of a conversation, budget {BUDGET:,} tokens: median (quartiles), and its ratio to the floor",
        ["events", *(f"{length:,}" for length in lengths)],
        notes=[
            "Every text is new. Beyond 4 MiB of text, otel-assembly estimates the oldest; the floor counts all.",
            f"`–`: more than {PATIENCE:.0f} s with a tenth of the messages.",
        ],
    )
    silent = NullRecorder()
    makers: dict[str, Callable[[Events], Callable[[Events], Any]]] = {
        FLOOR_FIRST: lambda events: lambda new: Floor(events, lazily=False).turn(new),
        SILENT: lambda events: _first(lambda: Engine(History(events), silent)),
        "BudgetPolicy": lambda events: _first(lambda: Engine(History(events), silent, lambda: BudgetPolicy(BUDGET, 0))),
        "ContextAssembler": lambda events: _first(lambda: Built(events, silent)),
        "TokenBudgetPolicy, a list": lambda events: _first(lambda: Engine(events, silent)),
        RECORDING: lambda events: _first(lambda: Engine(History(events), recording())),
    }
    asked = tuple(makers)
    for length, rounds in zip(lengths, all_rounds, strict=True):
        seeds = iter(range(100, 10_000))

        def before(name: str, one: int, length: int = length, seeds: Iterator[int] = seeds) -> Callable[[Events], Any]:
            made = makers[name](messages(length, seed=next(seeds)))
            gc.collect()
            return made

        taken = await race(dict.fromkeys(asked, _run), rounds, floor=FLOOR_FIRST, before=before)
        for name in makers:
            table.put(name, taken.get(name))
        asked = tuple(name for name in asked if name in (FLOOR_FIRST, SILENT) or taken[name].median < PATIENCE)
    return table


async def _run(first: Callable[[Events], Any]) -> None:
    made = first([])
    if made is not None and not isinstance(made, int):
        await made


def _first(make: Callable[[], Any]) -> Callable[[Events], Awaitable[int]]:
    async def turn(new: Events) -> int:
        return await make().turn(new)  # type: ignore[no-any-return]

    return turn


async def report(size: Size) -> list[Table]:
    """Steady turns, then first ones."""
    return [await steady(size), await first(size)]
