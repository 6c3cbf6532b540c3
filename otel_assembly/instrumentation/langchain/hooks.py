"""The hooks of LangChain and LangGraph."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import Hook, Wraps, in_module
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_assembly.instrumentation.langchain import middleware, model_calls, reducers, runs, trims
else:
    middleware, model_calls, reducers, runs, trims = (
        Wraps(f"{__package__}.{module}") for module in ("middleware", "model_calls", "reducers", "runs", "trims")
    )

_MODELS: Final = "langchain_core.language_models.chat_models"
_MODEL: Final = "BaseChatModel"
_SUMMARY: Final = "SummarizationMiddleware"


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
        *in_module(
            "langgraph._internal._runnable",
            ("RunnableCallable.invoke", middleware.invoke, "nodes, and middleware that is one"),
            ("RunnableCallable.ainvoke", middleware.ainvoke, "the same, async"),
        ),
        *in_module(
            "langchain.agents.factory",
            (
                "_chain_model_call_handlers _chain_async_model_call_handlers",
                middleware.chain,
                "middleware around the model call, one by one",
            ),
        ),
        *in_module(
            _MODELS,
            (f"{_MODEL}.generate {_MODEL}.agenerate", model_calls.generate, "calls of a model: each is an assembly"),
            (
                f"{_MODEL}._generate_with_cache {_MODEL}._agenerate_with_cache",
                model_calls.each,
                "calls of a model with several prompts at once",
            ),
            (f"{_MODEL}.stream {_MODEL}.astream", model_calls.stream, "calls of a model whose answer is a stream"),
            (
                f"{_MODEL}._chat_model_stream_v3 {_MODEL}._achat_model_stream_v3",
                model_calls.stream,
                "the same, as events",
                ">=1.4",
            ),
        ),
        *in_module(
            "langchain.agents.middleware.summarization",
            (f"{_SUMMARY}._create_summary", reducers.create_summary, "the summariser's call, and what had no room"),
            (f"{_SUMMARY}._acreate_summary", reducers.create_summary, "the same, async", ">=1.1"),
            (f"{_SUMMARY}._trim_messages_for_summary", reducers.trim_for_summary, "what the summariser never saw"),
        ),
        *in_module("langgraph.pregel.main", ("Pregel.stream Pregel.astream", runs.run, "one run as one trace")),
    )
