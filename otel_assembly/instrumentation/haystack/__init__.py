"""Instrumentation of Haystack 3: the instrumentor, and two plugins that run a policy chain."""

from __future__ import annotations

from otel_assembly._internal.lazy_imports import lazy_attributes
from otel_assembly.instrumentation.haystack.hooks import HaystackInstrumentor

#: The plugins are imported on first use: their modules import Haystack, which the instrumentor must not import.
__getattr__, __dir__ = lazy_attributes(__name__, {"AssemblyChatGenerator": "chat_generator", "AssemblyHook": "plugin"})

__all__ = ["AssemblyChatGenerator", "AssemblyHook", "HaystackInstrumentor"]
