"""The OpenAI Agents SDK: its instrumentor, its plug-in, and how its items are read."""

from __future__ import annotations

from otel_assembly._internal.faces import face
from otel_assembly.instrumentation.openai_agents.hooks import OpenAIAgentsInstrumentor

#: The plug-in imports the SDK, which the instrumentor must not.
__getattr__, __dir__ = face(__name__, {"AssemblyInputFilter": "plugin"})

__all__ = ["AssemblyInputFilter", "OpenAIAgentsInstrumentor"]
