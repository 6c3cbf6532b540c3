"""The hooks of LlamaIndex."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from otel_assembly.instrumentation.hooks import Following, Wraps, in_package
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.llama_index import calls, reducers
else:
    calls, reducers = (Wraps(f"{__package__}.{module}") for module in ("calls", "reducers"))

_CHAT: Final = ("chat", "achat", "stream_chat", "astream_chat")
_COMPLETE: Final = ("complete", "acomplete", "stream_complete", "astream_complete")
_STREAMED: Final = ("write_response_to_history", "awrite_response_to_history")


def _each(module: str, owner: str, methods: tuple[str, ...], wrap: Any, gives: str) -> list[tuple[Any, ...]]:
    """The hooks of methods in all classes that define them."""
    return [(module, f"{owner}.{method}", Following.alike(method, wrap), gives) for method in methods]


def _models(methods: tuple[str, ...], client: Any) -> list[tuple[Any, ...]]:
    gives = "what a model receives"
    return [("base.llms.base", f"BaseLLM.{method}", Following(method, client(method)), gives) for method in methods]


class LlamaIndexInstrumentor(AssemblyInstrumentor):
    """Instruments the context assembly of LlamaIndex: memories and their blocks, models, agents and engines."""

    framework = "llama_index"
    requires = ("llama-index-core >= 0.14.5, < 0.15",)
    rows: ClassVar = {"llama_index.core": f"{__package__}.messages"}
    hooks: ClassVar = in_package(
        "llama_index.core",
        *_models(_CHAT, lambda method: lambda *given: calls.chat_of(method, *given)),
        *_models(_COMPLETE, lambda method: lambda *given: calls.completion_of(method, *given)),
        *_each("memory.types", "BaseMemory", ("get",), reducers.get, "what a memory leaves out, and puts in"),
        *_each("memory.types", "BaseMemory", ("aget",), reducers.aget, "the same, awaited"),
        *_each(
            "storage.chat_store.base",
            "BaseChatStore",
            ("get_messages", "aget_messages"),
            reducers.kept,
            "what is held",
        ),
        *_each("storage.chat_store.base_db", "AsyncDBChatStore", ("get_messages",), reducers.kept, "what is held"),
        *_each(
            "storage.chat_store.base_db",
            "AsyncDBChatStore",
            ("archive_oldest_messages",),
            reducers.archived,
            "its end",
        ),
        ("memory.memory", "Memory._manage_queue", reducers.flushed, "what leaves a queue"),
        (
            "memory.chat_summary_memory_buffer",
            "ChatSummaryMemoryBuffer._summarize_oldest_chat_history",
            reducers.summarised,
            "what a summary stands for",
        ),
        ("workflow.workflow", "Workflow.run", calls.run, "a run of an agent as one trace"),
        *_each("agent.workflow.base_agent", "BaseWorkflowAgent", ("take_step",), calls.step, "which agent asks"),
        *_each("chat_engine.types", "BaseChatEngine", _CHAT, calls.chats, "a chat as one trace"),
        *(
            ("chat_engine.types", f"StreamingAgentChatResponse.{method}", calls.written, "the end of a chat")
            for method in _STREAMED
        ),
        (
            "base.base_query_engine",
            "BaseQueryEngine.query BaseQueryEngine.aquery",
            calls.queries,
            "a query's trace",
        ),
    )
