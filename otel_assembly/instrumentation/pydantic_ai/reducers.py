"""Records the changes that capabilities make to a request in ``before_model_request``, as one step per capability.

Capabilities include history processors (``ProcessHistory``) and the compaction of `pydantic_ai_harness`.
"""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pydantic_ai.capabilities.abstract import AbstractCapability

from otel_assembly.instrumentation.context_variables import CALL
from otel_assembly.instrumentation.pydantic_ai.calls import request_of
from otel_assembly.instrumentation.reducers import is_ours, is_own, limit_of, policy_name, settings_of
from otel_assembly.instrumentation.reductions import reducer
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.reductions import ReducerObservation

_PACKAGES: Final = ("pydantic_ai", "pydantic_ai_harness")
_COMPACTION: Final = ("pydantic_ai_harness.compaction",)
#: Policy name of compaction that the provider performs.
_BY_PROVIDER: Final = "provider_compaction"
#: Policy names of classes whose own name is not descriptive, or belongs to one provider.
_NAMES: Final = {
    "AnthropicCompaction": _BY_PROVIDER,
    "OpenAICompaction": _BY_PROVIDER,
    "SlidingWindowCompaction": "sliding_window",
    "SummarizingCompaction": "summarization",
    "PendingMessageDrainCapability": "pending_messages",
}


@reducer
def before_request(_: Instrumentation, capability: Any, __: Any, request: Any, **___: Any) -> ReducerObservation:
    """Hook of ``before_model_request``: record the changes to the messages and prompts as a step."""
    # The method that `AbstractCapability` defines changes nothing.
    overrides = type(capability).before_model_request is not AbstractCapability.before_model_request
    if not overrides or is_ours(capability) or CALL.get() is None:
        return None
    name, before = type(capability).__name__, request_of(request)
    is_compaction, is_processor = is_own(capability, _COMPACTION), name == "ProcessHistory"
    policy = policy_name(capability, _PACKAGES, "Compaction", names=_NAMES)
    if is_processor:
        policy = policy_name(capability.processor, (), lambda_name="history_processor")
    is_reducer = is_compaction or is_processor or _NAMES.get(name) == _BY_PROVIDER
    report = StepReport(
        policy,
        before.messages,
        kind="reduction" if is_reducer else None,
        # The fields of a dataclass are the capability's settings, except those that every capability has.
        config=settings_of(capability, {"id", "defer_loading"}) if is_dataclass(capability) else {},
        prompts_before=before.prompts,
        budget=limit_of(capability, "target_tokens", "max_tokens") if is_compaction else None,
        of_prompt=True,
    )
    after = request_of((yield report))
    return replace(report, after=after.messages, prompts=after.prompts)
