"""The hooks of Pydantic AI."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import Following, Hook, Wraps, in_module
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_assembly.instrumentation.pydantic_ai import calls
else:
    calls = Wraps(f"{__package__}.calls")

_CAPABILITIES: Final = "pydantic_ai.capabilities.combined"
_MODELS: Final = "pydantic_ai.models"


class PydanticAIInstrumentor(AssemblyInstrumentor):
    """Instruments the context assembly of Pydantic AI's agents: capabilities, history processors, models, runs."""

    framework = "pydantic_ai"
    requires = ("pydantic-ai-slim >= 2, < 3",)
    hooks: ClassVar[tuple[Hook, ...]] = (
        Hook(
            _CAPABILITIES,
            "CombinedCapability.before_model_request",
            calls.prepared,
            "history processors, compaction and other capabilities that change what is sent",
        ),
        Hook(_CAPABILITIES, "CombinedCapability.wrap_run", calls.run, "a run that has no span of its own as one trace"),
        *in_module(
            _MODELS,
            ("Model.request", Following("request", calls.client_called), "what a model receives"),
            ("Model.request_stream", Following("request_stream", calls.client_called), "the same, streamed"),
            (
                "Model.compact_messages",
                Following("compact_messages", calls.compaction_called),
                "compaction that a provider is asked for",
            ),
        ),
    )
    rows: ClassVar[Mapping[str, str]] = {"pydantic_ai": "otel_assembly.instrumentation.pydantic_ai.messages"}
