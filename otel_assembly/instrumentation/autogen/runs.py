"""AutoGen's agents and teams: their model calls, the images that are removed for them, and their runs."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from otel_assembly.instrumentation.autogen.conversation import ModelCall, current_call, schemas_of
from otel_assembly.instrumentation.hooks import reported_whole
from otel_assembly.instrumentation.reducers import same_objects
from otel_assembly.instrumentation.runs import awaited, followed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

    from otel_assembly.instrumentation.hooks import Following, Instrumentation
    from otel_assembly.observe.assembler import ObservedAssembly

_ENDS_ASSEMBLY = "_otel_assembly_ends_assembly"


def model_call(
    contexts: Following, *, offers_tools: bool
) -> Callable[[Callable[..., Any], Instrumentation], Callable[..., Any]]:
    """A class method of an agent that asks its context and then its model, as an asynchronous generator.

    Args:
        contexts: Follows the class of the context, whatever it derives from.
        offers_tools: Whether the model is offered the agent's tools.
    """

    def wrap(
        original: Callable[..., AsyncGenerator[Any, Any]], instrumentation: Instrumentation
    ) -> Callable[..., AsyncGenerator[Any, Any]]:
        @functools.wraps(original)
        def call_model(cls: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            items = original(cls, *args, **kwargs)
            if not instrumentation.listening():
                return items
            call: Any = None
            with instrumentation.contained():
                call = _call_of(cls, kwargs, contexts, instrumentation, offers_tools=offers_tools)
            return items if call is None else followed(call, items)

        return call_model

    return wrap


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


def speaker_selection(
    original: Callable[..., Awaitable[Any]], instrumentation: Instrumentation
) -> Callable[..., Awaitable[Any]]:
    """Around the selector's model call, whose context is the whole team's conversation."""

    @functools.wraps(original)
    async def select_speaker(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not instrumentation.listening():
            return await original(self, *args, **kwargs)
        call: Any = None
        with instrumentation.contained():
            context, client = getattr(self, "_model_context", None), getattr(self, "_model_client", None)
            call = ModelCall(context, client, agent_name=getattr(self, "_name", None))
        if call is None:
            return await original(self, *args, **kwargs)
        with call.current():
            return await original(self, *args, **kwargs)

    return select_speaker


def images_removed(
    original: Callable[..., Sequence[Any]], instrumentation: Instrumentation
) -> Callable[..., Sequence[Any]]:
    """Around the removal of images that an agent's model cannot see: the last step of their assembly."""

    @functools.wraps(original)
    def get_compatible_context(*args: Any, **kwargs: Any) -> Sequence[Any]:
        if not instrumentation.listening():
            return original(*args, **kwargs)
        call = current_call()
        assembly = call.release() if call is not None else None
        if call is None or assembly is None:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            assembly.end(error)
            raise
        with reported_whole(assembly):
            _report_images(assembly, result, len(call.prompts))
        assembly.end()
        return result

    setattr(get_compatible_context, _ENDS_ASSEMBLY, True)
    return get_compatible_context


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


def awaited_run(
    original: Callable[..., Awaitable[Any]], instrumentation: Instrumentation
) -> Callable[..., Awaitable[Any]]:
    """Around one run of an agent that is awaited; its span is ours only where there would be none."""

    @functools.wraps(original)
    async def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not instrumentation.listening():
            return await original(self, *args, **kwargs)
        opened = instrumentation.begin_run(str(self.name))
        work = original(self, *args, **kwargs)
        return await (work if opened is None else awaited(opened, work))

    return run


def streamed_run(
    original: Callable[..., AsyncGenerator[Any, Any]], instrumentation: Instrumentation
) -> Callable[..., AsyncGenerator[Any, Any]]:
    """Around one run of an agent or a team whose answers come one by one."""

    @functools.wraps(original)
    def run_stream(self: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        items = original(self, *args, **kwargs)
        if not instrumentation.listening():
            return items
        opened = instrumentation.begin_run(str(self.name))
        return items if opened is None else followed(opened, items)

    return run_stream
