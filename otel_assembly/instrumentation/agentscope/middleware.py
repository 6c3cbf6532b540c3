"""What an AgentScope agent's middlewares change: its system prompt, its context, and the messages of a model call.

AgentScope makes the prompt anew several times in each round, mostly to measure it. What middlewares make of it is
reported for the model call that it is made for: once in a reply, and again where they make something else of it.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.agentscope.conversation import (
    Change,
    PromptChange,
    arrives,
    ids_of,
    model_called,
    not_called,
    parts_sent,
    prepare,
    remembered,
    report,
    step_done,
)
from otel_assembly.instrumentation.hooks import around_awaited
from otel_assembly.instrumentation.instrumented import argument, bound, ending
from otel_assembly.instrumentation.reducers import same_objects

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.instrumentation.agentscope.messages import Part
    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation


ON_SYSTEM_PROMPT: Final = "on_system_prompt"


_CHANGES: Final[ContextVar[list[PromptChange] | None]] = ContextVar("otel_assembly_agentscope_prompt", default=None)


@around_awaited
def get_system_prompt(instrumentation: Instrumentation, agent: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around ``Agent._get_system_prompt``."""
    changes: list[PromptChange] = []
    started_ns = time.time_ns()
    _observe(instrumentation, agent._system_prompt_middlewares)  # noqa: SLF001  # nothing else names them
    try:
        with bound(_CHANGES, changes):
            prompt = yield
    except BaseException as error:
        _report_failure(instrumentation, agent, changes, started_ns, error)
        raise
    known = remembered(agent)
    known.prompt, known.changes = prompt, tuple(changes)


@around_awaited
def prepare_model_input(instrumentation: Instrumentation, agent: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around ``Agent._prepare_model_input``, which knows the tools."""
    result = yield
    remembered(agent).tools = result.get("tools") or ()


def _observe(instrumentation: Instrumentation, middlewares: Sequence[Any]) -> None:
    """Wrap the method of every class of middlewares that is met; never the base class's, by which they are known."""
    for middleware in middlewares:
        owner = next((one for one in type(middleware).__mro__ if ON_SYSTEM_PROMPT in vars(one)), None)
        if owner is not None and owner.__name__ != "MiddlewareBase":
            instrumentation.take(owner, ON_SYSTEM_PROMPT, _transformer)


@around_awaited
def _transformer(instrumentation: Instrumentation, middleware: Any, /, *args: Any, **kwargs: Any) -> Observation:
    changes = _CHANGES.get()
    if changes is None:
        return
    started_ns, result = time.perf_counter_ns(), None
    prompt = argument(args, kwargs, 1, "current_prompt", "")
    try:
        with bound(_CHANGES, None):  # what it inherits is its own doing
            result = yield
    finally:
        changes.append(PromptChange(type(middleware).__name__, prompt, result, time.perf_counter_ns() - started_ns))


def report_prompt(instrumentation: Instrumentation, agent: Any) -> None:
    """The model is about to be called: report what middlewares made of its prompt, if that is not known."""
    known = remembered(agent)
    made = [change for change in known.changes if change.prompt_in != change.prompt_out]
    if not made:
        return
    now = agent.state.reply_id, tuple(change[:3] for change in made)
    if known.reported == now:
        return
    known.reported = now
    # It is over: each is reported to have taken as long as it did, and to have ended now.
    _report_prompt(instrumentation, agent, made, time.time_ns() - sum(change.took_ns for change in made))


def _report_failure(
    instrumentation: Instrumentation, agent: Any, changes: Sequence[PromptChange], started_ns: int, error: BaseException
) -> None:
    """A middleware raised: no prompt was made, and no model is called with one."""
    if changes and changes[-1].prompt_out is None:
        made = [change for change in changes if change.prompt_in != change.prompt_out]
        _report_prompt(instrumentation, agent, made, started_ns, error)


def _report_prompt(
    instrumentation: Instrumentation,
    agent: Any,
    made: Sequence[PromptChange],
    started_ns: int,
    error: BaseException | None = None,
) -> None:
    events = remembered(agent).events(agent)
    assembly = prepare(instrumentation, agent, events, prompt=made[0].prompt_in, started_ns=started_ns)
    if assembly is None:
        return
    ended_ns = 0
    for change in made:
        before_ns = max(time.time_ns() - change.took_ns, ended_ns)
        with assembly.step(change.middleware, kind="injection", started_ns=before_ns) as step:
            if change.prompt_out is not None:
                step.out(prompts=[change.prompt_out])
        step.failed(error if change.prompt_out is None else None)
        ended_ns = time.time_ns()
    step_done(agent, error)


ON_COMPRESS_CONTEXT: Final = "on_compress_context"
ON_MODEL_CALL: Final = "on_model_call"


class MiddlewareCall:
    """One call of a method that middlewares stand around, and what they were given."""

    __slots__ = ("agent", "done", "messages", "started_ns", "summary", "tools")

    def __init__(self, agent: Any, messages: Sequence[Any], summary: Any = "", tools: Any = None) -> None:
        self.agent = agent
        self.messages = list(messages)
        self.summary = summary
        self.tools = tools
        self.started_ns = time.time_ns()
        #: Whether what happened to them was reported.
        self.done = False

    def sends(self, messages: Sequence[Any], tools: Any) -> bool:
        """Whether a model that is called with these is the agent's, and none that a middleware asks something else."""
        known = {message.id for message in self.messages}
        return (tools is not None and tools is self.tools) or any(message.id in known for message in messages)


_COMPRESSION: Final[ContextVar[MiddlewareCall | None]] = ContextVar(
    "otel_assembly_agentscope_compression", default=None
)
_CALL: Final[ContextVar[MiddlewareCall | None]] = ContextVar("otel_assembly_agentscope_call", default=None)


@around_awaited
def around_compression(instrumentation: Instrumentation, agent: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around ``Agent.compress_context``: a middleware may compress in a way of its own."""
    middlewares = getattr(agent, "_compress_context_middlewares", ())
    if not middlewares or _COMPRESSION.get() is not None:
        return
    known = remembered(agent)
    before = known.compressions, known.failures
    given = MiddlewareCall(agent, agent.state.context, agent.state.summary)

    def compressed(error: BaseException | None) -> None:
        if before == (known.compressions, known.failures):  # AgentScope's own is reported elsewhere
            _compressed(instrumentation, given, _name(middlewares, ON_COMPRESS_CONTEXT), error)

    with ending(compressed), bound(_COMPRESSION, given):
        yield


def _compressed(
    instrumentation: Instrumentation, given: MiddlewareCall, policy: str, error: BaseException | None
) -> None:
    agent = given.agent
    if error is not None or not same_objects(given.messages, agent.state.context):
        before, after = parts_sent(agent, given.messages, given.summary), remembered(agent).events(agent)
        if error is not None or ids_of(before) != ids_of(after):
            report(instrumentation, agent, Change(policy, before, after, given.started_ns, error=error))


@around_awaited
def call_model(instrumentation: Instrumentation, agent: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around ``Agent._call_model``, whose messages the system prompt was made for."""
    try:
        report_prompt(instrumentation, agent)
        messages, tools = argument(args, kwargs, 0, "messages", ()), argument(args, kwargs, 1, "tools")
        given = _middleware_call(MiddlewareCall(agent, messages, tools=tools))
        try:
            with bound(_CALL, given):
                yield
        except BaseException as error:
            if given is not None and not given.done:
                before, _ = _behind_the_prompt(given, given.messages)
                policy = _name(agent._model_call_middlewares, ON_MODEL_CALL)  # noqa: SLF001  # as above
                change = Change(policy, before, before, given.started_ns, error=error, stays=False)
                report(instrumentation, agent, change)
            raise
    finally:
        not_called(agent)  # where a middleware has answered itself


def _middleware_call(given: MiddlewareCall) -> MiddlewareCall | None:
    """Begin a model call; None where there is no middleware in front of the model to observe."""
    agent = given.agent
    if remembered(agent).assembly is not None:
        arrives(agent, _behind_the_prompt(given, given.messages)[0])
    middlewares = agent._model_call_middlewares  # noqa: SLF001
    if any(getattr(one, "otel_assembly_plugin", False) for one in middlewares):
        not_called(agent)  # our own plug-in reports its assemblies itself
        return None
    if not middlewares:
        model_called(agent)
        return None
    return given


@around_awaited
def model(instrumentation: Instrumentation, model: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around ``ChatModelBase.__call__``: behind all middlewares."""
    given = _CALL.get()
    if given is not None and not given.done:
        messages, tools = argument(args, kwargs, 0, "messages", ()), argument(args, kwargs, 1, "tools")
        if given.sends(messages, tools):
            given.done = True
            if not same_objects(given.messages, messages):
                _model_called(instrumentation, given, messages)
            model_called(given.agent)
    yield


def _model_called(instrumentation: Instrumentation, given: MiddlewareCall, messages: Sequence[Any]) -> None:
    policy = _name(given.agent._model_call_middlewares, ON_MODEL_CALL)  # noqa: SLF001  # as above
    before, prompts_before = _behind_the_prompt(given, given.messages)
    after, prompts = _behind_the_prompt(given, messages)
    if ids_of(before) != ids_of(after) or prompts_before != prompts:  # copies that say the same are no change
        change = Change(policy, before, after, given.started_ns, prompts=prompts, stays=False)
        report(instrumentation, given.agent, change)


def _behind_the_prompt(given: MiddlewareCall, messages: Sequence[Any]) -> tuple[list[Part], list[str]]:
    """The parts of what is sent, and the system prompts in front of them.

    The first message that a model call comes with is its prompt; a system message behind it belongs to the context. The
    summary, which is made anew each time, is the part that it is elsewhere.
    """
    own = {message.id for message in given.messages[1:]}
    of_context = (at for at, message in enumerate(messages) if message.role != "system" or message.id in own)
    start = next(of_context, len(messages))
    prompts = [text for message in messages[:start] if (text := message.get_text_content())]
    rest, summary = messages[start:], given.agent.state.summary
    if summary and rest and isinstance(summary, str) and rest[0].get_text_content() == summary:
        return parts_sent(given.agent, rest[1:], summary), prompts
    return parts_sent(given.agent, rest, ""), prompts


def _name(middlewares: Sequence[Any], otherwise: str) -> str:
    """Who did it, where only one can have."""
    return type(middlewares[0]).__name__ if len(middlewares) == 1 else otherwise
