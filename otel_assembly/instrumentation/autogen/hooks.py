"""The hooks of AutoGen."""

from __future__ import annotations

import sys
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ClassVar, Final

from otel_assembly.instrumentation.hooks import Following, Hook, Wraps
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from otel_assembly.instrumentation.autogen import reducers, runs
    from otel_assembly.instrumentation.instrumented import Instrumentation
else:
    reducers, runs = (Wraps(f"{__package__}.{module}") for module in ("reducers", "runs"))


_CONTEXTS: Final = "autogen_core.model_context"
_MEMORY: Final = "autogen_core.memory"
_ASSISTANT: Final = "autogen_agentchat.agents._assistant_agent"
_EXECUTOR: Final = "autogen_agentchat.agents._code_executor_agent"
_SELECTOR: Final = "autogen_agentchat.teams._group_chat._selector_group_chat"
_TEAM: Final = "autogen_agentchat.teams._group_chat._base_group_chat"

_contexts: Final = Following("get_messages", reducers.observed_context)
_memories: Final = Following("update_context", reducers.observed_memory)


def _constructed(original: Callable[..., None], instrumentation: Instrumentation) -> Callable[..., None]:
    """A class that keeps the news of its definition from us is known by its first instance."""

    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if instrumentation.open:
            _contexts.follow(type(self), instrumentation)
        original(self, *args, **kwargs)

    return __init__


def _context_classes(module: ModuleType, instrumentation: Instrumentation) -> None:
    _contexts.tree(module.ChatCompletionContext, instrumentation)


def _memory_classes(module: ModuleType, instrumentation: Instrumentation) -> None:
    _memories.tree(module.Memory, instrumentation)


def _followed(module: str, owner: str, following: Following, gives: str) -> Hook:
    """Hooks the method of one class; another wrapper in its place need not know the class."""

    def wrap(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
        return following.wrap(original, getattr(sys.modules[module], owner), instrumentation)

    return Hook(module, f"{owner}.{following.method}", wrap, gives)


def _runs(module: str, agent: str) -> tuple[Hook, ...]:
    return (
        Hook(module, f"{agent}.on_messages", runs.awaited_run, "a run that has no span of AutoGen's"),
        Hook(module, f"{agent}.on_messages_stream", runs.streamed_run, "a run that has no span of AutoGen's"),
    )


def _agent(module: str, agent: str, reflection: str) -> tuple[Hook, ...]:
    tools = agent == "AssistantAgent"
    adds = "the agent's name, its system messages and tools in what is counted; contexts of no base class"
    return (
        Hook(module, f"{agent}._call_llm", partial(runs.model_call, _contexts, tools), adds),
        Hook(module, f"{agent}.{reflection}", partial(runs.model_call, _contexts, False), adds),
        Hook(module, f"{agent}._get_compatible_context", runs.images_removed, "images that are removed for a model"),
        *_runs(module, agent),
    )


class AutoGenInstrumentor(AssemblyInstrumentor):
    """Instruments the context assembly of AutoGen's agents: model contexts, memories, images, runs."""

    framework = "autogen"
    requires = ("autogen-core >= 0.7, < 0.8",)
    hooks: ClassVar[tuple[Hook, ...]] = (
        Hook(_CONTEXTS, "ChatCompletionContext.__init__", _constructed, "model contexts of classes that were not seen"),
        *(
            _followed(_CONTEXTS, f"{name}ChatCompletionContext", _contexts, f"what {name} leaves out")
            for name in ("Unbounded", "Buffered", "HeadAndTail", "TokenLimited")
        ),
        _followed(_MEMORY, "ListMemory", _memories, "what a memory puts into a context"),
        *_agent(_ASSISTANT, "AssistantAgent", "_reflect_on_tool_use_flow"),
        *_agent(_EXECUTOR, "CodeExecutorAgent", "_reflect_on_code_block_results_flow"),
        *_runs("autogen_agentchat.agents._society_of_mind_agent", "SocietyOfMindAgent"),
        Hook(
            _SELECTOR,
            "SelectorGroupChatManager._select_speaker",
            runs.speaker_selection,
            "the selector's name and model",
        ),
        Hook(_TEAM, "BaseGroupChat.run_stream", runs.streamed_run, "the run of a team as one trace"),
    )
    rows: ClassVar[Mapping[str, str]] = {"autogen_core.models": "otel_assembly.instrumentation.autogen.messages"}
    on_import: ClassVar[Mapping[str, Callable[[ModuleType, Instrumentation], None]]] = {
        _CONTEXTS: _context_classes,
        _MEMORY: _memory_classes,
    }

    def _uninstrument(self, **kwargs: Any) -> None:
        super()._uninstrument(**kwargs)
        _contexts.leave()
        _memories.leave()
