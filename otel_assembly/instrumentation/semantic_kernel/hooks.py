"""The hooks of Semantic Kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import LazyWrappers, SubclassHook, in_package
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.semantic_kernel import calls, reducers, runs
else:
    calls, reducers, runs = (LazyWrappers(f"{__package__}.{module}") for module in ("calls", "reducers", "runs"))

_CLIENTS: Final = "connectors.ai.{}_completion_client_base"
_HISTORIES: Final = "contents.history_reducer.chat_history_reducer"
_PROMPTS: Final = "functions.kernel_function_from_prompt"
_RUNTIME: Final = "agents.runtime.in_process.in_process_runtime"
_STRATEGIES: Final = "agents.strategies.{}.kernel_function_{}_strategy"
_AGENT: Final = "agents.chat_completion.chat_completion_agent"
_RESPONSES: Final = "agents.open_ai.responses_agent_thread_actions"
_REDUCES: Final = SubclassHook.for_method("reduce", reducers.reduces)
_RUN: Final = "a run that has no span of the framework's as one trace"
_CALLS, _ASKS = "model calls", "which history is whose"
_RENDERED: Final = "the messages that a strategy of a group chat has rendered into a prompt"


class SemanticKernelInstrumentor(AssemblyInstrumentor):
    """Instruments the context assembly of Semantic Kernel: services, history reducers, prompts, agents, their runs."""

    framework = "semantic_kernel"
    requires = ("semantic-kernel >= 1.38, < 2",)
    rows: ClassVar = {"semantic_kernel": f"{__package__}.messages"}
    hooks: ClassVar = in_package(
        "semantic_kernel",
        *(
            (
                _CLIENTS.format(kind),
                f"{kind.title()}CompletionClientBase.{method}",
                SubclassHook(method, wrap),
                "model calls",
            )
            for kind, method, wrap in (
                ("chat", "_inner_get_chat_message_contents", calls.contents),
                ("chat", "_inner_get_streaming_chat_message_contents", calls.stream),
                ("text", "_inner_get_text_contents", calls.texts),
                ("text", "_inner_get_streaming_text_contents", calls.text_stream),
            )
        ),
        *(
            ("agents.agent", f"Agent.{method}", SubclassHook.for_method(method, runs.agent), _RUN)
            for method in ("get_response", "invoke", "invoke_stream")
        ),
        (_RESPONSES, "ResponsesAgentThreadActions._get_response", calls.response, "calls of OpenAI's Responses"),
        (_HISTORIES, "ChatHistoryReducer.reduce", _REDUCES, "what histories leave out of themselves"),
        ("agents.agent", "Agent._ensure_thread_exists_with_messages", calls.has_thread, "an agent's thread"),
        (_AGENT, "ChatCompletionAgent._prepare_agent_chat_history", calls.makes, _ASKS),
        ("contents.chat_history", "ChatHistory.from_rendered_prompt", calls.makes, _ASKS),
        *(
            (_PROMPTS, f"KernelFunctionFromPrompt._invoke_internal{streams}", calls.prompt, _ASKS)
            for streams in ("", "_stream")
        ),
        *(
            ("agents.group_chat.agent_group_chat", f"AgentGroupChat.invoke{streams}", runs.group_chat, _RUN)
            for streams in ("", "_stream")
        ),
        *(
            (
                _STRATEGIES.format(kind, kind),
                f"{owner}.{method}",
                calls.strategy,
                _RENDERED,
            )
            for kind, owner, method in (
                ("selection", "KernelFunctionSelectionStrategy", "select_agent"),
                ("termination", "KernelFunctionTerminationStrategy", "should_agent_terminate"),
            )
        ),
        ("agents.orchestration.orchestration_base", "OrchestrationBase.invoke", runs.orchestration, _RUN),
        *(
            (_RUNTIME, f"InProcessRuntime._process_{what}", runs.handles, _RUN)
            for what in ("send", "publish", "response")
        ),
    )
