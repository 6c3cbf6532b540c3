"""LangChain 1.x with LangGraph: its instrumentor, its plug-in, and how its messages are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.instrumentation.langchain.hooks import LangChainInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.langchain.knowledge import GraphKnowledgeStore
    from otel_assembly.instrumentation.langchain.plugin import AssemblyMiddleware


def __getattr__(name: str) -> Any:
    if name == "AssemblyMiddleware":  # it imports LangChain, which the instrumentor must not
        from otel_assembly.instrumentation.langchain.plugin import AssemblyMiddleware

        return AssemblyMiddleware
    if name == "GraphKnowledgeStore":
        from otel_assembly.instrumentation.langchain.knowledge import GraphKnowledgeStore

        return GraphKnowledgeStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["AssemblyMiddleware", "GraphKnowledgeStore", "LangChainInstrumentor"]
