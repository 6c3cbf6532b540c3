"""Haystack 3: its instrumentor, its plug-ins, and how its messages are read."""

from __future__ import annotations

from otel_assembly._internal.lazy_imports import lazy_attributes
from otel_assembly.instrumentation.haystack.hooks import HaystackInstrumentor

#: The plug-ins import Haystack, which the instrumentor must not.
__getattr__, __dir__ = lazy_attributes(__name__, {"AssemblyChatGenerator": "chat_generator", "AssemblyHook": "plugin"})

__all__ = ["AssemblyChatGenerator", "AssemblyHook", "HaystackInstrumentor"]
