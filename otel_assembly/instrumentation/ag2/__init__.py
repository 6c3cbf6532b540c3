"""AG2 1.x, and `autogen.beta` 0.12 to 0.14: its instrumentor, its plug-in, and how its events are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly._internal.lazy_imports import lazy_attributes
from otel_assembly.instrumentation.ag2.hooks import AG2Instrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.ag2.plugin import AssembledPolicy

#: The plug-in needs the engine, so it is imported only when it is asked for.
__getattr__, __dir__ = lazy_attributes(__name__, {"AssembledPolicy": "plugin"})

__all__ = ["AG2Instrumentor", "AssembledPolicy"]
