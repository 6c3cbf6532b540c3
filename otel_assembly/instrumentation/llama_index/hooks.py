"""The hooks of LlamaIndex."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import LazyWrappers, SubclassHook, in_package
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.llama_index import calls, reducers
else:
    calls, reducers = (LazyWrappers(f"{__package__}.{module}") for module in ("calls", "reducers"))

_CHATS: Final = ("chat", "achat", "stream_chat", "astream_chat")
_MODEL: Final = (*_CHATS, "complete", "acomplete", "stream_complete", "astream_complete")
_HELD: Final = "BaseChatStore.get_messages BaseChatStore.aget_messages"
_SUMS: Final = "ChatSummaryMemoryBuffer._summarize_oldest_chat_history"
_WRITES: Final = " ".join(f"StreamingAgentChatResponse.{twin}write_response_to_history" for twin in ("", "a"))
_QUERIES: Final = "BaseQueryEngine.query BaseQueryEngine.aquery"


class LlamaIndexInstrumentor(AssemblyInstrumentor):
    """Instruments the context assembly of LlamaIndex: memories and their blocks, models, agents and engines."""

    framework = "llama_index"
    requires = ("llama-index-core >= 0.14.5, < 0.15",)
    rows: ClassVar = {"llama_index.core": f"{__package__}.messages"}
    hooks: ClassVar = [
        *in_package(
            "llama_index.core",
            ("memory.types", "BaseMemory.get", reducers.get, "what a memory leaves out, and puts in"),
            ("memory.types", "BaseMemory.aget", reducers.aget, "the same, awaited"),
            ("storage.chat_store.base", _HELD, reducers.kept, "what a memory holds"),
            ("storage.chat_store.base_db", "AsyncDBChatStore.get_messages", reducers.kept, "what a memory holds"),
            (
                "storage.chat_store.base_db",
                "AsyncDBChatStore.archive_oldest_messages",
                reducers.archived,
                "what leaves",
            ),
            ("agent.workflow.base_agent", "BaseWorkflowAgent.take_step", calls.step, "which agent asks"),
            (
                "chat_engine.types",
                " ".join(map("BaseChatEngine.{}".format, _CHATS)),
                calls.chats,
                "a chat as one trace",
            ),
            followed=True,
        ),
        *in_package(
            "llama_index.core",
            *(
                (
                    "base.llms.base",
                    f"BaseLLM.{one}",
                    SubclassHook(one, partial(calls.client, one)),
                    "what a model receives",
                )
                for one in _MODEL
            ),
            ("memory.memory", "Memory._manage_queue", reducers.flushed, "what leaves a queue"),
            ("memory.chat_summary_memory_buffer", _SUMS, reducers.summarised, "what a summary stands for"),
            ("workflow.workflow", "Workflow.run", calls.run, "a run of an agent as one trace"),
            ("chat_engine.types", _WRITES, calls.written, "the end of a chat that streams"),
            ("base.base_query_engine", _QUERIES, calls.queries, "a query as one trace"),
        ),
    ]
