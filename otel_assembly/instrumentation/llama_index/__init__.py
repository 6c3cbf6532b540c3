"""LlamaIndex: its instrumentor, its plug-in, and how its messages are read."""

from __future__ import annotations

from otel_assembly._internal.faces import face
from otel_assembly.instrumentation.llama_index.hooks import LlamaIndexInstrumentor

#: The plug-in imports LlamaIndex, which the instrumentor must not.
__getattr__, __dir__ = face(__name__, {"AssemblyMemory": "plugin"})

__all__ = ["AssemblyMemory", "LlamaIndexInstrumentor"]
