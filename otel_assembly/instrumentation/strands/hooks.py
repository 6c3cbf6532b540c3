"""The hooks of Strands Agents: which of its functions are wrapped, and what their wrappers record."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import LazyWrappers, SubclassHook, in_package
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.strands import calls, reducers
else:
    calls, reducers = (LazyWrappers(f"{__package__}.{module}") for module in ("calls", "reducers"))

_RUN: Final = "runs as one trace if Strands' own spans are not recorded"
_MANAGER: Final = "agent.conversation_manager.conversation_manager"
_APPLY, _REDUCE, _OUTPUT = "apply_management", "reduce_context", "structured_output"
_APPLIED, _REDUCED = (SubclassHook.for_method(name, reducers.manage) for name in (_APPLY, _REDUCE))
_OUTPUTS: Final = SubclassHook(_OUTPUT, calls.structured_output)
_STRATEGIES: Final = "_context_manager.context_manager", "ContextManager._run_strategies", reducers.run_strategies
_OFFLOAD: Final = "_context_manager.strategies.offload.base", "BaseOffloadStrategy._transform_blocks"
#: The modules of the registry of middleware, and the releases in which they have it.
_MIDDLEWARE: Final = {"_middleware.registry": ">= 1.51, < 1.62", "middleware._registry": ">= 1.62"}


class StrandsInstrumentor(AssemblyInstrumentor):
    """Instruments the context assembly of Strands' agents: managers, strategies, hooks, middleware, models, runs."""

    framework = "strands"
    requires = ("strands-agents >= 1.30, < 2",)
    hooks: ClassVar = in_package(
        "strands",
        ("agent.agent", "Agent.stream_async", calls.run, _RUN),
        ("multiagent.graph", "Graph.stream_async", calls.run, _RUN),
        ("multiagent.swarm", "Swarm.stream_async", calls.run, _RUN),
        ("agent.agent", f"Agent.{_OUTPUT}_async", calls.model_execution, "which agent requests a structured output"),
        ("event_loop.event_loop", "_handle_model_execution", calls.model_execution, "which agent calls its model"),
        ("models.model", "Model.stream", SubclassHook("stream", calls.stream), "requests that models receive"),
        ("models.model", f"Model.{_OUTPUT}", _OUTPUTS, "requests for structured outputs that models receive"),
        *(
            (module, f"MiddlewareRegistry.{method}", wrap, purpose, versions)
            for module, versions in _MIDDLEWARE.items()
            for method, wrap, purpose in (
                ("invoke", calls.middleware_invoke, "model calls with middleware"),
                ("compose", calls.middleware_compose, "edits by middleware"),
            )
        ),
        ("hooks.registry", "HookRegistry.invoke_callbacks", reducers.invoke_callbacks, "edits by hooks"),
        ("hooks.registry", "HookRegistry.invoke_callbacks_async", reducers.invoke_callbacks, "edits by hooks"),
        (_MANAGER, f"ConversationManager.{_APPLY}", _APPLIED, "messages that a conversation manager drops"),
        (_MANAGER, f"ConversationManager.{_REDUCE}", _REDUCED, "messages dropped after a context overflow"),
        (*_STRATEGIES, "messages that strategies drop or rewrite", ">= 1.56"),
        (*_OFFLOAD, reducers.transform_blocks, "contents that are offloaded from new messages", ">= 1.56"),
    )
    # `rows` is not set: Strands' messages are Bedrock's dicts, for which the readers are always registered.
    on_import: ClassVar = {"strands._context_manager.modes.agentic.agentic_context": reducers.context_tools}
