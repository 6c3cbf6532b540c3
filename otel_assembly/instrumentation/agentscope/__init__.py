"""AgentScope 2: its instrumentor, its plug-in, and how its messages are read.

Importing this imports nothing of AgentScope; asking for `AssemblyMiddleware` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly._internal.lazy_imports import lazy_attributes
from otel_assembly.instrumentation.agentscope.hooks import AgentScopeInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.agentscope.plugin import AssemblyMiddleware


__getattr__, __dir__ = lazy_attributes(__name__, {"AssemblyMiddleware": "plugin"})

__all__ = ["AgentScopeInstrumentor", "AssemblyMiddleware"]
