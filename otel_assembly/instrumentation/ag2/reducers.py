"""Records AG2's policies, its limiting middleware, and compaction and aggregation.

Each policy (``apply``) and limiter (`HistoryLimiter`, `TokenLimiter`) is recorded as a step of the model call that it
runs for. The reasons for drops are known for AG2's own policies only. For other policies, only input and output are.

Compaction (a strategy's ``compact``) is recorded as an assembly with one step. Its ledger is that of the agent's model
calls, because no later call contains the events that it drops. Aggregation (``aggregate``) reads the history and writes
memory; it has a separate ledger. These assemblies are named ``compaction`` and ``aggregation``.
"""

from __future__ import annotations

import inspect
import sys
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly.conversation_state import alert_facts, is_alert
from otel_assembly.decision import DecisionOutcome, DecisionReason, Verdict
from otel_assembly.instrumentation.ag2.conversation import invoking_agent_of, llm_call_scope, model_of, turn_of
from otel_assembly.instrumentation.ag2.messages import PACKAGES
from otel_assembly.instrumentation.ag2.policies import ALERTS, HISTORY_LIMITER, TOKEN_LIMITER, spec_of
from otel_assembly.instrumentation.clients import summariser_call
from otel_assembly.instrumentation.context_variables import CALL
from otel_assembly.instrumentation.hooks import observe_async_hook, observe_hook, replace_hook
from otel_assembly.instrumentation.instrumented import context_value, on_exit
from otel_assembly.instrumentation.middleware_calls import MiddlewareCall, MiddlewareReduction, wrap_middleware
from otel_assembly.instrumentation.model_call import ClientRequest, ModelCall
from otel_assembly.instrumentation.reducers import ReducerSpec, is_ours, name_of, no_summary
from otel_assembly.instrumentation.reductions import Reduction, observe_reducer, plugin_scope, reducing
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from otel_assembly.conversation_state import AlertFacts
    from otel_assembly.instrumentation.hooks import Observation, Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.reductions import ReducerObservation


# AG2 has no public names for the private attributes that this module reads (SLF001).


def _new_alerts(policy: Any, delivered: frozenset[Any], events: Sequence[Any]) -> list[AlertFacts]:
    """Return the alerts among the events that an `AlertPolicy` delivered in this run; `delivered` are earlier ones."""
    alerts = {
        (event.source, str(event.severity), event.message): alert_facts(event) for event in events if is_alert(event)
    }
    new_keys = set(policy._delivered_keys) - delivered  # noqa: SLF001
    return [alert for key, alert in alerts.items() if key in new_keys]


@observe_async_hook
def assembler_middleware(
    instrumentation: Instrumentation, middleware: Any, /, call_next: Any, events: Any, context: Any
) -> Observation:
    """Wrap `AssemblerMiddleware.on_llm_call`, which applies policies: begin the model call that their steps belong to.

    It also wraps ``apply`` of each policy's class on first use, because the program's own policies have no base class.
    """
    policies = getattr(middleware, "_policies", None)
    for policy in policies if isinstance(policies, list | tuple) else ():
        instrumentation.wrap_once(type(policy), "apply", policy_apply)
    with llm_call_scope(instrumentation, call_next, events, context):
        yield


@observe_async_hook
def policy_apply(
    instrumentation: Instrumentation, policy: Any, /, prompts: Any, events: Any, context: Any
) -> Observation:
    """Wrap a policy's ``apply``, to record a step of the model call, even if the policy changes nothing."""
    call = CALL.get()
    if call is None or reducing() is not None:
        return
    if is_ours(policy):
        with plugin_scope(instrumentation, call):
            prompts, events = yield
        call.replaced_by_plugin(events, prompts=prompts)
        return
    call.observe_messages(events, prompts=prompts)
    name, spec = name_of(policy), spec_of(policy)
    reduction = Reduction(instrumentation, StepReport(name, events, kind=spec.kind, config=spec.config(policy)))
    reduction.open()  # `done` records an open step even if nothing changed
    # An `AlertPolicy` remembers the alerts that it has delivered; `_new_alerts` returns those that this run adds.
    delivered = frozenset(policy._delivered_keys if spec is ALERTS else ())  # noqa: SLF001
    with reduction.tracked():
        prompts, events = yield
        if not isinstance(events, list | tuple):
            # Ends the step with an error, which `observe_async_hook` logs. AG2 gets the policy's result unchanged.
            raise TypeError(f"{name} returned its events as {type(events).__name__}, and not as a list or tuple")
        alerts = _new_alerts(policy, delivered, reduction.before) if spec is ALERTS else ()
        spec.done(reduction, policy, events, prompts=prompts, alerts=alerts)


class _ReducerCall(MiddlewareReduction):
    """One call of a reducing middleware, whose output is recorded as its specification describes."""

    def __init__(
        self, spec: ReducerSpec, reducer: Any, instrumentation: Instrumentation, before: Sequence[Any]
    ) -> None:
        super().__init__(instrumentation, StepReport(spec.policy, before, config=spec.config(reducer)))
        self._spec = spec
        self._reducer = reducer

    def record_output(self, prompts: Sequence[str] | None, after: ClientRequest) -> None:
        """Record the messages that the middleware passes on; it gets and changes no system prompts."""
        self._spec.done(self, self._reducer, list(after.messages))


def reducing_middleware_hook(spec: ReducerSpec, scope: Callable[..., AbstractContextManager[ModelCall | None]]) -> Wrap:
    """Return a wrapper for a reducing middleware's coroutine function, called with the next layer and the messages.

    `scope` returns the context manager in which the middleware runs, such as `llm_call_scope`, from the
    `Instrumentation`, the next layer, the messages and any further arguments. It yields the model call; if it yields
    None, the middleware runs unobserved.
    """

    @replace_hook
    async def middleware(instrumentation: Instrumentation, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        # The original is `async def (reducer, call_next, messages, *rest)`; its caller may name the arguments.
        reducer, call_next, messages, *rest = inspect.signature(original).bind(*args, **kwargs).args

        def messages_first(request: Any, next_layer: Any, *others: Any) -> Any:  # as `wrap_middleware` calls it
            return original(reducer, next_layer, request, *others)

        with scope(instrumentation, call_next, messages, *rest) as call:
            if call is None:
                return await original(reducer, call_next, messages, *rest)
            begin_reduction = partial(_ReducerCall, spec, reducer, instrumentation)
            # The request is the list of messages, so `ClientRequest` reads it.
            begin = partial(MiddlewareCall, instrumentation, begin_reduction, ClientRequest)
            return await wrap_middleware(messages_first, instrumentation, begin)(messages, call_next, *rest)

    return middleware


#: Replace `_HistoryLimiter.on_llm_call` and `_TokenLimiter.on_llm_call`.
history_limiter = reducing_middleware_hook(HISTORY_LIMITER, llm_call_scope)
token_limiter = reducing_middleware_hook(TOKEN_LIMITER, llm_call_scope)


def maintenance_hook(
    observe: Callable[..., ReducerObservation],
    call_of: Callable[..., AbstractContextManager[ModelCall]],
    *,
    always: bool = False,
) -> Wrap:
    """Return the hook of a function that works on a history; each call is recorded as an assembly.

    The function can be sync or async. The assembly has one step and is not followed by a model call. If the function
    raises, the assembly's output is the unchanged history. A call that is made by a reducer is not recorded: it is part
    of that reducer's step. `call_of` returns a context manager for the assembly, in which the function runs, from the
    `Instrumentation` and the function's arguments. `observe` and `always` are those of `observe_reducer`.
    """
    observation = observe_reducer(observe, always=always)

    def observe_maintenance(instrumentation: Instrumentation, /, *args: Any, **kwargs: Any) -> Observation:
        if reducing() is not None:
            return
        with (
            call_of(instrumentation, *args, **kwargs) as call,
            context_value(CALL, call),
            on_exit(partial(call.end, stays=True)),
        ):
            yield from observation(instrumentation, *args, **kwargs)

    return observe_hook(observe_maintenance)


@contextmanager
def _maintenance_call(
    name: str, instrumentation: Instrumentation, _: Any, /, events: Sequence[Any], context: Any, store: Any = None
) -> Iterator[ModelCall]:
    """Yield the assembly of a compaction, in the ledger of the agent's model calls, or of an aggregation."""
    is_compaction, turn = name == "compaction", turn_of(context)
    with nullcontext() if turn is None else turn.run.inside():
        invoking_agent = invoking_agent_of(context, "" if is_compaction else name)
        call = ModelCall(instrumentation, invoking_agent, model=model_of(context), name=name)
        call.set_input(events, prompts=list(context.prompt) if is_compaction else ())
        if is_compaction and turn is not None:
            call.tools = turn.tools.schemas or ()
        yield call


def _compacted(compacted: Iterable[Any], events: Sequence[Any], context: Any) -> list[Any]:
    """Return the history after a compaction: the strategy's result, with the records of tokens that AG2 restores.

    Some releases of AG2 restore these records (`UsageEvent`) with ``agent._with_usage_events``, in turns only.
    """
    if turn_of(context) is None:
        return list(compacted)
    agent_modules = [sys.modules[f"{package}.agent"] for package in PACKAGES if f"{package}.agent" in sys.modules]
    restore = getattr(agent_modules[0], "_with_usage_events", None)
    compacted = list(compacted)
    return compacted if restore is None else list(restore(before=events, compacted=compacted, spent_during=[]))


def without_summaries(
    before: Sequence[Any], after: Sequence[Any], text_of: Callable[[Any], str | None]
) -> list[Verdict]:
    """Return the verdict on messages that are lost because the summary that replaces them is empty or an error text.

    `text_of` returns the text of a summary; None for any other message.
    """
    before_ids, after_ids = set(map(id, before)), set(map(id, after))
    removed = [message for message in before if id(message) not in after_ids]
    new_texts = [text_of(message) for message in after if id(message) not in before_ids]
    summaries = [text for text in new_texts if text is not None]
    is_lost = bool(summaries) and all(no_summary(text, removed) for text in summaries)
    return [Verdict(removed, DecisionOutcome.DROPPED, DecisionReason.POLICY_ERROR)] if is_lost else []


_TARGET: Final = ReducerSpec(settings={"target": "_target"})


def _observe_compaction(
    _: Instrumentation, strategy: Any, /, events: Sequence[Any], context: Any, store: Any = None
) -> ReducerObservation:
    report = StepReport("compaction", events, config=_TARGET.config(strategy))
    after = _compacted((yield report), report.before, context)
    if type(strategy).__name__ == "TailWindowCompact":
        return replace(report, after=after, reason=DecisionReason.OUTSIDE_WINDOW)
    verdicts = without_summaries(
        report.before, after, lambda event: str(event.summary or "") if hasattr(event, "summary") else None
    )
    return replace(report, after=after, verdicts=verdicts)


def _observe_aggregation(
    _: Instrumentation, strategy: Any, /, events: Sequence[Any], context: Any, store: Any = None
) -> ReducerObservation:
    report = StepReport("aggregation", events, kind=None, config=_TARGET.config(strategy))
    yield report
    return replace(report, after=events)  # an aggregation writes memory, and changes no event


#: Wrap a strategy's ``compact`` and ``aggregate``.
compact = maintenance_hook(_observe_compaction, partial(_maintenance_call, "compaction"))
aggregate = maintenance_hook(_observe_aggregation, partial(_maintenance_call, "aggregation"), always=True)


def _summarizer_request(strategy: Any, /, *args: Any, **kwargs: Any) -> ClientRequest:
    events = next(argument for argument in reversed((*args, *kwargs.values())) if isinstance(argument, list))
    return ClientRequest(events, model=type(strategy).__name__)


#: Wraps the methods of AG2's strategies that call a model, such as ``_summarize``; the events are the last list.
summarize = summariser_call(_summarizer_request, str)


@observe_async_hook
def on_turn(instrumentation: Instrumentation, middleware: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Wrap ``on_turn`` of the middleware that runs a strategy, to wrap the user's own strategies on first use."""
    for method, wrap in (("compact", compact), ("aggregate", aggregate)):
        instrumentation.wrap_once(type(middleware._strategy), method, wrap)  # noqa: SLF001
    yield


hide_frames(globals())
