"""The hooks of AgentScope 2."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from otel_assembly.instrumentation.hooks import Hook, Wraps, in_module
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_assembly.instrumentation.agentscope import middleware, reducers, runs
else:
    middleware, reducers, runs = (Wraps(f"{__package__}.{module}") for module in ("middleware", "reducers", "runs"))


class AgentScopeInstrumentor(AssemblyInstrumentor):
    """Instruments AgentScope."""

    framework = "agentscope"
    requires = ("agentscope >= 2.0.4, < 3",)
    rows: ClassVar[Mapping[str, str]] = {"agentscope.message": "otel_assembly.instrumentation.agentscope.messages"}
    hooks: ClassVar[tuple[Hook, ...]] = (
        *in_module(
            "agentscope.agent._agent",
            ("Agent._reply_impl", runs.reply, "one span a reply, where there would be none"),
            (
                "Agent._compress_context_impl",
                reducers.compress_context,
                "contexts that are compressed, and checks that find nothing to do",
            ),
            (
                "Agent._split_context_for_compression",
                reducers.split_context,
                "that a context is about to be compressed",
            ),
            ("Agent._prepare_model_input", middleware.prepare_model_input, "the tools that a prompt is measured with"),
            ("Agent._limit_context_images", reducers.limit_images, "images that are replaced by a hint", ">= 2.0.7"),
            ("Agent._split_tool_result_for_compression", reducers.split_tool_result, "tool results that are cut"),
            ("Agent._save_to_context", reducers.save_to_context, "tool results that are cut"),
            ("Agent._get_system_prompt", middleware.get_system_prompt, "system prompts, and who changes them"),
            (
                "Agent._call_model",
                middleware.call_model,
                "which system prompt is sent, and messages that middlewares change on the way to the model",
            ),
            (
                "Agent.compress_context",
                middleware.around_compression,
                "contexts that middlewares compress in a way of their own",
            ),
        ),
        *in_module(
            "agentscope.model._base",
            ("ChatModelBase.generate_structured_output", reducers.summarise, "the summariser's model call"),
            (
                "ChatModelBase.count_tokens",
                reducers.estimate,
                "what AgentScope takes a prompt for that it cannot compress",
            ),
            ("ChatModelBase.__call__", middleware.model, "messages that middlewares change on the way there"),
        ),
    )
