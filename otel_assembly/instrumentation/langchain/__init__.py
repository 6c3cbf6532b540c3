"""LangChain 1.x with LangGraph: its instrumentor, its plug-in, and how its messages are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly._internal.lazy_imports import lazy_attributes
from otel_assembly.instrumentation.langchain.hooks import LangChainInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.langchain.knowledge import GraphKnowledgeStore
    from otel_assembly.instrumentation.langchain.plugin import AssemblyMiddleware


#: They import LangChain, which the instrumentor must not.
__getattr__, __dir__ = lazy_attributes(__name__, {"AssemblyMiddleware": "plugin", "GraphKnowledgeStore": "knowledge"})

__all__ = ["AssemblyMiddleware", "GraphKnowledgeStore", "LangChainInstrumentor"]
