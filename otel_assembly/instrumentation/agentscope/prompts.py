"""System prompts that middlewares change.

AgentScope makes the prompt anew several times in each round, mostly to measure it. What middlewares make of it is told
for the call of the model that it is made for: once in a reply, and again where they make something else of it.
"""

from __future__ import annotations

import functools
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_assembly.instrumentation.agentscope.agents import done, prepare, remembered
from otel_assembly.instrumentation.wrapping import argument, bound

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly.instrumentation.instrumentor import Instrumentation

ON_SYSTEM_PROMPT: Final = "on_system_prompt"


class Change(NamedTuple):
    """What one middleware made of a prompt, and how long it took."""

    middleware: str
    prompt_in: str
    prompt_out: str | None  # None: it raised
    took_ns: int


_CHANGES: Final[ContextVar[list[Change] | None]] = ContextVar("otel_assembly_agentscope_prompt", default=None)


def get_system_prompt(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Wraps ``Agent._get_system_prompt``."""

    @functools.wraps(original)
    async def get(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not instrumentation.listening():
            return await original(self, *args, **kwargs)
        changes: list[Change] = []
        started_ns = time.time_ns()
        with instrumentation.contained():
            _watch(instrumentation, self._system_prompt_middlewares)
        try:
            with bound(_CHANGES, changes):
                prompt = await original(self, *args, **kwargs)
        except BaseException as error:
            with instrumentation.contained():
                _tell_failure(instrumentation, self, changes, started_ns, error)
            raise
        with instrumentation.contained():
            known = remembered(self)
            known.prompt, known.changes = prompt, tuple(changes)
        return prompt

    return get


def prepare_model_input(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Wraps ``Agent._prepare_model_input``, which knows the tools."""

    @functools.wraps(original)
    async def prepare(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = await original(self, *args, **kwargs)
        if instrumentation.listening():
            with instrumentation.contained():
                remembered(self).tools = result.get("tools") or ()
        return result

    return prepare


def _watch(instrumentation: Instrumentation, middlewares: Sequence[Any]) -> None:
    """Wrap the method of every class of middlewares that is met; never the base class's, by which they are known."""
    for middleware in middlewares:
        owner = next((one for one in type(middleware).__mro__ if ON_SYSTEM_PROMPT in vars(one)), None)
        if owner is not None and owner.__name__ != "MiddlewareBase":
            instrumentation.patches.take(owner, ON_SYSTEM_PROMPT, _transformer)


def _transformer(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def on_system_prompt(self: Any, *args: Any, **kwargs: Any) -> Any:
        changes = _CHANGES.get()
        if changes is None:
            return await original(self, *args, **kwargs)
        started_ns = time.perf_counter_ns()
        prompt = argument(args, kwargs, 1, "current_prompt", "")
        try:
            with bound(_CHANGES, None):  # what it inherits is its own doing
                result = await original(self, *args, **kwargs)
        except BaseException:
            changes.append(Change(type(self).__name__, prompt, None, time.perf_counter_ns() - started_ns))
            raise
        changes.append(Change(type(self).__name__, prompt, result, time.perf_counter_ns() - started_ns))
        return result

    return on_system_prompt


def tell_prompt(instrumentation: Instrumentation, agent: Any) -> None:
    """The model is about to be called: tell what middlewares made of its prompt, if that is not known."""
    known = remembered(agent)
    made = [change for change in known.changes if change.prompt_in != change.prompt_out]
    if not made:
        return
    now = agent.state.reply_id, tuple(change[:3] for change in made)
    if known.told == now:
        return
    known.told = now
    # It is over: each is told to have taken as long as it did, and to have ended now.
    _tell(instrumentation, agent, made, time.time_ns() - sum(change.took_ns for change in made))


def _tell_failure(
    instrumentation: Instrumentation, agent: Any, changes: Sequence[Change], started_ns: int, error: BaseException
) -> None:
    """A middleware raised: no prompt was made, and no model is called with one."""
    if changes and changes[-1].prompt_out is None:
        made = [change for change in changes if change.prompt_in != change.prompt_out]
        _tell(instrumentation, agent, made, started_ns, error)


def _tell(
    instrumentation: Instrumentation,
    agent: Any,
    made: Sequence[Change],
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
    done(agent, error)
