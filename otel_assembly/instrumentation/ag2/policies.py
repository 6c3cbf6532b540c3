"""Describes AG2's own policies and limiting middleware: their settings, their limits, and why they drop events."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly.decision import DecisionReason
from otel_assembly.instrumentation.ag2.messages import PACKAGES
from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.instrumentation.instrumented import argument
from otel_assembly.instrumentation.reducers import ReducerSpec, known_of
from otel_assembly.messages.event_facts import EventKind, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.instrumentation.instrumented import Instrumentation


class MadeWith(IdentityWeakMap[Any]):
    """The values that reducers got for one argument of `__init__` and do not keep as an attribute.

    Args:
        position: The position of the argument in `__init__`, without ``self``.
    """

    __slots__ = ("_name", "_position")

    def __init__(self, position: int, name: str) -> None:
        super().__init__()
        self._position = position
        self._name = name

    def wrap(self, original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
        """The hook of `__init__`."""

        @wraps(original)
        def init(reducer: Any, *args: Any, **kwargs: Any) -> None:
            original(reducer, *args, **kwargs)
            if instrumentation.open:  # not `is_enabled`: a provider may be configured before the reducer runs
                with instrumentation.suppress_errors():
                    self.put(reducer, argument(args, kwargs, self._position, self._name))

        return init


def behind(cut: Callable[[Any, Sequence[Any]], int]) -> Callable[[Any, Sequence[Any], Sequence[Any]], Sequence[Any]]:
    """Return a function for `ReducerSpec.keeps`, for a reducer that drops the messages before a cut.

    The function returns the input after the cut; if the reducer dropped nothing, it returns the output. `cut` returns
    the index of the first message that is kept, from the reducer and its input. An index below 0 drops nothing.
    """

    def kept(reducer: Any, before: Sequence[Any], after: Sequence[Any]) -> Sequence[Any]:
        return before[max(0, cut(reducer, before)) :] if len(after) < len(before) else after

    return kept


def newest(attribute: str) -> Callable[[Any, Sequence[Any], Sequence[Any]], Sequence[Any]]:
    """Return a function for `ReducerSpec.keeps`, for a reducer with the number of kept messages in an attribute."""
    return behind(lambda reducer, before: len(before) - int(getattr(reducer, attribute)))


#: AG2's default for ``TokenBudgetPolicy(chars_per_token=…)``.
CHARACTERS_PER_TOKEN: Final = 4
#: The limits of token budgets, by policy. The policies themselves keep only a number of characters.
_TOKEN_LIMITS: Final = MadeWith(0, "max_tokens")
#: Wraps `TokenBudgetPolicy.__init__`.
token_budget_init: Final = _TOKEN_LIMITS.wrap


def _first_within_budget(policy: Any, events: Sequence[Any]) -> int:
    """Return the index of the first event that a `TokenBudgetPolicy` keeps. It always keeps the newest event."""
    remaining, first = policy._max_chars, len(events)  # noqa: SLF001
    while first:
        remaining -= len(str(events[first - 1]))
        if remaining < 0 and first < len(events):
            break
        first -= 1
    return first


def _first_newest(limiter: Any, events: Sequence[Any]) -> int:
    """Return the index of the first of the newest events that a `HistoryLimiter` keeps.

    If the history begins with a request, the limiter keeps that request too, and one fewer of the newest events.
    """
    count = limiter._max_events - (describe(events[0]).kind is EventKind.REQUEST)  # noqa: SLF001
    return len(events) - int(count)


def _max_tokens(policy: Any, *_: Any) -> int:
    """Return the limit of a `TokenBudgetPolicy` or `TokenLimiter` in tokens."""
    limit = _TOKEN_LIMITS.get(policy) or getattr(policy, "_max_tokens", None)
    # A policy that was created before AG2 was instrumented has only its limit in characters.
    return int(policy._max_chars // CHARACTERS_PER_TOKEN if limit is None else limit)  # noqa: SLF001


_INJECTION: Final = ReducerSpec(kind="injection")
#: A separate object, because the hook of policies recognizes an `AlertPolicy` by it.
ALERTS: Final = ReducerSpec(kind="injection")
_TRANSPARENT: Final = {"transparent": "_transparent"}
_OUTSIDE, _OVER = DecisionReason.OUTSIDE_WINDOW, DecisionReason.OVER_BUDGET
_BUILT_IN: Final[Mapping[str, ReducerSpec]] = {
    "AlertPolicy": ALERTS,
    "ConversationPolicy": ReducerSpec(reason=DecisionReason.NOT_CONVERSATION),
    "EpisodicMemoryPolicy": ReducerSpec(kind="injection", settings={"max_episodes": "_max"} | _TRANSPARENT),
    "NetworkContextPolicy": _INJECTION,
    "SlidingWindowPolicy": ReducerSpec(
        reason=_OUTSIDE,
        settings={"max_events": "_max"} | _TRANSPARENT,
        keeps=newest("_max"),
        limit="_max",
        unit="items",
    ),
    "TokenBudgetPolicy": ReducerSpec(
        reason=_OVER,
        settings={**_TRANSPARENT, "max_tokens": _max_tokens},
        keeps=behind(_first_within_budget),
        limit=_max_tokens,
    ),
    "WorkingMemoryPolicy": _INJECTION,
}
#: The limiting middleware `HistoryLimiter` and `TokenLimiter`.
HISTORY_LIMITER: Final = ReducerSpec(
    "history_limiter",
    reason=_OUTSIDE,
    settings={"max_events": "_max_events"},
    keeps=behind(_first_newest),
    limit="_max_events",
    unit="items",
)
TOKEN_LIMITER: Final = ReducerSpec(
    "token_limiter", reason=_OVER, settings={"max_tokens": _max_tokens}, limit=_max_tokens
)


def spec_of(policy: Any) -> ReducerSpec:
    return known_of(type(policy), _BUILT_IN, PACKAGES) or ReducerSpec(kind=None)


hide_frames(globals())
