"""The hooks of AutoGen."""

from __future__ import annotations

from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ClassVar, Final

from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly.instrumentation.hooks import Hook, LazyWrappers, SubclassHook, in_module
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_assembly.instrumentation.autogen import reducers, runs
    from otel_assembly.instrumentation.instrumented import Instrumentation
else:
    reducers, runs = (LazyWrappers(f"{__package__}.{module}") for module in ("reducers", "runs"))

_MODELS: Final = "autogen_core.models"
_AGENTS: Final = "autogen_agentchat.agents"
_TEAMS: Final = "autogen_agentchat.teams._group_chat"

_contexts: Final = SubclassHook("get_messages", reducers.observed_context)
_memories: Final = SubclassHook("update_context", reducers.observed_memory)
_create, _stream = (SubclassHook.for_method(method, runs.called) for method in ("create", "create_stream"))
#: What an agent holds, by its attribute, need derive from nothing.
_meets = {"_model_context": (_contexts,), "_memory": (_memories,), "_model_client": (_create, _stream)}
_messages, _messages_stream = (
    SubclassHook(method, partial(runs.agent_run, _meets)) for method in ("on_messages", "on_messages_stream")
)


def _constructed(original: Callable[..., None], instrumentation: Instrumentation) -> Callable[..., None]:
    """A class that keeps the news of its definition from us is known by its first instance."""

    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if instrumentation.open:
            _contexts.follow(type(self), instrumentation)
        original(self, *args, **kwargs)

    return __init__


_asks: Final = (
    runs.model_call,
    "what its context leaves out of what its model is sent, where that is not seen by the messages",
)
_first_observation: Final = ("remove_images", runs.images_removed, "images removed for a model")
_runs: Final = "a run that has no span of AutoGen's; the agent's name"


class AutoGenInstrumentor(AssemblyInstrumentor):
    """Instruments AutoGen's model clients, and what prepares their calls: model contexts, memories, agents, teams."""

    framework = "autogen"
    requires = ("autogen-core >= 0.7, < 0.8",)
    hooks: ClassVar[tuple[Hook, ...]] = (
        *in_module(
            "autogen_core.model_context",
            ("ChatCompletionContext.__init__", _constructed, "model contexts of classes that were not seen"),
            ("ChatCompletionContext.get_messages", _contexts, "what contexts leave out"),
        ),
        Hook("autogen_core.memory", "Memory.update_context", _memories, "what a memory puts into a context"),
        *in_module(
            _MODELS,
            ("ChatCompletionClient.create", _create, "calls of a model: each is an assembly"),
            ("ChatCompletionClient.create_stream", _stream, "the same, whose answer is a stream"),
        ),
        *in_module(
            f"{_AGENTS}._base_chat_agent",
            ("BaseChatAgent.on_messages", _messages, _runs),
            ("BaseChatAgent.on_messages_stream", _messages_stream, _runs),
        ),
        *in_module(
            f"{_AGENTS}._assistant_agent",
            ("AssistantAgent._call_llm", *_asks),
            ("AssistantAgent._reflect_on_tool_use_flow", *_asks),
            _first_observation,
        ),
        *in_module(
            f"{_AGENTS}._code_executor_agent",
            ("CodeExecutorAgent._call_llm", *_asks),
            ("CodeExecutorAgent._reflect_on_code_block_results_flow", *_asks),
            _first_observation,
        ),
        *in_module(f"{_TEAMS}._magentic_one._magentic_one_orchestrator", _first_observation),
        Hook(
            f"{_TEAMS}._selector_group_chat",
            "SelectorGroupChatManager._select_speaker",
            runs.speaker_selection,
            "what the selector's context leaves out",
        ),
        Hook(f"{_TEAMS}._base_group_chat", "BaseGroupChat.run_stream", runs.team_run, "the run of a team as one trace"),
    )
    rows: ClassVar[Mapping[str, str]] = {_MODELS: "otel_assembly.instrumentation.autogen.messages"}


hide_frames(globals())
