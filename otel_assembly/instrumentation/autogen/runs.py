"""Hooks for AutoGen's agents, teams and model clients.

An agent's run is ``BaseChatAgent.on_messages`` or ``on_messages_stream``, a team's run is ``BaseGroupChat.run_stream``.
Within a run, methods such as ``AssistantAgent._call_llm`` read the model context and then call the model client, after
``remove_images`` for models without vision.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import compress
from typing import TYPE_CHECKING, Any

from autogen_core import Image

from otel_assembly.instrumentation.autogen.conversation import RUNNING_AGENT, client_request, invoking_agent, text_of
from otel_assembly.instrumentation.autogen.reducers import UPDATING_CONTEXT
from otel_assembly.instrumentation.clients import client
from otel_assembly.instrumentation.context_variables import CALL, REDUCTION
from otel_assembly.instrumentation.model_call import ModelCall
from otel_assembly.instrumentation.reductions import reducer
from otel_assembly.instrumentation.run_types import ContextBoundRun
from otel_assembly.instrumentation.runs import run_hook
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.instrumentation.hooks import SubclassHook
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.reductions import ReducerObservation


#: The hook of ``create`` or ``create_stream`` of a class of model clients.
client_hook = client(client_request, text_of)


def _agent_call(
    instrumentation: Instrumentation, /, *_: Any, model_context: Any = None, agent_name: str | None = None, **__: Any
) -> ModelCall | None:
    return None if model_context is None else ModelCall(instrumentation, invoking_agent(model_context, agent_name))


def _selector_call(instrumentation: Instrumentation, manager: Any, /, *_: Any, **__: Any) -> ModelCall | None:
    context, name = manager._model_context, str(manager._name)  # noqa: SLF001  # AutoGen has no public ones
    return _agent_call(instrumentation, model_context=context, agent_name=name)


#: The hook of an agent's class method that reads the model context and then calls the model.
model_call_hook = run_hook(_agent_call)
#: The hook of ``_select_speaker`` of a selector, which repeats the model call if the answer names no participant.
speaker_selection_hook = run_hook(_selector_call)


@reducer
def remove_images_hook(_: Instrumentation, messages: Sequence[Any], /, *__: Any, **___: Any) -> ReducerObservation:
    """The hook of ``remove_images``, which also copies messages without images. Those copies are not changes."""
    contents = [getattr(message, "content", None) for message in messages]
    have_images = [isinstance(content, list) and Image in map(type, content) for content in contents]
    report = StepReport("remove_images", [*compress(messages, have_images)])
    result = yield report
    return replace(report, after=[*compress(result, have_images)])


def _run(instrumentation: Instrumentation, runner: Any, agent: Any) -> ContextBoundRun:
    """Return the run of an agent or a team. An outer agent's model call, reducer and memory are not current in it."""
    variables = {RUNNING_AGENT: agent, CALL: None, REDUCTION: None, UPDATING_CONTEXT: False}
    return ContextBoundRun(instrumentation, str(runner.name), variables)


def agent_run_hook(
    attribute_hooks: Mapping[str, Sequence[SubclassHook]],
    original: Callable[..., Any],
    owner: type,
    instrumentation: Instrumentation,
) -> Callable[..., Any]:
    """Hook a method of an agent that is one run; it also hooks the classes of the objects in the agent's attributes."""

    def start_run(instrumentation: Instrumentation, agent: Any, /, *_: Any, **__: Any) -> ContextBoundRun:
        for attribute, hooks in attribute_hooks.items():
            value = getattr(agent, attribute, None)
            for item in value if isinstance(value, list) else [value]:
                for hook in hooks:
                    hook.wrap_class(type(item), instrumentation)
        return _run(instrumentation, agent, agent)

    return run_hook(start_run)(original, instrumentation)


#: The hook of a team's run. The team is not an invoking agent, so no agent and no prepared call are current in it.
team_run_hook = run_hook(lambda instrumentation, team, *_, **__: _run(instrumentation, team, None))
