"""The table of the hooks of LangChain and LangGraph: which methods are wrapped, by what, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import LazyWrappers, in_class, in_module
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.langchain import chains, lambdas, middleware, model_calls, reducers, runs, trims
else:
    chains, lambdas, middleware, model_calls, reducers, runs, trims = (
        LazyWrappers(f"{__package__}.{module}")
        for module in ("chains", "lambdas", "middleware", "model_calls", "reducers", "runs", "trims")
    )

_HANDLERS: Final = "_chain_model_call_handlers _chain_async_model_call_handlers"
_GENERATE_EACH: Final = "_generate_with_cache _agenerate_with_cache"
_STREAM_V3: Final = "_chat_model_stream_v3 _achat_model_stream_v3"
#: The methods that call a chain: with one input, streaming, with a stream as input, and with several inputs.
_INVOKE: Final = "invoke ainvoke"
_STREAM: Final = "stream astream"
_TRANSFORM: Final = "transform atransform"
_BATCH: Final = "batch abatch"
#: LangChain's chains, by module and class, with those of these methods that each class defines.
_CHAINS: Final = {
    ("base", "RunnableSequence"): (_INVOKE, _STREAM, _TRANSFORM, _BATCH),
    ("base", "RunnableParallel"): (_INVOKE, _STREAM, _TRANSFORM),
    ("base", "RunnableLambda"): (_INVOKE, _STREAM, _TRANSFORM),
    ("passthrough", "RunnableAssign"): (_INVOKE, _STREAM, _TRANSFORM),
    ("branch", "RunnableBranch"): (_INVOKE, _STREAM),
    ("fallbacks", "RunnableWithFallbacks"): (_INVOKE, _STREAM, _BATCH),
    ("retry", "RunnableRetry"): (_INVOKE, _BATCH),
}


class LangChainInstrumentor(AssemblyInstrumentor):
    """Instruments the context assembly of LangChain 1.x and LangGraph."""

    framework = "langchain"
    requires = ("langchain-core >= 1.0, < 2",)
    apart = frozenset({"langchain", "langchain_classic", "langgraph"})
    rows: ClassVar = {"langchain_core.messages.utils": f"{__package__}.messages"}
    hooks: ClassVar = (
        *in_module(
            "langchain_core.messages.utils",
            ("_last_max_tokens", trims.last_max_tokens, "trim_messages with strategy 'last'"),
            ("_first_max_tokens", trims.first_max_tokens, "trim_messages with strategy 'first'"),
            ("filter_messages merge_message_runs", lambdas.message_function, "calls of this function"),
        ),
        *in_class(
            "langgraph._internal._runnable",
            "RunnableCallable",
            ("invoke", middleware.invoke, "graph nodes, and middleware methods that run as nodes"),
            ("ainvoke", middleware.ainvoke, "async graph nodes, and middleware methods that run as nodes"),
        ),
        *in_module(
            "langchain.agents.factory",
            (_HANDLERS, middleware.model_call_handlers, "each middleware around the model call"),
        ),
        *in_class(
            "langchain_core.language_models.chat_models",
            "BaseChatModel",
            ("generate agenerate", model_calls.generate, "model calls: one assembly per call"),
            (_GENERATE_EACH, model_calls.generate_each, "model calls with several prompts"),
            ("stream astream", model_calls.stream, "streaming model calls"),
            (_STREAM_V3, model_calls.stream, "streaming model calls as events", ">=1.4"),
        ),
        *in_class(
            "langchain.agents.middleware.summarization",
            "SummarizationMiddleware",
            ("_create_summary", reducers.create_summary, "model calls that summarize, and messages over the limit"),
            ("_acreate_summary", reducers.create_summary, "async model calls that summarize", ">=1.1"),
            ("_trim_messages_for_summary", reducers.trim_for_summary, "messages that the summary does not cover"),
        ),
        *(
            hook
            for (module, name), methods in _CHAINS.items()
            for hook in in_class(
                f"langchain_core.runnables.{module}",
                name,
                *((names, chains.batch if names == _BATCH else chains.run, "one trace per run") for names in methods),
            )
        ),
        *in_module(
            "langchain_core.runnables.base",
            ("call_func_with_variable_args", lambdas.call_function, "functions in a chain that reduce messages"),
            ("acall_func_with_variable_args", lambdas.call_function, "async functions in a chain that reduce messages"),
        ),
        *in_class("langchain_classic.chains.base", "Chain", (_INVOKE, chains.run, "one trace per run")),
        *in_class("langchain_classic.agents.agent", "AgentExecutor", (_STREAM, chains.run, "one trace per run")),
        *in_module("langgraph.pregel.main", ("Pregel.stream Pregel.astream", runs.run, "one trace per run")),
    )
