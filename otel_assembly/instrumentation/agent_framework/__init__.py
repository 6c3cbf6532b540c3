"""Support for Microsoft's agent-framework 1.x: instrumentor, plug-in and readers of its messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly._internal.lazy_imports import lazy_attributes
from otel_assembly.instrumentation.agent_framework.hooks import AgentFrameworkInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.agent_framework.plugin import AssemblyMiddleware

#: Imported on first access: the plug-in imports agent-framework, which the instrumentor must not.
__getattr__, __dir__ = lazy_attributes(__name__, {"AssemblyMiddleware": "plugin"})

__all__ = ["AgentFrameworkInstrumentor", "AssemblyMiddleware"]
