"""Instruments LlamaIndex, and contains the plug-in that runs policies on a memory's messages."""

from __future__ import annotations

from otel_assembly._internal.lazy_imports import lazy_attributes
from otel_assembly.instrumentation.llama_index.hooks import LlamaIndexInstrumentor

#: Imported on first use: the plug-in imports LlamaIndex, and the instrumentor must not import it.
__getattr__, __dir__ = lazy_attributes(__name__, {"AssemblyMemory": "plugin"})

__all__ = ["AssemblyMemory", "LlamaIndexInstrumentor"]
