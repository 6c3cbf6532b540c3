"""The instrumentor of Semantic Kernel, and its table of hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import LazyWrappers, SubclassHook, in_package
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.semantic_kernel import calls, reducers, runs
else:
    calls, reducers, runs = (LazyWrappers(f"{__package__}.{module}") for module in ("calls", "reducers", "runs"))

_SERVICES: Final = "connectors.ai.{}_completion_client_base"
_HISTORIES: Final = "contents.history_reducer.chat_history_reducer"
_PROMPTS: Final = "functions.kernel_function_from_prompt"
_RUNTIME: Final = "agents.runtime.in_process.in_process_runtime"
_STRATEGIES: Final = "agents.strategies.{0}.kernel_function_{0}_strategy"
_AGENT: Final = "agents.chat_completion.chat_completion_agent"
_RESPONSES: Final = "agents.open_ai.responses_agent_thread_actions"
_REDUCES: Final = SubclassHook.for_method("reduce", reducers.observe_reduction)
# The purposes, which `otel-assembly doctor` prints.
_CALLS: Final = "model calls"
_RUN: Final = "one trace for each run that has no span of Semantic Kernel"
_CONVERSATIONS: Final = "the conversation that a history belongs to"
_STRATEGY_PROMPTS: Final = "the messages that a group chat strategy renders into its prompt"


class SemanticKernelInstrumentor(AssemblyInstrumentor):
    """Instruments Semantic Kernel: its services, history reducers, prompt functions, agents and orchestrations."""

    framework = "semantic_kernel"
    requires = ("semantic-kernel >= 1.38, < 2",)
    rows: ClassVar = {"semantic_kernel": f"{__package__}.messages"}
    hooks: ClassVar = in_package(
        "semantic_kernel",
        *(
            (_SERVICES.format(kind), f"{kind.title()}CompletionClientBase.{method}", SubclassHook(method, wrap), _CALLS)
            for kind, method, wrap in (
                ("chat", "_inner_get_chat_message_contents", calls.chat_hook),
                ("chat", "_inner_get_streaming_chat_message_contents", calls.chat_stream_hook),
                ("text", "_inner_get_text_contents", calls.text_hook),
                ("text", "_inner_get_streaming_text_contents", calls.text_stream_hook),
            )
        ),
        *(
            ("agents.agent", f"Agent.{method}", SubclassHook.for_method(method, runs.agent_run), _RUN)
            for method in ("get_response", "invoke", "invoke_stream")
        ),
        (_RESPONSES, "ResponsesAgentThreadActions._get_response", calls.responses_hook, "calls of OpenAI's Responses"),
        (_HISTORIES, "ChatHistoryReducer.reduce", _REDUCES, "the messages that a history reducer removes"),
        ("agents.agent", "Agent._ensure_thread_exists_with_messages", calls.observe_thread, "an agent's thread"),
        (_AGENT, "ChatCompletionAgent._prepare_agent_chat_history", calls.observe_history_creation, _CONVERSATIONS),
        ("contents.chat_history", "ChatHistory.from_rendered_prompt", calls.observe_history_creation, _CONVERSATIONS),
        *(
            (_PROMPTS, f"KernelFunctionFromPrompt._invoke_internal{suffix}", calls.prompt_run, _CONVERSATIONS)
            for suffix in ("", "_stream")
        ),
        *(
            ("agents.group_chat.agent_group_chat", f"AgentGroupChat.invoke{suffix}", runs.group_chat_run, _RUN)
            for suffix in ("", "_stream")
        ),
        *(
            (_STRATEGIES.format(kind), f"{owner}.{method}", calls.strategy_call, _STRATEGY_PROMPTS)
            for kind, owner, method in (
                ("selection", "KernelFunctionSelectionStrategy", "select_agent"),
                ("termination", "KernelFunctionTerminationStrategy", "should_agent_terminate"),
            )
        ),
        ("agents.orchestration.orchestration_base", "OrchestrationBase.invoke", runs.orchestration_run, _RUN),
        *(
            (_RUNTIME, f"InProcessRuntime._process_{kind}", runs.observe_delivery, _RUN)
            for kind in ("send", "publish", "response")
        ),
    )
