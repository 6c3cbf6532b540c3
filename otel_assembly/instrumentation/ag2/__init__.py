"""AG2 1.x, and `autogen.beta` 0.12 to 0.14: its instrumentor, its plug-in, and how its events are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.instrumentation.ag2.hooks import AG2Instrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.ag2.plugin import AssembledPolicy

__all__ = ["AG2Instrumentor", "AssembledPolicy"]


def __getattr__(name: str) -> Any:
    """The plug-in needs the engine, so it is imported only when it is asked for."""
    if name == "AssembledPolicy":
        from otel_assembly.instrumentation.ag2.plugin import AssembledPolicy

        return AssembledPolicy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
