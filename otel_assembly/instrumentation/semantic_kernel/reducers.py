"""Semantic Kernel's history reducers: the hook of `ChatHistoryReducer.reduce` in each class that defines it.

A reduction runs outside a model call. It is deferred, and recorded as a step of the next model call with the reduced
history.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from semantic_kernel.contents.chat_history import ChatHistory

from otel_assembly.decision import DecisionReason
from otel_assembly.instrumentation.hooks import observe_async_hook
from otel_assembly.instrumentation.prompts import in_front
from otel_assembly.instrumentation.reducers import is_ours, known_of, policy_name, settings_of
from otel_assembly.instrumentation.reductions import Reduction, compacted_verdict, reducing
from otel_assembly.instrumentation.semantic_kernel.calls import defer_edits, invoking_agent_of
from otel_assembly.instrumentation.semantic_kernel.messages import is_prompt
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation

_PACKAGES: Final = ("semantic_kernel",)
_TRUNCATION, _SUMMARIZATION = "truncation", "summarization"
_NAMES: Final = {"ChatHistoryTruncationReducer": _TRUNCATION, "ChatHistorySummarizationReducer": _SUMMARIZATION}


@observe_async_hook
def observe_reduction(instrumentation: Instrumentation, history: Any, /, *_: Any, **__: Any) -> Observation:
    """The hook of ``reduce``; a reducer that calls another one is recorded as one step."""
    if reducing() is not None:
        return
    defer_edits(history)  # edits before the reducer are a step of their own
    policy, built_in = policy_name(history, _PACKAGES, names=_NAMES), known_of(type(history), _NAMES, _PACKAGES)
    reduction = Reduction(instrumentation, StepReport(policy, history.messages, config=settings_of(history)))
    try:
        with reduction.running():
            result = yield
    except BaseException as error:
        reduction.prevented_call(error, invoking_agent_of(history))
        raise
    reduced = result if isinstance(result, ChatHistory) else history  # a reducer may return another history
    after = defer_edits(reduced, recorded=True)
    if is_ours(history):
        return  # the plug-in has recorded its own assembly
    # Leading system prompts are not among the messages after the reduction. So those that the reducer keeps are removed
    # from its input, too; the others count as dropped.
    prompts = set(map(id, in_front(reduced.messages, is_prompt)[0]))
    reduction.before = [message for message in reduction.before if id(message) not in prompts]
    if built_in is not None:
        reduction.report = replace(reduction.report, reason=DecisionReason.OUTSIDE_WINDOW)
    if built_in == _SUMMARIZATION:
        reduction.add_verdict(compacted_verdict(reduction, after))
    reduction.done(after, invoking_agent=invoking_agent_of(reduced))
