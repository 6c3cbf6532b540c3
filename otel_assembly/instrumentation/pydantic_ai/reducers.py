"""Capabilities that change what is sent, before each request: each is a step."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic_ai.capabilities.abstract import AbstractCapability

from otel_assembly.instrumentation.model_call import CALL
from otel_assembly.instrumentation.pydantic_ai.calls import read
from otel_assembly.instrumentation.reducers import is_ours, is_own, limit_of, policy_name, settings_of
from otel_assembly.instrumentation.reductions import Reducer, reducer

if TYPE_CHECKING:
    from collections.abc import Mapping

_PACKAGES: Final = ("pydantic_ai", "pydantic_ai_harness")
_COMPACTION: Final = ("pydantic_ai_harness.compaction",)
_BY_PROVIDER: Final = "provider_compaction"
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
    said = policy_name(capability.processor, ())
    return "history_processor" if said.startswith("<") else said


def _kind(capability: Any) -> str | None:
    name = type(capability).__name__
    reduces = name == "ProcessHistory" or _NAMES.get(name) == _BY_PROVIDER or is_own(capability, _COMPACTION)
    return "reduction" if reduces else None


def _said(_: Any, __: Any, capability: Any) -> Mapping[str, Any]:
    """The tokens that the harness's compaction is to keep within, where they are said."""
    limit = limit_of(capability, "target_tokens", "max_tokens") if is_own(capability, _COMPACTION) else None
    return {} if limit is None else {"budget": limit, "of_prompt": True}


def _reduces(capability: Any, *_: Any, **__: Any) -> Any:
    """A capability with a hook of its own, where a call is prepared; a plug-in of ours tells itself what it does."""
    own = type(capability).before_model_request is not AbstractCapability.before_model_request
    return capability if own and not is_ours(capability) and CALL.get() is not None else None


#: What a capability does before a request.
before_request: Final = reducer(
    Reducer(
        lambda _, __, request, **___: read(request),
        lambda result, *_, **__: read(result),
        _policy,
        _kind,
        # What it was made with, but for what every capability is.
        lambda one: settings_of(one, {"id", "defer_loading"}) if is_dataclass(one) else {},
        _said,
        by=_reduces,
    )
)
