"""Components that call a model: whatever takes messages, or a prompt, and answers with replies.

They have no base but the metaclass of all components, whose classes are made while Haystack is imported: nothing of it
may be imported for this.
"""

from __future__ import annotations

import inspect
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.lazy_imports import LazyModule
from otel_assembly.instrumentation.clients import innermost_client_hook, model_in
from otel_assembly.instrumentation.conversation import ConversationsByFirstMessage, InvokingAgent
from otel_assembly.instrumentation.known_reducers import known_of
from otel_assembly.instrumentation.model_call import CALL, ClientRequest, ModelCall
from otel_assembly.instrumentation.prompts import as_prompts
from otel_assembly.instrumentation.reducers import is_in
from otel_assembly.instrumentation.reductions import reducing
from otel_assembly.instrumentation.tool_schemas import ToolSchemas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from otel_assembly.instrumentation.haystack import messages as rows
    from otel_assembly.instrumentation.instrumented import Instrumentation
else:
    rows = LazyModule(f"{__package__}.messages")

PACKAGES: Final = ("haystack", "haystack_integrations")
#: So many of what stands in a list may be generators.
_MOST: Final = 32
#: Conversations that programs keep as lists of messages.
OPENINGS: Final = ConversationsByFirstMessage(lambda message: message.role.value)
_SCHEMAS: Final = ToolSchemas(lambda tool: rows.schema_of(tool))


def is_agent(met: type) -> bool:
    """Whether a class is that of Haystack's agents, or derives from it."""
    return known_of(met, {"Agent": True}, ("haystack.components.agents",)) is not None


def gives_replies(component: Any) -> bool:
    """Whether a component gives replies: as it says, else as what it derives from does."""
    said = getattr(getattr(component, "__haystack_output__", None), "_sockets_dict", None)
    runs = (getattr(vars(one).get("run"), "_output_types_cache", ()) for one in type(component).__mro__)
    return any("replies" in names for names in ([said] if said else runs))


def held_by(component: Any) -> Iterator[Any]:
    """What a component holds, and what stands first in lists and mappings that it holds; its pipeline holds it."""
    for name, value in [*vars(component).items()] if hasattr(component, "__dict__") else ():
        if not name.startswith("__haystack"):
            several = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
            yield from (value, *islice(several, _MOST))


def component_name(component: Any) -> str | None:
    """The name that a component has in the pipeline that it was added to."""
    pipeline = getattr(component, "__haystack_added_to_pipeline__", None)
    return pipeline.get_component_name(component) or None if pipeline is not None else None


def calls_no_model(met: type) -> bool:
    """Whether a class is known to call none itself: by what `run` takes, and what it gives as far as the class says."""
    run = inspect.unwrap(getattr(met, "run", None))  # type: ignore[arg-type]  # of nothing, that is nothing
    code, purpose = getattr(run, "__code__", None), getattr(run, "_output_types_cache", ("replies",))
    takes = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if code is not None else ()
    return is_agent(met) or "replies" not in purpose or {"messages", "prompt"}.isdisjoint(takes)


def schemas_of(tools: Any) -> Sequence[Mapping[str, Any]]:
    """The schemas of tools, and of those of toolsets among them."""
    offered = tools if isinstance(tools, list | tuple) or hasattr(tools, "tools") else ()
    return _SCHEMAS.of([tool for one in offered for tool in (one if hasattr(one, "tools") else (one,))])


def model_of(generator: Any, options: Any = None) -> str | None:
    """The name of a generator's model, where that says it."""
    held = (getattr(generator, place, None) for place in ("api_params", "huggingface_pipeline_kwargs"))
    return model_in(options, generator, *held, {"model": getattr(generator, "_model", None)})


def _sent(generator: Any, /, *args: Any, **kwargs: Any) -> ClientRequest | None:
    """What a generator is given; None where nothing is sent, and of a component that is none, nor an agent's."""
    given, prepared = rows.given_to(args[0] if args else kwargs.get("messages", kwargs.get("prompt"))), CALL.get()
    if not given or (prepared is None and not gives_replies(generator)):
        return None
    prompts, held = rows.behind_prompts(given)
    name = component_name(generator)
    return ClientRequest(
        held,
        [*as_prompts(kwargs.get("system_prompt")), *prompts],
        schemas_of(kwargs.get("tools") or getattr(generator, "tools", None)),
        model_of(generator, kwargs.get("generation_kwargs")),
        unknown=_is_held(generator, kwargs.get("generation_kwargs")),
        invoking_agent=InvokingAgent(OPENINGS.of(held), name or type(generator).__name__, name)
        if prepared is None
        else InvokingAgent(),
    )


def _is_held(generator: Any, options: Any) -> bool:
    """Whether OpenAI holds earlier messages; the options of a call come before the generator's own."""
    held = {**(getattr(generator, "generation_kwargs", None) or {}), **(options or {})}
    return bool(held.get("previous_response_id") or held.get("conversation"))


def _text(answer: Any) -> str:
    replies = answer.get("replies") or [""]
    return str(getattr(replies[-1], "text", replies[-1]) or "")


def call(original: Callable[..., Any], owner: type, instrumentation: Instrumentation) -> Callable[..., Any]:
    """What stands in the place of a generator's method: a call, unless it hands on to others, which are told of."""
    own, falls_back = is_in(owner, PACKAGES), owner.__name__ == "FallbackChatGenerator"

    def hands_on(generator: Any) -> bool:
        return falls_back if own else any(map(gives_replies, held_by(generator)))

    def sent(generator: Any, /, *args: Any, **kwargs: Any) -> ClientRequest | None:
        return None if hands_on(generator) else _sent(generator, *args, **kwargs)

    def prepared(ours: Instrumentation, generator: Any, /, *args: Any, **kwargs: Any) -> ModelCall | None:
        """What is handed on came in, where nothing else has prepared a call."""
        if CALL.get() is not None or reducing() is not None or not hands_on(generator):
            return None
        given = _sent(generator, *args, **kwargs)
        return given and ModelCall(ours, given.invoking_agent, messages=given.messages, prompts=given.prompts)

    method = "run_async" if inspect.iscoroutinefunction(original) else "run"
    return innermost_client_hook(method, sent, _text, prepared=prepared)(original, owner, instrumentation)
