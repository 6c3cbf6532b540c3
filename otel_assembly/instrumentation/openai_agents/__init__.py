"""Instruments the OpenAI Agents SDK, and contains the plug-in that runs policies in its runs."""

from __future__ import annotations

from otel_assembly._internal.lazy_imports import lazy_attributes
from otel_assembly.instrumentation.openai_agents.hooks import OpenAIAgentsInstrumentor

#: Imported on first use: the plug-in imports the SDK, and the instrumentor must not import it.
__getattr__, __dir__ = lazy_attributes(__name__, {"AssemblyInputFilter": "plugin"})

__all__ = ["AssemblyInputFilter", "OpenAIAgentsInstrumentor"]
