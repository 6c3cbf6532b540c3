"""AgentScope 2: the instrumentor, and a middleware that applies policies to the messages of an agent.

Importing this package does not import AgentScope. The first access to `AssemblyMiddleware` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly._internal.lazy_imports import lazy_attributes
from otel_assembly.instrumentation.agentscope.hooks import AgentScopeInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.agentscope.plugin import AssemblyMiddleware


__getattr__, __dir__ = lazy_attributes(__name__, {"AssemblyMiddleware": "plugin"})

__all__ = ["AgentScopeInstrumentor", "AssemblyMiddleware"]
