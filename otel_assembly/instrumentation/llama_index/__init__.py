"""LlamaIndex: its instrumentor, its plug-in, and how its messages are read."""

from __future__ import annotations

from otel_assembly._internal.lazy_imports import lazy_attributes
from otel_assembly.instrumentation.llama_index.hooks import LlamaIndexInstrumentor

#: The plug-in imports LlamaIndex, which the instrumentor must not.
__getattr__, __dir__ = lazy_attributes(__name__, {"AssemblyMemory": "plugin"})

__all__ = ["AssemblyMemory", "LlamaIndexInstrumentor"]
