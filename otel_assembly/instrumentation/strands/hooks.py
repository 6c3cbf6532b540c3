"""The hooks of Strands Agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import Following, Hook, Wraps, in_module
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.strands import calls, reducers
else:
    calls, reducers = (Wraps(f"{__package__}.{module}") for module in ("calls", "reducers"))

_RUN: Final = "a run that has no recorded span of its own as one trace"
_MIDDLEWARE: Final = (
    ("MiddlewareRegistry.invoke", calls.invokes, "what middleware is handed"),
    ("MiddlewareRegistry.compose", calls.composes, "what middleware changes"),
)
_OFFLOADS: Final = "strands._context_manager.strategies.offload.base"


class StrandsInstrumentor(AssemblyInstrumentor):
    """Instruments the context assembly of Strands' agents: managers, strategies, hooks, middleware, models, runs."""

    framework = "strands"
    requires = ("strands-agents >= 1.51, < 2",)
    hooks: ClassVar[tuple[Hook, ...]] = (
        *in_module("strands.agent.agent", ("Agent.stream_async", calls.run, _RUN)),
        *in_module("strands.multiagent.graph", ("Graph.stream_async", calls.run, _RUN)),
        *in_module("strands.multiagent.swarm", ("Swarm.stream_async", calls.run, _RUN)),
        *in_module(
            "strands.agent.agent", ("Agent.structured_output_async", calls.asks_for_output, "who asks for an output")
        ),
        *in_module("strands.event_loop.event_loop", ("_handle_model_execution", calls.asks, "who asks")),
        *in_module(
            "strands.models.model",
            ("Model.stream", Following("stream", calls.stream), "what a model receives"),
            ("Model.structured_output", Following("structured_output", calls.structured_output), "likewise"),
        ),
        *in_module("strands._middleware.registry", *_MIDDLEWARE, versions="< 1.62"),
        *in_module("strands.middleware._registry", *_MIDDLEWARE, versions=">= 1.62"),
        *in_module(
            "strands.agent.conversation_manager.conversation_manager",
            (
                "ConversationManager.apply_management ConversationManager.reduce_context",
                reducers.manages,
                "what a conversation manager leaves out",
            ),
            followed=True,
        ),
        *in_module(
            "strands.hooks.registry", ("HookRegistry.get_callbacks_for", reducers.hooked, "what hooks change")
        ),
        *in_module(
            "strands._context_manager.context_manager",
            ("ContextManager._run_strategies", reducers.strategies, "what strategies leave out"),
            versions=">= 1.56",
        ),
        *in_module(
            _OFFLOADS,
            ("BaseOffloadStrategy._transform_blocks", reducers.transforms, "what is cut as it is added"),
            versions=">= 1.56",
        ),
        *in_module(
            "strands.tools.decorator", ("DecoratedFunctionTool.stream", reducers.tool, "what a model leaves out itself")
        ),
    )
    # Its messages are dicts in the form of Bedrock, which is known.
    rows: ClassVar = {"strands": f"{__package__}.messages"}
