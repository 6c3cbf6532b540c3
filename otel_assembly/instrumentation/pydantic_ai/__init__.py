"""Instruments Pydantic AI 2, and contains the plug-in that runs policies in its agents."""

from __future__ import annotations

from otel_assembly._internal.lazy_imports import lazy_attributes
from otel_assembly.instrumentation.pydantic_ai.hooks import PydanticAIInstrumentor

#: Imported on first use: the plug-in imports Pydantic AI, and the instrumentor must not import it.
__getattr__, __dir__ = lazy_attributes(__name__, {"AssemblyCapability": "plugin"})

__all__ = ["AssemblyCapability", "PydanticAIInstrumentor"]
