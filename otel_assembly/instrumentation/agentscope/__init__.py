"""AgentScope 2: its instrumentor, its plug-in, and how its messages are read.

Importing this imports nothing of AgentScope; asking for `AssemblyMiddleware` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly._internal.faces import face
from otel_assembly.instrumentation.agentscope.hooks import AgentScopeInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.agentscope.plugin import AssemblyMiddleware


__getattr__, __dir__ = face(__name__, {"AssemblyMiddleware": "plugin"})

__all__ = ["AgentScopeInstrumentor", "AssemblyMiddleware"]
