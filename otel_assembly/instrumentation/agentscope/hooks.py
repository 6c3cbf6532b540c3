"""The hooks of AgentScope 2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from otel_assembly.instrumentation.agentscope import middleware, reducers
from otel_assembly.instrumentation.agentscope.conversation import not_called, remembered
from otel_assembly.instrumentation.hooks import Hook, in_module, instead
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor
from otel_assembly.instrumentation.runs import followed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.telemetry.run import OpenRun


@instead
def _reply(
    instrumentation: Instrumentation, original: Callable[..., Any], agent: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """In the place of ``Agent._reply_impl``, inside all middlewares: where one of them traces, its span is current."""
    run = instrumentation.begin_run(agent.name, conversation_id=agent.state.session_id)
    items = original(agent, *args, **kwargs)
    return items if run is None else followed(_Reply(instrumentation, agent, run), items)


class _Reply:
    """One reply, while it is followed: what was prepared in it for a model that is not called ends with it."""

    def __init__(self, instrumentation: Instrumentation, agent: Any, run: OpenRun) -> None:
        self._instrumentation = instrumentation
        self._agent = agent
        self._run = run
        self._began = False

    def current(self) -> AbstractContextManager[None]:
        """A step of it."""
        if not self._began:
            self._began = True
            remembered(self._agent).replies += 1
        return self._run.current()

    def end(self, error: BaseException | None = None) -> None:
        """It came to its end."""
        with self._instrumentation.contained():
            if self._began:
                remembered(self._agent).replies -= 1
            not_called(self._agent)
        self._run.end(error)


class AgentScopeInstrumentor(AssemblyInstrumentor):
    """Instruments AgentScope."""

    framework = "agentscope"
    requires = ("agentscope >= 2.0.4, < 3",)
    rows: ClassVar[Mapping[str, str]] = {"agentscope.message": "otel_assembly.instrumentation.agentscope.messages"}
    hooks: ClassVar[tuple[Hook, ...]] = (
        *in_module(
            "agentscope.agent._agent",
            ("Agent._reply_impl", _reply, "one span a reply, where there would be none"),
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
