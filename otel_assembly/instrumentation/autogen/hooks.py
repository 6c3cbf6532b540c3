"""The instrumentor of AutoGen 0.7, with the table of the methods that it hooks."""

from __future__ import annotations

from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ClassVar, Final

from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly.instrumentation.hooks import Hook, LazyWrappers, SubclassHook, in_module
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_assembly.instrumentation.autogen import reducers, runs
    from otel_assembly.instrumentation.instrumented import Instrumentation
else:
    reducers, runs = (LazyWrappers(f"{__package__}.{module}") for module in ("reducers", "runs"))

_MODELS: Final = "autogen_core.models"
_AGENTS: Final = "autogen_agentchat.agents"
_TEAMS: Final = "autogen_agentchat.teams._group_chat"

_get_messages: Final = SubclassHook("get_messages", reducers.context_hook)
_update_context: Final = SubclassHook("update_context", reducers.memory_hook)
_create, _create_stream = (SubclassHook.for_method(method, runs.client_hook) for method in ("create", "create_stream"))
#: The hooks for the objects in an agent's attributes, whose classes need not derive from AutoGen's.
_attribute_hooks = {
    "_model_context": (_get_messages,),
    "_memory": (_update_context,),
    "_model_client": (_create, _create_stream),
}
_on_messages, _on_messages_stream = (
    SubclassHook(method, partial(runs.agent_run_hook, _attribute_hooks))
    for method in ("on_messages", "on_messages_stream")
)


def _init_hook(original: Callable[..., None], instrumentation: Instrumentation) -> Callable[..., None]:
    """Hook ``ChatCompletionContext.__init__``, to wrap ``get_messages`` of a class that `SubclassHook` missed.

    `SubclassHook` wraps a subclass when ``__init_subclass__`` runs. If a base class overrides that without calling
    ``super()``, the subclass is wrapped here instead, when its first instance is created.
    """

    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if instrumentation.open:
            _get_messages.wrap_class(type(self), instrumentation)
        original(self, *args, **kwargs)

    return __init__


_agent_call: Final = (runs.model_call_hook, "the model call for which an agent reads its context")
_image_removal: Final = ("remove_images", runs.remove_images_hook, "images removed for models without vision")
_run_purpose: Final = "an agent's run, with the agent's name"


class AutoGenInstrumentor(AssemblyInstrumentor):
    """Instruments AutoGen's model clients, model contexts, memories, agents and teams."""

    framework = "autogen"
    requires = ("autogen-core >= 0.7, < 0.8",)
    hooks: ClassVar = (
        *in_module(
            "autogen_core.model_context",
            ("ChatCompletionContext.__init__", _init_hook, "subclasses whose definition was not noticed"),
            ("ChatCompletionContext.get_messages", _get_messages, "messages that a model context drops"),
        ),
        Hook("autogen_core.memory", "Memory.update_context", _update_context, "messages that a memory injects"),
        *in_module(
            _MODELS,
            ("ChatCompletionClient.create", _create, "model calls"),
            ("ChatCompletionClient.create_stream", _create_stream, "streaming model calls"),
        ),
        *in_module(
            f"{_AGENTS}._base_chat_agent",
            ("BaseChatAgent.on_messages", _on_messages, _run_purpose),
            ("BaseChatAgent.on_messages_stream", _on_messages_stream, _run_purpose),
        ),
        *in_module(
            f"{_AGENTS}._assistant_agent",
            ("AssistantAgent._call_llm", *_agent_call),
            ("AssistantAgent._reflect_on_tool_use_flow", *_agent_call),
            _image_removal,
        ),
        *in_module(
            f"{_AGENTS}._code_executor_agent",
            ("CodeExecutorAgent._call_llm", *_agent_call),
            ("CodeExecutorAgent._reflect_on_code_block_results_flow", *_agent_call),
            _image_removal,
        ),
        *in_module(f"{_TEAMS}._magentic_one._magentic_one_orchestrator", _image_removal),
        Hook(
            f"{_TEAMS}._selector_group_chat",
            "SelectorGroupChatManager._select_speaker",
            runs.speaker_selection_hook,
            "the model call for which a selector reads its context",
        ),
        Hook(f"{_TEAMS}._base_group_chat", "BaseGroupChat.run_stream", runs.team_run_hook, "a team's run"),
    )
    rows: ClassVar = {_MODELS: f"{__package__}.messages"}


hide_frames(globals())
