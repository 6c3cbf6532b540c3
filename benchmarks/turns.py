"""What a turn costs that added two messages, and the first turn of a conversation, at growing lengths.

Each engine and the floor run in turn, turn by turn, in one process. It is the processor time of the thread that counts
in a steady turn, and the clock on the wall in a first one, whose counting has threads of its own.
"""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Size, Table, Timing, race, times
from benchmarks.telemetry import Watch, recording, sampled_out
from benchmarks.workload import BUDGET, MODEL, SYSTEM, Floor, messages, pairs
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
    "full": ((1_000, 10_000, 100_000, 1_000_000), 200, (15, 7, 3, 1)),
    "quick": ((1_000, 10_000, 100_000), 100, (5, 3, 1)),
    "tiny": ((60, 120), 4, (1, 1)),
}
WARM_UP = 20
PATIENCE = 3.0

FLOOR = "floor: tokenise two, scan back"
FLOOR_FIRST = "floor: tokenise all, scan back"
SILENT = "TokenBudgetPolicy"
RECORDING = "TokenBudgetPolicy, SDK, recording, with metrics"
BY_HAND = "the same spans and points by hand"
OVER_HAND = "(recording − silent) ÷ by hand"
COMPARED = "one comparison of two equal lists, in C"


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


def engines(events: Events, length: int, *, all_of_them: bool = True) -> dict[str, Callable[[Events], Awaitable[int]]]:
    """Every way to run ours that a row is about; of the longest conversation not those that say the same again."""
    silent = NullRecorder()
    made: dict[str, Any] = {
        SILENT: Engine(History(events), silent),
        "BudgetPolicy": Engine(History(events), silent, lambda: BudgetPolicy(BUDGET, 0)),
        "ContextAssembler": Built(History(events), silent),
        "TokenBudgetPolicy, a list that the user appends to": Engine(list(events), silent),
        RECORDING: Engine(History(events), recording()),
    }
    if all_of_them:
        abandoned = messages(length, abandon_every=10)
        made |= {
            "TokenBudgetPolicy, one call in ten abandoned": Engine(History(abandoned), silent),
            "BudgetPolicy, a list that the user appends to": Engine(
                list(events), silent, lambda: BudgetPolicy(BUDGET, 0)
            ),
            "ContextAssembler, a list that the user appends to": Built(list(events), silent),
            "TokenBudgetPolicy, OpenTelemetry not configured": Engine(History(events), OpenTelemetryRecorder()),
            "TokenBudgetPolicy, SDK, sampled out": Engine(History(events), sampled_out()),
        }
    return {name: engine.turn for name, engine in made.items()}


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
        f"a turn that added two messages, budget {BUDGET:,} tokens: median (quartiles), and its ratio to the floor",
        ["events", *(f"{length:,}" for length in lengths)],
    )
    said = ""
    for length in lengths:
        events = messages(length)
        by_hand, said = await _by_hand(events)
        same = list(events)
        runners = {
            FLOOR: Floor(events).turn,
            **engines(events, length, all_of_them=length < 1_000_000),
            BY_HAND: by_hand,
            COMPARED: lambda new, one=same, other=list(same): one == other,
        }
        new = {name: pairs(name, rounds + WARM_UP) for name in runners}
        gc.collect()
        gc.freeze()
        taken = await race(
            runners,
            rounds,
            floor=FLOOR,
            before=lambda name, one, new=new: new[name][one],
            warm_up=WARM_UP,
            clock=time.thread_time,
            patience=PATIENCE,
        )
        gc.unfreeze()
        for name in runners:
            table.put(name, taken.get(name))
        both = (taken.get(name) for name in (RECORDING, SILENT, BY_HAND))
        table.put(OVER_HAND, _over_hand(*both))
    table.notes += [
        f"A recorded turn is {said}; by hand, they are made through the SDK alone, with ready-made arguments.",
        "The garbage collector is kept from what was there before the first turn (`gc.freeze`), in all rows.",
        f"`–`: a turn took more than {PATIENCE:.0f} s, or (at 1,000,000) the row above says it.",
    ]
    return table


def _over_hand(recorded: Timing | None, silent: Timing | None, by_hand: Timing | None) -> str | None:
    if recorded is None or silent is None or by_hand is None:
        return None
    return f"**{times((recorded.median - silent.median) / by_hand.median)}**"


async def first(size: Size) -> Table:
    """The same for a conversation that is seen for the first time."""
    lengths, _, all_rounds = SIZES[size]
    table = Table(
        "first",
        f"the first turn of a conversation, budget {BUDGET:,} tokens: median (quartiles), and its ratio to the floor",
        ["events", *(f"{length:,}" for length in lengths)],
        notes=[
            "Every text is new. Past 4 MiB of them ours estimates the oldest; the floor counts them all.",
            f"`–`: it took more than {10 * PATIENCE:.0f} s.",
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
    for length, rounds in zip(lengths, all_rounds, strict=True):
        seeds = iter(range(100, 10_000))

        def before(name: str, one: int, length: int = length, seeds: Iterator[int] = seeds) -> Callable[[Events], Any]:
            made = makers[name](messages(length, seed=next(seeds)))
            gc.collect()
            return made

        taken = await race(
            dict.fromkeys(makers, _run), rounds, floor=FLOOR_FIRST, before=before, patience=10 * PATIENCE
        )
        for name in makers:
            table.put(name, taken.get(name))
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
