"""Pydantic AI 2: its instrumentor, its plug-in, and how its messages are read."""

from __future__ import annotations

from otel_assembly._internal.lazy_imports import lazy_attributes
from otel_assembly.instrumentation.pydantic_ai.hooks import PydanticAIInstrumentor

#: The plug-in imports Pydantic AI, which the instrumentor must not.
__getattr__, __dir__ = lazy_attributes(__name__, {"AssemblyCapability": "plugin"})

__all__ = ["AssemblyCapability", "PydanticAIInstrumentor"]
