"""The instrumentor of AgentScope 2, with the table of the methods that it hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from otel_assembly.instrumentation.hooks import LazyWrappers, in_module
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.agentscope import conversation, reducers
else:
    conversation, reducers = (LazyWrappers(f"{__package__}.{module}") for module in ("conversation", "reducers"))


class AgentScopeInstrumentor(AssemblyInstrumentor):
    """Instruments AgentScope."""

    framework = "agentscope"
    requires = ("agentscope >= 2.0.4, < 3",)
    rows: ClassVar = {"agentscope.message": f"{__package__}.messages"}
    hooks: ClassVar = (
        *in_module(
            "agentscope.agent._agent",
            ("Agent._reply_impl", conversation.reply, "one run per reply"),
            ("Agent.compress_context", reducers.compress_context, "context compression by middlewares"),
            ("Agent._compress_context_impl", reducers.compress, "AgentScope's context compression"),
            ("Agent._split_context_for_compression", reducers.split_context, "the start of a compression"),
            ("Agent._limit_context_images", reducers.limit_images, "images replaced by a hint", ">= 2.0.7"),
            ("Agent._split_tool_result_for_compression", reducers.split_tool_result, "truncated tool results"),
            ("Agent._save_to_context", reducers.save_to_context, "truncated tool results"),
            ("Agent._get_system_prompt", conversation.get_system_prompt, "changes of the system prompt"),
            ("Agent._prepare_model_input", conversation.prepare_model_input, "the tools of a model call"),
            ("Agent._call_model", conversation.call_model, "the invoking agent, and changes by middlewares"),
        ),
        *in_module(
            "agentscope.model._base",
            ("ChatModelBase._call_api", conversation.client_hook, "the input of the model's client"),
            ("ChatModelBase.__call__", conversation.model_method_hook, "attempts of a model call"),
            ("ChatModelBase.generate_structured_output", conversation.model_method_hook, "the calls of summarizers"),
            ("ChatModelBase.count_tokens", conversation.count_tokens, "AgentScope's token count of the prompt"),
            followed=True,
        ),
    )
