"""Records the changes that capabilities make to a request in ``before_model_request``, as one step per capability.

Capabilities include history processors (``ProcessHistory``) and the compaction of `pydantic_ai_harness`.
"""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic_ai.capabilities.abstract import AbstractCapability

from otel_assembly.instrumentation.model_call import CALL
from otel_assembly.instrumentation.pydantic_ai.calls import request_of
from otel_assembly.instrumentation.reducers import is_ours, is_own, limit_of, policy_name, settings_of
from otel_assembly.instrumentation.reductions import Reducer, reducer

if TYPE_CHECKING:
    from collections.abc import Mapping

_PACKAGES: Final = ("pydantic_ai", "pydantic_ai_harness")
_COMPACTION_MODULES: Final = ("pydantic_ai_harness.compaction",)
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


def _policy(capability: Any) -> str:
    if type(capability).__name__ != "ProcessHistory":
        return policy_name(capability, _PACKAGES, "Compaction", names=_NAMES)
    name = policy_name(capability.processor, ())
    return "history_processor" if name.startswith("<") else name  # a lambda is named "<lambda>"


def _kind(capability: Any) -> str | None:
    name = type(capability).__name__
    reduces = name == "ProcessHistory" or _NAMES.get(name) == _BY_PROVIDER or is_own(capability, _COMPACTION_MODULES)
    return "reduction" if reduces else None


def _step_report(_: Any, __: Any, capability: Any) -> Mapping[str, Any]:
    """Report the token limit of the harness's compaction as the step's budget, if the capability has a limit."""
    limit = limit_of(capability, "target_tokens", "max_tokens") if is_own(capability, _COMPACTION_MODULES) else None
    return {} if limit is None else {"budget": limit, "of_prompt": True}


def _recorded_capability(capability: Any, *_: Any, **__: Any) -> Any:
    """Return the capability if its changes have to be recorded, else None.

    They are recorded if it overrides ``before_model_request`` and runs for a model call. The plug-in is excluded,
    because it records its own changes.
    """
    overrides = type(capability).before_model_request is not AbstractCapability.before_model_request
    return capability if overrides and not is_ours(capability) and CALL.get() is not None else None


#: Hook of ``before_model_request``: records the changes to the messages and prompts as a step.
before_request: Final = reducer(
    Reducer(
        lambda _, __, request, **___: request_of(request),
        lambda result, *_, **__: request_of(result),
        _policy,
        _kind,
        # The fields of a dataclass are the capability's settings, except those that every capability has.
        lambda capability: settings_of(capability, {"id", "defer_loading"}) if is_dataclass(capability) else {},
        _step_report,
        by=_recorded_capability,
    )
)
