"""Turns of AG2's agents, whom a model call in them belongs to, and the halts of a conversation.

A turn is followed by a middleware of ours, the innermost: by then whoever wants a span around a turn has opened it,
and behind it is the model's client. A run has a span of ours only where neither AG2 nor the program opened one. It
ends with the turn, whose compaction and aggregation come after the agent's loop and belong to it.
"""

from __future__ import annotations

import re
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly.instrumentation.ag2.client_requests import converted
from otel_assembly.instrumentation.ag2.message_causality import CausedRun
from otel_assembly.instrumentation.clients import client, model_in, record_standalone_call
from otel_assembly.instrumentation.conversation import InvokingAgent
from otel_assembly.instrumentation.halts import report_halt
from otel_assembly.instrumentation.hooks import observe_async_hook, replace_hook
from otel_assembly.instrumentation.instrumented import context_value, on_exit
from otel_assembly.instrumentation.middleware_calls import middleware_scope
from otel_assembly.instrumentation.model_call import CALL, ClientRequest, ModelCall
from otel_assembly.instrumentation.reductions import reducing
from otel_assembly.instrumentation.tool_schemas import Offered, offered

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from contextlib import AbstractContextManager

    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation

#: AG2's names of agents that it makes for one task: as many names as tasks.
_SUBTASK: Final = re.compile(r"(subtask)-[0-9a-f]{8}")


class Turn:
    """One turn of an agent, and the innermost of its middlewares.

    Attributes:
        agent: The agent.
        context: AG2's context of it.
        held: The history and the prompts with which AG2 has begun its last model call.
        tools: What its models are offered.
        run: The run of the agent, which begins with the agent's loop.
    """

    def __init__(self, instrumentation: Instrumentation, agent: Any, given: dict[str, Any]) -> None:
        given["additional_middleware"] = (*given.get("additional_middleware", ()), self)  # with what AG2 runs it
        self.agent = agent
        self.context = given["context"]
        self.held: tuple[list[Any], list[str]] | None = None
        self.tools = Offered(function_of)
        self.run = CausedRun(instrumentation, partial(invoking_agent_of, self.context))
        self._instrumentation = instrumentation

    def __call__(self, event: Any, context: Any) -> Turn:
        """AG2 makes a turn's middlewares."""
        return self

    async def on_turn(self, call_next: Any, event: Any, context: Any) -> Any:
        """The agent's loop."""
        with self.run.current():
            return await call_next(event, context)

    async def on_llm_call(self, call_next: Any, events: Any, context: Any) -> Any:
        """The model's client."""
        if not self._instrumentation.is_enabled():
            return await call_next(events, context)
        with preparing(self._instrumentation, call_next, events, context):
            return await _CLIENT(call_next, self._instrumentation)(events, context)

    async def on_tool_execution(self, call_next: Any, event: Any, context: Any) -> Any:
        """A tool, which is none of ours."""
        return await call_next(event, context)

    on_human_input = on_tool_execution

    async def drive(self, turn: Callable[[], Awaitable[Any]]) -> Any:
        """The whole turn; an agent that is asked while another's model call is prepared makes calls of its own."""
        with on_exit(self.run.end), context_value(TURN, self), context_value(CALL, None):
            return await turn()


def _sent(events: Any, context: Any) -> ClientRequest:
    config = config_of(context)
    return ClientRequest(
        converted(events, config),
        list(context.prompt),
        model=model_of(context),
        unknown=_is_held(config),
        invoking_agent=invoking_agent_of(context),
    )


def _is_held(config: Any) -> bool:
    """Whether the provider holds earlier messages; AG2's client of OpenAI's Responses always sends all (1.0 to 1.2)."""
    return bool(getattr(config, "previous_response_id", None))  # of xAI


def _said(response: Any) -> str:
    return str(response.content or "")


_CLIENT: Final = client(_sent, _said)


def _asked(model: Any, /, messages: Any, context: Any, *, tools: Any = (), **_: Any) -> ClientRequest:
    name = model_of(context) if reducing() is None else type(model).__name__
    schemas = offered(tools, function_of)
    config = config_of(context)
    sent, invoking_agent = converted(messages, config), invoking_agent_of(context, "client")
    return ClientRequest(
        sent, list(context.prompt), schemas, name, unknown=_is_held(config), invoking_agent=invoking_agent
    )


#: Around a model's client, for whoever calls it outside of a turn's own calls: a policy, a live agent.
asked: Final = client(_asked, _said, told=record_standalone_call)


@replace_hook
@asynccontextmanager
async def turn_scope(
    instrumentation: Instrumentation, original: Any, agent: Any, event: Any, **given: Any
) -> AsyncGenerator[Callable[[], Awaitable[Any]], None]:
    """In the place of `Agent._turn_scope`, which hands out what drives a turn; every run goes through it."""
    turn = Turn(instrumentation, agent, given)
    async with original(agent, event, **given) as drive:
        yield partial(turn.drive, drive)


@replace_hook
async def execute(instrumentation: Instrumentation, original: Any, agent: Any, event: Any, **given: Any) -> Any:
    """In the place of `Agent._execute` of the versions in which every run goes through that."""
    if hasattr(type(agent), "_turn_scope"):
        return await original(agent, event, **given)
    turn = Turn(instrumentation, agent, given)
    return await turn.drive(partial(original, agent, event, **given))


TURN: Final[ContextVar[Turn | None]] = ContextVar("otel_assembly_ag2_turn", default=None)


def turn_of(context: Any) -> Turn | None:
    """The turn that goes on here, if it is the one that this context of AG2's is made for."""
    turn = TURN.get()
    return turn if turn is not None and turn.context is context else None


def agent_of(context: Any) -> Any:
    """The agent that runs here, or None."""
    turn = turn_of(context)
    return turn.agent if turn is not None else context.dependencies.get("__ag2_agent__")


def invoking_agent_of(context: Any, stage: str = "") -> InvokingAgent:
    """Who asks, in which conversation: two agents on one stream are two, and so is what is no prompt of an agent's."""
    agent, history, known = agent_of(context), context.stream.history, context.dependencies
    name = None if agent is None else _SUBTASK.sub(r"\1", str(agent.name))
    # A network makes a stream anew for every turn of a channel, in which an agent that is asked has a stream of its
    # own; a history in memory takes its ledger with it.
    ours = getattr(known.get("ag2.network.agent_client"), "agent", None) is agent
    channel = known.get("ag2.network.channel") if ours else None
    stream = getattr(context.stream, "id", None) if channel is None else channel.channel_id
    own = None if stream is None else str(stream)
    in_memory = channel is None and type(history.storage).__name__ == "MemoryStorage"
    return InvokingAgent(history if in_memory else str(stream), f"{name}\0{stage}", name, own)


def model_of(context: Any) -> str | None:
    """The model that will be called, if its configuration says so."""
    with suppress(NotImplementedError):  # by AG2's own test model, where it was given no name
        return model_in(config_of(context))
    return None


def config_of(context: Any) -> Any:
    """Return the configuration of the model that will be called, or None if there is none."""
    return context.dependencies.get("__ag2_model_config__") or getattr(agent_of(context), "config", None)


def function_of(schema: Any) -> dict[str, Any] | None:
    """The function that a tool's schema is of; what a provider's own tools cost is not known."""
    return {"type": "function", "function": asdict(schema.function)} if schema.type == "function" else None


def preparing(
    instrumentation: Instrumentation, call_next: Any, events: Any, context: Any
) -> AbstractContextManager[ModelCall | None]:
    """A middleware of a model call runs in this block; a call begins with what AG2 has read of the history for it."""

    def begin() -> ModelCall:
        turn, end = turn_of(context), call_next
        while isinstance(end, partial) and "tools" not in end.keywords:  # a chain of middlewares, and the client
            end = end.args[0] if end.args else None
        known = Offered(function_of) if turn is None else turn.tools
        tools = known.read(end.keywords["tools"]) if isinstance(end, partial) else ()
        held, prompts = (turn and turn.held) or (events, list(context.prompt))
        invoking_agent, model = invoking_agent_of(context), model_of(context)
        return ModelCall(instrumentation, invoking_agent, messages=held, prompts=prompts, tools=tools, model=model)

    return middleware_scope(instrumentation, begin, events, prompts=context.prompt, conversation=context.stream.history)


@observe_async_hook
def history_read(instrumentation: Instrumentation, history: Any) -> Observation:
    """Around `History.get_events`, with which every model call of an agent begins."""
    events, turn = (yield), TURN.get()
    if turn is not None and turn.context.stream.history is history and isinstance(events, list | tuple):
        turn.held = list(events), list(turn.context.prompt)


@observe_async_hook
def sent(instrumentation: Instrumentation, stream: Any, event: Any, context: Any) -> Observation:
    """Around `MemoryStream.send`, through which every event of a stream goes: the halts are reported."""
    if any(base.__name__ == "HaltEvent" for base in type(event).__mro__):
        report_halt(instrumentation, stream.history, event)
    yield


hide_frames(globals())
