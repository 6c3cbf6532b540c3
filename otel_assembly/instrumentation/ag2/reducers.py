"""AG2's reducers: policies, the middlewares that limit a history without one, and what is done to it after a turn.

Each policy or limiter is a step of the model call that it runs for. Of AG2's own policies it is known why they drop
what they drop; of anybody else's only what goes in and what comes out.

Compaction is an assembly of its own, of one step, in the ledger of the prompts: what it takes out, no later prompt has.
Aggregation takes nothing out; it reads a history and writes memory, in a ledger of its own. No model is called with
either; their name says what they are.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.conversation_state import alert_facts, is_alert
from otel_assembly.decision import DecisionReason
from otel_assembly.instrumentation.ag2.conversation import invoking_agent_of, model_of, preparing, turn_of
from otel_assembly.instrumentation.ag2.history_maintenance import maintenance_hook
from otel_assembly.instrumentation.ag2.messages import PACKAGES
from otel_assembly.instrumentation.clients import summariser_call
from otel_assembly.instrumentation.hooks import observe_async_hook
from otel_assembly.instrumentation.known_reducers import MadeWith, ReducerSpec, behind, known_of, newest
from otel_assembly.instrumentation.middleware_calls import reducing_middleware_hook
from otel_assembly.instrumentation.model_call import CALL, ClientRequest, ModelCall
from otel_assembly.instrumentation.reducers import is_ours, name_of, without_summaries
from otel_assembly.instrumentation.reductions import Reducer, Reduction, plugin_scope, reducing
from otel_assembly.messages.event_facts import EventKind, describe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from otel_assembly.conversation_state import AlertFacts
    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation

#: What AG2 takes for the characters of a token where its policy is not told otherwise.
CHARACTERS_PER_TOKEN: Final = 4

#: The limits that token budgets were given, of which they themselves keep only a number of characters.
_LIMITS: Final = MadeWith(0, "max_tokens")
limited: Final = _LIMITS.wrap


def _new_alerts(policy: Any, delivered: frozenset[Any], given: Sequence[Any]) -> list[AlertFacts]:
    """The alerts among these events that an `AlertPolicy` has delivered since; nothing else says which."""
    alerts = {(one.source, str(one.severity), one.message): alert_facts(one) for one in given if is_alert(one)}
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


def _beyond_the_newest(limiter: Any, given: Sequence[Any]) -> int:
    """The limiter keeps a request that begins the history, beside the newest events."""
    newest = limiter._max_events - (describe(given[0]).kind is EventKind.REQUEST)  # noqa: SLF001  # as above
    return len(given) - int(newest)


def _max_tokens(policy: Any, *_: Any) -> int:
    """In tokens; of a policy that was made before it was instrumented, by AG2's default of four characters."""
    limit = _LIMITS.get(policy) or getattr(policy, "_max_tokens", None)
    return int(policy._max_chars // CHARACTERS_PER_TOKEN if limit is None else limit)  # noqa: SLF001  # as above


_OTHERS: Final = ReducerSpec(kind=None)
_INJECTION: Final = ReducerSpec(kind="injection")
_ALERTS: Final = ReducerSpec(kind="injection")
_TRANSPARENT: Final = {"transparent": "_transparent"}
_OUTSIDE, _OVER = DecisionReason.OUTSIDE_WINDOW, DecisionReason.OVER_BUDGET
_BUILT_IN: Final[Mapping[str, ReducerSpec]] = {
    "AlertPolicy": _ALERTS,
    "ConversationPolicy": ReducerSpec(reason=DecisionReason.NOT_CONVERSATION),
    "EpisodicMemoryPolicy": ReducerSpec(kind="injection", settings={"max_episodes": "_max"} | _TRANSPARENT),
    "NetworkContextPolicy": _INJECTION,
    "SlidingWindowPolicy": ReducerSpec(
        reason=_OUTSIDE,
        settings={"max_events": "_max"} | _TRANSPARENT,
        stays=newest("_max"),
        limit="_max",
        unit="items",
    ),
    "TokenBudgetPolicy": ReducerSpec(
        reason=_OVER,
        settings={**_TRANSPARENT, "max_tokens": _max_tokens},
        stays=behind(_over_budget),
        limit=_max_tokens,
    ),
    "WorkingMemoryPolicy": _INJECTION,
}


@observe_async_hook
def assembler(
    instrumentation: Instrumentation, middleware: Any, /, call_next: Any, events: Any, context: Any
) -> Observation:
    """Around `AssemblerMiddleware.on_llm_call`: the policies of users are known when they are met."""
    policies = getattr(middleware, "_policies", None)
    for policy in policies if isinstance(policies, list | tuple) else ():
        instrumentation.take(type(policy), "apply", applied)
    with preparing(instrumentation, call_next, events, context):
        yield


@observe_async_hook
def applied(instrumentation: Instrumentation, policy: Any, /, prompts: Any, events: Any, context: Any) -> Observation:
    """Around a policy's ``apply``."""
    call = CALL.get()
    if call is None or reducing() is not None:
        return
    if is_ours(policy):
        with plugin_scope(instrumentation, call):
            prompts, events = yield
        call.replaced_by_plugin(events, prompts=prompts)
        return
    call.observe_messages(events, prompts=prompts)
    name, known = name_of(policy), known_of(type(policy), _BUILT_IN, PACKAGES) or _OTHERS
    reduction = Reduction(instrumentation, name, events, kind=known.kind, config=known.config(policy))
    reduction.open()
    delivered = frozenset(policy._delivered_keys if known is _ALERTS else ())  # noqa: SLF001  # as above
    with reduction.tracked():
        prompts, events = yield
        if not isinstance(events, list | tuple):
            raise TypeError(f"{name} returned its events as {type(events).__name__}: they cannot be looked at")
        alerts = _new_alerts(policy, delivered, reduction.before) if known is _ALERTS else ()
        known.done(reduction, policy, events, prompts=prompts, alerts=alerts)


#: In the place of what `HistoryLimiter` and `TokenLimiter` do.
history_limiter = reducing_middleware_hook(
    ReducerSpec(
        "history_limiter",
        reason=_OUTSIDE,
        settings={"max_events": "_max_events"},
        stays=behind(_beyond_the_newest),
        limit="_max_events",
        unit="items",
    ),
    preparing,
)
token_limiter = reducing_middleware_hook(
    ReducerSpec("token_limiter", reason=_OVER, settings={"max_tokens": _max_tokens}, limit=_max_tokens), preparing
)


def _history(_: Any, /, events: Sequence[Any], context: Any, store: Any = None) -> Sequence[Any]:
    return events


@contextmanager
def _call_of(
    name: str, instrumentation: Instrumentation, _: Any, /, events: Sequence[Any], context: Any, store: Any = None
) -> Iterator[ModelCall]:
    """In the place of a prompt, or beside all of them, with an asker of its own."""
    of_prompts, turn = name == "compaction", turn_of(context)
    with nullcontext() if turn is None else turn.run.inside():
        invoking_agent = invoking_agent_of(context, "" if of_prompts else name)
        call = ModelCall(instrumentation, invoking_agent, model=model_of(context), name=name)
        call.set_input(events, prompts=list(context.prompt) if of_prompts else ())
        call.set_model_info(tools=(turn and turn.tools.schemas) or () if of_prompts else ())
        yield call


def _compacted(
    compacted: Iterable[Any], _: Any, /, events: Sequence[Any], context: Any, store: Any = None
) -> list[Any]:
    """What the history is now: AG2 puts back its records of tokens, in the releases that write them."""
    of_agents = [sys.modules[f"{package}.agent"] for package in PACKAGES if f"{package}.agent" in sys.modules]
    rollback = getattr(of_agents[0], "_with_usage_events", None) if turn_of(context) is not None else None
    compacted = list(compacted)
    return compacted if rollback is None else list(rollback(before=events, compacted=compacted, spent_during=[]))


def _why(before: Sequence[Any], after: Sequence[Any], strategy: Any, /, *_: Any, **__: Any) -> dict[str, Any]:
    if type(strategy).__name__ == "TailWindowCompact":
        return {"reason": DecisionReason.OUTSIDE_WINDOW}
    lost = without_summaries(
        before, after, lambda event: str(event.summary or "") if hasattr(event, "summary") else None
    )
    return {"verdicts": lost} if lost else {}


_TARGET: Final = ReducerSpec(settings={"target": "_target"})
_COMPACTS: Final = Reducer(_history, _compacted, "compaction", config=_TARGET.config, said=_why)
_AGGREGATES: Final = Reducer(_history, policy="aggregation", kind=None, config=_TARGET.config, always=True)

#: Around a strategy's ``compact``, and its ``aggregate``.
compact = maintenance_hook(_COMPACTS, partial(_call_of, "compaction"))
aggregate = maintenance_hook(_AGGREGATES, partial(_call_of, "aggregation"))


def _read(strategy: Any, /, *args: Any, **kwargs: Any) -> ClientRequest:
    """What a strategy of AG2's own has summarised: the last list among the arguments."""
    events = next(given for given in reversed((*args, *kwargs.values())) if isinstance(given, list))
    return ClientRequest(events, model=type(strategy).__name__)


#: Around the summariser's call of a strategy of AG2's own.
summarize = summariser_call(_read, str)


@observe_async_hook
def on_turn(instrumentation: Instrumentation, middleware: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around the middlewares that run strategies: those of users are known when they are met."""
    for method, wrap in (("compact", compact), ("aggregate", aggregate)):
        instrumentation.take(type(middleware._strategy), method, wrap)  # noqa: SLF001  # nothing else names it
    yield
