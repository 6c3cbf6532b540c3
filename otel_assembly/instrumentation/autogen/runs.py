"""AutoGen's agents and teams: their model calls, the images that are removed for them, and their runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.instrumentation.autogen.conversation import ModelCall, current_call, schemas_of
from otel_assembly.instrumentation.hooks import around, around_awaited, instead
from otel_assembly.instrumentation.instrumented import ending
from otel_assembly.instrumentation.reducers import same_objects
from otel_assembly.instrumentation.runs import awaited, followed
from otel_assembly.observe.conversations import reported_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.instrumentation.hooks import Following, Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.observe.assembly import ObservedAssembly

_ENDS_ASSEMBLY = "_otel_assembly_ends_assembly"


def model_call(
    contexts: Following, offers_tools: bool, original: Callable[..., Any], instrumentation: Instrumentation
) -> Callable[..., Any]:
    """A class method of an agent that asks its context and then its model, as an asynchronous generator.

    Args:
        contexts: Follows the class of the context, whatever it derives from.
        offers_tools: Whether the model is offered the agent's tools.
        original: The method.
        instrumentation: What it serves.
    """

    @instead
    def call_model(
        instrumentation: Instrumentation, original: Callable[..., Any], agent: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        items = original(agent, *args, **kwargs)
        call: Any = None
        with instrumentation.contained():
            call = _call_of(agent, kwargs, contexts, instrumentation, offers_tools=offers_tools)
        return items if call is None else followed(call, items)

    return call_model(original, instrumentation)


def _call_of(
    agent: Any, given: Mapping[str, Any], contexts: Following, instrumentation: Instrumentation, *, offers_tools: bool
) -> ModelCall | None:
    context = given.get("model_context")
    if context is None:
        return None
    contexts.follow(type(context), instrumentation)
    tools = schemas_of(given.get("workbench") or (), given.get("handoff_tools") or ()) if offers_tools else ()
    return ModelCall(
        context,
        given.get("model_client"),
        agent_name=given.get("agent_name"),
        system_messages=given.get("system_messages") or (),
        tools=tools,
        removes_images=hasattr(getattr(agent, "_get_compatible_context", None), _ENDS_ASSEMBLY),
    )


@around_awaited
def speaker_selection(instrumentation: Instrumentation, manager: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around the selector's model call, whose context is the whole team's conversation."""
    context, client = getattr(manager, "_model_context", None), getattr(manager, "_model_client", None)
    with ModelCall(context, client, agent_name=getattr(manager, "_name", None)).current():
        yield


def images_removed(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around the removal of images that an agent's model cannot see: the last step of their assembly."""
    wrapper = around(_images_removed)(original, instrumentation)
    setattr(wrapper, _ENDS_ASSEMBLY, True)
    return wrapper


def _images_removed(instrumentation: Instrumentation, /, *args: Any, **kwargs: Any) -> Observation:
    call = current_call()
    assembly = call.release() if call is not None else None
    if call is None or assembly is None:
        return
    with ending(assembly.end):
        result = yield
        with reported_whole(assembly):
            _report_images(assembly, result, len(call.prompts))


def _report_images(assembly: ObservedAssembly, result: Sequence[Any], prompts: int) -> None:
    """AutoGen writes every message of several parts anew; those that had no image say what they said before."""
    given, events = assembly.events, result[prompts:]
    if len(given) == len(events):
        events = [after if _shows(before) else before for before, after in zip(given, events, strict=True)]
    if same_objects(events, given):
        return
    with assembly.step("remove_images", kind="reduction") as step:
        step.out(events)


def _shows(message: Any) -> bool:
    """Whether a message holds anything but text."""
    content = getattr(message, "content", None)
    return isinstance(content, list) and not all(isinstance(part, str) for part in content)


@instead
async def awaited_run(
    instrumentation: Instrumentation, original: Callable[..., Any], agent: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """In the place of one run of an agent that is awaited; its span is ours only where there would be none."""
    opened = instrumentation.begin_run(str(agent.name))
    work = original(agent, *args, **kwargs)
    return await (work if opened is None else awaited(opened, work))


@instead
def streamed_run(
    instrumentation: Instrumentation, original: Callable[..., Any], agent: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """In the place of one run of an agent or a team whose answers come one by one."""
    items = original(agent, *args, **kwargs)
    opened = instrumentation.begin_run(str(agent.name))
    return items if opened is None else followed(opened, items)
