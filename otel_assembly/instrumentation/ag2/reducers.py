"""AG2's reducers: the policies of an `AssemblerMiddleware`, and the middlewares that limit a history without one.

Each is a step of the assembly of the model call that it runs for. Of AG2's own policies it is known why they drop what
they drop; of anybody else's only what goes in and what comes out.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import wraps
from operator import is_
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from wrapt import ObjectProxy

from otel_assembly.conversation import alert_facts
from otel_assembly.decision import DecisionOutcome, DecisionReason, OverflowCause, Verdict
from otel_assembly.instrumentation.ag2.conversation import model_call
from otel_assembly.instrumentation.hooks import ByIdentity, instead
from otel_assembly.instrumentation.instrumented import argument, reported_whole
from otel_assembly.messages.describe import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from otel_assembly.conversation import AlertFacts
    from otel_assembly.instrumentation.ag2.conversation import ModelCall
    from otel_assembly.instrumentation.hooks import Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.observe.assembler import ObservedAssembly, ObservedStep

    _Proxy = ObjectProxy[Any]
    Report = Callable[[ObservedAssembly, ObservedStep, int, Sequence[Any]], None]
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


class PolicyObserver:
    """Observes one policy while it is applied; this one knows nothing of the policy.

    Attributes:
        kind: ``injection`` or ``reduction``, where that is known.
    """

    kind: str | None = None
    reason = DecisionReason.POLICY

    def __init__(self, policy: Any, assembly: ObservedAssembly) -> None:
        self._policy = policy
        self._assembly = assembly
        #: What goes in; a list of ours, whatever the policy does to its own.
        self._given = assembly.events

    @property
    def name(self) -> str:
        """Its name."""
        name = getattr(self._policy, "name", None)
        return name if isinstance(name, str) and name else type(self._policy).__name__

    @property
    def config(self) -> Mapping[str, Any]:
        """Its settings, as far as they can be read."""
        return {}

    def report(self, step: ObservedStep, result: Any) -> None:
        """Say what came out of it.

        Raises:
            TypeError: It is not what a policy of AG2 returns.
        """
        prompts, events = result
        if not isinstance(events, list | tuple):
            error = TypeError(f"{self.name} returned its events as {type(events).__name__}: they cannot be looked at")
            self._assembly.fail(error)
            return
        self._report(step, prompts, events)

    def _report(self, step: ObservedStep, prompts: Sequence[str], events: Sequence[Any]) -> None:
        step.out(events, prompts=prompts, reason=self.reason)


class _Injection(PolicyObserver):
    kind = "injection"


class _Episodes(_Injection):
    @property
    def config(self) -> Mapping[str, Any]:
        return _settings(self._policy, max_episodes="_max", transparent="_transparent")


class _Alerts(_Injection):
    def __init__(self, policy: Any, assembly: ObservedAssembly) -> None:
        super().__init__(policy, assembly)
        self._delivered = frozenset(policy._delivered_keys)  # noqa: SLF001  # nothing else says what was delivered

    def _report(self, step: ObservedStep, prompts: Sequence[str], events: Sequence[Any]) -> None:
        step.out(events, prompts=prompts, alerts=self._new_alerts())

    def _new_alerts(self) -> list[AlertFacts]:
        new = set(self._policy._delivered_keys) - self._delivered  # noqa: SLF001  # as above
        alerts: list[AlertFacts] = []
        for event in self._given if new else ():
            if all(hasattr(event, name) for name in ("source", "severity", "message")):
                key = (event.source, str(event.severity), event.message)
                if key in new:
                    new.discard(key)
                    alerts.append(alert_facts(event))
        return alerts


class _Conversation(PolicyObserver):
    kind = "reduction"
    reason = DecisionReason.NOT_CONVERSATION


class _Window(PolicyObserver):
    kind = "reduction"
    reason = DecisionReason.OUTSIDE_WINDOW

    @property
    def config(self) -> Mapping[str, Any]:
        return _settings(self._policy, max_events="_max", transparent="_transparent")

    def _report(self, step: ObservedStep, prompts: Sequence[str], events: Sequence[Any]) -> None:
        limit = self._policy._max  # noqa: SLF001  # nothing else says it
        cut = len(self._given) - limit
        step.out(events, prompts=prompts, reason=self.reason, verdicts=orphaned(self._given, max(0, cut), events))
        if len(events) > max(0, limit):
            step.overflow(budget=limit, needed=len(events), cause=OverflowCause.FRAMEWORK, unit="items")


class _TokenBudget(PolicyObserver):
    kind = "reduction"
    reason = DecisionReason.OVER_BUDGET

    @property
    def limit(self) -> int:
        """In tokens; of a policy that was made before it was instrumented, by AG2's default of four characters."""
        limit = _LIMITS.get(self._policy)
        return limit if limit is not None else int(self._policy._max_chars) // CHARACTERS_PER_TOKEN  # noqa: SLF001  # as above

    @property
    def config(self) -> Mapping[str, Any]:
        return {"max_tokens": self.limit, **_settings(self._policy, transparent="_transparent")}

    def _report(self, step: ObservedStep, prompts: Sequence[str], events: Sequence[Any]) -> None:
        verdicts = orphaned(self._given, self._cut(events), events)
        step.out(events, prompts=prompts, reason=self.reason, verdicts=verdicts, budget=self.limit)
        report_overflow(self._assembly, step, self.limit)

    def _cut(self, events: Sequence[Any]) -> int:
        """Where the policy cut, by its own count; what it took out behind that had lost its other half."""
        given = self._given
        room, cut = self._policy._max_chars, len(given)  # noqa: SLF001  # as above
        if len(events) == len(given):
            return 0
        while cut:
            room -= len(str(given[cut - 1]))
            if room < 0 and cut < len(given):
                break
            cut -= 1
        return cut


_BUILT_IN: Final[Mapping[str, type[PolicyObserver]]] = {
    "AlertPolicy": _Alerts,
    "ConversationPolicy": _Conversation,
    "EpisodicMemoryPolicy": _Episodes,
    "NetworkContextPolicy": _Injection,
    "SlidingWindowPolicy": _Window,
    "TokenBudgetPolicy": _TokenBudget,
    "WorkingMemoryPolicy": _Injection,
}


#: What observes the policies of a type.
_OBSERVERS: Final[WeakKeyDictionary[type, type[PolicyObserver]]] = WeakKeyDictionary()


def _observer_type(policy_type: type) -> type[PolicyObserver]:
    """How policies of a type are observed: those derived from AG2's as AG2's own are."""
    for base in policy_type.__mro__:
        if base.__module__.startswith(("ag2.", "autogen.beta.")) and base.__name__ in _BUILT_IN:
            return _BUILT_IN[base.__name__]
    return PolicyObserver


def observer_of(policy: Any, assembly: ObservedAssembly) -> PolicyObserver:
    """What observes this policy in this assembly."""
    policy_type: type = type(policy)
    observer = _OBSERVERS.get(policy_type)
    if observer is None:
        observer = _OBSERVERS[policy_type] = _observer_type(policy_type)
    return observer(policy, assembly)


def orphaned(given: Sequence[Any], cut: int, events: Sequence[Any]) -> list[Verdict]:
    """What is behind the cut and did not come out: calls and results that had lost their other half."""
    behind = given[cut:]
    if len(events) >= len(behind) and all(map(is_, reversed(behind), reversed(events))):
        return []
    out = set(map(id, events))
    results: list[Any] = []
    calls: list[Any] = []
    for event in behind:
        if id(event) not in out:
            (results if describe(event).closes else calls).append(event)
    return [
        Verdict(lost, DecisionOutcome.DROPPED, reason)
        for lost, reason in (
            (results, DecisionReason.ORPHANED_TOOL_RESULT),
            (calls, DecisionReason.ORPHANED_TOOL_CALL),
        )
        if lost
    ]


def report_overflow(assembly: ObservedAssembly, step: ObservedStep, limit: int) -> None:
    """An overflow, where the events that were let through really count more than the limit."""
    if not assembly.recording.measured:
        return
    record = assembly.record
    view = record.steps[-1].view_out
    record.count(view)
    needed = record.items_tokens(view)
    if needed > limit:
        step.overflow(budget=limit, needed=needed, cause=OverflowCause.FRAMEWORK)


def _settings(policy: Any, **attributes: str) -> dict[str, Any]:
    """Settings by their public names, of those that a policy holds."""
    held: Iterable[tuple[str, Any]] = (
        (name, getattr(policy, attribute, None)) for name, attribute in attributes.items()
    )
    return {name: value for name, value in held if value is not None}


@instead
async def assembler(
    instrumentation: Instrumentation, original: Any, middleware: Any, call_next: Any, events: Any, context: Any
) -> Any:
    """In the place of `AssemblerMiddleware.on_llm_call`."""
    policies = getattr(middleware, "_policies", None)
    if policies is None:
        return await original(middleware, call_next, events, context)
    call, first = model_call(instrumentation, context)
    chain = _Chain(instrumentation, policies, call, call_next)
    try:
        result = await original(_Observed(middleware, chain), chain.call_next, events, context)
    except BaseException as error:
        call.end(error)
        raise
    if first:
        call.end()
    return result


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
        assembly = step = observer = None
        with chain.instrumentation.contained():
            assembly = chain.assembly(prompts, events)
        if assembly is not None:
            with reported_whole(assembly):
                observer = observer_of(policy, assembly)
                step = assembly.step(observer.name, kind=observer.kind, config=observer.config)
        if assembly is None or step is None or observer is None:
            return await policy.apply(prompts, events, context)
        with step:
            result = await policy.apply(prompts, events, context)
            with reported_whole(assembly):
                observer.report(step, result)
        return result


class _Plugin(_InAChain):
    """A plug-in of ours makes an assembly itself."""

    async def apply(self, prompts: Any, events: Any, context: Any) -> Any:
        self._chain.call.plugin()
        return await self._policy.apply(prompts, events, context)


def _limiter(policy: str, limit_of: Callable[[Any], tuple[str, int]], report: Report) -> Wrap:
    @instead
    async def on_llm_call(
        instrumentation: Instrumentation, original: Any, limiter: Any, call_next: Any, events: Any, context: Any
    ) -> Any:
        call, first = model_call(instrumentation, context)
        assembly = step = None
        with instrumentation.contained():
            setting, limit = limit_of(limiter)
            assembly = call.goes_on(context.prompt, events, call_next)
            if assembly is not None:
                step = assembly.step(policy, kind="reduction", config={setting: limit})
        if assembly is None or step is None:
            return await original(limiter, call_next, events, context)
        limiting, reported = ExitStack(), False
        limiting.enter_context(step)

        async def limited(kept: Any, context: Any) -> Any:
            nonlocal reported
            if not reported:
                reported = True
                with limiting, reported_whole(assembly):
                    report(assembly, step, limit, kept)
            return await call.call(call_next, kept, context)

        try:
            with limiting:  # where no model was called, nothing is known to have left
                result = await original(limiter, limited, events, context)
        except BaseException as error:
            with instrumentation.contained():
                call.end(error)
            raise
        if first:
            with instrumentation.contained():
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
    report_overflow(assembly, step, limit)


def _event_limit(limiter: Any) -> tuple[str, int]:
    return "max_events", int(limiter._max_events)  # noqa: SLF001  # nothing else says it


def _token_limit(limiter: Any) -> tuple[str, int]:
    tokens = getattr(limiter, "_max_tokens", None)
    if tokens is None:
        tokens = limiter._max_chars // CHARACTERS_PER_TOKEN  # noqa: SLF001  # as above
    return "max_tokens", int(tokens)


#: In the place of what `HistoryLimiter` and `TokenLimiter` do.
history_limiter = _limiter("history_limiter", _event_limit, _events)
token_limiter = _limiter("token_limiter", _token_limit, _tokens)
