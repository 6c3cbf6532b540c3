"""Google ADK 2: its instrumentor, its plug-in, and how its messages are read."""

from __future__ import annotations

from otel_assembly._internal.lazy_imports import lazy_attributes
from otel_assembly.instrumentation.google_adk.hooks import GoogleADKInstrumentor

#: The plug-in imports ADK, which the instrumentor must not.
__getattr__, __dir__ = lazy_attributes(__name__, {"AssemblyPlugin": "plugin"})

__all__ = ["AssemblyPlugin", "GoogleADKInstrumentor"]
