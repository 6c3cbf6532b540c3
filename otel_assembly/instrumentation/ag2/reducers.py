"""AG2's reducers: the policies of an `AssemblerMiddleware`, and the middlewares that limit a history without one.

Each is a step of the model call that it runs for, and holds until the middleware that does it has its answer. Of AG2's
own policies it is known why they drop what they drop; of anybody else's only what goes in and what comes out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.conversation import alert_facts
from otel_assembly.decision import DecisionReason
from otel_assembly.instrumentation.ag2.conversation import preparing
from otel_assembly.instrumentation.hooks import around_awaited
from otel_assembly.instrumentation.known_reducers import KnownReducer, MadeWith, behind, known_of
from otel_assembly.instrumentation.middlewares import reduces_and_hands_on
from otel_assembly.instrumentation.model_call import CALL
from otel_assembly.instrumentation.reductions import Reduction, plugged_in, reducing
from otel_assembly.messages.describe import EventKind, describe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.conversation import AlertFacts
    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation

#: What AG2 takes for the characters of a token where its policy is not told otherwise.
CHARACTERS_PER_TOKEN: Final = 4

#: The limits that token budgets were given, of which they themselves keep only a number of characters.
_LIMITS: Final = MadeWith(0, "max_tokens")
limited: Final = _LIMITS.wrap


def _new_alerts(policy: Any, delivered: frozenset[Any], given: Sequence[Any]) -> list[AlertFacts]:
    """The alerts among these events that an `AlertPolicy` has delivered since; nothing else says which."""
    alerts: dict[Any, AlertFacts] = {}
    for event in given:
        if all(hasattr(event, name) for name in ("source", "severity", "message")):
            alerts.setdefault((event.source, str(event.severity), event.message), alert_facts(event))
    new = set(policy._delivered_keys) - delivered  # noqa: SLF001  # as above
    return [alert for key, alert in alerts.items() if key in new]


def _over_budget(policy: Any, given: Sequence[Any]) -> int:
    """The policy cuts where its own count says, and keeps the newest event whatever that takes."""
    room, cut = policy._max_chars, len(given)  # noqa: SLF001  # nothing else says it
    while cut:
        room -= len(str(given[cut - 1]))
        if room < 0 and cut < len(given):
            break
        cut -= 1
    return cut


def _outside_window(policy: Any, given: Sequence[Any]) -> int:
    return len(given) - _max_events(policy)


def _beyond_the_newest(limiter: Any, given: Sequence[Any]) -> int:
    """The limiter keeps a request that begins the history, beside the newest events."""
    return len(given) - _max_events(limiter) + (describe(given[0]).kind is EventKind.REQUEST)


def _max_events(policy: Any, *_: Any) -> int:
    limit = getattr(policy, "_max_events", None)
    return int(policy._max if limit is None else limit)  # noqa: SLF001  # as above


def _max_tokens(policy: Any, *_: Any) -> int:
    """In tokens; of a policy that was made before it was instrumented, by AG2's default of four characters."""
    limit = _LIMITS.get(policy) or getattr(policy, "_max_tokens", None)
    return int(policy._max_chars // CHARACTERS_PER_TOKEN if limit is None else limit)  # noqa: SLF001  # as above


_OTHERS: Final = KnownReducer(kind=None)
_INJECTION: Final = KnownReducer(kind="injection")
_ALERTS: Final = KnownReducer(kind="injection")
_TRANSPARENT: Final = {"transparent": "_transparent"}
_OUTSIDE, _OVER = DecisionReason.OUTSIDE_WINDOW, DecisionReason.OVER_BUDGET
_BUILT_IN: Final[Mapping[str, KnownReducer]] = {
    "AlertPolicy": _ALERTS,
    "ConversationPolicy": KnownReducer(reason=DecisionReason.NOT_CONVERSATION),
    "EpisodicMemoryPolicy": KnownReducer(kind="injection", settings={"max_episodes": "_max"} | _TRANSPARENT),
    "NetworkContextPolicy": _INJECTION,
    "SlidingWindowPolicy": KnownReducer(
        reason=_OUTSIDE,
        settings={"max_events": "_max"} | _TRANSPARENT,
        stays=behind(_outside_window),
        limit=_max_events,
        unit="items",
    ),
    "TokenBudgetPolicy": KnownReducer(
        reason=_OVER,
        settings={"max_tokens": _max_tokens, **_TRANSPARENT},
        stays=behind(_over_budget),
        limit=_max_tokens,
    ),
    "WorkingMemoryPolicy": _INJECTION,
}


def _name_of(policy: Any) -> str:
    name = getattr(policy, "name", None)
    return name if isinstance(name, str) and name else type(policy).__name__


@around_awaited
def assembler(
    instrumentation: Instrumentation, middleware: Any, /, call_next: Any, events: Any, context: Any
) -> Observation:
    """Around `AssemblerMiddleware.on_llm_call`: the policies of users are known when they are met."""
    policies = getattr(middleware, "_policies", None)
    for policy in policies if isinstance(policies, list | tuple) else ():
        instrumentation.take(type(policy), "apply", applied)
    with preparing(instrumentation, call_next, events, context):
        yield


@around_awaited
def applied(instrumentation: Instrumentation, policy: Any, /, prompts: Any, events: Any, context: Any) -> Observation:
    """Around a policy's ``apply``."""
    call = CALL.get()
    if call is None or reducing() is not None:
        return
    if getattr(policy, "otel_assembly_plugin", False):
        with plugged_in(instrumentation, call):
            prompts, events = yield
        call.by_plugin(events, prompts=prompts)
        return
    call.arrives(events, prompts=prompts)
    name, known = _name_of(policy), known_of(type(policy), _BUILT_IN, ("ag2.", "autogen.beta.")) or _OTHERS
    reduction = Reduction(instrumentation, name, events, kind=known.kind, config=known.config(policy))
    reduction.open()
    delivered = frozenset(policy._delivered_keys if known is _ALERTS else ())  # noqa: SLF001  # as above
    with reduction.followed():
        prompts, events = yield
        if not isinstance(events, list | tuple):
            raise TypeError(f"{name} returned its events as {type(events).__name__}: they cannot be looked at")
        alerts = _new_alerts(policy, delivered, reduction.before) if known is _ALERTS else ()
        known.done(reduction, policy, events, prompts=prompts, alerts=alerts)


#: In the place of what `HistoryLimiter` and `TokenLimiter` do.
history_limiter = reduces_and_hands_on(
    KnownReducer(
        "history_limiter",
        reason=_OUTSIDE,
        settings={"max_events": "_max_events"},
        stays=behind(_beyond_the_newest),
        limit=_max_events,
        unit="items",
    ),
    preparing,
)
token_limiter = reduces_and_hands_on(
    KnownReducer("token_limiter", reason=_OVER, settings={"max_tokens": _max_tokens}, limit=_max_tokens), preparing
)
