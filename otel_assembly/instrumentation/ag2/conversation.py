"""Turns of AG2's agents, whom a model call in them belongs to, and the halts of a conversation.

A turn is followed by a middleware of ours, the innermost: by then whoever wants a span around a turn has opened it,
and behind it is the model's client. A run has a span of ours only where neither AG2 nor the program opened one. It
ends with the turn, whose compaction and aggregation come after the agent's loop and belong to it.
"""

from __future__ import annotations

import json
import re
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.events import HaltEvent
from otel_assembly.instrumentation.ag2.channels import begun, channel_of
from otel_assembly.instrumentation.clients import client
from otel_assembly.instrumentation.conversation import Asker, ByIdentity
from otel_assembly.instrumentation.hooks import around_awaited, instead
from otel_assembly.instrumentation.instrumented import bound, ending
from otel_assembly.instrumentation.model_call import CALL, ModelCall, Sent
from otel_assembly.instrumentation.reductions import reducing
from otel_assembly.recorder import Whose
from otel_assembly.telemetry.recorder import OpenTelemetryRecorder, emit_halt

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator

    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.telemetry.run import OpenRun

#: AG2's names of agents that it makes for one task: as many names as tasks.
_SUBTASK: Final = re.compile(r"(subtask)-[0-9a-f]{8}")


class Turn:
    """One turn of an agent, and the innermost of its middlewares.

    Attributes:
        agent: The agent.
        context: AG2's context of it.
        held: The history and the prompts with which AG2 has begun its last model call.
        tools: The schemas of its tools, as AG2 and as we hold them, once they were needed.
    """

    def __init__(self, instrumentation: Instrumentation, agent: Any, context: Any) -> None:
        self.agent = agent
        self.context = context
        self.held: tuple[list[Any], list[str]] | None = None
        self.tools: tuple[Any, tuple[dict[str, Any], ...]] = (None, ())
        self._instrumentation = instrumentation
        self._run: OpenRun | None = None

    def __call__(self, event: Any, context: Any) -> Turn:
        """AG2 makes a turn's middlewares."""
        return self

    async def on_turn(self, call_next: Any, event: Any, context: Any) -> Any:
        """The agent's loop."""
        with self._instrumentation.contained():
            if self._run is None and self._instrumentation.listening():
                self._run = begun(self._instrumentation, asker_of(self.context))
        with self.current():
            return await call_next(event, context)

    async def on_llm_call(self, call_next: Any, events: Any, context: Any) -> Any:
        """The model's client."""
        if not self._instrumentation.listening():
            return await call_next(events, context)
        with preparing(self._instrumentation, call_next, events, context):
            return await _CLIENT(call_next, self._instrumentation)(events, context)

    async def on_tool_execution(self, call_next: Any, event: Any, context: Any) -> Any:
        """A tool, which is none of ours."""
        return await call_next(event, context)

    on_human_input = on_tool_execution

    def current(self) -> AbstractContextManager[None]:
        """What runs in this block belongs to the run."""
        return nullcontext() if self._run is None else self._run.current()

    async def drive(self, turn: Callable[[], Awaitable[Any]]) -> Any:
        """The whole turn; an agent that is asked while another's model call is prepared makes calls of its own."""
        with ending(self._end), bound(TURN, self), bound(CALL, None):
            return await turn()

    def _end(self, error: BaseException | None) -> None:
        if self._run is not None:
            self._run.end(error)


def _sent(events: Any, context: Any) -> Sent | None:
    if isinstance(events, list | tuple):
        return Sent(events, list(context.prompt), model=model_of(context), asker=asker_of(context))
    call = CALL.get()
    if call is not None:
        call.fail(TypeError(f"a model's client is given its events as {type(events).__name__}"))
    return None


def _said(response: Any) -> str:
    return str(response.content or "")


_CLIENT: Final = client(_sent, _said)


def _asked(model: Any, /, messages: Any, context: Any, *, tools: Any = (), **_: Any) -> Sent | None:
    if not isinstance(messages, list | tuple):
        return None
    name = model_of(context) if reducing() is None else type(model).__name__
    tools = _tools_of(tools) if isinstance(tools, list | tuple) else ()
    return Sent(messages, list(context.prompt), tools, name, asker=asker_of(context, "client"))


def _alone(instrumentation: Instrumentation, sent: Sent) -> ModelCall:
    call = ModelCall(instrumentation, sent.asker)
    call.receives(sent)
    return call


def asked(original: Callable[..., Any], _: type, instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around a model's client, for whoever calls it outside of a turn's own calls: a policy, a live agent."""
    return client(_asked, _said, told=_alone)(original, instrumentation)


def _innermost(turn: Turn, given: dict[str, Any]) -> dict[str, Any]:
    return given | {"additional_middleware": (*given.get("additional_middleware", ()), turn)}


@instead
def turn_scope(instrumentation: Instrumentation, original: Any, agent: Any, event: Any, **given: Any) -> Any:
    """In the place of `Agent._turn_scope`, which hands out what drives a turn; every run goes through it."""
    turn = Turn(instrumentation, agent, given["context"])
    return _followed(original(agent, event, **_innermost(turn, given)), turn)


@asynccontextmanager
async def _followed(scope: Any, turn: Turn) -> AsyncGenerator[Callable[[], Awaitable[Any]], None]:
    async with scope as drive:
        yield partial(turn.drive, drive)


@instead
async def execute(instrumentation: Instrumentation, original: Any, agent: Any, event: Any, **given: Any) -> Any:
    """In the place of `Agent._execute` of the versions in which every run goes through that."""
    if hasattr(type(agent), "_turn_scope"):
        return await original(agent, event, **given)
    turn = Turn(instrumentation, agent, given["context"])
    return await turn.drive(partial(original, agent, event, **_innermost(turn, given)))


TURN: Final[ContextVar[Turn | None]] = ContextVar("otel_assembly_ag2_turn", default=None)


def turn_of(context: Any) -> Turn | None:
    """The turn that goes on here, if it is the one that this context of AG2's is made for."""
    turn = TURN.get()
    return turn if turn is not None and turn.context is context else None


def in_run_of(context: Any) -> AbstractContextManager[None]:
    """What runs in this block belongs to the run that this context is made for, if one goes on."""
    turn = turn_of(context)
    return nullcontext() if turn is None else turn.current()


def agent_of(context: Any) -> Any:
    """The agent that runs here, or None."""
    turn = turn_of(context)
    return turn.agent if turn is not None else context.dependencies.get("__ag2_agent__")


def asker_of(context: Any, stage: str = "") -> Asker:
    """Who asks, in which conversation: two agents on one stream are two, and so is what is no prompt of an agent's."""
    agent, history = agent_of(context), context.stream.history
    name = None if agent is None else _SUBTASK.sub(r"\1", str(agent.name))
    # A network makes a stream anew for every turn of a channel; a history in memory takes its ledger with it.
    channel, stream = channel_of(context, agent), getattr(context.stream, "id", None)
    conversation = channel or (history if type(history.storage).__name__ == "MemoryStorage" else str(stream))
    return Asker(conversation, f"{name}\0{stage}", name, channel or (None if stream is None else str(stream)))


def model_of(context: Any) -> str | None:
    """The model that will be called, if its configuration says so."""
    config = context.dependencies.get("__ag2_model_config__") or getattr(agent_of(context), "config", None)
    with suppress(NotImplementedError):  # by AG2's own test model, where it was given no name
        model = getattr(config, "model", None)
        return model if isinstance(model, str) and model else None
    return None


def tools_of(call_next: Any) -> tuple[dict[str, Any], ...]:
    """The functions that the model is offered, from the call at the end of the chain of middlewares."""
    while isinstance(call_next, partial) and "tools" not in call_next.keywords:
        call_next = call_next.args[0] if call_next.args else None
    if not isinstance(call_next, partial):
        return ()
    schemas, turn = call_next.keywords["tools"], TURN.get()
    if turn is not None and turn.tools[0] is schemas:  # the list is the same one in all calls of a turn
        return turn.tools[1]
    tools = _tools_of(schemas)
    if turn is not None:
        turn.tools = schemas, tools
    return tools


def _tools_of(schemas: Iterable[Any]) -> tuple[dict[str, Any], ...]:
    return tuple(tool for schema in schemas if (tool := tool_of(schema)) is not None)


def tool_of(schema: Any) -> dict[str, Any] | None:
    """A function's schema as a provider is sent it; what a provider's own tools cost is not known."""
    if schema.type != "function":
        return None
    try:
        tool: dict[str, Any] = json.loads(json.dumps({"type": "function", "function": asdict(schema.function)}))
    except (TypeError, ValueError):
        return None
    return tool


@contextmanager
def preparing(
    instrumentation: Instrumentation, call_next: Any, events: Any, context: Any
) -> Iterator[ModelCall | None]:
    """A middleware of a model call runs in this block, and what it stands around: the call that it prepares is bound.

    Where none is prepared yet, one begins, with what AG2 has read of the history for it; not in what a reducer runs.
    """
    call, turn = CALL.get(), turn_of(context)
    with instrumentation.contained():
        if call is None and reducing() is None:
            held, prompts = turn.held if turn is not None and turn.held is not None else (events, list(context.prompt))
            tools, model, asker = tools_of(call_next), model_of(context), asker_of(context)
            call = ModelCall(instrumentation, asker, messages=held, prompts=prompts, tools=tools, model=model)
    if call is None or reducing() is not None:
        yield None
        return
    with call.onwards(), call.current():
        with instrumentation.contained():
            call.arrives(events, prompts=context.prompt)
        try:
            yield call
        finally:
            with instrumentation.contained():
                history = context.stream.history
                _LAST.put(history, call.trail or _LAST.get(history))


@around_awaited
def history_read(instrumentation: Instrumentation, history: Any) -> Observation:
    """Around `History.get_events`, with which every model call of an agent begins."""
    events, turn = (yield), TURN.get()
    if turn is not None and turn.context.stream.history is history and isinstance(events, list | tuple):
        turn.held = list(events), list(turn.context.prompt)


#: The halts that were reported; one that is passed on to another stream is not reported again.
_REPORTED: Final[ByIdentity[bool]] = ByIdentity()
#: What is remembered of the last assembly of a history of AG2's.
_LAST: Final[ByIdentity[object]] = ByIdentity()


def already_reported(halt: Any) -> bool:
    """Whether this halt has been reported; from now on it has."""
    reported = _REPORTED.get(halt) is not None
    _REPORTED.put(halt, True)
    return reported


@around_awaited
def sent(instrumentation: Instrumentation, stream: Any, event: Any, context: Any) -> Observation:
    """Around `MemoryStream.send`, through which every event of a stream goes: the halts are reported."""
    if any(base.__name__ == "HaltEvent" for base in type(event).__mro__) and not already_reported(event):
        recorder, whose = instrumentation.recorder, Whose(framework=instrumentation.framework)
        told_by = recorder if isinstance(recorder, OpenTelemetryRecorder) else None
        halt = HaltEvent(reason=str(event.reason), source=str(event.source))
        emit_halt(halt, _LAST.get(stream.history), None, whose, recorder=told_by)
    yield
