"""The instrumentor of Semantic Kernel, and the plug-ins that run a chain of policies inside the framework."""

from __future__ import annotations

from otel_assembly._internal.lazy_imports import lazy_attributes
from otel_assembly.instrumentation.semantic_kernel.hooks import SemanticKernelInstrumentor

#: The plug-ins import Semantic Kernel, which the instrumentor must not.
__getattr__, __dir__ = lazy_attributes(
    __name__, {"AssemblyChatCompletion": "plugin", "AssemblyHistoryReducer": "history_reducer"}
)

__all__ = ["AssemblyChatCompletion", "AssemblyHistoryReducer", "SemanticKernelInstrumentor"]
