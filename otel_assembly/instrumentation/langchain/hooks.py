"""The hooks of LangChain and LangGraph."""

from __future__ import annotations

from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, ClassVar, Final

from otel_assembly.instrumentation.hooks import Hook, HookState, Wraps, in_module
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.langchain import conversation, middleware, reducers
else:
    conversation, middleware, reducers = (
        Wraps(f"{__package__}.{module}") for module in ("conversation", "middleware", "reducers")
    )

_SUMMARY: Final = "SummarizationMiddleware"
#: The distribution that a module comes from, where that is not the one whose version is the framework's.
_DISTRIBUTIONS: Final = {"langchain": "langchain", "langgraph": "langgraph"}


class LangChainInstrumentor(AssemblyInstrumentor):
    """Instruments the context assembly of LangChain 1.x and of LangGraph.

    A hook's versions are those of the distribution that its module comes from.
    """

    framework = "langchain"
    requires = ("langchain-core >= 1.0, < 2",)
    rows: ClassVar[Mapping[str, str]] = {
        "langchain_core.messages.utils": "otel_assembly.instrumentation.langchain.messages"
    }
    hooks: ClassVar[tuple[Hook, ...]] = (
        *in_module(
            "langchain_core.messages.utils",
            ("_last_max_tokens", partial(reducers.trim_messages, last=True), "trim_messages with strategy 'last'"),
            ("_first_max_tokens", partial(reducers.trim_messages, last=False), "trim_messages with strategy 'first'"),
        ),
        *in_module(
            "langgraph._internal._runnable",
            ("RunnableCallable.invoke", middleware.invoke, "middleware before the model, and nodes that remove"),
            ("RunnableCallable.ainvoke", middleware.ainvoke, "the same, async"),
        ),
        *in_module(
            "langchain.agents.factory",
            ("_chain_model_call_handlers", middleware.chain, "middleware around the model call, one by one"),
            ("_chain_async_model_call_handlers", middleware.async_chain, "the same, async"),
        ),
        Hook(
            "langchain.agents.middleware.types",
            "ModelRequest.override",
            middleware.override,
            "middleware around the model call, of agents made before they were instrumented",
        ),
        *in_module(
            "langchain_core.language_models.chat_models",
            (
                "BaseChatModel.invoke",
                middleware.model_invoke,
                "the model calls that are prepared: their assembly ends before them",
            ),
            ("BaseChatModel.ainvoke", middleware.model_ainvoke, "the same, async"),
            ("BaseChatModel.stream", middleware.model_stream, "the same, of an answer as a stream"),
            ("BaseChatModel.astream", middleware.model_stream, "the same, async"),
        ),
        *in_module(
            "langchain.agents.middleware.summarization",
            (
                f"{_SUMMARY}._create_summary",
                reducers.create_summary,
                "the summariser's call, and a history that was too long for it",
            ),
            (f"{_SUMMARY}._acreate_summary", reducers.acreate_summary, "the same, async", ">=1.1"),
            (f"{_SUMMARY}._trim_messages_for_summary", reducers.trim_for_summary, "what the summariser never saw"),
        ),
        *in_module(
            "langgraph.pregel.main",
            ("Pregel.stream", conversation.stream, "one run as one trace"),
            ("Pregel.astream", conversation.stream, "the same, async"),
        ),
    )

    def _take(self, hook: Hook, module: ModuleType, instrumentation: Instrumentation, version: Any) -> HookState:
        distribution = _DISTRIBUTIONS.get(hook.module.split(".", 1)[0])
        if distribution is not None:
            try:
                version = metadata.version(distribution)
            except metadata.PackageNotFoundError:
                version = None
        return super()._take(hook, module, instrumentation, version)
