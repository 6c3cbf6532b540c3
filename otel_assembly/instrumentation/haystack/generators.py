"""Finds and hooks the components that call a model: those that take messages or a prompt, and return replies.

Haystack has no base class for them, so `run` and `run_async` are hooked in each class that `ComponentMeta` creates.
That happens while Haystack is being imported, so this module must not import Haystack.
"""

from __future__ import annotations

import inspect
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.lazy_imports import LazyModule
from otel_assembly.instrumentation.clients import innermost_client_hook, model_in
from otel_assembly.instrumentation.context_variables import CALL
from otel_assembly.instrumentation.conversation import ConversationsByFirstMessage, InvokingAgent
from otel_assembly.instrumentation.model_call import ClientRequest, ModelCall
from otel_assembly.instrumentation.prompts import as_prompts
from otel_assembly.instrumentation.reducers import is_in, known_of
from otel_assembly.instrumentation.reductions import reducing
from otel_assembly.instrumentation.tool_schemas import ToolSchemas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from otel_assembly.instrumentation.haystack import messages as rows
    from otel_assembly.instrumentation.instrumented import Instrumentation
else:
    rows = LazyModule(f"{__package__}.messages")

PACKAGES: Final = ("haystack", "haystack_integrations")
#: How many items of a list or mapping are searched for generators.
_MAX_ITEMS: Final = 32
#: Conversations that a program keeps as lists of messages, found by their first message.
CONVERSATIONS: Final = ConversationsByFirstMessage(lambda message: message.role.value)
_SCHEMAS: Final = ToolSchemas(lambda tool: rows.schema_of(tool))


def is_agent(component_type: type) -> bool:
    return known_of(component_type, {"Agent": True}, ("haystack.components.agents",)) is not None


def returns_replies(component: Any) -> bool:
    """Return whether a component has an output ``replies``, by which a generator is recognized.

    Haystack stores the outputs of a component when it is created. Before that, and for classes, the decorator
    ``component.output_types`` stores them on a ``run`` method, which a subclass may have inherited.
    """
    sockets = getattr(getattr(component, "__haystack_output__", None), "_sockets_dict", None)
    if sockets:
        return "replies" in sockets
    runs = (vars(base).get("run") for base in type(component).__mro__)
    return any("replies" in getattr(run, "_output_types_cache", ()) for run in runs)


def attribute_values(component: Any) -> Iterator[Any]:
    """Yield the values of a component's attributes, and the first items of those that are lists or mappings."""
    for name, value in [*getattr(component, "__dict__", {}).items()]:
        if name.startswith("__haystack"):  # Haystack's own; one of them is the pipeline that contains the component
            continue
        yield value
        if isinstance(value, dict | list):
            yield from islice(value.values() if isinstance(value, dict) else value, _MAX_ITEMS)


def component_name(component: Any) -> str | None:
    pipeline = getattr(component, "__haystack_added_to_pipeline__", None)
    return pipeline.get_component_name(component) or None if pipeline is not None else None


def is_no_generator(component_type: type) -> bool:
    """Return whether a class is certainly no generator. A class that declares no outputs can still be one."""
    run = inspect.unwrap(getattr(component_type, "run", None))  # type: ignore[arg-type]  # unwrap(None) is None
    code, outputs = getattr(run, "__code__", None), getattr(run, "_output_types_cache", ("replies",))
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if code is not None else ()
    takes_messages = not {"messages", "prompt"}.isdisjoint(arguments)
    return is_agent(component_type) or "replies" not in outputs or not takes_messages


def schemas_of(tools: Any) -> Sequence[Mapping[str, Any]]:
    """Return the schemas of tools and of the tools in toolsets, from a list or from one toolset."""
    all_tools: list[Any] = []
    for entry in tools if isinstance(tools, list | tuple) or hasattr(tools, "tools") else ():
        all_tools += entry if hasattr(entry, "tools") else (entry,)
    return _SCHEMAS.of(all_tools)


def model_of(generator: Any, options: Any = None) -> str | None:
    """Return the name of a generator's model; None if the generator has it in no known attribute."""
    settings = (getattr(generator, name, None) for name in ("api_params", "huggingface_pipeline_kwargs"))
    return model_in(options, generator, *settings, {"model": getattr(generator, "_model", None)})


def _request(generator: Any, /, *args: Any, **kwargs: Any) -> ClientRequest | None:
    """Return the request of a generator; None without messages, or for a component that is no generator."""
    all_messages = rows.input_messages(args[0] if args else kwargs.get("messages", kwargs.get("prompt")))
    prepared = CALL.get()
    if not all_messages or (prepared is None and not returns_replies(generator)):
        return None
    prompts, messages = rows.split_prompts(all_messages)
    options, invoking_agent = kwargs.get("generation_kwargs"), InvokingAgent()
    if prepared is None:  # the generator is not called by an agent
        name = component_name(generator)
        invoking_agent = InvokingAgent(CONVERSATIONS.of(messages), name or type(generator).__name__, name)
    settings = {**(getattr(generator, "generation_kwargs", None) or {}), **(options or {})}
    return ClientRequest(
        messages,
        [*as_prompts(kwargs.get("system_prompt")), *prompts],
        tools=schemas_of(kwargs.get("tools") or getattr(generator, "tools", None)),
        model=model_of(generator, options),
        unknown=bool(settings.get("previous_response_id") or settings.get("conversation")),  # OpenAI stores the history
        invoking_agent=invoking_agent,
    )


def _response_text(response: Any) -> str:
    """Return the text of the last reply; it is a message or, from a generator for prompts, a string."""
    replies = response.get("replies") or [""]
    return str(getattr(replies[-1], "text", replies[-1]) or "")


def generator_hook(original: Callable[..., Any], owner: type, instrumentation: Instrumentation) -> Callable[..., Any]:
    """Hook a `run` method: each call is a model call, unless the generator forwards it to another generator."""
    is_framework_class, is_fallback = is_in(owner, PACKAGES), owner.__name__ == "FallbackChatGenerator"

    def forwards(generator: Any) -> bool:
        # Of Haystack's classes only the fallback forwards. A program's component does if it contains a generator.
        return is_fallback if is_framework_class else any(map(returns_replies, attribute_values(generator)))

    def request_of(generator: Any, /, *args: Any, **kwargs: Any) -> ClientRequest | None:
        return None if forwards(generator) else _request(generator, *args, **kwargs)

    def begin_forwarded_call(_: Instrumentation, generator: Any, /, *args: Any, **kwargs: Any) -> ModelCall | None:
        """Begin the call of a generator that forwards it, whose changes become a step; None inside another call."""
        if CALL.get() is not None or reducing() is not None or not forwards(generator):
            return None
        request = _request(generator, *args, **kwargs)
        return request and ModelCall(
            instrumentation, request.invoking_agent, messages=request.messages, prompts=request.prompts
        )

    method = "run_async" if inspect.iscoroutinefunction(original) else "run"
    return innermost_client_hook(method, request_of, _response_text, prepared=begin_forwarded_call)(
        original, owner, instrumentation
    )
