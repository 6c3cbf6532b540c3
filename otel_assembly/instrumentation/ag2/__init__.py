"""Support for AG2 1.x and `autogen.beta` 0.12 to 0.14: instrumentor, plug-in and readers of its events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly._internal.lazy_imports import lazy_attributes
from otel_assembly.instrumentation.ag2.hooks import AG2Instrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.ag2.plugin import AssembledPolicy

#: Imported on first access: the plug-in imports the assembler, which the instrumentor does not need.
__getattr__, __dir__ = lazy_attributes(__name__, {"AssembledPolicy": "plugin"})

__all__ = ["AG2Instrumentor", "AssembledPolicy"]
