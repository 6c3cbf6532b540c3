"""AG2's reducers: the policies of an `AssemblerMiddleware`, and the middlewares that limit a history without one.

Each is a step of the assembly of the model call that it runs for. Of AG2's own policies it is known why they drop what
they drop; of anybody else's only what goes in and what comes out.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from wrapt import ObjectProxy

from otel_assembly.conversation import alert_facts
from otel_assembly.decision import DecisionReason, OverflowCause
from otel_assembly.instrumentation.ag2.conversation import model_call
from otel_assembly.instrumentation.hooks import ByIdentity, instead
from otel_assembly.instrumentation.instrumented import argument
from otel_assembly.instrumentation.reducers import orphaned
from otel_assembly.observe.conversations import reported_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from otel_assembly.conversation import AlertFacts
    from otel_assembly.decision import Verdict
    from otel_assembly.instrumentation.ag2.conversation import ModelCall
    from otel_assembly.instrumentation.hooks import Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.observe.assembly import ObservedAssembly, ObservedStep

    _Proxy = ObjectProxy[Any]
else:
    _Proxy = ObjectProxy


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


def _unexplained(reducer: Any, given: Sequence[Any], events: Sequence[Any]) -> Sequence[Verdict]:
    return ()


@dataclass(frozen=True, slots=True)
class Reducer:
    """How what a policy or a limiter does is read; of anybody's own nothing is known but what goes in and comes out.

    Attributes:
        kind: ``injection`` or ``reduction``, where that is known.
        reason: Why an event leaves of which `verdicts` says nothing.
        settings: The settings that are reported, by the attribute that holds each.
        limit: Its limit; reported as a budget where that is in tokens, and as an overflow where more comes out.
        unit: What the limit is in.
        verdicts: Why events left, from the reducer, what went in and what came out.
    """

    kind: str | None = None
    reason: DecisionReason = DecisionReason.POLICY
    settings: Mapping[str, str] = field(default_factory=dict)
    limit: Callable[[Any], int] | None = None
    unit: str = "items"
    verdicts: Callable[[Any, Sequence[Any], Sequence[Any]], Sequence[Verdict]] = _unexplained

    def config(self, policy: Any) -> dict[str, Any]:
        """Its settings, as far as they can be read."""
        limit = {} if self.limit is None else {_LIMITED_BY[self.unit]: self.limit(policy)}
        held = {name: getattr(policy, attribute, None) for name, attribute in self.settings.items()}
        return limit | {name: value for name, value in held.items() if value is not None}

    def report(
        self,
        assembly: ObservedAssembly,
        step: ObservedStep,
        policy: Any,
        events: Sequence[Any],
        *,
        prompts: Sequence[str] | None = None,
        alerts: Sequence[AlertFacts] = (),
    ) -> None:
        """Say what came out of it."""
        limit = None if self.limit is None else self.limit(policy)
        verdicts = self.verdicts(policy, assembly.events, events)
        budget = limit if self.unit == "tokens" else None
        step.out(events, prompts=prompts, reason=self.reason, verdicts=verdicts, budget=budget, alerts=alerts)
        needed = None if limit is None else len(events) if self.unit == "items" else _counted(assembly)
        if limit is not None and needed is not None and needed > max(0, limit):
            step.overflow(budget=limit, needed=needed, cause=OverflowCause.FRAMEWORK, unit=self.unit)


_LIMITED_BY: Final = {"items": "max_events", "tokens": "max_tokens"}


def _counted(assembly: ObservedAssembly) -> int | None:
    """What the events that were let through really count; None where nothing is reported."""
    if not assembly.recording.measured:
        return None
    record = assembly.record
    view = record.steps[-1].view_out
    record.table(view).exact(view)
    return record.items_tokens(view)


def _new_alerts(policy: Any, delivered: frozenset[Any], given: Sequence[Any]) -> list[AlertFacts]:
    """The alerts among these events that an `AlertPolicy` has delivered since; nothing else says which."""
    new = set(policy._delivered_keys) - delivered  # noqa: SLF001  # as above
    alerts: list[AlertFacts] = []
    for event in given if new else ():
        if all(hasattr(event, name) for name in ("source", "severity", "message")):
            key = (event.source, str(event.severity), event.message)
            if key in new:
                new.discard(key)
                alerts.append(alert_facts(event))
    return alerts


def _outside_window(policy: Any, given: Sequence[Any], events: Sequence[Any]) -> Sequence[Verdict]:
    return orphaned(given[max(0, len(given) - _max_of(policy)) :], events)


def _max_of(policy: Any) -> int:
    return int(policy._max)  # noqa: SLF001  # nothing else says it


def _over_budget(policy: Any, given: Sequence[Any], events: Sequence[Any]) -> Sequence[Verdict]:
    """The policy cut where its own count says; what it took out behind that had lost its other half."""
    room, cut = policy._max_chars, len(given)  # noqa: SLF001  # as above
    if len(events) == len(given):
        return ()
    while cut:
        room -= len(str(given[cut - 1]))
        if room < 0 and cut < len(given):
            break
        cut -= 1
    return orphaned(given[cut:], events)


def _max_tokens(policy: Any) -> int:
    """In tokens; of a policy that was made before it was instrumented, by AG2's default of four characters."""
    limit = _LIMITS.get(policy) or getattr(policy, "_max_tokens", None)
    return int(policy._max_chars // CHARACTERS_PER_TOKEN if limit is None else limit)  # noqa: SLF001  # as above


_OTHERS: Final = Reducer()
_INJECTION: Final = Reducer("injection")
_ALERTS: Final = Reducer("injection")
_BUILT_IN: Final[Mapping[str, Reducer]] = {
    "AlertPolicy": _ALERTS,
    "ConversationPolicy": Reducer("reduction", DecisionReason.NOT_CONVERSATION),
    "EpisodicMemoryPolicy": Reducer("injection", settings={"max_episodes": "_max", "transparent": "_transparent"}),
    "NetworkContextPolicy": _INJECTION,
    "SlidingWindowPolicy": Reducer(
        "reduction",
        DecisionReason.OUTSIDE_WINDOW,
        {"transparent": "_transparent"},
        limit=_max_of,
        verdicts=_outside_window,
    ),
    "TokenBudgetPolicy": Reducer(
        "reduction",
        DecisionReason.OVER_BUDGET,
        {"transparent": "_transparent"},
        limit=_max_tokens,
        unit="tokens",
        verdicts=_over_budget,
    ),
    "WorkingMemoryPolicy": _INJECTION,
}


#: How the policies of a type are read.
_READ: Final[ByIdentity[Reducer]] = ByIdentity()


def reducer_of(policy_type: type) -> Reducer:
    """How policies of a type are read: those derived from AG2's as AG2's own are."""
    ours = (base for base in policy_type.__mro__ if base.__module__.startswith(("ag2.", "autogen.beta.")))
    known = (_BUILT_IN[base.__name__] for base in ours if base.__name__ in _BUILT_IN)
    return _READ.get(policy_type) or _READ.put(policy_type, next(known, _OTHERS))


def _name_of(policy: Any) -> str:
    name = getattr(policy, "name", None)
    return name if isinstance(name, str) and name else type(policy).__name__


@instead
async def assembler(
    instrumentation: Instrumentation, original: Any, middleware: Any, call_next: Any, events: Any, context: Any
) -> Any:
    """In the place of `AssemblerMiddleware.on_llm_call`."""
    policies = getattr(middleware, "_policies", None)
    if policies is None:
        return await original(middleware, call_next, events, context)
    with model_call(instrumentation, context) as call:
        chain = _Chain(instrumentation, policies, call, call_next)
        return await original(_Observed(middleware, chain), chain.call_next, events, context)


class _Observed(_Proxy):
    """Stands for a middleware while it runs, so that its policies are observed; the middleware itself is unchanged."""

    def __init__(self, middleware: Any, policies: Iterable[Any]) -> None:
        super().__init__(middleware)
        self._self_policies = policies

    @property
    def _policies(self) -> Iterable[Any]:
        return self._self_policies


class _Chain:
    """The policies of one assembler."""

    def __init__(
        self, instrumentation: Instrumentation, policies: Iterable[Any], call: ModelCall, call_next: Callable[..., Any]
    ) -> None:
        self.instrumentation = instrumentation
        self.call = call
        self._policies = policies
        self._call_next = call_next

    def __iter__(self) -> Iterator[Any]:
        # AG2 hands out a live list: a policy that is added while the chain runs still runs.
        for policy in self._policies:
            if getattr(policy, "otel_assembly_plugin", False):
                yield _Plugin(self, policy)
            else:
                yield _Policy(self, policy)

    def assembly(self, prompts: Sequence[str], events: Sequence[Any]) -> ObservedAssembly | None:
        """The assembly that a policy that takes in these is a step of."""
        return self.call.goes_on(prompts, events, self._call_next)

    async def call_next(self, events: Any, context: Any) -> Any:
        """The next middleware, or the model."""
        return await self.call.call(self._call_next, events, context)


class _InAChain:
    """Stands for one policy of a chain, whose attributes it has."""

    def __init__(self, chain: _Chain, policy: Any) -> None:
        self._chain = chain
        self._policy = policy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)


class _Policy(_InAChain):
    """Stands for a policy that is observed."""

    async def apply(self, prompts: Any, events: Any, context: Any) -> Any:
        policy, chain = self._policy, self._chain
        assembly = step = None
        reducer, given, delivered = _OTHERS, list[Any](), frozenset[Any]()
        with chain.instrumentation.contained():
            assembly = chain.assembly(prompts, events)
        if assembly is not None:
            with reported_whole(assembly):
                reducer, given = reducer_of(type(policy)), assembly.events
                delivered = frozenset(policy._delivered_keys if reducer is _ALERTS else ())  # noqa: SLF001  # as above
                step = assembly.step(_name_of(policy), kind=reducer.kind, config=reducer.config(policy))
        if assembly is None or step is None:
            return await policy.apply(prompts, events, context)
        with step:
            result = await policy.apply(prompts, events, context)
            with reported_whole(assembly):
                prompts, events = result
                if not isinstance(events, list | tuple):
                    got = type(events).__name__
                    raise TypeError(f"{_name_of(policy)} returned its events as {got}: they cannot be looked at")
                alerts = _new_alerts(policy, delivered, given) if reducer is _ALERTS else ()
                reducer.report(assembly, step, policy, events, prompts=prompts, alerts=alerts)
        return result


class _Plugin(_InAChain):
    """A plug-in of ours makes an assembly itself."""

    async def apply(self, prompts: Any, events: Any, context: Any) -> Any:
        self._chain.call.plugin()
        return await self._policy.apply(prompts, events, context)


def _limiter(policy: str, reducer: Reducer) -> Wrap:
    @instead
    async def on_llm_call(
        instrumentation: Instrumentation, original: Any, limiter: Any, call_next: Any, events: Any, context: Any
    ) -> Any:
        with model_call(instrumentation, context) as call:
            assembly = step = None
            with instrumentation.contained():
                config = reducer.config(limiter)
                assembly = call.goes_on(context.prompt, events, call_next)
                if assembly is not None:
                    step = assembly.step(policy, kind=reducer.kind, config=config)
            if assembly is None or step is None:
                return await original(limiter, call_next, events, context)
            limiting, reported = ExitStack(), False
            limiting.enter_context(step)

            async def limited(kept: Any, context: Any) -> Any:
                nonlocal reported
                if not reported:
                    reported = True
                    with limiting, reported_whole(assembly):
                        reducer.report(assembly, step, limiter, kept)
                return await call.call(call_next, kept, context)

            with limiting:  # where no model was called, nothing is known to have left
                return await original(limiter, limited, events, context)

    return on_llm_call


def _max_events(limiter: Any) -> int:
    return int(limiter._max_events)  # noqa: SLF001  # nothing else says it


def _beyond_the_newest(limiter: Any, given: Sequence[Any], kept: Sequence[Any]) -> Sequence[Verdict]:
    leads = 1 if given and kept and kept[0] is given[0] and len(kept) < len(given) else 0
    return orphaned(given[max(0, len(given) - _max_events(limiter) + leads) :], kept)


#: In the place of what `HistoryLimiter` and `TokenLimiter` do.
history_limiter = _limiter(
    "history_limiter",
    Reducer("reduction", DecisionReason.OUTSIDE_WINDOW, limit=_max_events, verdicts=_beyond_the_newest),
)
token_limiter = _limiter(
    "token_limiter", Reducer("reduction", DecisionReason.OVER_BUDGET, limit=_max_tokens, unit="tokens")
)
