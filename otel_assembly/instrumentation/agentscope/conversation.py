"""AgentScope's replies, each one run, and the calls that they make of models: who asks, and what is sent.

AgentScope makes the prompt anew several times in each round, mostly to measure it: the one that counts is the one that
the model is called with. A call is told where it reaches the model's client (``_call_api``), which every attempt does.
"""

from __future__ import annotations

import inspect
import time
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.agentscope.message_parts import MessageParts
from otel_assembly.instrumentation.agentscope.messages import block_parts, is_summary, part_of, summary_blocks
from otel_assembly.instrumentation.bound_runs import ContextBoundRun
from otel_assembly.instrumentation.clients import client
from otel_assembly.instrumentation.conversation import IdentityWeakMap, InvokingAgent
from otel_assembly.instrumentation.hooks import observe_async_hook
from otel_assembly.instrumentation.instrumented import argument, context_value
from otel_assembly.instrumentation.model_call import CALL, ClientRequest, ModelCall
from otel_assembly.instrumentation.prompts import as_prompts, in_front
from otel_assembly.instrumentation.reducers import FRAMEWORK, is_ours
from otel_assembly.instrumentation.reductions import Reduction, reducing
from otel_assembly.instrumentation.runs import run_hook
from otel_assembly.messages.provider_rules import rules_of_client

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.instrumentation.agentscope.messages import Part
    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation


#: The agent that replies here; outside of any reply, no model call is prepared.
REPLYING: Final[ContextVar[Any]] = ContextVar("otel_assembly_agentscope_replying", default=None)


def invoking_agent_of(agent: Any) -> InvokingAgent:
    """A session may have several agents, each with a context of its own: the ledger is that of an agent in a session.

    An agent that is made anew goes on with the context of its session.
    """
    return InvokingAgent.of(agent.state.session_id, agent.name)


def named(middlewares: Sequence[Any], hook: str) -> str:
    """Who did it, where only one of them can have."""
    return FRAMEWORK if not middlewares else type(middlewares[0]).__name__ if len(middlewares) == 1 else hook


@lru_cache(maxsize=200)  # beyond it, the least recently used are read anew when they come back
def _parts_of(session: str | None, agent: str) -> MessageParts[Part]:
    return MessageParts(block_parts, part_of)


def events_of(agent: Any) -> list[Part]:
    """What follows the system prompt: the summary of what was compressed, and the context."""
    return _parts_of(agent.state.session_id, agent.name).of(agent.state.context, summary_blocks(agent.state.summary))


class AskedModel(ModelCall):
    """A call of a model: an agent's, which is prepared step by step, or one that somebody else makes meanwhile.

    Attributes:
        prompt: The system prompt as it was last made.
        changes: What middlewares made of it then: by whom, what it was, what became of it, and in how many nanoseconds.
        estimate: What AgentScope estimated the prompt to take when it last looked; 0 while it does so.
        compressing: What a middleware does that compresses the context.
    """

    ends_before_client_span = True  # a middleware may open the model call's span
    prompt = ""
    changes: Sequence[tuple[str, str, str, int]] = ()
    estimate: int | None = None
    compressing: Reduction | None = None
    _asked: Sequence[Any] = ()
    _offered: Any = None
    _summary: Any = ""
    _policy = FRAMEWORK

    def asked(self, messages: Sequence[Any], tools: Any, summary: Any = "", middlewares: Sequence[Any] = ()) -> None:
        """It is asked with these, which middlewares may change on the way to the model."""
        self._asked, self._offered, self._summary = list(messages), tools, summary
        self._policy = named([one for one in middlewares if not is_ours(one)], "on_model_call")

    def sends(self, messages: Sequence[Any], tools: Any) -> bool:
        """Whether a model that is called with these is this call's, and none that a middleware asks something else."""
        known = {message.id for message in self._asked}
        return (tools is not None and tools is self._offered) or any(message.id in known for message in messages)

    def read(self, messages: Sequence[Any]) -> tuple[list[Part], list[str]]:
        """The parts of what is sent, and the system prompts in front of them.

        The first message that an agent asks with is its prompt; a system message behind it belongs to the context. The
        summary, which is made anew each time, is the part that it is elsewhere.
        """
        own = {message.id for message in self._asked[1:]} if self.invoking_agent.conversation is not None else ()
        front, rest = in_front(messages, lambda message: message.role == "system" and message.id not in own)
        prompts = [text for message in front if (text := message.get_text_content())]
        summary = self._summary
        summed = bool(summary and rest and is_summary(rest[0], summary))
        parts = _parts_of(self.invoking_agent.conversation, self.invoking_agent.name)
        return parts.of(rest[summed:], summary_blocks(summary) if summed else (), forgets=False), prompts

    def given(self, model: Any, messages: Sequence[Any], tools: Any) -> ClientRequest:
        """What a model's client is given for it."""
        self.tools = tools if isinstance(tools, list) else ()
        return ClientRequest(*self.read(messages), self.tools, *_known(model), client=rules_of_client(model))

    def prompted(self, events: Sequence[Part]) -> None:
        """Its system prompt is made: tell what middlewares made of it, where that is not what was told last."""
        first = self.changes[0][1] if self.changes else self.prompt
        self.observe_messages(events, prompts=as_prompts(first) if self.prompts is None else None)
        if list(self._prompts_out or ()) != as_prompts(self.prompt):
            for name, _, made, took_ns in self.changes:
                began, prompts = time.time_ns() - took_ns, as_prompts(made)
                self.reduced(name, self.out, self.out, kind="injection", started_ns=began, prompts=prompts)

    def passed(self, messages: Sequence[Any]) -> None:
        """Behind all middlewares, these are what a model is called with; copies that say the same are no change."""
        if self._policy != FRAMEWORK:
            parts, prompts = self.read(messages)
            changed = prompts != list(self._prompts_out or ())
            self.middleware(self._policy, self.out).done(parts, prompts=prompts if changed else None)

    def middleware(self, policy: str, before: Sequence[Any]) -> Reduction:
        """What a middleware, or several, do to its messages."""
        return Reduction(self.instrumentation, policy, before, kind=None, call=self)

    def stopped(self, error: BaseException, policy: str | None = None) -> None:
        """A middleware raised before a model was called: nothing is sent."""
        self.middleware(policy or self._policy, self.out).failed(error)
        self.end(error)


def _known(model: Any) -> tuple[str | None, int | None]:
    """The name of a model, and its window."""
    return getattr(model, "model", None), getattr(model, "context_size", None)


_PREPARED: Final[IdentityWeakMap[AskedModel]] = IdentityWeakMap()


def prepared(instrumentation: Instrumentation, agent: Any) -> AskedModel:
    """The model call that an agent makes next, in the session that it has now; it goes when the agent goes."""
    call, invoking_agent = _PREPARED.get(agent), invoking_agent_of(agent)
    if call is None or call.invoking_agent != invoking_agent:
        model, window = _known(agent.model)
        call = _PREPARED.put(agent, AskedModel(instrumentation, invoking_agent, model=model, window=window))
    return call


def not_called(agent: Any, error: BaseException | None = None, *, stays: bool = False) -> None:
    """No model is called with what was prepared: what was done for it is told all the same."""
    call = _PREPARED.pop(agent)
    if call is not None:
        call.end(error, stays=stays)


@run_hook
def reply(instrumentation: Instrumentation, agent: Any, /, *_: Any, **__: Any) -> ContextBoundRun:
    """Around ``Agent._reply_impl``, inside of all middlewares: where one of them traces, its span is current.

    What was prepared in it for a model that is not called ends with it.
    """
    ends, session = partial(not_called, agent), agent.state.session_id
    return ContextBoundRun(instrumentation, agent.name, {REPLYING: agent}, conversation_id=session, ends=ends)


#: The call whose system prompt is made here.
_PROMPTED: Final[ContextVar[AskedModel | None]] = ContextVar("otel_assembly_agentscope_prompted", default=None)


@observe_async_hook
def get_system_prompt(instrumentation: Instrumentation, agent: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around ``Agent._get_system_prompt``."""
    call = prepared(instrumentation, agent)
    call.changes = ()
    for middleware in agent._system_prompt_middlewares:  # noqa: SLF001  # nothing else names them
        instrumentation.take(type(middleware), "on_system_prompt", _transformer)
    with context_value(_PROMPTED, call):
        call.prompt = yield


@observe_async_hook
def _transformer(instrumentation: Instrumentation, middleware: Any, /, *args: Any, **kwargs: Any) -> Observation:
    call, name, began_ns = _PROMPTED.get(), type(middleware).__name__, time.perf_counter_ns()
    if call is None:
        return
    agent, prompt = argument(args, kwargs, 0, "agent"), argument(args, kwargs, 1, "current_prompt", "")
    try:
        with context_value(_PROMPTED, None):  # what it inherits is its own doing
            made = yield
    except BaseException as error:
        call.prompt = prompt
        call.prompted(events_of(agent))
        call.stopped(error, name)
        not_called(agent)
        raise
    if made != prompt:
        call.changes = (*call.changes, (name, prompt, made, time.perf_counter_ns() - began_ns))


@observe_async_hook
def prepare_model_input(instrumentation: Instrumentation, agent: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around ``Agent._prepare_model_input``, which knows the tools."""
    observe_model(instrumentation, agent.model)
    result = yield
    prepared(instrumentation, agent).tools = result.get("tools") or ()


@observe_async_hook
def call_model(instrumentation: Instrumentation, agent: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around ``Agent._call_model``: each attempt, of whichever model, is a call of the same messages."""
    observe_model(instrumentation, agent.model_config.fallback_model)
    call, middlewares = prepared(instrumentation, agent), agent._model_call_middlewares  # noqa: SLF001  # as above
    messages, tools = _given(args, kwargs)
    call.asked(messages, tools, agent.state.summary, middlewares)
    call.prompted(events_of(agent))
    try:
        with call.current():
            yield
    except BaseException as error:
        if middlewares and not call.ended and not any(is_ours(one) for one in middlewares):
            call.stopped(error)
        raise
    finally:
        not_called(agent)  # where a middleware has answered itself


#: The call whose model is asked here: a model's own method may call the one that it has in the place of.
_ASKED: Final[ContextVar[ModelCall | None]] = ContextVar("otel_assembly_agentscope_asked", default=None)


@observe_async_hook
def _asked(instrumentation: Instrumentation, model: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around a model's ``__call__`` and ``generate_structured_output``, behind all middlewares: an attempt.

    A model that is asked something else than an agent's call is a call of its own.
    """
    if reducing() is not None:
        return
    messages, tools = _given(args, kwargs)
    call, agent = CALL.get(), REPLYING.get()
    if not isinstance(call, AskedModel) or not call.sends(messages, tools):
        call = AskedModel(
            instrumentation, InvokingAgent() if agent is None else invoking_agent_of(agent)._replace(conversation=None)
        )
        call.asked(messages, tools)
    elif _ASKED.get() is call:
        return
    with context_value(_ASKED, call), call.current(), call.scoped():
        call.passed(messages)
        sent = call.sent
        yield
        if call.sent == sent:  # its class has a way of its own to its client
            call.client_called(call.given(model, messages, tools))


def _given(args: Sequence[Any], kwargs: Mapping[str, Any], at: int = 0) -> tuple[Sequence[Any], Any]:
    """The messages, which are the argument at this place, and the tools behind them."""
    return argument(args, kwargs, at, "messages", ()), argument(args, kwargs, at + 1, "tools")


def _sent(at: int, model: Any, /, *args: Any, **kwargs: Any) -> ClientRequest | None:
    """What a model is given, by an agent or by a reducer, where it is its client that is called, or it has none."""
    (messages, tools), call = _given(args, kwargs, at), CALL.get()
    if reducing() is not None:
        return ClientRequest(MessageParts(block_parts, part_of).of(messages), model=type(model).__name__)
    its_client = at or not hasattr(model, "_call_api")
    return call.given(model, messages, tools) if its_client and isinstance(call, AskedModel) else None


def _text_of(answer: Any) -> str | None:
    said = getattr(answer, "content", None)
    if said is None or getattr(answer, "finished_reason", None) == "interrupted":
        return None if answer is not None else ""
    if isinstance(said, dict):
        return "\n".join(map(str, said.values()))
    return "\n".join(block.text for block in said if block.type == "text")


#: The hook of ``_call_api`` of a model: its client, which every attempt reaches.
called: Final = client(partial(_sent, 1))


def asked(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """The hook of ``__call__`` and ``generate_structured_output`` of a model, of AgentScope's or of a class alike."""
    return _asked(client(partial(_sent, 0), _text_of)(original, instrumentation), instrumentation)


@observe_async_hook
def estimate(instrumentation: Instrumentation, model: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around ``count_tokens`` of a model: the first count of a check is that of the whole prompt."""
    call = CALL.get()
    if isinstance(call, AskedModel) and call.estimate is None:
        call.estimate = 0
        call.estimate = yield


def observe_model(instrumentation: Instrumentation, model: Any) -> None:
    """A model's class need not derive from AgentScope's: its methods are wrapped when it is met."""
    for name, wrap in (("count_tokens", estimate), ("generate_structured_output", asked), ("__call__", asked)):
        if inspect.iscoroutinefunction(getattr(type(model), name, None)):
            instrumentation.take(type(model), name, wrap)
