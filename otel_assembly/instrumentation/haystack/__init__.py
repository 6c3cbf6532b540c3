"""Haystack 3: its instrumentor, its plug-ins, and how its messages are read."""

from __future__ import annotations

from otel_assembly._internal.faces import face
from otel_assembly.instrumentation.haystack.hooks import HaystackInstrumentor

#: The plug-ins import Haystack, which the instrumentor must not.
__getattr__, __dir__ = face(__name__, {"AssemblyChatGenerator": "chat_generator", "AssemblyHook": "plugin"})

__all__ = ["AssemblyChatGenerator", "AssemblyHook", "HaystackInstrumentor"]
