"""The hooks of LangChain and LangGraph."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from otel_assembly.instrumentation.hooks import Hook, Wraps, in_class, in_module
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_assembly.instrumentation.langchain import middleware, model_calls, reducers, runs, trims
else:
    middleware, model_calls, reducers, runs, trims = (
        Wraps(f"{__package__}.{module}") for module in ("middleware", "model_calls", "reducers", "runs", "trims")
    )


class LangChainInstrumentor(AssemblyInstrumentor):
    """Instruments the context assembly of LangChain 1.x and of LangGraph."""

    framework = "langchain"
    requires = ("langchain-core >= 1.0, < 2",)
    apart = frozenset({"langchain", "langgraph"})
    rows: ClassVar[Mapping[str, str]] = {
        "langchain_core.messages.utils": "otel_assembly.instrumentation.langchain.messages"
    }
    hooks: ClassVar[tuple[Hook, ...]] = (
        *in_module(
            "langchain_core.messages.utils",
            ("_last_max_tokens", trims.last_max_tokens, "trim_messages with strategy 'last'"),
            ("_first_max_tokens", trims.first_max_tokens, "trim_messages with strategy 'first'"),
        ),
        *in_class(
            "langgraph._internal._runnable",
            "RunnableCallable",
            ("invoke", middleware.invoke, "nodes, and middleware that is one"),
            ("ainvoke", middleware.ainvoke, "the same, async"),
        ),
        *in_module(
            "langchain.agents.factory",
            (
                "_chain_model_call_handlers _chain_async_model_call_handlers",
                middleware.chain,
                "middleware around the model call, one by one",
            ),
        ),
        *in_class(
            "langchain_core.language_models.chat_models",
            "BaseChatModel",
            ("generate agenerate", model_calls.generate, "calls of a model: each is an assembly"),
            ("_generate_with_cache _agenerate_with_cache", model_calls.each, "calls of a model with several prompts"),
            ("stream astream", model_calls.stream, "calls of a model whose answer is a stream"),
            ("_chat_model_stream_v3 _achat_model_stream_v3", model_calls.stream, "the same, as events", ">=1.4"),
        ),
        *in_class(
            "langchain.agents.middleware.summarization",
            "SummarizationMiddleware",
            ("_create_summary", reducers.create_summary, "the summariser's call, and what had no room"),
            ("_acreate_summary", reducers.create_summary, "the same, async", ">=1.1"),
            ("_trim_messages_for_summary", reducers.trim_for_summary, "what the summariser never saw"),
        ),
        *in_module("langgraph.pregel.main", ("Pregel.stream Pregel.astream", runs.run, "one run as one trace")),
    )
