"""The hooks of AgentScope 2."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from otel_assembly.instrumentation.hooks import Hook, LazyWrappers, in_module
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_assembly.instrumentation.agentscope import conversation, reducers
else:
    conversation, reducers = (LazyWrappers(f"{__package__}.{module}") for module in ("conversation", "reducers"))


class AgentScopeInstrumentor(AssemblyInstrumentor):
    """Instruments AgentScope."""

    framework = "agentscope"
    requires = ("agentscope >= 2.0.4, < 3",)
    rows: ClassVar[Mapping[str, str]] = {"agentscope.message": "otel_assembly.instrumentation.agentscope.messages"}
    hooks: ClassVar[tuple[Hook, ...]] = (
        *in_module(
            "agentscope.agent._agent",
            ("Agent._reply_impl", conversation.reply, "one span a reply, where there would be none"),
            ("Agent.compress_context", reducers.compress_context, "contexts that middlewares compress on their own"),
            ("Agent._compress_context_impl", reducers.compress, "contexts that are compressed, or need not be"),
            ("Agent._split_context_for_compression", reducers.split_context, "that a context is too long"),
            ("Agent._limit_context_images", reducers.limit_images, "images that are replaced by a hint", ">= 2.0.7"),
            ("Agent._split_tool_result_for_compression", reducers.split_tool_result, "tool results that are cut"),
            ("Agent._save_to_context", reducers.save_to_context, "tool results that are cut"),
            ("Agent._get_system_prompt", conversation.get_system_prompt, "system prompts, and who changes them"),
            ("Agent._prepare_model_input", conversation.prepare_model_input, "the tools of a prompt"),
            ("Agent._call_model", conversation.call_model, "whose a model call is, and who changes it on the way"),
        ),
        *in_module(
            "agentscope.model._base",
            ("ChatModelBase._call_api", conversation.called, "what a model's client is given"),
            ("ChatModelBase.__call__", conversation.asked, "which calls are an agent's, and what became of them"),
            ("ChatModelBase.generate_structured_output", conversation.asked, "summarisers' calls, and others alike"),
            ("ChatModelBase.count_tokens", conversation.estimate, "what AgentScope takes a prompt for"),
            followed=True,
        ),
    )
