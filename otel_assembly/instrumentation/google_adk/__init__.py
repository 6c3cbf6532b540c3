"""Instrumentation of Google ADK 2: the instrumentor, and a plugin that runs a policy chain."""

from __future__ import annotations

from otel_assembly._internal.lazy_imports import lazy_attributes
from otel_assembly.instrumentation.google_adk.hooks import GoogleADKInstrumentor

#: `AssemblyPlugin` is imported on first use: its module imports ADK, which the instrumentor must not import.
__getattr__, __dir__ = lazy_attributes(__name__, {"AssemblyPlugin": "plugin"})

__all__ = ["AssemblyPlugin", "GoogleADKInstrumentor"]
