"""AutoGen's agents and teams: the calls that they prepare, the images that are removed for them, and their runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.instrumentation.autogen.conversation import AGENT, invoking_agent, received, text_of
from otel_assembly.instrumentation.bound_runs import ContextBoundRun
from otel_assembly.instrumentation.clients import client
from otel_assembly.instrumentation.model_call import CALL, ModelCall
from otel_assembly.instrumentation.reductions import REDUCTION, Reducer, reducer
from otel_assembly.instrumentation.runs import run_hook

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.instrumentation.hooks import SubclassHook
    from otel_assembly.instrumentation.instrumented import Instrumentation


#: ``create`` or ``create_stream`` of a class of clients.
called = client(received, text_of)


def _prepared(
    instrumentation: Instrumentation, /, *_: Any, model_context: Any = None, agent_name: str | None = None, **__: Any
) -> ModelCall | None:
    return None if model_context is None else ModelCall(instrumentation, invoking_agent(model_context, agent_name))


def _selection(instrumentation: Instrumentation, manager: Any, /, *_: Any, **__: Any) -> ModelCall | None:
    context, name = manager._model_context, str(manager._name)  # noqa: SLF001  # the framework's
    return _prepared(instrumentation, model_context=context, agent_name=name)


#: A class method of an agent that asks its context and then its model.
model_call = run_hook(_prepared)
#: The selector asks its context, and then its model, again where that names nobody.
speaker_selection = run_hook(_selection)


def _with_images(messages: Sequence[Any], *_: Any) -> list[Any]:
    return [one for one in messages if _shows(one)]


def _without_images(result: Sequence[Any], messages: Sequence[Any], *_: Any) -> list[Any]:
    return [after for before, after in zip(messages, result, strict=True) if _shows(before)]


def _shows(message: Any) -> bool:
    """Whether a message holds anything but text."""
    content = getattr(message, "content", None)
    return isinstance(content, list) and any(type(part).__name__ == "Image" for part in content)


#: Images are removed that a model cannot see; other messages of several parts are written anew as well.
images_removed = reducer(Reducer(_with_images, _without_images, "remove_images"))


def _run(instrumentation: Instrumentation, runs: Any, agent: Any) -> ContextBoundRun:
    return ContextBoundRun(instrumentation, str(runs.name), {AGENT: agent, CALL: None, REDUCTION: None})


def agent_run(
    meets: Mapping[str, Sequence[SubclassHook]],
    original: Callable[..., Any],
    owner: type,
    instrumentation: Instrumentation,
) -> Callable[..., Any]:
    """One run of an agent, which meets what the agent holds: by the attribute, what is followed, whatever its class."""

    def begun(instrumentation: Instrumentation, agent: Any, /, *_: Any, **__: Any) -> ContextBoundRun:
        for attribute, followings in meets.items():
            held = getattr(agent, attribute, None)
            for one in held if isinstance(held, list) else [held]:
                for following in followings:
                    following.follow(type(one), instrumentation)
        return _run(instrumentation, agent, agent)

    return run_hook(begun)(original, instrumentation)


#: A team is no agent that asks: what it calls is not what prepares it.
team_run = run_hook(lambda told, team, *_, **__: _run(told, team, None))
