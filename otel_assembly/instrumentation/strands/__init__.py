"""Instrumentation of Strands Agents: the instrumentor, and a conversation manager that runs a policy chain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly._internal.lazy_imports import lazy_attributes
from otel_assembly.instrumentation.strands.hooks import StrandsInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.strands.plugin import AssemblyConversationManager

#: The manager is imported on first use: its module imports Strands, which the instrumentor must not import.
__getattr__, __dir__ = lazy_attributes(__name__, {"AssemblyConversationManager": "plugin"})

__all__ = ["AssemblyConversationManager", "StrandsInstrumentor"]
