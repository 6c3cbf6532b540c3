"""Hooks of the SDK's functions that change the items of a run before a model receives them.

Sessions (``prepare_input_with_session``), handoffs (``execute_handoffs``) and sandbox capabilities
(``Capability.process_context``) change the items of all later calls of the run. A ``call_model_input_filter`` changes
one call.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionReason
from otel_assembly.instrumentation.clients import summariser_call
from otel_assembly.instrumentation.hooks import observe_async_hook, observe_hook
from otel_assembly.instrumentation.instrumented import argument, context_value
from otel_assembly.instrumentation.message_alignment import locate, same
from otel_assembly.instrumentation.model_call import DEFERRED_REDUCTIONS, FRAMEWORK, ClientRequest
from otel_assembly.instrumentation.openai_agents.messages import items_of
from otel_assembly.instrumentation.openai_agents.runs import RUN, prepare_call, session_id_of
from otel_assembly.instrumentation.openai_agents.stored_histories import StoredHistories
from otel_assembly.instrumentation.prompts import as_prompts
from otel_assembly.instrumentation.reducers import is_ours, is_own, left_for, policy_name, settings_of
from otel_assembly.instrumentation.reductions import Reduction, reducer
from otel_assembly.messages.event_facts import describe
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly.instrumentation.conversation import InvokingAgent
    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.reductions import ReducerObservation

_PACKAGES: Final = ("agents",)


@reducer
def _record_filter(
    _: Instrumentation, /, *__: Any, run_config: Any, input_items: Any, system_instructions: Any, **___: Any
) -> ReducerObservation:
    """Record the run's ``call_model_input_filter``, except for the plug-in, which records its own changes."""
    input_filter = run_config.call_model_input_filter
    if input_filter is None or is_ours(input_filter):
        return None
    report = StepReport(
        policy_name(input_filter, _PACKAGES, lambda_name="call_model_input_filter"),
        input_items,
        config=settings_of(input_filter) if is_own(input_filter, _PACKAGES) else {},
        prompts_before=as_prompts(system_instructions),
    )
    result = yield report
    return replace(report, after=result.input, prompts=as_prompts(result.instructions))


def filter_input(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Hook of ``maybe_filter_model_input``: begin a model call, and record the filter's changes as a step of it."""
    return prepare_call(_record_filter(original, instrumentation), instrumentation)


def _run_agent(*_: Any, **__: Any) -> InvokingAgent | None:
    """Return the current run as an invoking agent: reductions deferred for it are applied to the run's next call."""
    run = RUN.get()
    return run.as_invoking_agent if run is not None else None


def _observe_capability(_: Instrumentation, capability: Any, context: Any) -> ReducerObservation:
    report = StepReport(policy_name(capability, _PACKAGES), context)
    return replace(report, after=(yield report))


#: Hook of ``Capability.process_context``: a capability of a sandbox agent changes the run's items.
process_context: Final = reducer(_observe_capability, invoking_agent=_run_agent)


@observe_async_hook
def execute_handoffs(_: Instrumentation, *__: Any, **kwargs: Any) -> Observation:
    """Record how a handoff changes the run's items for the next agent, by an input filter or by nesting the history."""
    result, invoking_agent = (yield), _run_agent()
    before = items_of(kwargs["original_input"], [*kwargs["pre_step_items"], *kwargs["new_step_items"]])
    after = items_of(result.original_input, [*result.pre_step_items, *result.new_step_items])
    if invoking_agent is not None and not same(before, after):
        input_filter = kwargs["run_handoffs"][0].handoff.input_filter or kwargs["run_config"].handoff_input_filter
        policy = "nest_handoff_history"
        if input_filter is not None:
            policy = policy_name(input_filter, _PACKAGES, lambda_name="handoff_input_filter")
        DEFERRED_REDUCTIONS.put(invoking_agent, StepReport(policy, before, after))


#: Collects the items that the session returns while a run's input is prepared; None at any other time.
_LOADED: Final[ContextVar[list[Any] | None]] = ContextVar("otel_assembly_openai_agents_loaded", default=None)
#: Whether a session's ``add_items`` is running.
_ADDING: Final = ContextVar("otel_assembly_openai_agents_adding", default=False)
_HISTORIES: Final = StoredHistories("session_limit")


@observe_async_hook
def prepare_input(instrumentation: Instrumentation, *args: Any, **kwargs: Any) -> Observation:
    """Hook of ``prepare_input_with_session``: record how a run's input differs from the session's items and new input.

    The program's ``session_input_callback`` may have changed the items, or the SDK has removed orphaned ones.
    """
    invoking_agent, session, loaded = _run_agent(), argument(args, kwargs, 1, "session"), list[Any]()
    if invoking_agent is None or session is None:
        return
    instrumentation.wrap_once(type(session), "get_items", _get_items)
    instrumentation.wrap_once(type(session), "add_items", _add_items)
    callback = argument(args, kwargs, 2, "session_input_callback")
    policy, kind = FRAMEWORK, None
    if callback is not None:
        policy = policy_name(callback, _PACKAGES, lambda_name="session_input_callback")
        kind = "reduction"
    reduction = Reduction(instrumentation, StepReport(policy, kind=kind))
    with context_value(_LOADED, loaded), reduction.tracked():
        result = yield
    # Without the history, which the provider then has, the result contains only new items.
    if kwargs.get("include_history_in_prepared_input", True):
        before, after = [*loaded, *items_of(argument(args, kwargs, 0, "input"))], items_of(result[0])
        reduction.before = before
        if callback is None:  # only the SDK's own removal of orphaned items changes the input
            kept = [before[place] for place in locate(before, after) or ()]
            reduction.report = replace(reduction.report, verdicts=left_for(before, kept, _orphan_reason))
        reduction.done(after, invoking_agent=invoking_agent)


def _orphan_reason(item: Any) -> DecisionReason | None:
    """Return why the SDK drops a session's item: its call or result is missing. None for other items."""
    facts = describe(item)
    if facts.closes:
        return DecisionReason.ORPHANED_TOOL_RESULT
    return DecisionReason.ORPHANED_TOOL_CALL if facts.opens else None


@observe_hook
def _get_items(_: Instrumentation, session: Any, limit: int | None = None, **__: Any) -> Observation:
    """Hook of a session's ``get_items``: collect the items, and record those that a limit or a compaction left out."""
    loaded = _LOADED.get()
    if loaded is None:  # a wrapped session, or the items are not for a run's input
        return
    with context_value(_LOADED, None):
        items = yield
    loaded += items
    invoking_agent, name = _run_agent(), session_id_of(session)
    limit = limit if limit is not None else getattr(getattr(session, "session_settings", None), "limit", None)
    may_lack_items = limit is not None or hasattr(session, "run_compaction")
    if invoking_agent is not None and name is not None and may_lack_items:
        _HISTORIES.record_read(name, items, invoking_agent, limit)


@observe_hook
def _add_items(_: Instrumentation, session: Any, items: Sequence[Any], *__: Any, **___: Any) -> Observation:
    if _ADDING.get():  # called by another session that wraps this one, and may have encrypted the items
        return
    with context_value(_ADDING, True):
        yield
    _HISTORIES.add_items(session_id_of(session) or "", items)


@observe_async_hook
def run_compaction(instrumentation: Instrumentation, session: Any, *_: Any, **__: Any) -> Observation:
    """Hook of ``run_compaction``: a session may have the provider compact its items, which its next read shows."""
    reduction = Reduction(instrumentation, StepReport("responses_compaction"))
    with reduction.tracked():
        yield
    _HISTORIES.record_change(session_id_of(session) or "", reduction)


#: Hook of ``AsyncResponses.compact``: records a compaction request. It has no items if the provider stores them.
compaction_request: Final = summariser_call(
    lambda _, *, model, input=None, **__: ClientRequest(items_of(input or []), model=model)  # noqa: A006  # OpenAI's name
)
