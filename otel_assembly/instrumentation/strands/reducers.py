"""Hooks for what changes a Strands agent's messages in place, between its model calls.

These are conversation managers, strategies of a context manager, callbacks of hooks, and the tools with which a model
reduces its own context. Each change is deferred, and recorded as a step of the agent's next model call.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionOutcome, DecisionReason, Verdict
from otel_assembly.instrumentation.hooks import observe_async_hook, replace_hook
from otel_assembly.instrumentation.model_call import ClientRequest
from otel_assembly.instrumentation.reducers import is_ours, is_own, known_of, policy_name, settings_of
from otel_assembly.instrumentation.reductions import observe_edits, reducer, reducing
from otel_assembly.instrumentation.strands.calls import (
    PACKAGES,
    function_name,
    invoking_agent_of,
    is_framework_function,
)
from otel_assembly.instrumentation.strands.messages import agent_messages
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.reductions import ReducerObservation

#: Why a conversation manager drops messages, unless the model reported a context overflow.
_REASONS: Final = {
    "SlidingWindowConversationManager": DecisionReason.OUTSIDE_WINDOW,
    "SummarizingConversationManager": DecisionReason.COMPACTED,
}
#: The settings of a strategy that are recorded, and the attributes that contain them.
_SETTINGS: Final = {
    "threshold": "_threshold",
    "utilization": "_utilization_threshold",
    "preserve_recent": "_preserve_recent",
}


def _observe_edits(agent: Any, report: StepReport) -> ReducerObservation:
    """Observe a function that changes an agent's messages in place; the report lacks only the messages."""
    if reducing() is not None or not isinstance(getattr(agent, "messages", None), list):
        return None
    return (yield from observe_edits(report, lambda: ClientRequest(agent_messages(agent))))


def _observe_manager(
    _: Instrumentation, manager: Any, agent: Any, e: Any = None, *__: Any, **___: Any
) -> ReducerObservation:
    """Observe a conversation manager; `e` is the model's context overflow, if there was one."""
    if is_ours(manager) or type(manager).__name__ == "NullConversationManager":
        return None
    reason = known_of(type(manager), _REASONS, PACKAGES) or DecisionReason.POLICY
    if e is not None and reason is DecisionReason.OUTSIDE_WINDOW:
        reason = DecisionReason.OVER_BUDGET
    name = policy_name(manager, PACKAGES, "ConversationManager")
    report = StepReport(name, config=settings_of(manager, {"removed_message_count"}), reason=reason)
    return (yield from _observe_edits(agent, report))


#: The hook of a conversation manager. It runs after a run, before a model call, or after a context overflow.
manage: Final = reducer(
    _observe_manager,
    invoking_agent=lambda _, agent, *__, **___: invoking_agent_of(agent),
    uncalled_agent=lambda _, agent, e=None, **__: None if e is None else invoking_agent_of(agent),
)


def _strategy_report(strategy: Any) -> StepReport:
    values = {name: getattr(strategy, attribute, None) for name, attribute in _SETTINGS.items()}
    settings = {name: value for name, value in values.items() if value}
    return StepReport(policy_name(strategy, PACKAGES, "Strategy"), config=settings)


def _observe_strategy(_: Instrumentation, strategy: Any, context: Any) -> ReducerObservation:
    """Observe a strategy of a context manager, with a verdict on the messages that it dropped.

    Without the verdict, the notice that a strategy inserts would count as a summary of the dropped messages. Only the
    strategy `summarize` inserts a real summary.
    """
    report = yield from _observe_edits(context.agent, _strategy_report(strategy))
    if report is None or report.policy == "summarize" or not is_own(strategy, PACKAGES):
        return report
    after = report.after or ()
    if len(after) >= len(report.before):  # the strategy only shortened content blocks, so it needs no verdict
        return report
    kept_blocks = [block for message in after for block in message["content"]]
    dropped = [message for message in report.before if not any(block in kept_blocks for block in message["content"])]
    return replace(report, verdicts=[Verdict(dropped, DecisionOutcome.DROPPED, DecisionReason.OVER_BUDGET)])


def _observe_offloading(
    _: Instrumentation, strategy: Any, message: Any, messages: Any, tool_names: Any, agent: Any
) -> ReducerObservation:
    return (yield from _observe_edits(agent, _strategy_report(strategy)))


_apply_strategy: Final = reducer(_observe_strategy, invoking_agent=lambda _, context: invoking_agent_of(context.agent))
#: The hook of `_transform_blocks`, with which an offload strategy shortens a message when it is added.
transform_blocks: Final = reducer(
    _observe_offloading, invoking_agent=lambda strategy, message, messages, tool_names, agent: invoking_agent_of(agent)
)


@observe_async_hook
def run_strategies(instrumentation: Instrumentation, manager: Any, /, *_: Any, **__: Any) -> Observation:
    """Wrap `apply` in the classes of a context manager's strategies before they run; a program can define its own."""
    for strategy in manager._strategies:  # noqa: SLF001  # has no public name
        instrumentation.wrap_once(type(strategy), "apply", _apply_strategy)
    yield


@replace_hook
def invoke_callbacks(instrumentation: Instrumentation, invoke: Any, registry: Any, event: Any) -> Any:
    """Replace `HookRegistry.invoke_callbacks`, to wrap each callback; the registry itself is not changed."""
    with instrumentation.suppress_errors():
        if hasattr(event, "agent"):
            get_callbacks, registry = registry.get_callbacks_for, copy(registry)
            # A generator, because a callback can add other callbacks.
            registry.get_callbacks_for = lambda event: (
                _wrap_callback(callback, instrumentation) for callback in get_callbacks(event)
            )
    return invoke(registry, event)


def _wrap_callback(callback: Any, instrumentation: Instrumentation) -> Any:
    """Return a program's own callback wrapped, because it can edit the agent's messages."""
    with instrumentation.suppress_errors():
        if is_framework_function(callback) or is_ours(getattr(callback, "__self__", None)):
            return callback  # recorded elsewhere
        report = StepReport(function_name(callback), kind=None)  # it may remove or add messages
        wrap = reducer(
            lambda _, event: _observe_edits(event.agent, report),
            invoking_agent=lambda event: invoking_agent_of(event.agent),
        )
        return wrap(callback, instrumentation)
    return callback  # it could not be wrapped


def context_tools(module: Any, instrumentation: Instrumentation) -> None:
    """Wrap the tools with which a model can reduce its own context, in the module that defines them."""

    def wrap(name: str, function: Any) -> Any:
        hook = reducer(
            lambda *_, tool_context, **__: _observe_edits(tool_context.agent, StepReport(name)),
            invoking_agent=lambda *_, tool_context, **__: invoking_agent_of(tool_context.agent),
        )
        return hook(function, instrumentation)

    for name in ("summarize_context", "truncate_context"):
        instrumentation.patches.wrap(getattr(module, name), "_tool_func", partial(wrap, name))
