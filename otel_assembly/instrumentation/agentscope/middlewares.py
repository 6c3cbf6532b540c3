"""What middlewares of other people's making do to a context: in the agent's own, or on the way to its model."""

from __future__ import annotations

import functools
import time
from contextvars import ContextVar
from operator import is_
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.agentscope.agents import (
    arrives,
    as_known,
    called,
    done,
    over,
    parts_sent,
    prepare,
    remembered,
)
from otel_assembly.instrumentation.agentscope.prompts import tell_prompt
from otel_assembly.instrumentation.wrapping import argument, bound

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly.instrumentation.agentscope.messages import Part
    from otel_assembly.instrumentation.instrumentor import Instrumentation

ON_COMPRESS_CONTEXT: Final = "on_compress_context"
ON_MODEL_CALL: Final = "on_model_call"


class Round:
    """One call of a method that middlewares stand around, and what they were given."""

    __slots__ = ("agent", "done", "messages", "started_ns", "summary", "tools")

    def __init__(self, agent: Any, messages: Sequence[Any], summary: Any = "", tools: Any = None) -> None:
        self.agent = agent
        self.messages = list(messages)
        self.summary = summary
        self.tools = tools
        self.started_ns = time.time_ns()
        #: Whether what happened to them was looked at.
        self.done = False

    def sends(self, messages: Sequence[Any], tools: Any) -> bool:
        """Whether a model that is called with these is the agent's, and none that a middleware asks something else."""
        known = {message.id for message in self.messages}
        return (tools is not None and tools is self.tools) or any(message.id in known for message in messages)


_COMPRESSION: Final[ContextVar[Round | None]] = ContextVar("otel_assembly_agentscope_compression", default=None)
_CALL: Final[ContextVar[Round | None]] = ContextVar("otel_assembly_agentscope_call", default=None)


def around_compression(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Wraps ``Agent.compress_context``: a middleware may compress in a way of its own."""

    @functools.wraps(original)
    async def compress_context(self: Any, *args: Any, **kwargs: Any) -> Any:
        middlewares = getattr(self, "_compress_context_middlewares", ())
        if not middlewares or not instrumentation.listening() or _COMPRESSION.get() is not None:
            return await original(self, *args, **kwargs)
        given: Round | None = None
        with instrumentation.contained():
            known = remembered(self)
            told = known.compressions, known.failures
            given = Round(self, self.state.context, self.state.summary)
        error: BaseException | None = None
        try:
            with bound(_COMPRESSION, given):
                return await original(self, *args, **kwargs)
        except BaseException as raised:
            error = raised
            raise
        finally:
            if given is not None:
                with instrumentation.contained():
                    if told == (known.compressions, known.failures):  # AgentScope's own is told elsewhere
                        _compressed(instrumentation, given, _name(middlewares, ON_COMPRESS_CONTEXT), error)

    return compress_context


def _compressed(instrumentation: Instrumentation, given: Round, policy: str, error: BaseException | None) -> None:
    agent = given.agent
    if error is not None or not _same(given.messages, agent.state.context):
        before, after = parts_sent(agent, given.messages, given.summary), remembered(agent).events(agent)
        if error is not None or _ids(before) != _ids(after):
            _tell(instrumentation, given, policy, before, after, error=error, stays=True)


def call_model(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Wraps ``Agent._call_model``: what it is given is what the system prompt was made for."""

    @functools.wraps(original)
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not instrumentation.listening():
            return await original(self, *args, **kwargs)
        given = None
        with instrumentation.contained():
            tell_prompt(instrumentation, self)
            messages, tools = argument(args, kwargs, 0, "messages", ()), argument(args, kwargs, 1, "tools")
            given = _round(Round(self, messages, tools=tools))
        try:
            with bound(_CALL, given):
                return await original(self, *args, **kwargs)
        except BaseException as error:
            if given is not None and not given.done:
                with instrumentation.contained():
                    before, _ = _behind_the_prompt(given, given.messages)
                    name = _name(self._model_call_middlewares, ON_MODEL_CALL)
                    _tell(instrumentation, given, name, before, before, error=error)
            raise
        finally:
            with instrumentation.contained():
                over(self)  # where a middleware has answered itself

    return call


def _round(given: Round) -> Round | None:
    """A model call begins; None where no middleware stands in front of the model that we have to look at."""
    agent = given.agent
    if remembered(agent).assembly is not None:
        arrives(agent, _behind_the_prompt(given, given.messages)[0])
    middlewares = agent._model_call_middlewares  # noqa: SLF001
    if any(getattr(one, "otel_assembly_plugin", False) for one in middlewares):
        over(agent)  # our own plug-in tells of its assemblies itself
        return None
    if not middlewares:
        called(agent)
        return None
    return given


def model(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Wraps ``ChatModelBase.__call__``: behind all middlewares."""

    @functools.wraps(original)
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = _CALL.get()
        if given is None or given.done or not instrumentation.listening():
            return await original(self, *args, **kwargs)
        with instrumentation.contained():
            messages, tools = argument(args, kwargs, 0, "messages", ()), argument(args, kwargs, 1, "tools")
            if given.sends(messages, tools):
                given.done = True
                if not _same(given.messages, messages):
                    _model_called(instrumentation, given, messages)
                called(given.agent)
        return await original(self, *args, **kwargs)

    return call


def _model_called(instrumentation: Instrumentation, given: Round, messages: Sequence[Any]) -> None:
    name = _name(given.agent._model_call_middlewares, ON_MODEL_CALL)  # noqa: SLF001
    before, prompts_before = _behind_the_prompt(given, given.messages)
    after, prompts = _behind_the_prompt(given, messages)
    if _ids(before) != _ids(after) or prompts_before != prompts:  # copies that say the same are no change
        _tell(instrumentation, given, name, before, after, prompts)


def _ids(parts: Sequence[Part]) -> list[str | None]:
    return [part.facts.id for part in parts]


def _behind_the_prompt(given: Round, messages: Sequence[Any]) -> tuple[list[Part], list[str]]:
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


def _same(before: Sequence[Any], after: Sequence[Any]) -> bool:
    return len(before) == len(after) and all(map(is_, before, after))


def _name(middlewares: Sequence[Any], otherwise: str) -> str:
    """Who did it, where only one can have."""
    return type(middlewares[0]).__name__ if len(middlewares) == 1 else otherwise


def _tell(
    instrumentation: Instrumentation,
    given: Round,
    policy: str,
    before: Sequence[Part],
    after: Sequence[Part],
    prompts: Sequence[str] | None = None,
    *,
    error: BaseException | None = None,
    stays: bool = False,
) -> None:
    known = {part.facts.id: part for part in before}
    agent = given.agent
    assembly = prepare(instrumentation, agent, before, sized=True, started_ns=given.started_ns)
    if assembly is None:
        return
    started_ns = max(given.started_ns, remembered(agent).done_ns)
    with assembly.step(policy, started_ns=started_ns) as step:
        step.out(as_known(assembly, [known.get(part.facts.id, part) for part in after]), prompts=prompts)
    step.failed(error)
    done(agent, error, stays=stays)
