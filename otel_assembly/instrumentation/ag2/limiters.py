"""AG2's middlewares that shorten a history outside of any assembler: each a step of the assembly of its model call."""

from __future__ import annotations

from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from otel_assembly.decision import DecisionReason, OverflowCause
from otel_assembly.instrumentation.ag2.policies import CHARACTERS_PER_TOKEN, orphaned, told_overflow
from otel_assembly.instrumentation.ag2.preparing import model_call
from otel_assembly.instrumentation.wrapping import told_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly.instrumentation.instrumentor import Instrumentation
    from otel_assembly.observe.assembler import ObservedAssembly, ObservedStep

    Tell = Callable[[ObservedAssembly, ObservedStep, int, Sequence[Any]], None]


class _Limiting:
    """One model call whose history goes through a limiter."""

    def __init__(self, assembly: ObservedAssembly, step: ObservedStep, tell: Callable[[Sequence[Any]], None]) -> None:
        self._assembly = assembly
        self._step = step
        self._tell = tell
        self._open = True
        step.__enter__()

    def end(self, events: Sequence[Any]) -> None:
        if self._open:
            with told_whole(self._assembly):
                self._tell(events)
        self.close()

    def close(self, error: BaseException | None = None) -> None:
        """It is done; where no model was called, nothing is known to have left."""
        if self._open:
            self._open = False
            self._step.__exit__(None if error is None else type(error), error, None)


def _limiter(
    policy: str,
    limit_of: Callable[[Any], tuple[str, int]],
    tell: Tell,
    original: Callable[..., Any],
    instrumentation: Instrumentation,
) -> Callable[..., Any]:
    @wraps(original)
    async def on_llm_call(self: Any, call_next: Any, events: Any, context: Any) -> Any:
        if not instrumentation.listening():
            return await original(self, call_next, events, context)
        call, first = model_call(instrumentation, context)
        limiting: _Limiting | None = None
        with instrumentation.contained():
            setting, limit = limit_of(self)
            assembly = call.goes_on(context.prompt, events, call_next)
            if assembly is not None:
                step = assembly.step(policy, kind="reduction", config={setting: limit})
                limiting = _Limiting(assembly, step, partial(tell, assembly, step, limit))
        if limiting is None:
            return await original(self, call_next, events, context)

        async def limited(kept: Any, context: Any) -> Any:
            with instrumentation.contained():
                limiting.end(kept)
            return await call.call(call_next, kept, context)

        try:
            result = await original(self, limited, events, context)
        except BaseException as error:
            with instrumentation.contained():
                limiting.close(error)
                call.end(error)
            raise
        with instrumentation.contained():
            limiting.close()
            if first:
                call.end()
        return result

    return on_llm_call


def _events(assembly: ObservedAssembly, step: ObservedStep, limit: int, kept: Sequence[Any]) -> None:
    given = assembly.events
    leads = 1 if given and kept and kept[0] is given[0] and len(kept) < len(given) else 0
    verdicts = orphaned(given, max(0, len(given) - limit + leads), kept)
    step.out(kept, reason=DecisionReason.OUTSIDE_WINDOW, verdicts=verdicts)
    if len(kept) > limit:
        step.overflow(budget=limit, needed=len(kept), cause=OverflowCause.FRAMEWORK, unit="items")


def _tokens(assembly: ObservedAssembly, step: ObservedStep, limit: int, kept: Sequence[Any]) -> None:
    step.out(kept, reason=DecisionReason.OVER_BUDGET, budget=limit)
    told_overflow(assembly, step, limit)


def _event_limit(limiter: Any) -> tuple[str, int]:
    return "max_events", int(limiter._max_events)  # noqa: SLF001  # nothing else says it


def _token_limit(limiter: Any) -> tuple[str, int]:
    tokens = getattr(limiter, "_max_tokens", None)
    if tokens is None:
        tokens = limiter._max_chars // CHARACTERS_PER_TOKEN  # noqa: SLF001  # as above
    return "max_tokens", int(tokens)


def history_limiter(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around `HistoryLimiter`."""
    return _limiter("history_limiter", _event_limit, _events, original, instrumentation)


def token_limiter(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around `TokenLimiter`."""
    return _limiter("token_limiter", _token_limit, _tokens, original, instrumentation)
