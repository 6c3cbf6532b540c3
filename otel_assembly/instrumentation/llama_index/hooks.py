"""The table of LlamaIndex's functions that are instrumented.

Hooks wrap ``get`` and ``aget`` of memories, the chat stores behind them, the methods of models (``chat``, ``complete``
and their variants), and the functions that run an agent, a workflow, a chat engine or a query engine.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import LazyWrappers, SubclassHook, in_package
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.llama_index import calls, reducers
else:
    calls, reducers = (LazyWrappers(f"{__package__}.{module}") for module in ("calls", "reducers"))

_ONE_SPAN: Final = "as one span each if no other tracer records them"
_CHATS: Final = ("chat", "achat", "stream_chat", "astream_chat")
_MODEL_HOOKS: Final = {
    method: SubclassHook(method, partial(calls.wrap_model_method, method))
    for method in (*_CHATS, "complete", "acomplete", "stream_complete", "astream_complete")
}
_GET_MESSAGES: Final = "BaseChatStore.get_messages BaseChatStore.aget_messages"
_SUMMARIZE: Final = "ChatSummaryMemoryBuffer._summarize_oldest_chat_history"
_WRITE_HISTORY: Final = " ".join(
    f"StreamingAgentChatResponse.{prefix}write_response_to_history" for prefix in ("", "a")
)
_CHAT_ENGINE: Final = " ".join(f"BaseChatEngine.{method}" for method in _CHATS)
_ARCHIVE: Final = "AsyncDBChatStore.archive_oldest_messages"
_REQUESTS: Final = "messages and tools of each model call"
_STORED: Final = "the messages in a memory, before it is read"
_QUERIES: Final = "BaseQueryEngine.query BaseQueryEngine.aquery"


class LlamaIndexInstrumentor(AssemblyInstrumentor):
    """Records context assembly in LlamaIndex: memories and their blocks, models, agents and engines."""

    framework = "llama_index"
    requires = ("llama-index-core >= 0.14.5, < 0.15",)
    rows: ClassVar = {"llama_index.core": f"{__package__}.messages"}
    hooks: ClassVar = [
        *in_package(
            "llama_index.core",
            ("memory.types", "BaseMemory.get", reducers.get, "messages that a memory drops or injects"),
            ("memory.types", "BaseMemory.aget", reducers.aget, "messages that a memory drops or injects, async"),
            ("storage.chat_store.base", _GET_MESSAGES, reducers.get_messages, _STORED),
            ("storage.chat_store.base_db", "AsyncDBChatStore.get_messages", reducers.get_messages, _STORED),
            ("storage.chat_store.base_db", _ARCHIVE, reducers.archive_messages, "messages that a memory archives"),
            ("agent.workflow.base_agent", "BaseWorkflowAgent.take_step", calls.take_step, "the invoking agent"),
            ("chat_engine.types", _CHAT_ENGINE, calls.chat, f"chats, {_ONE_SPAN}"),
            followed=True,
        ),
        *in_package(
            "llama_index.core",
            *(("base.llms.base", f"BaseLLM.{method}", hook, _REQUESTS) for method, hook in _MODEL_HOOKS.items()),
            ("memory.memory", "Memory._manage_queue", reducers.manage_queue, "messages that leave a memory's queue"),
            ("memory.chat_summary_memory_buffer", _SUMMARIZE, reducers.summarize, "messages that a summary replaces"),
            ("workflow.workflow", "Workflow.run", calls.run_workflow, f"runs of agents, {_ONE_SPAN}"),
            ("chat_engine.types", _WRITE_HISTORY, calls.write_history, "the end of streamed chats"),
            ("base.base_query_engine", _QUERIES, calls.query, f"queries, {_ONE_SPAN}"),
        ),
    ]
