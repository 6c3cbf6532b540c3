"""What an agent's loop takes beside its model and its assemblies, and beside a loop that is written by hand.

Both ask the same model, which answers at once, with the same chain of policies, and await the same tool. They run in
turn, ask by ask, in one process; it is the processor time of the thread that counts. A turn is one call of the model.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Self

from benchmarks.harness import Size, Table, Timing, race
from benchmarks.telemetry import Watch, recording
from otel_assembly import (
    Agent,
    AlertPolicy,
    Assembler,
    Context,
    History,
    ModelRequest,
    ModelResponse,
    ToolCallEvent,
    ToolResultEvent,
)
from otel_assembly.recorder import NullRecorder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.assembly import Assembly
    from otel_assembly.recorder import Recorder

#: How many calls of the tool an ask has, and how many asks there are.
SIZES: dict[Size, tuple[tuple[int, ...], int]] = {
    "full": ((1, 8), 600),
    "quick": ((1, 8), 200),
    "tiny": ((1, 2), 4),
}
WARM_UP = 20
#: A conversation is so many asks long, and the fastest one counts: what other programs take of the processor's caches
#: is no part of it.
FASTEST_OF = 20

FLOOR = "floor: a loop by hand"
OURS = "Agent.ask"
RECORDED = "Agent.ask, SDK, recording, with metrics"
BY_HAND = "the same spans and points by hand"
OVER_FLOOR = "Agent.ask − floor"
OWN = "Agent.ask − model − assembly"
LOOP = "Agent.ask − model − assembly − history"
#: The same with clocks, which take time themselves: it says what the model, the assembly and the history take.
TIMED = "Agent.ask, with clocks in it"
SYSTEM = "You look up what you are asked for."


class _Clock:
    """The processor time of what is no part of a loop: the model and the assembly; and, apart, of the history."""

    def __init__(self) -> None:
        self.spent = 0.0
        self.reading = 0.0

    def watch(self, history: History) -> None:
        """Time what this history reads of what is appended to it."""
        append = history.append

        def timed(event: Any) -> None:
            began = time.thread_time()
            append(event)
            self.reading += time.thread_time() - began

        history.append = timed  # type: ignore[method-assign]  # of this one object


class _Model:
    """Calls the tool so many times, then answers."""

    model = "scripted"

    def __init__(self, calls: int, clock: _Clock | None = None) -> None:
        self._calls = calls
        self._clock = clock
        self._asked = 0

    async def __call__(
        self,
        prompts: Sequence[str],
        events: Sequence[Any],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: str | None = None,
    ) -> ModelResponse:
        if self._clock is None:
            return self._answer()
        began = time.thread_time()
        answer = self._answer()
        self._clock.spent += time.thread_time() - began
        return answer

    def _answer(self) -> ModelResponse:
        self._asked += 1
        if self._asked % (self._calls + 1) == 0:
            return ModelResponse(content="It is 21 degrees in Rome.")
        call = ToolCallEvent(id=f"call-{self._asked}", name="temperature", arguments='{"city": "Rome"}')
        return ModelResponse(tool_calls=(call,))


class _Timed(Assembler):
    """The same chain with a clock; what it gives is read, as whoever sends it does."""

    def __init__(self, clock: _Clock) -> None:
        super().__init__([AlertPolicy()], recorder=NullRecorder())
        self._clock = clock

    async def assemble(self, prompts: Sequence[str], events: Sequence[Any], context: Context | None = None) -> Assembly:
        began = time.thread_time()
        assembly = await super().assemble(prompts, events, context)
        _ = assembly.prompts, assembly.events
        self._clock.spent += time.thread_time() - began
        return assembly


async def temperature(city: str) -> str:
    """How warm it is in a city."""
    return f"21 degrees in {city}"


class _ByHand:
    """The least that a loop has to do: no halt, no time-out, no check of arguments, nobody who listens."""

    def __init__(self, model: _Model, assembler: Assembler, tools: Sequence[Mapping[str, Any]]) -> None:
        self._model = model
        self._assembler = assembler
        self._tools = tools
        self.history = History()
        self._context = Context(agent_name="bench", model=model.model, tools=tools)

    def force_span(self) -> Self:
        """In a conversation of its own."""
        return type(self)(self._model, self._assembler, self._tools)

    async def ask(self, question: str) -> None:
        history = self.history
        history.append(ModelRequest(content=question))
        while True:
            assembly = await self._assembler.assemble([SYSTEM], history, self._context)
            answer = await self._model(assembly.prompts, assembly.events, tools=self._tools)
            history.append(answer)
            if not answer.tool_calls:
                return
            for call in answer.tool_calls:
                result = await temperature(**json.loads(call.arguments))
                history.append(ToolResultEvent(parent_id=call.id, name=call.name, content=result))


async def report(size: Size) -> list[Table]:
    """Microseconds a turn, of an ask with one call of a tool and of one with more."""
    lengths, asks = SIZES[size]
    columns = [f"{calls} call{'s' if calls > 1 else ''}, {calls + 1} turns" for calls in lengths]
    table = Table(
        "agent",
        f"a turn with one async tool, of the fastest of {FASTEST_OF} asks: median (quartiles), ratio to the floor",
        ["what", *columns],
    )
    for calls in lengths:
        for row, timing in (await _raced(calls, asks)).items():
            table.put(row, timing)
    table.notes += [
        "Only one row records, its assemblies. A turn is one call of the model; all but an ask's last call the tool.",
        "By hand, the SDK alone creates the same spans and metric points, with precomputed arguments.",
        "The floor checks no argument, holds no time-out, asks no guard, and hands on no event.",
        "What a history reads of each event as it arrives, the assembly of a plain list reads itself.",
    ]
    return [table]


async def _raced(calls: int, asks: int) -> dict[str, Timing]:
    clock, turns = _Clock(), calls + 1
    agent = Agent("bench", SYSTEM, _Model(calls), [temperature], assembly=_chain())
    recorded = Agent("bench", SYSTEM, _Model(calls), [temperature], assembly=_chain(recording()))
    timed = Agent("bench", SYSTEM, _Model(calls, clock), [temperature], assembly=_Timed(clock))
    spans_by_hand = await _spans_by_hand(calls)
    by_hand = _ByHand(_Model(calls), _chain(), [tool.definition for tool in agent.tools.values()])
    asking: dict[str, Any] = {}
    spent: list[float] = []
    reading: list[float] = []

    def begun(row: str, value: int) -> str:
        if value % FASTEST_OF == 0 and row != BY_HAND:
            asking[row] = {
                FLOOR: by_hand.force_span,
                OURS: agent.open_session,
                RECORDED: recorded.open_session,
                TIMED: timed.open_session,
            }[row]()
            if row == TIMED:
                clock.watch(asking[row].session.history)
        return f"What about day {value}?"

    async def floor(question: str) -> None:
        await asking[FLOOR].ask(question)

    async def ours(question: str) -> None:
        await asking[OURS].ask(question)

    async def with_record(question: str) -> None:
        await asking[RECORDED].ask(question)

    async def with_clocks(question: str) -> None:
        clock.spent = clock.reading = 0.0
        await asking[TIMED].ask(question)
        spent.append(clock.spent)
        reading.append(clock.reading)

    found = await race(
        {FLOOR: floor, OURS: ours, RECORDED: with_record, BY_HAND: spans_by_hand, TIMED: with_clocks},
        asks,
        floor=FLOOR,
        before=begun,
        warm_up=WARM_UP if asks > WARM_UP else 0,
        clock=time.thread_time,
    )
    taken = found[OURS].taken
    counted = len(taken)
    asked, floors = _a_turn(taken, turns), _a_turn(found[FLOOR].taken, turns)
    own = _without(asked, _a_turn(spent[-counted:], turns))
    histories = _a_turn(reading[-counted:], turns)
    return {
        FLOOR: Timing(floors),
        OURS: Timing(asked, floors),
        RECORDED: Timing(_a_turn(found[RECORDED].taken, turns), floors),
        BY_HAND: Timing(_a_turn(found[BY_HAND].taken, turns)),
        OVER_FLOOR: Timing(_without(asked, floors)),
        OWN: Timing(own),
        LOOP: Timing(_without(own, histories)),
    }


async def _spans_by_hand(calls: int) -> Callable[[Any], None]:
    """What creates the spans and points of an ask's recorded assemblies through the SDK alone."""
    watch = Watch()
    agent = Agent("bench", SYSTEM, _Model(calls), [temperature], assembly=_chain(watch.recorder))
    session = agent.open_session()
    for day in range(4):
        watch.forget()
        await session.ask(f"What about day {day}?")
    return watch.by_hand()


def _a_turn(taken: Sequence[float], turns: int) -> list[float]:
    return [min(taken[at : at + FASTEST_OF]) / turns for at in range(0, len(taken), FASTEST_OF)]


def _without(taken: Sequence[float], others: Sequence[float]) -> list[float]:
    return [item - other for item, other in zip(taken, others, strict=True)]


def _chain(recorder: Recorder | None = None) -> Assembler:
    return Assembler([AlertPolicy()], recorder=recorder or NullRecorder())
