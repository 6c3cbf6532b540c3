"""The hooks of Pydantic AI."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import Hook, LazyWrappers, SubclassHook, in_module
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.pydantic_ai import calls, reducers
else:
    calls, reducers = (LazyWrappers(f"{__package__}.{module}") for module in ("calls", "reducers"))

_BEFORE: Final = "before_model_request"
#: What each capability does before a request; of some their own only asks others.
_CAPABILITIES: Final = SubclassHook.for_method(
    _BEFORE, reducers.before_request, ("CombinedCapability", "WrapperCapability")
)


class PydanticAIInstrumentor(AssemblyInstrumentor):
    """Instruments the context assembly of Pydantic AI's agents: capabilities, history processors, models, runs."""

    framework = "pydantic_ai"
    requires = ("pydantic-ai-slim >= 2, < 3",)
    hooks: ClassVar[tuple[Hook, ...]] = (
        *in_module(
            "pydantic_ai.capabilities.combined",
            (f"AbstractCapability.{_BEFORE}", _CAPABILITIES, "history processors, compaction, other capabilities"),
            (f"CombinedCapability.{_BEFORE}", calls.prepared, "who asks, and what capabilities are handed"),
            ("CombinedCapability.wrap_run", calls.run, "a run that has no span of its own as one trace"),
        ),
        *in_module(
            "pydantic_ai.models",
            ("Model.request Model.request_stream", calls.client_called, "what a model receives, streamed or not"),
            ("Model.compact_messages", calls.compaction_called, "compaction that a provider is asked for"),
            followed=True,
        ),
    )
    rows: ClassVar = {"pydantic_ai": f"{__package__}.messages"}
