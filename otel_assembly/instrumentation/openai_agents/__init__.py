"""The OpenAI Agents SDK: its instrumentor, its plug-in, and how its items are read."""

from __future__ import annotations

from otel_assembly._internal.lazy_imports import lazy_attributes
from otel_assembly.instrumentation.openai_agents.hooks import OpenAIAgentsInstrumentor

#: The plug-in imports the SDK, which the instrumentor must not.
__getattr__, __dir__ = lazy_attributes(__name__, {"AssemblyInputFilter": "plugin"})

__all__ = ["AssemblyInputFilter", "OpenAIAgentsInstrumentor"]
