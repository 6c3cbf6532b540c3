"""Strands Agents: its instrumentor, its plug-in, and how its messages are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly._internal.lazy_imports import lazy_attributes
from otel_assembly.instrumentation.strands.hooks import StrandsInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.strands.plugin import AssemblyConversationManager

#: The plug-in imports Strands, which the instrumentor must not.
__getattr__, __dir__ = lazy_attributes(__name__, {"AssemblyConversationManager": "plugin"})

__all__ = ["AssemblyConversationManager", "StrandsInstrumentor"]
