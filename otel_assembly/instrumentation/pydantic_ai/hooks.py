"""The table of Pydantic AI's functions that are instrumented.

Hooks wrap ``before_model_request`` of capabilities, ``CombinedCapability.wrap_run``, and ``request``,
``request_stream`` and ``compact_messages`` of models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import LazyWrappers, SubclassHook, in_module
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.pydantic_ai import calls, reducers
else:
    calls, reducers = (LazyWrappers(f"{__package__}.{module}") for module in ("calls", "reducers"))

_BEFORE: Final = "before_model_request"
_CHANGES: Final = "changes by history processors, compaction and other capabilities"
_REQUESTS: Final = "messages and tools of each request, streamed or not"
#: Wraps the method in each class of capabilities, except in classes whose own method only calls other capabilities.
_CAPABILITIES: Final = SubclassHook.for_method(
    _BEFORE, reducers.before_request, lambda cls: cls.__name__ in {"CombinedCapability", "WrapperCapability"}
)


class PydanticAIInstrumentor(AssemblyInstrumentor):
    """Records context assembly in Pydantic AI: changes by history processors and other capabilities, requests, runs."""

    framework = "pydantic_ai"
    requires = ("pydantic-ai-slim >= 2, < 3",)
    hooks: ClassVar = (
        *in_module(
            "pydantic_ai.capabilities.combined",
            (f"AbstractCapability.{_BEFORE}", _CAPABILITIES, _CHANGES),
            (f"CombinedCapability.{_BEFORE}", calls.prepare_call, "the invoking agent, and messages before any change"),
            ("CombinedCapability.wrap_run", calls.run, "runs, as one span each if Pydantic AI records none"),
        ),
        *in_module(
            "pydantic_ai.models",
            ("Model.request Model.request_stream", calls.model_request, _REQUESTS),
            ("Model.compact_messages", calls.compaction_request, "compaction requests to the provider"),
            followed=True,
        ),
    )
    rows: ClassVar = {"pydantic_ai": f"{__package__}.messages"}
