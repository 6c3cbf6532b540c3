"""The hooks of LlamaIndex."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import Following, Wraps, in_module
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.hooks import Hook
    from otel_assembly.instrumentation.llama_index import calls, reducers
else:
    calls, reducers = (Wraps(f"{__package__}.{module}") for module in ("calls", "reducers"))

_MODEL: Final = [
    f"{twin}{stream}{answers}" for answers in ("chat", "complete") for stream in ("", "stream_") for twin in ("", "a")
]


def _client(method: str) -> Following:
    return Following(method, lambda original, owner, serves: calls.client_of(method)(original, owner, serves))


class LlamaIndexInstrumentor(AssemblyInstrumentor):
    """Instruments the context assembly of LlamaIndex: memories and their blocks, models, agents and engines."""

    framework = "llama_index"
    requires = ("llama-index-core >= 0.14, < 0.15",)
    rows: ClassVar = {"llama_index.core": f"{__package__}.messages"}
    hooks: ClassVar[tuple[Hook, ...]] = (
        *in_module(
            "llama_index.core.base.llms.base",
            *((f"BaseLLM.{method}", _client(method), "what a model receives") for method in _MODEL),
        ),
        *in_module(
            "llama_index.core.memory.types",
            ("BaseMemory.get", reducers.get, "what a memory leaves out, and puts in"),
            ("BaseMemory.aget", reducers.aget, "the same, awaited"),
            followed=True,
        ),
        *in_module(
            "llama_index.core.storage.chat_store.base",
            ("BaseChatStore.get_messages BaseChatStore.aget_messages", reducers.kept, "what a memory holds"),
            followed=True,
        ),
        *in_module(
            "llama_index.core.storage.chat_store.base_db",
            ("AsyncDBChatStore.get_messages", reducers.kept, "what a memory holds"),
            ("AsyncDBChatStore.archive_oldest_messages", reducers.archived, "what leaves its queue"),
            followed=True,
        ),
        *in_module(
            "llama_index.core.memory.memory", ("Memory._manage_queue", reducers.flushed, "what leaves its queue")
        ),
        *in_module(
            "llama_index.core.memory.chat_summary_memory_buffer",
            (
                "ChatSummaryMemoryBuffer._summarize_oldest_chat_history",
                reducers.summarised,
                "what a summary stands for",
            ),
        ),
        *in_module("workflows.workflow", ("Workflow.run", calls.run, "a run of an agent as one trace")),
        *in_module(
            "llama_index.core.agent.workflow.base_agent",
            ("BaseWorkflowAgent.take_step", calls.step, "which agent asks"),
            followed=True,
        ),
        *in_module(
            "llama_index.core.chat_engine.types",
            *(
                (f"BaseChatEngine.{method}", Following.alike(method, calls.chats), "a chat as one trace")
                for method in ("chat", "achat", "stream_chat", "astream_chat")
            ),
            (
                "StreamingAgentChatResponse.write_response_to_history "
                "StreamingAgentChatResponse.awrite_response_to_history",
                calls.writes,
                "the end of a chat that streams",
            ),
        ),
        *in_module(
            "llama_index.core.base.base_query_engine",
            ("BaseQueryEngine.query BaseQueryEngine.aquery", calls.queries, "a query as one trace"),
        ),
    )
