"""AgentScope 2: its instrumentor, its plug-in, and how its messages are read.

Importing this imports nothing of AgentScope; asking for `AssemblyMiddleware` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.instrumentation.agentscope.hooks import AgentScopeInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.agentscope.plugin import AssemblyMiddleware


def __getattr__(name: str) -> Any:
    if name == "AssemblyMiddleware":
        from otel_assembly.instrumentation.agentscope.plugin import AssemblyMiddleware

        return AssemblyMiddleware
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["AgentScopeInstrumentor", "AssemblyMiddleware"]
