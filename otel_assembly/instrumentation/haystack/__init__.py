"""Haystack 3: its instrumentor, its plug-ins, and how its messages are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly._internal.faces import face
from otel_assembly.instrumentation.haystack.hooks import HaystackInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.haystack.plugin import AssemblyChatGenerator, AssemblyHook

#: The plug-ins import Haystack, which the instrumentor must not.
__getattr__, __dir__ = face(__name__, {"AssemblyChatGenerator": "plugin", "AssemblyHook": "plugin"})

__all__ = ["AssemblyChatGenerator", "AssemblyHook", "HaystackInstrumentor"]
