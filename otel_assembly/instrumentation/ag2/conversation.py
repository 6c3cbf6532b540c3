"""Records the turns of AG2's agents, their model calls, and the halts of a conversation.

`Agent._turn_scope` (or `Agent._execute`, before AG2 0.14) is replaced to add the innermost middleware, a `Turn`. Other
middleware has opened its spans by then, and only the model's client follows. The run of a turn gets a span only if
neither AG2 nor the program opened one. The run ends with the turn, after compaction and aggregation.
`LLMClient.__call__`, `History.get_events` and `MemoryStream.send` are wrapped to record model calls outside of turns,
the input of model calls, and halts: each once, linked to the conversation's last assembly.
"""

from __future__ import annotations

import re
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly.events import HaltEvent
from otel_assembly.instrumentation.ag2.channels import CausedRun
from otel_assembly.instrumentation.ag2.client_requests import converted
from otel_assembly.instrumentation.clients import client, model_in, record_standalone_call
from otel_assembly.instrumentation.context_variables import CALL
from otel_assembly.instrumentation.conversation import IdentityWeakMap, InvokingAgent
from otel_assembly.instrumentation.hooks import observe_async_hook, replace_hook
from otel_assembly.instrumentation.instrumented import context_value, on_exit
from otel_assembly.instrumentation.model_call import ClientRequest, ModelCall
from otel_assembly.instrumentation.reductions import reducing
from otel_assembly.instrumentation.tool_schemas import ToolSchemas
from otel_assembly.recorder import AgentIdentity
from otel_assembly.telemetry.recorder import OpenTelemetryRecorder, emit_halt

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation

#: The names of AG2's agents for subtasks. Each subtask has a random suffix, which telemetry leaves out.
_SUBTASK: Final = re.compile(r"(subtask)-[0-9a-f]{8}")


class Offered(ToolSchemas):
    """The tools of one run, whose schemas are created once if each model call has the same list of tools.

    Attributes:
        schemas: The schemas at the last call of `read`; None before the first.
    """

    schemas: tuple[Mapping[str, Any], ...] | None = None
    _tools: object = None

    def read(self, tools: object) -> tuple[Mapping[str, Any], ...]:
        if self.schemas is None or self._tools is not tools:
            self._tools, self.schemas = tools, self.of(tools)
        return self.schemas


def offered(tools: object, schema_of: Callable[[Any], Mapping[str, Any] | None]) -> tuple[Mapping[str, Any], ...]:
    """Return the schemas of tools without a cache; the arguments are those of `ToolSchemas`."""
    return ToolSchemas(schema_of).of(tools)


class Turn:
    """One turn of an agent, as AG2 calls a run, and the innermost middleware of that turn.

    Args:
        arguments: The keyword arguments with which AG2 runs the turn. The turn adds itself to the middleware in them.

    Attributes:
        call_input: The history and the system prompts that AG2 read for the last model call; None before the first.
        run: The run of the agent. It begins with the agent's loop.
    """

    def __init__(self, instrumentation: Instrumentation, agent: Any, arguments: dict[str, Any]) -> None:
        arguments["additional_middleware"] = (*arguments.get("additional_middleware", ()), self)
        self.agent = agent
        self.context = arguments["context"]
        self.call_input: tuple[list[Any], list[str]] | None = None
        self.tools = Offered(function_of)
        self.run = CausedRun(instrumentation, partial(invoking_agent_of, self.context))
        self._instrumentation = instrumentation

    def __call__(self, event: Any, context: Any) -> Turn:
        return self  # the turn is also the factory of its middleware

    async def on_turn(self, call_next: Any, event: Any, context: Any) -> Any:
        with self.run.current():
            return await call_next(event, context)

    async def on_llm_call(self, call_next: Any, events: Any, context: Any) -> Any:
        """Record the model call; the next layer is the model's client, because this is the innermost middleware."""
        if not self._instrumentation.is_enabled():
            return await call_next(events, context)
        with llm_call_scope(self._instrumentation, call_next, events, context):
            return await _CLIENT(call_next, self._instrumentation)(events, context)

    async def on_tool_execution(self, call_next: Any, event: Any, context: Any) -> Any:
        return await call_next(event, context)

    on_human_input = on_tool_execution

    async def drive(self, turn: Callable[[], Awaitable[Any]]) -> Any:
        # The turn can be started during another agent's model call. Its own model calls are no part of that call.
        with on_exit(self.run.end), context_value(TURN, self), context_value(CALL, None):
            return await turn()


def _request_of_turn(events: Any, context: Any) -> ClientRequest:
    """Return the request of the turn's model client. The tools are known from `llm_call_scope`."""
    config, model, invoking_agent = config_of(context), model_of(context), invoking_agent_of(context)
    # With this id, xAI adds the messages that it stores. No other configuration has it: AG2's client for OpenAI's
    # Responses API always sends all messages (1.0 to 1.2).
    unknown = bool(getattr(config, "previous_response_id", None))
    messages, prompts = converted(events, config), list(context.prompt)
    return ClientRequest(messages, prompts, model=model, unknown=unknown, invoking_agent=invoking_agent)


def _response_text(response: Any) -> str:
    return str(response.content or "")


_CLIENT: Final = client(_request_of_turn, _response_text)


def _standalone_request(model: Any, /, messages: Any, context: Any, *, tools: Any = (), **_: Any) -> ClientRequest:
    """Return the request of a client that is not called as the last step of a turn's model call.

    Its messages are not the agent's history, so it has a separate ledger. A summarizer's model is named by its class.
    """
    request, invoking_agent = _request_of_turn(messages, context), invoking_agent_of(context, "client")
    name = request.model if reducing() is None else type(model).__name__
    return request._replace(tools=offered(tools, function_of), model=name, invoking_agent=invoking_agent)


#: Wraps `LLMClient.__call__`. Records calls that are not a turn's own, such as those of policies and live agents.
standalone_call: Final = client(_standalone_request, _response_text, record=record_standalone_call)


@replace_hook
@asynccontextmanager
async def turn_scope(
    instrumentation: Instrumentation, original: Any, agent: Any, event: Any, **arguments: Any
) -> AsyncGenerator[Callable[[], Awaitable[Any]], None]:
    """Replace `Agent._turn_scope`, which yields the function that runs a turn. Every run of an agent uses it."""
    turn = Turn(instrumentation, agent, arguments)
    async with original(agent, event, **arguments) as drive:
        yield partial(turn.drive, drive)


@replace_hook
async def execute(instrumentation: Instrumentation, original: Any, agent: Any, event: Any, **arguments: Any) -> Any:
    """Replace `Agent._execute`, which runs every turn in versions without `Agent._turn_scope`."""
    if hasattr(type(agent), "_turn_scope"):  # `turn_scope` begins the turn
        return await original(agent, event, **arguments)
    turn = Turn(instrumentation, agent, arguments)
    return await turn.drive(partial(original, agent, event, **arguments))


#: The turn that is running.
TURN: Final[ContextVar[Turn | None]] = ContextVar("otel_assembly_ag2_turn", default=None)


def turn_of(context: Any) -> Turn | None:
    turn = TURN.get()
    return turn if turn is not None and turn.context is context else None


def agent_of(context: Any) -> Any:
    turn = turn_of(context)
    return turn.agent if turn is not None else context.dependencies.get("__ag2_agent__")


def invoking_agent_of(context: Any, stage: str = "") -> InvokingAgent:
    """Return the invoking agent of an AG2 context, in the conversation of the network's channel, or else of the stream.

    Assemblies that are not the agent's own model calls, such as ``aggregation``, have a `stage`, for another ledger.
    """
    agent, history, dependencies = agent_of(context), context.stream.history, context.dependencies
    name = None if agent is None else _SUBTASK.sub(r"\1", str(agent.name))
    # A network creates a new stream for every turn in a channel, so the channel's id identifies the conversation. An
    # agent that is called during such a turn inherits the dependencies, but has its own stream.
    in_channel = getattr(dependencies.get("ag2.network.agent_client"), "agent", None) is agent
    channel = dependencies.get("ag2.network.channel") if in_channel else None
    conversation = getattr(context.stream, "id", None) if channel is None else channel.channel_id
    conversation_id = None if conversation is None else str(conversation)
    # A history in memory is the key of its ledger, which is freed with the history.
    in_memory = channel is None and type(history.storage).__name__ == "MemoryStorage"
    return InvokingAgent(history if in_memory else str(conversation), f"{name}\0{stage}", name, conversation_id)


def model_of(context: Any) -> str | None:
    with suppress(NotImplementedError):  # AG2's test model raises this if it has no name
        return model_in(config_of(context))
    return None


def config_of(context: Any) -> Any:
    return context.dependencies.get("__ag2_model_config__") or getattr(agent_of(context), "config", None)


def function_of(schema: Any) -> dict[str, Any] | None:
    """Return a function tool's schema in OpenAI's format; None for a provider's own tool, whose tokens are unknown."""
    return {"type": "function", "function": asdict(schema.function)} if schema.type == "function" else None


def llm_call_scope(
    instrumentation: Instrumentation, call_next: Any, events: Any, context: Any
) -> AbstractContextManager[ModelCall | None]:
    """Return the `middleware_scope` in which one middleware of a model call runs, down to the client.

    The first instrumented middleware begins the call, whose input is the list that AG2 read from the history. If
    middleware without a hook has run before this one, `events` may differ, which is recorded as a change.
    """

    def begin() -> ModelCall:
        turn, layer = turn_of(context), call_next
        tools: tuple[Mapping[str, Any], ...] = ()
        if turn is not None and turn.call_input is not None:
            messages, prompts = turn.call_input
        else:  # the read of the history was not observed
            messages, prompts = events, list(context.prompt)
        # AG2 nests the layers as ``partial(outer.on_llm_call, partial(inner.on_llm_call, partial(client, tools=…)))``.
        while isinstance(layer, partial) and "tools" not in layer.keywords:
            layer = layer.args[0] if layer.args else None
        if isinstance(layer, partial) and layer.keywords["tools"] is not None:
            # This fills `turn.tools`, from which `offered_schemas_of` returns the schemas.
            tools = (Offered(function_of) if turn is None else turn.tools).read(layer.keywords["tools"])
        invoking_agent, model = invoking_agent_of(context), model_of(context)
        return ModelCall(instrumentation, invoking_agent, messages=messages, prompts=prompts, tools=tools, model=model)

    return middleware_scope(instrumentation, begin, events, prompts=context.prompt, conversation=context.stream.history)


@contextmanager
def middleware_scope(
    instrumentation: Instrumentation,
    begin: Callable[[], ModelCall],
    messages: Sequence[Any],
    *,
    prompts: Sequence[str] | None = None,
    conversation: Any = None,
) -> Iterator[ModelCall | None]:
    """Run a middleware of a model call in this block, together with the layers that it calls.

    The block yields the model call that is being prepared, which is current in the block; `begin` begins it if there is
    none. Changes of its messages apply only until the end of the block. The block yields None inside a reducer, because
    the middleware then prepares no model call of the agent. `conversation` is the object that a later halt refers to,
    as passed to `report_halt`.
    """
    call = None
    if reducing() is None:
        with instrumentation.suppress_errors():
            call = CALL.get() or begin()
    if call is None:
        yield None
        return
    with call.scoped(), call.current():
        with instrumentation.suppress_errors():
            call.observe_messages(messages, prompts=prompts)
        try:
            yield call
        finally:
            with instrumentation.suppress_errors():
                assembled(conversation, call)


#: The halt events that were recorded; a framework may publish an event several times.
_REPORTED: Final[IdentityWeakMap[bool]] = IdentityWeakMap()
#: A reference to the last assembly of each conversation.
_LAST_ASSEMBLIES: Final[IdentityWeakMap[object]] = IdentityWeakMap()


def assembled(conversation: Any, call: ModelCall) -> None:
    """Remember a model call's assembly as the last one of its conversation, to which a later halt is linked."""
    if call.assembly is not None:
        _LAST_ASSEMBLIES.put(conversation, call.assembly.recording.assembly_reference)


def already_reported(halt: Any) -> bool:
    """Mark a halt as recorded, and return True if it was recorded before."""
    reported = _REPORTED.get(halt) is not None
    _REPORTED.put(halt, True)
    return reported


def report_halt(instrumentation: Instrumentation, conversation: Any, halt: Any) -> None:
    """Record that a conversation, with which `assembled` was called, was halted, unless that was recorded before."""
    if already_reported(halt):
        return
    recorder, identity = instrumentation.recorder, AgentIdentity(framework=instrumentation.framework)
    otel_recorder = recorder if isinstance(recorder, OpenTelemetryRecorder) else None
    event = HaltEvent(reason=str(halt.reason), source=str(halt.source))
    # `identity` is a fallback: None leaves precedence to the identity of the current run or the last assembly.
    emit_halt(event, _LAST_ASSEMBLIES.get(conversation), None, identity, recorder=otel_recorder)


@observe_async_hook
def history_read(instrumentation: Instrumentation, history: Any) -> Observation:
    """Wrap `History.get_events`, which AG2 calls before every model call: its result is the call's input."""
    events, turn = (yield), TURN.get()
    if turn is not None and turn.context.stream.history is history and isinstance(events, list | tuple):
        turn.call_input = list(events), list(turn.context.prompt)


@observe_async_hook
def stream_send(instrumentation: Instrumentation, stream: Any, event: Any, context: Any) -> Observation:
    """Wrap `MemoryStream.send`, which receives every event of a stream, to report halts."""
    if any(base.__name__ == "HaltEvent" for base in type(event).__mro__):
        report_halt(instrumentation, stream.history, event)
    yield


async def offered_schemas_of(context: Any) -> tuple[Mapping[str, Any], ...]:
    """Return the schemas of the tools that the model is offered, which count toward the budget of `AssembledPolicy`."""
    turn = turn_of(context)
    # If AG2 is instrumented, `llm_call_scope` has stored them before the policies run, with those passed to this run.
    if turn is not None and turn.tools.schemas is not None:
        return turn.tools.schemas
    schemas: list[Mapping[str, Any]] = []
    for tool in getattr(agent_of(context), "tools", ()):
        schemas += offered(list(await tool.schemas(context)), function_of)
    return tuple(schemas)


hide_frames(globals())
