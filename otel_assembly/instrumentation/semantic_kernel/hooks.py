"""The hooks of Semantic Kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import Following, Wraps, in_package
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.semantic_kernel import calls, reducers, runs
else:
    calls, reducers, runs = (Wraps(f"{__package__}.{module}") for module in ("calls", "reducers", "runs"))

_RUN: Final = "a run that has no span of the framework's as one trace"
_HISTORY: Final = "which history is whose"
_CHAT: Final = "connectors.ai.chat_completion_client_base"
_TEXT: Final = "connectors.ai.text_completion_client_base"
_PROMPT: Final = "functions.kernel_function_from_prompt"
_CHATS: Final = "agents.group_chat.agent_group_chat"
_CONTENT, _STREAM = "_inner_get_chat_message_contents", "_inner_get_streaming_chat_message_contents"
_TEXTS, _TEXT_STREAM = "_inner_get_text_contents", "_inner_get_streaming_text_contents"


class SemanticKernelInstrumentor(AssemblyInstrumentor):
    """Instruments the context assembly of Semantic Kernel: services, history reducers, prompts, agents, their runs."""

    framework = "semantic_kernel"
    requires = ("semantic-kernel >= 1.45, < 2",)
    rows: ClassVar = {"semantic_kernel": f"{__package__}.messages"}
    hooks: ClassVar = in_package(
        "semantic_kernel",
        (_CHAT, f"ChatCompletionClientBase.{_CONTENT}", Following(_CONTENT, calls.contents), "model calls"),
        (_CHAT, f"ChatCompletionClientBase.{_STREAM}", Following(_STREAM, calls.stream), "the same, streamed"),
        *(
            (_TEXT, f"TextCompletionClientBase.{method}", Following(method, calls.texts), "models of texts")
            for method in (_TEXTS, _TEXT_STREAM)
        ),
        (
            "contents.history_reducer.chat_history_reducer",
            "ChatHistoryReducer.reduce",
            Following.alike("reduce", reducers.reduces),
            "what histories leave out of themselves",
        ),
        *(
            ("agents.agent", f"Agent.{method}", Following(method, runs.agent), _RUN)
            for method in ("get_response", "invoke", "invoke_stream")
        ),
        ("agents.agent", "Agent._ensure_thread_exists_with_messages", calls.has_thread, "an agent's thread"),
        (
            "agents.chat_completion.chat_completion_agent",
            "ChatCompletionAgent._prepare_agent_chat_history",
            calls.makes,
            _HISTORY,
        ),
        ("contents.chat_history", "ChatHistory.from_rendered_prompt", calls.makes, _HISTORY),
        *(
            (_PROMPT, f"KernelFunctionFromPrompt.{method}", calls.prompt, _HISTORY)
            for method in ("_invoke_internal", "_invoke_internal_stream")
        ),
        *((_CHATS, f"AgentGroupChat.{method}", runs.group_chat, _RUN) for method in ("invoke", "invoke_stream")),
        ("agents.orchestration.orchestration_base", "OrchestrationBase.invoke", runs.orchestration, _RUN),
        *(
            ("agents.runtime.in_process.in_process_runtime", f"InProcessRuntime.{method}", runs.handles, _RUN)
            for method in ("_process_send", "_process_publish", "_process_response")
        ),
    )
