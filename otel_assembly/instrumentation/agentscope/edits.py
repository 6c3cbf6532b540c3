"""What AgentScope changes in single messages: images beyond a limit, and tool results that are too long."""

from __future__ import annotations

import functools
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_assembly.instrumentation.agentscope.agents import as_known, done, over, prepare, remembered
from otel_assembly.instrumentation.agentscope.compression import COMPRESSING
from otel_assembly.instrumentation.wrapping import argument

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.instrumentation.agentscope.messages import Part
    from otel_assembly.instrumentation.instrumentor import Instrumentation

LIMIT_IMAGES: Final = "limit_images"
TRUNCATE_TOOL_RESULT: Final = "truncate_tool_result"


class _Truncated(NamedTuple):
    """A tool result that was cut, and is not in the context yet."""

    whole: Any
    reserved: Any
    started_ns: int


_TRUNCATED: Final[ContextVar[_Truncated | None]] = ContextVar("otel_assembly_agentscope_truncated", default=None)


def limit_images(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Wraps ``Agent._limit_context_images``, which replaces the oldest images in place."""

    @functools.wraps(original)
    async def limit(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not instrumentation.listening():
            return await original(self, *args, **kwargs)
        before: list[Part] = []
        started_ns = time.time_ns()
        with instrumentation.contained():
            most = argument(args, kwargs, 0, "cfg").max_image_num
            if remembered(self).images.count(self.state.context) > most:
                before = remembered(self).events(self)
        error: BaseException | None = None
        try:
            return await original(self, *args, **kwargs)
        except BaseException as raised:
            error = raised
            raise
        finally:
            if before:
                with instrumentation.contained():
                    remembered(self).images.forget()
                    after = remembered(self).events(self)
                    settings = {"max_image_num": most}
                    _tell(instrumentation, self, LIMIT_IMAGES, before, after, settings, started_ns, error)
                    compression = COMPRESSING.get()
                    if compression is not None and compression.serves(self):
                        compression.started_ns = time.time_ns()

    return limit


def split_tool_result(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Wraps ``Agent._split_tool_result_for_compression``, which says what of a tool result is kept."""

    @functools.wraps(original)
    async def split(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not instrumentation.listening():
            return await original(self, *args, **kwargs)
        started_ns = time.time_ns()
        result = await original(self, *args, **kwargs)
        with instrumentation.contained():
            reserved, offloaded = result
            if offloaded is not None:
                whole = argument(args, kwargs, 0, "tool_result")
                _TRUNCATED.set(_Truncated(whole, reserved, started_ns))
        return result

    return split


def save_to_context(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Wraps ``Agent._save_to_context``: a result that was cut is told once it is in the context, as it is there."""

    @functools.wraps(original)
    def save(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        truncated = _TRUNCATED.get()
        if truncated is not None and instrumentation.listening():
            with instrumentation.contained():
                _truncated(instrumentation, self, truncated)
        return result

    return save


def _truncated(instrumentation: Instrumentation, agent: Any, truncated: _Truncated) -> None:
    from otel_assembly.instrumentation.agentscope.messages import block_part

    context = agent.state.context
    if not context or not context[-1].content or context[-1].content[-1] is not truncated.reserved:
        return
    _TRUNCATED.set(None)
    after = remembered(agent).events(agent)
    whole = block_part(context[-1], truncated.whole)
    settings = {"tool_result_limit": agent.context_config.tool_result_limit}
    _tell(
        instrumentation,
        agent,
        TRUNCATE_TOOL_RESULT,
        [*after[:-1], whole],
        after,
        settings,
        truncated.started_ns,
    )
    over(agent)  # more results may come before the model is called


def _tell(
    instrumentation: Instrumentation,
    agent: Any,
    policy: str,
    before: Sequence[Part],
    after: Sequence[Part],
    settings: Mapping[str, Any],
    started_ns: int,
    error: BaseException | None = None,
) -> None:
    """A step of what is prepared, which began then and is done, or failed."""
    if error is None and [part.facts.id for part in before] == [part.facts.id for part in after]:
        return
    assembly = prepare(instrumentation, agent, before, sized=True, started_ns=started_ns)
    if assembly is None:
        return
    with assembly.step(policy, kind="reduction", config=settings, started_ns=started_ns) as step:
        step.out(as_known(assembly, after))
    step.failed(error)
    done(agent, error, stays=True)
