"""Components that call a model: whatever takes messages, or a prompt, and answers with replies.

They have no base but the metaclass of all components, and their classes are made while Haystack is imported: nothing of
it may be imported for this.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.faces import Later
from otel_assembly.instrumentation.clients import innermost, model_in
from otel_assembly.instrumentation.conversation import Asker, Openings
from otel_assembly.instrumentation.known_reducers import known_of
from otel_assembly.instrumentation.model_call import CALL, ModelCall, Sent
from otel_assembly.instrumentation.offered_tools import ToolSchemas
from otel_assembly.instrumentation.prompts import as_prompts
from otel_assembly.instrumentation.reducers import is_in
from otel_assembly.instrumentation.reductions import reducing
from otel_assembly.instrumentation.runs import within

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from otel_assembly.instrumentation.haystack import messages as rows
    from otel_assembly.instrumentation.instrumented import Instrumentation

    _Followed = Callable[[Callable[..., Any], type, Instrumentation], Callable[..., Any]]
else:
    rows = Later(f"{__package__}.messages")

PACKAGES: Final = ("haystack", "haystack_integrations")
#: Conversations that programs keep as lists of messages.
OPENINGS: Final = Openings(lambda message: message.role.value)
_INPUTS: Final = frozenset({"messages", "prompt"})
_SCHEMAS: Final = ToolSchemas(lambda tool: rows.schema_of(tool))


def is_agent(met: type) -> bool:
    """Whether a class is that of Haystack's agents, or derives from it."""
    return known_of(met, {"Agent": True}, ("haystack.components.agents",)) is not None


def outputs_of(component: Any) -> Collection[str]:
    """The names of what a component gives out."""
    found: Collection[str] = getattr(getattr(component, "__haystack_output__", None), "_sockets_dict", ())
    return found


def held_by(component: Any) -> Iterator[Any]:
    """What a component holds, and what stands in lists and mappings that it holds; its pipeline holds it."""
    for name, value in getattr(component, "__dict__", {}).items():
        if not name.startswith("__haystack"):
            yield value
            if isinstance(value, list | tuple | dict):
                yield from value.values() if isinstance(value, dict) else value


def component_name(component: Any) -> str | None:
    """The name that a component has in the pipeline that it was added to."""
    pipeline = getattr(component, "__haystack_added_to_pipeline__", None)
    return pipeline.get_component_name(component) or None if pipeline is not None else None


def calls_no_model(met: type) -> bool:
    """Whether a class is known to call none itself: by what `run` takes, and what it gives as far as the class says."""
    run: Any = getattr(met, "run", None)
    given = getattr(run, "_output_types_cache", None)
    if (
        run is None
        or (given is not None and "replies" not in given)
        or "Agent" in {one.__name__ for one in met.__mro__}
    ):
        return True
    try:
        return _INPUTS.isdisjoint(inspect.signature(run).parameters)
    except (TypeError, ValueError):
        return True


def schemas_of(tools: Any) -> Sequence[Mapping[str, Any]]:
    """The schemas of tools, and of those of toolsets among them."""
    offered = tools if isinstance(tools, list | tuple) or hasattr(tools, "tools") else ()
    return _SCHEMAS.of([tool for one in offered for tool in (one if hasattr(one, "tools") else (one,))])


def _replies(generator: Any) -> bool:
    """Whether a component gives replies; one that does not say what it gives is what it derives from, or an agent's."""
    said = outputs_of(generator)
    runs = (getattr(vars(one).get("run"), "_output_types_cache", ()) for one in type(generator).__mro__)
    return "replies" in said if said else CALL.get() is not None or any("replies" in given for given in runs)


def _sent(generator: Any, /, *args: Any, **kwargs: Any) -> Sent | None:
    """What a generator is given; None of a component that gives no replies, and where nothing is sent."""
    given = rows.given_to(args[0] if args else kwargs.get("messages", kwargs.get("prompt")))
    if not given or not _replies(generator):
        return None
    prompts, held = rows.behind_prompts(given)
    said, name = kwargs.get("system_prompt"), component_name(generator)
    asker = Asker(OPENINGS.of(held), name or type(generator).__name__, name) if CALL.get() is None else Asker()
    return Sent(
        held,
        [*as_prompts(said), *prompts],
        schemas_of(kwargs.get("tools") or getattr(generator, "tools", None)),
        model_of(generator, kwargs.get("generation_kwargs")),
        asker=asker,
    )


def model_of(generator: Any, options: Any = None) -> str | None:
    """The name of a generator's model, where that says it."""
    places = ("api_params", "huggingface_pipeline_kwargs")
    held = [getattr(generator, place, None) for place in places]
    return model_in(options, generator, *held, {"model": getattr(generator, "_model", None)})


def _hands_on(generator: Any) -> bool:
    """Whether a generator holds others, as a fallback does: these are told of."""
    return any("replies" in outputs_of(one) for one in held_by(generator))


def _handed_on(generator: Any, /, *args: Any, **kwargs: Any) -> Sent | None:
    return None if _hands_on(generator) else _sent(generator, *args, **kwargs)


@within
def _handing(instrumentation: Instrumentation, generator: Any, /, *args: Any, **kwargs: Any) -> ModelCall | None:
    """What a generator that hands on is given is what came in, where nothing else has prepared a call."""
    prepares = CALL.get() is None and reducing() is None and _hands_on(generator)
    sent = _sent(generator, *args, **kwargs) if prepares else None
    return sent and ModelCall(instrumentation, sent.asker, messages=sent.messages, prompts=sent.prompts)


def _text(answer: Any) -> str:
    replies = answer.get("replies") or [""]
    return str(getattr(replies[-1], "text", replies[-1]) or "")


def _calls(method: str) -> _Followed:
    """What stands in the place of a generator's method; that of a provider's class calls a model whatever it holds."""

    def wrap(original: Callable[..., Any], owner: type, instrumentation: Instrumentation) -> Callable[..., Any]:
        if is_in(owner, PACKAGES) and owner.__name__ != "FallbackChatGenerator":
            return innermost(method, _sent, _text)(original, owner, instrumentation)
        return _handing(innermost(method, _handed_on, _text)(original, owner, instrumentation), instrumentation)

    return wrap


#: By its name, what stands in the place of each of a generator's methods.
METHODS: Final[Mapping[str, _Followed]] = {name: _calls(name) for name in ("run", "run_async")}


def run(*method: Any) -> Callable[..., Any]:
    """A generator's call."""
    return METHODS["run"](*method)


def run_async(*method: Any) -> Callable[..., Any]:
    """A generator's awaited call."""
    return METHODS["run_async"](*method)


def meet(instrumentation: Instrumentation, generator: Any) -> None:
    """Follow a generator that is no component."""
    for name, wrap in METHODS.items() if not outputs_of(generator) else ():
        if hasattr(type(generator), name):
            instrumentation.take(type(generator), name, partial(_followed, wrap, type(generator)))


def _followed(wrap: _Followed, met: type, original: Callable[..., Any], ours: Instrumentation) -> Callable[..., Any]:
    return wrap(original, met, ours)
