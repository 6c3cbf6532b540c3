"""Records AgentScope's runs and model calls: which agent makes a call, and what the model's client is given.

``Agent._reply_impl`` is a run. ``Agent._get_system_prompt``, ``_prepare_model_input`` and ``_call_model`` show how the
next model call is prepared, and which middlewares change it. AgentScope builds the prompt several times per iteration,
mostly to count its tokens. Therefore a call is recorded only when ``ChatModelBase._call_api``, the model's client, is
called. Each retry and each fallback model calls it once.
"""

from __future__ import annotations

import inspect
import time
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_assembly.instrumentation.agentscope.message_parts import MessageParts
from otel_assembly.instrumentation.agentscope.messages import block_parts, is_summary, part_of, summary_blocks
from otel_assembly.instrumentation.clients import client
from otel_assembly.instrumentation.context_variables import CALL
from otel_assembly.instrumentation.conversation import IdentityWeakMap, InvokingAgent
from otel_assembly.instrumentation.hooks import observe_async_hook
from otel_assembly.instrumentation.instrumented import argument, context_value
from otel_assembly.instrumentation.model_call import FRAMEWORK, ClientRequest, ModelCall
from otel_assembly.instrumentation.prompts import as_prompts, in_front
from otel_assembly.instrumentation.reducers import is_ours
from otel_assembly.instrumentation.reductions import Reduction, reducing
from otel_assembly.instrumentation.run_types import ContextBoundRun
from otel_assembly.instrumentation.runs import run_hook
from otel_assembly.messages.provider_rules import rules_of_client
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.instrumentation.agentscope.messages import Part
    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation


#: The agent whose reply is running; None outside of a reply.
REPLYING_AGENT: Final[ContextVar[Any]] = ContextVar("otel_assembly_agentscope_replying_agent", default=None)


def invoking_agent_of(agent: Any) -> InvokingAgent:
    """Return the identity of an agent: its session's id and its name, which a later agent object can also have."""
    return InvokingAgent.of(agent.state.session_id, agent.name)


def step_name(middlewares: Sequence[Any], hook: str) -> str:
    """Return the name of a step for a change that one of these middlewares made in a hook, whichever it was."""
    if not middlewares:
        return FRAMEWORK
    return type(middlewares[0]).__name__ if len(middlewares) == 1 else hook


@lru_cache(maxsize=200)  # the parts of the least recently used agents are read again when they are needed
def _parts_of(session_id: str | None, agent_name: str) -> MessageParts[Part]:
    return MessageParts(block_parts, part_of)


def events_of(agent: Any) -> list[Part]:
    """Return an agent's messages without the system prompt: the summary of compressed messages, then the context."""
    return _parts_of(agent.state.session_id, agent.name).of(agent.state.context, summary_blocks(agent.state.summary))


class PromptChange(NamedTuple):
    """A change of the system prompt by one middleware, with the duration of its ``on_system_prompt``."""

    middleware: str
    before: str
    after: str
    duration_ns: int


class AgentScopeCall(ModelCall):
    """A model call of an agent's reply, or one that a middleware or a tool makes during a reply.

    Attributes:
        prompt: The system prompt that AgentScope built last.
        prompt_changes: The changes that middlewares made to that prompt, in order.
        estimate: AgentScope's token count of the prompt in the last check of the context's size. None before the
            count; 0 while AgentScope counts.
        compressing: The reduction by middlewares that implement ``on_compress_context``; None without them.
    """

    ends_before_client_span = True  # a tracing middleware may have opened the span of the model call
    prompt = ""
    prompt_changes: Sequence[PromptChange] = ()
    estimate: int | None = None
    compressing: Reduction | None = None
    _request_messages: Sequence[Any] = ()
    _request_tools: Any = None
    _request_summary: Any = ""
    _request_step_name = FRAMEWORK

    def set_request(
        self, messages: Sequence[Any], tools: Any, summary: Any = "", middlewares: Sequence[Any] = ()
    ) -> None:
        """Set the request, with system prompt and summary, before the ``on_model_call`` middlewares change it."""
        self._request_messages, self._request_tools, self._request_summary = list(messages), tools, summary
        self._request_step_name = step_name([item for item in middlewares if not is_ours(item)], "on_model_call")

    def is_request(self, messages: Sequence[Any], tools: Any) -> bool:
        """Return True if a model's arguments are the agent's request, not another one that a middleware makes."""
        request_ids = {message.id for message in self._request_messages}
        same_tools = tools is not None and tools is self._request_tools
        return same_tools or any(message.id in request_ids for message in messages)

    def read_messages(self, messages: Sequence[Any]) -> tuple[list[Part], list[str]]:
        """Return the parts of a model's messages, and the system prompts in front of them."""
        # The first message of an agent's request is its system prompt; later system messages belong to the context. In
        # a call without a conversation, all leading system messages are prompts.
        has_conversation = self.invoking_agent.conversation is not None
        context_ids = {message.id for message in self._request_messages[1:]} if has_conversation else ()
        leading, rest = in_front(messages, lambda message: message.role == "system" and message.id not in context_ids)
        prompts = [text for message in leading if (text := message.get_text_content())]
        # AgentScope creates a new message for the summary in each request. It is the same part as in `events_of`.
        summary = self._request_summary
        has_summary = bool(summary and rest and is_summary(rest[0], summary))
        parts = _parts_of(self.invoking_agent.conversation, self.invoking_agent.name)
        # The request may lack some of the agent's messages, but the next call must find the same parts for them.
        return parts.of(rest[has_summary:], summary_blocks(summary) if has_summary else (), forgets=False), prompts

    def client_request(self, model: Any, messages: Sequence[Any], tools: Any) -> ClientRequest:
        self.tools = tools if isinstance(tools, list) else ()
        (parts, prompts), (name, window) = self.read_messages(messages), _name_and_window(model)
        return ClientRequest(parts, prompts, self.tools, name, window, client=rules_of_client(model))

    def record_prompt_changes(self, events: Sequence[Part]) -> None:
        """Record each middleware's change of the system prompt as a step, unless this prompt was recorded before."""
        original = self.prompt_changes[0].before if self.prompt_changes else self.prompt
        self.observe_messages(events, prompts=as_prompts(original) if self.prompts is None else None)
        is_recorded = list(self.prompts_out or ()) == as_prompts(self.prompt)
        if not is_recorded:
            for change in self.prompt_changes:
                report = StepReport(
                    change.middleware, self.out, self.out, kind="injection", prompts=as_prompts(change.after)
                )
                self.reduced(report, started_ns=time.time_ns() - change.duration_ns)

    def record_request_changes(self, messages: Sequence[Any]) -> None:
        """Record how the ``on_model_call`` middlewares changed the model's messages; an equal copy is no change."""
        if self._request_step_name != FRAMEWORK:
            parts, prompts = self.read_messages(messages)
            reduction = self.middleware_reduction(self._request_step_name, self.out)
            if prompts != list(self.prompts_out or ()):
                reduction.report = replace(reduction.report, prompts=prompts)
            reduction.done(parts)

    def middleware_reduction(self, policy: str, before: Sequence[Any]) -> Reduction:
        return Reduction(self.instrumentation, StepReport(policy, before, kind=None), call=self)

    def fail_in_middleware(self, error: BaseException, policy: str | None = None) -> None:
        """Record that a middleware raised before the model was called: by default one that hooks ``on_model_call``."""
        self.middleware_reduction(policy or self._request_step_name, self.out).failed(error)  # the step
        self.end(error)  # the assembly, because no model is called


def _name_and_window(model: Any) -> tuple[str | None, int | None]:
    return getattr(model, "model", None), getattr(model, "context_size", None)


#: The next model call of each agent object.
_PREPARED_CALLS: Final[IdentityWeakMap[AgentScopeCall]] = IdentityWeakMap()


def prepared_call(instrumentation: Instrumentation, agent: Any) -> AgentScopeCall:
    call, invoking_agent = _PREPARED_CALLS.get(agent), invoking_agent_of(agent)
    if call is None or call.invoking_agent != invoking_agent:
        model, window = _name_and_window(agent.model)
        call = _PREPARED_CALLS.put(agent, AgentScopeCall(instrumentation, invoking_agent, model=model, window=window))
    return call


def end_prepared_call(agent: Any, error: BaseException | None = None, *, stays: bool = False) -> None:
    """End an agent's prepared call without a model call; see `ModelCall.end`."""
    call = _PREPARED_CALLS.pop(agent)
    if call is not None:
        call.end(error, stays=stays)


@run_hook
def reply(instrumentation: Instrumentation, agent: Any, /, *_: Any, **__: Any) -> ContextBoundRun:
    """Hook ``Agent._reply_impl``: one run, inside of all middlewares, so the span of one that traces is current."""
    end_call, session_id = partial(end_prepared_call, agent), agent.state.session_id
    return ContextBoundRun(
        instrumentation, agent.name, {REPLYING_AGENT: agent}, conversation_id=session_id, on_end=end_call
    )


#: The call whose system prompt is being built.
_PROMPT_CALL: Final[ContextVar[AgentScopeCall | None]] = ContextVar(
    "otel_assembly_agentscope_prompt_call", default=None
)


@observe_async_hook
def get_system_prompt(instrumentation: Instrumentation, agent: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Hook ``Agent._get_system_prompt``: collect the changes that middlewares make to the system prompt."""
    call = prepared_call(instrumentation, agent)
    call.prompt_changes = ()
    for middleware in agent._system_prompt_middlewares:  # noqa: SLF001  # no public attribute lists them
        instrumentation.wrap_once(type(middleware), "on_system_prompt", _on_system_prompt)
    with context_value(_PROMPT_CALL, call):
        call.prompt = yield


@observe_async_hook
def _on_system_prompt(instrumentation: Instrumentation, middleware: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Hook a middleware's ``on_system_prompt``: collect its change, and record an exception, which ends the call.

    The changes are recorded later, because AgentScope builds some prompts only to count their tokens.
    """
    call, name, started_ns = _PROMPT_CALL.get(), type(middleware).__name__, time.perf_counter_ns()
    if call is None:
        return
    agent, prompt = argument(args, kwargs, 0, "agent"), argument(args, kwargs, 1, "current_prompt", "")
    try:
        with context_value(_PROMPT_CALL, None):  # a call of the inherited method is a part of this change
            new_prompt = yield
    except BaseException as error:
        call.prompt = prompt  # made by the earlier middlewares: their changes are steps before the one that failed
        call.record_prompt_changes(events_of(agent))
        call.fail_in_middleware(error, name)
        _PREPARED_CALLS.pop(agent)  # the agent's next call is a new one
        raise
    if new_prompt != prompt:
        change = PromptChange(name, prompt, new_prompt, time.perf_counter_ns() - started_ns)
        call.prompt_changes = (*call.prompt_changes, change)


@observe_async_hook
def prepare_model_input(instrumentation: Instrumentation, agent: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Hook ``Agent._prepare_model_input``, whose result contains the schemas of the tools."""
    wrap_model_methods(instrumentation, agent.model)
    result = yield
    prepared_call(instrumentation, agent).tools = result.get("tools") or ()


@observe_async_hook
def call_model(instrumentation: Instrumentation, agent: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Hook ``Agent._call_model``: each of its attempts, with the model or a fallback model, is a model call."""
    wrap_model_methods(instrumentation, agent.model_config.fallback_model)
    call = prepared_call(instrumentation, agent)
    middlewares = agent._model_call_middlewares  # noqa: SLF001  # no public attribute lists them
    messages, tools = _messages_and_tools(args, kwargs)
    call.set_request(messages, tools, agent.state.summary, middlewares)
    call.record_prompt_changes(events_of(agent))
    try:
        with call.current():
            yield
    except BaseException as error:
        # The call has not ended, so the model's client was not called: a middleware raised before that.
        if middlewares and not call.ended and not any(is_ours(middleware) for middleware in middlewares):
            call.fail_in_middleware(error)
        raise
    finally:
        end_prepared_call(agent)  # not ended yet if a middleware answered without the model


#: The call whose attempt is running. A subclass of a model may call the same method of its base class.
_ATTEMPT_CALL: Final[ContextVar[ModelCall | None]] = ContextVar("otel_assembly_agentscope_attempt_call", default=None)


@observe_async_hook
def _observe_attempt(instrumentation: Instrumentation, model: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Observe a model's ``__call__`` or ``generate_structured_output``, which runs inside of all middlewares.

    If the messages are not the agent's request, a middleware or a tool calls the model: that is a separate call.
    """
    if reducing() is not None:  # the summarizer's call belongs to the step of the reducer
        return
    messages, tools = _messages_and_tools(args, kwargs)
    call, agent = CALL.get(), REPLYING_AGENT.get()
    if not isinstance(call, AgentScopeCall) or not call.is_request(messages, tools):
        call = AgentScopeCall(
            instrumentation, InvokingAgent() if agent is None else invoking_agent_of(agent)._replace(conversation=None)
        )
        call.set_request(messages, tools)
    elif _ATTEMPT_CALL.get() is call:  # a method of the base class, called by the method of its subclass
        return
    with context_value(_ATTEMPT_CALL, call), call.current(), call.scoped():
        call.record_request_changes(messages)
        recorded_count = call.sent
        yield
        if call.sent == recorded_count:  # this model class does not use _call_api, which would have recorded the call
            call.client_called(call.client_request(model, messages, tools))


def _messages_and_tools(args: Sequence[Any], kwargs: Mapping[str, Any], place: int = 0) -> tuple[Sequence[Any], Any]:
    """Return the arguments ``messages``, which is at this position, and ``tools``, which follows it."""
    return argument(args, kwargs, place, "messages", ()), argument(args, kwargs, place + 1, "tools")


def _client_request(place: int, model: Any, /, *args: Any, **kwargs: Any) -> ClientRequest | None:
    """Return the request of an agent or a reducer to a model; None if the call is recorded elsewhere.

    The argument ``messages`` is at `place`: 1 for ``_call_api``, 0 for a model's other methods.
    """
    (messages, tools), call = _messages_and_tools(args, kwargs, place), CALL.get()
    if reducing() is not None:
        return ClientRequest(MessageParts(block_parts, part_of).of(messages), model=type(model).__name__)
    is_call_api = place == 1
    if not isinstance(call, AgentScopeCall) or (not is_call_api and hasattr(model, "_call_api")):
        return None  # a model with ``_call_api`` is recorded there
    return call.client_request(model, messages, tools)


def _response_text(response: Any) -> str | None:
    """Return the text of a summarizer's answer; None if it is a stream, or was interrupted."""
    if response is None:  # an empty summary
        return ""
    content = getattr(response, "content", None)  # a stream has none
    if content is None or getattr(response, "finished_reason", None) == "interrupted":
        return None
    if isinstance(content, dict):  # of `generate_structured_output`
        return "\n".join(map(str, content.values()))
    return "\n".join(block.text for block in content if block.type == "text")


#: The hook of ``_call_api``, by which a model calls its client: each attempt calls it once.
client_hook: Final = client(partial(_client_request, 1))


def model_method_hook(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Hook a model's ``__call__`` or ``generate_structured_output``, also for models not derived from AgentScope's."""
    hooked = client(partial(_client_request, 0), _response_text)(original, instrumentation)
    return _observe_attempt(hooked, instrumentation)


@observe_async_hook
def count_tokens(instrumentation: Instrumentation, model: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Hook a model's ``count_tokens``: keep AgentScope's count of the prompt for `reducers.compress`.

    The prompt's is the first count of each check of the context's size. `reducers.compress` resets it before.
    """
    call = CALL.get()
    if isinstance(call, AgentScopeCall) and call.estimate is None:
        call.estimate = 0  # further counts inside of this one do not set it
        call.estimate = yield


def wrap_model_methods(instrumentation: Instrumentation, model: Any) -> None:
    """Wrap the methods of a model's class, which need not derive from AgentScope's `ChatModelBase`."""
    hooks = {
        "count_tokens": count_tokens,
        **dict.fromkeys(("generate_structured_output", "__call__"), model_method_hook),
    }
    for name, wrap in hooks.items():
        if inspect.iscoroutinefunction(getattr(type(model), name, None)):
            instrumentation.wrap_once(type(model), name, wrap)
