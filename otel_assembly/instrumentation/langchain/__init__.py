"""Instrumentation of LangChain 1.x and LangGraph: the instrumentor, the plug-in, and a knowledge store for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly._internal.lazy_imports import lazy_attributes
from otel_assembly.instrumentation.langchain.hooks import LangChainInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.langchain.knowledge import GraphKnowledgeStore
    from otel_assembly.instrumentation.langchain.plugin import AssemblyMiddleware


#: Imported on first access: these modules import LangChain, and importing the instrumentor must not.
__getattr__, __dir__ = lazy_attributes(__name__, {"AssemblyMiddleware": "plugin", "GraphKnowledgeStore": "knowledge"})

__all__ = ["AssemblyMiddleware", "GraphKnowledgeStore", "LangChainInstrumentor"]
