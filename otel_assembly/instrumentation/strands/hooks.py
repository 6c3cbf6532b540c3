"""The hooks of Strands Agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import LazyWrappers, SubclassHook, in_package
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.strands import calls, reducers
else:
    calls, reducers = (LazyWrappers(f"{__package__}.{module}") for module in ("calls", "reducers"))

_RUN: Final = "a run that has no recorded span of its own as one trace"
_MANAGER: Final = "agent.conversation_manager.conversation_manager"
_APPLY, _REDUCE, _OUTPUT = "apply_management", "reduce_context", "structured_output"
_APPLIED, _REDUCED = (SubclassHook.for_method(name, reducers.manages) for name in (_APPLY, _REDUCE))
_STRATEGIES: Final = "_context_manager.context_manager", "ContextManager._run_strategies", reducers.strategies
_CUT: Final = "_context_manager.strategies.offload.base", "BaseOffloadStrategy._transform_blocks", reducers.transforms


class StrandsInstrumentor(AssemblyInstrumentor):
    """Instruments the context assembly of Strands' agents: managers, strategies, hooks, middleware, models, runs."""

    framework = "strands"
    requires = ("strands-agents >= 1.30, < 2",)
    hooks: ClassVar = in_package(
        "strands",
        ("agent.agent", "Agent.stream_async", calls.run, _RUN),
        ("multiagent.graph", "Graph.stream_async", calls.run, _RUN),
        ("multiagent.swarm", "Swarm.stream_async", calls.run, _RUN),
        ("agent.agent", f"Agent.{_OUTPUT}_async", calls.asks, "who asks for an output"),
        ("event_loop.event_loop", "_handle_model_execution", calls.asks, "who asks"),
        ("models.model", "Model.stream", SubclassHook("stream", calls.stream), "what a model receives"),
        ("models.model", f"Model.{_OUTPUT}", SubclassHook(_OUTPUT, calls.structured_output), "likewise, for an output"),
        ("_middleware.registry", "MiddlewareRegistry.invoke", calls.invokes, "what is sent", ">= 1.51, < 1.62"),
        (
            "_middleware.registry",
            "MiddlewareRegistry.compose",
            calls.composes,
            "what middleware edits",
            ">= 1.51, < 1.62",
        ),
        ("middleware._registry", "MiddlewareRegistry.invoke", calls.invokes, "what is sent", ">= 1.62"),
        ("middleware._registry", "MiddlewareRegistry.compose", calls.composes, "what middleware edits", ">= 1.62"),
        ("hooks.registry", "HookRegistry.invoke_callbacks", reducers.hooked, "what hooks edit"),
        ("hooks.registry", "HookRegistry.invoke_callbacks_async", reducers.hooked, "what hooks edit"),
        (_MANAGER, f"ConversationManager.{_APPLY}", _APPLIED, "what a manager leaves out"),
        (_MANAGER, f"ConversationManager.{_REDUCE}", _REDUCED, "what it leaves out of what is too much"),
        (*_STRATEGIES, "what strategies leave out", ">= 1.56"),
        (*_CUT, "what is cut as it is added", ">= 1.56"),
    )
    # Its messages are Bedrock's dicts, whose rows are there already.
    on_import: ClassVar = {"strands._context_manager.modes.agentic.agentic_context": reducers.tools}
