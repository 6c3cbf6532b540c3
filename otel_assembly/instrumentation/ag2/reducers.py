"""AG2's reducers: the policies of an `AssemblerMiddleware`, and the middlewares that limit a history without one.

Each is a step of the model call that it runs for, and holds until the middleware that does it has its answer. Of AG2's
own policies it is known why they drop what they drop; of anybody else's only what goes in and what comes out.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.conversation import alert_facts
from otel_assembly.decision import DecisionReason
from otel_assembly.instrumentation.ag2.conversation import preparing
from otel_assembly.instrumentation.conversation import ByIdentity
from otel_assembly.instrumentation.hooks import around_awaited, instead
from otel_assembly.instrumentation.instrumented import argument, bound
from otel_assembly.instrumentation.known_reducers import KnownReducer
from otel_assembly.instrumentation.model_call import CALL
from otel_assembly.instrumentation.reductions import Reduction, reducing
from otel_assembly.messages.describe import EventKind, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.conversation import AlertFacts
    from otel_assembly.instrumentation.hooks import Observation, Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.model_call import ModelCall

#: What AG2 takes for the characters of a token where its policy is not told otherwise.
CHARACTERS_PER_TOKEN: Final = 4

#: The limits that token budgets were given, of which they themselves keep only a number of characters.
_LIMITS: Final[ByIdentity[int]] = ByIdentity()


def limited(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around `TokenBudgetPolicy.__init__`: a provider may be configured later, before the policy is applied."""

    @wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if instrumentation.open:
            with instrumentation.contained():
                _LIMITS.put(self, int(argument(args, kwargs, 0, "max_tokens")))

    return init


def _new_alerts(policy: Any, delivered: frozenset[Any], given: Sequence[Any]) -> list[AlertFacts]:
    """The alerts among these events that an `AlertPolicy` has delivered since; nothing else says which."""
    alerts: dict[Any, AlertFacts] = {}
    for event in given:
        if all(hasattr(event, name) for name in ("source", "severity", "message")):
            alerts.setdefault((event.source, str(event.severity), event.message), alert_facts(event))
    new = set(policy._delivered_keys) - delivered  # noqa: SLF001  # as above
    return [alert for key, alert in alerts.items() if key in new]


def _behind(cut: Callable[[Any, Sequence[Any]], int]) -> Callable[[Any, Sequence[Any], Sequence[Any]], Sequence[Any]]:
    """What stays behind a cut; where nothing was cut, what came out."""
    return lambda policy, given, after: given[max(0, cut(policy, given)) :] if len(after) < len(given) else after


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
    return len(given) - _max_of(policy)


def _beyond_the_newest(limiter: Any, given: Sequence[Any]) -> int:
    """The limiter keeps a request that begins the history, beside the newest events."""
    return len(given) - _max_of(limiter) + (describe(given[0]).kind is EventKind.REQUEST)


def _max_of(policy: Any, *_: Any) -> int:
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
        stays=_behind(_outside_window),
        limit=_max_of,
        unit="items",
    ),
    "TokenBudgetPolicy": KnownReducer(
        reason=_OVER, settings=_TRANSPARENT, stays=_behind(_over_budget), limit=_max_tokens
    ),
    "WorkingMemoryPolicy": _INJECTION,
}


def _known(policy: Any) -> KnownReducer:
    """What is known of a policy: of those derived from AG2's what is known of AG2's own."""
    of_ag2 = (base for base in type(policy).__mro__ if base.__module__.startswith(("ag2.", "autogen.beta.")))
    return next((_BUILT_IN[base.__name__] for base in of_ag2 if base.__name__ in _BUILT_IN), _OTHERS)


def _config(known: KnownReducer, policy: Any) -> dict[str, Any]:
    in_tokens = known.limit is not None and known.unit == "tokens"
    return known.config(policy) | ({"max_tokens": _max_tokens(policy)} if in_tokens else {})


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
        yield from _plugged_in(instrumentation, call)
        return
    call.arrives(events, prompts=prompts)
    name, known = _name_of(policy), _known(policy)
    reduction = Reduction(instrumentation, name, events, kind=known.kind, config=_config(known, policy))
    reduction.open()
    delivered = frozenset(policy._delivered_keys if known is _ALERTS else ())  # noqa: SLF001  # as above
    try:
        with reduction.running():
            prompts, events = _returned(policy, (yield))
        alerts = _new_alerts(policy, delivered, reduction.before) if known is _ALERTS else ()
        known.done(reduction, policy, events, prompts=prompts, alerts=alerts)
    except BaseException as error:
        reduction.failed(error)
        raise


def _plugged_in(instrumentation: Instrumentation, call: ModelCall) -> Observation:
    """A plug-in of ours makes an assembly itself, of which a model that it asks is a part."""
    call.end()
    with bound(CALL, None):
        plugged_in = Reduction(instrumentation, "", ())
        with plugged_in.running():
            prompts, events = yield
    plugged_in.over = True
    call.by_plugin(events, prompts=prompts)


def _returned(policy: Any, result: Any) -> tuple[Any, Any]:
    prompts, events = result
    if not isinstance(events, list | tuple):
        raise TypeError(f"{_name_of(policy)} returned its events as {type(events).__name__}: they cannot be looked at")
    return prompts, events


def _limiter(known: KnownReducer) -> Wrap:
    @instead
    async def on_llm_call(
        instrumentation: Instrumentation, original: Any, limiter: Any, /, call_next: Any, events: Any, context: Any
    ) -> Any:
        with preparing(instrumentation, call_next, events, context) as call:
            reduction = None
            if call is not None:
                with instrumentation.contained():
                    reduction = Reduction(instrumentation, known.policy, events, config=_config(known, limiter))

            async def limited(kept: Any, context: Any) -> Any:
                if reduction is not None:
                    with instrumentation.contained():
                        known.done(reduction, limiter, kept)
                return await call_next(kept, context)

            return await original(limiter, limited, events, context)

    return on_llm_call


#: In the place of what `HistoryLimiter` and `TokenLimiter` do.
history_limiter = _limiter(
    KnownReducer(
        "history_limiter",
        reason=_OUTSIDE,
        settings={"max_events": "_max_events"},
        stays=_behind(_beyond_the_newest),
        limit=_max_of,
        unit="items",
    )
)
token_limiter = _limiter(KnownReducer("token_limiter", reason=_OVER, limit=_max_tokens))
