"""The hooks of LangChain and LangGraph."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import Hook, LazyWrappers, in_class, in_module
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_assembly.instrumentation.langchain import chains, lambdas, middleware, model_calls, reducers, runs, trims
else:
    chains, lambdas, middleware, model_calls, reducers, runs, trims = (
        LazyWrappers(f"{__package__}.{module}")
        for module in ("chains", "lambdas", "middleware", "model_calls", "reducers", "runs", "trims")
    )

#: The methods by which a chain is called: with one input, step by step, with several inputs.
_CALLED: Final = "invoke ainvoke"
_STREAMED: Final = "stream astream"
_PIPED: Final = "transform atransform"
_BATCHED: Final = "batch abatch"
#: LangChain's chains, by module and class, and which of these methods each defines.
_CHAINS: Final = {
    ("base", "RunnableSequence"): (_CALLED, _STREAMED, _PIPED, _BATCHED),
    ("base", "RunnableParallel"): (_CALLED, _STREAMED, _PIPED),
    ("base", "RunnableLambda"): (_CALLED, _STREAMED, _PIPED),
    ("passthrough", "RunnableAssign"): (_CALLED, _STREAMED, _PIPED),
    ("branch", "RunnableBranch"): (_CALLED, _STREAMED),
    ("fallbacks", "RunnableWithFallbacks"): (_CALLED, _STREAMED, _BATCHED),
    ("retry", "RunnableRetry"): (_CALLED, _BATCHED),
}


class LangChainInstrumentor(AssemblyInstrumentor):
    """Instruments the context assembly of LangChain 1.x and of LangGraph."""

    framework = "langchain"
    requires = ("langchain-core >= 1.0, < 2",)
    apart = frozenset({"langchain", "langchain_classic", "langgraph"})
    rows: ClassVar[Mapping[str, str]] = {
        "langchain_core.messages.utils": "otel_assembly.instrumentation.langchain.messages"
    }
    hooks: ClassVar[tuple[Hook, ...]] = (
        *in_module(
            "langchain_core.messages.utils",
            ("_last_max_tokens", trims.last_max_tokens, "trim_messages with strategy 'last'"),
            ("_first_max_tokens", trims.first_max_tokens, "trim_messages with strategy 'first'"),
            ("filter_messages merge_message_runs", lambdas.function, "these functions"),
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
        *(
            hook
            for (module, name), methods in _CHAINS.items()
            for hook in in_class(
                f"langchain_core.runnables.{module}",
                name,
                *(
                    (names, chains.batch if names == _BATCHED else chains.run, "one run as one trace")
                    for names in methods
                ),
            )
        ),
        *in_module(
            "langchain_core.runnables.base",
            ("call_func_with_variable_args", lambdas.called, "functions of a chain that reduce messages"),
            ("acall_func_with_variable_args", lambdas.called, "the same, async"),
        ),
        *in_class("langchain_classic.chains.base", "Chain", (_CALLED, chains.run, "one run as one trace")),
        *in_class("langchain_classic.agents.agent", "AgentExecutor", (_STREAMED, chains.run, "one run as one trace")),
        *in_module("langgraph.pregel.main", ("Pregel.stream Pregel.astream", runs.run, "one run as one trace")),
    )
