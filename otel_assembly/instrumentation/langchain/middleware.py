"""What an agent's middleware, and the nodes of a graph, do to the messages on their way to the model.

Of nodes, those before the model are seen, and any that removes messages. Middleware around the model call is seen one
by one; of an agent that was made before it was instrumented, what they did together shows in what the model is sent.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly.instrumentation.hooks import observe_async_hook, observe_hook
from otel_assembly.instrumentation.instrumented import argument
from otel_assembly.instrumentation.langchain.reducers import done_by, is_observed, is_summarizing_node
from otel_assembly.instrumentation.langchain.runs import PLACES
from otel_assembly.instrumentation.middleware_calls import MiddlewareCall, wrap_middleware
from otel_assembly.instrumentation.model_call import ClientRequest
from otel_assembly.instrumentation.summaries import summed_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.middleware_calls import MiddlewareReduction


def _read(request: Any) -> ClientRequest:
    prompt = request.system_prompt
    return ClientRequest(request.messages, (str(prompt),) if prompt else ())


def chain(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """In the place of what ``create_agent`` makes one of all its middleware with, awaited or not.

    The changes that each one's ``wrap_model_call`` or ``awrap_model_call`` makes of the request are reported.
    """

    @wraps(original)
    def chained(handlers: Any, *args: Any, **kwargs: Any) -> Any:
        if instrumentation.open:
            handlers = [_watched(handler, instrumentation) for handler in handlers]
        return original(handlers, *args, **kwargs)

    return chained


def _watched(handler: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    # A decorator inside of the method has hidden whose it is, unless one stops at the method.
    owner = getattr(inspect.unwrap(handler, stop=lambda one: hasattr(one, "__self__")), "__self__", None)
    if not is_observed(owner):
        return handler

    def begun(request: Any) -> MiddlewareCall:
        place, reduces = PLACES.here(), partial(done_by, instrumentation, owner)
        own = replace(place, outside_node=f"{place.node}/{type(owner).__name__}")
        return MiddlewareCall(instrumentation, reduces, _read, request, {PLACES.place: own}, {PLACES.place: place})

    return wrap_middleware(handler, instrumentation, begun)


#: The hooks whose node comes before a model call: whatever they change in the messages is reported.
_BEFORE: Final = ("before_model", "abefore_model", "before_agent", "abefore_agent")
#: The node of `create_react_agent` that comes before its model.
_PRE_MODEL_HOOK: Final = "pre_model_hook"
#: Modules of LangGraph whose functions are no nodes.
_MACHINERY: Final = ("langgraph.pregel", "langgraph.graph")


def _executed(attribute: str, _: Instrumentation, runnable: Any, /, *args: Any, **kwargs: Any) -> Observation:
    function, place = getattr(runnable, attribute, None), PLACES.here(argument(args, kwargs, 1, "config"))
    owner, run = getattr(function, "__self__", None), PLACES.run.get()
    observed = is_observed(owner)
    machinery = str(getattr(function, "__module__", "")).startswith(_MACHINERY) and not observed
    if function is None or run is None or place.run is None or machinery:
        return  # an ``ainvoke`` without an async function leads to ``invoke``, where it is seen
    state = argument(args, kwargs, 0, "input")
    summarizes = owner is runnable and is_summarizing_node(runnable)
    messages = _messages(state, runnable.input_messages_key if summarizes else "messages")
    place = replace(place, messages=messages, outside_node=None)
    place.asked(place.messages)  # a middleware may show only copies of them to the reducers behind it
    name = getattr(function, "__name__", type(function).__name__)
    invoking_agent = run.model_node if observed or place.node == _PRE_MODEL_HOOK else None
    reducer = done_by(run.instrumentation, owner if observed or summarizes else name, place.messages, invoking_agent)
    before = not observed or any(getattr(owner, name, None) == function for name in _BEFORE)
    with PLACES.node(place, reducer):
        result = yield
    place.left(_told(reducer, result, before=before, removing=not (observed and before)))


#: Around ``RunnableCallable.invoke`` and ``ainvoke``: the nodes of a graph, whenever it was built.
invoke, ainvoke = observe_hook(partial(_executed, "func")), observe_async_hook(partial(_executed, "afunc"))


def _messages(state: Any, key: str = "messages") -> Sequence[Any]:
    messages = state.get(key) if isinstance(state, Mapping) else getattr(state, key, None)
    return [*messages] if isinstance(messages, list) else ()  # LangChain 1.0 lets middleware change the very list


def _told(reducer: MiddlewareReduction, result: Any, *, before: bool, removing: bool) -> list[Sequence[Any]]:
    """A node returned a change of the state: what it did to the messages is told. Which messages it hands on.

    Args:
        reducer: What it does.
        result: What it returned.
        before: Whether a model may be called with the state as it leaves it.
        removing: Whether only what takes messages out is reported.
    """
    update = result if isinstance(result, Mapping) else getattr(result, "update", None)
    if not isinstance(update, Mapping):
        reducer.done(reducer.before)
        return [one for one, counts in ((result, isinstance(result, list)), (reducer.before, before)) if counts]
    lists: list[Sequence[Any]] = [value for value in update.values() if isinstance(value, list)]
    after: Sequence[Any] = reducer.before
    if reducer.before and not update.get("jump_to"):
        changes = _as_messages(update.get("messages") or [])
        state = merged(reducer.before, changes)
        if (sent := _sent_instead(update, reducer.before)) is not None:
            after = sent
        elif not removing or any(message.type == "remove" for message in changes):
            after = state
        lists += [state, after] if before else []
    if reducer.attempt is not None:
        reducer.done(after, verdicts=summed_up(reducer, after))
    else:
        reducer.done(after)
    return lists


def _sent_instead(update: Mapping[Any, Any], before: Sequence[Any]) -> Sequence[Any] | None:
    """What a node wants sent to the model, while it leaves the messages of the state alone; None where it says nothing.

    `create_react_agent` reads `llm_input_messages`. Other graphs have keys of their own, such as LangMem's
    `summarized_messages`: a list is meant if it contains some of the messages, and not all.
    """
    if update.get("llm_input_messages"):
        return _as_messages(update["llm_input_messages"])
    known = set(map(id, before))
    for key, messages in update.items():
        if key == "messages" or not isinstance(messages, list):
            continue
        there = known.intersection(map(id, messages))
        if there and there != known:
            return messages
    return None


def _as_messages(update: Any) -> list[Any]:
    from langchain_core.messages import convert_to_messages  # where a node returned messages, it has been imported

    return convert_to_messages(update if isinstance(update, list) else [update])


def merged(messages: Sequence[Any], changes: Sequence[Any]) -> list[Any]:
    """What the messages are once LangGraph has taken in a change of them; nothing is given an id for it."""
    last = max((place for place, one in enumerate(changes) if one.id == "__remove_all__"), default=-1)
    held = {one.id or id(one): one for one in (() if last >= 0 else messages)}
    held |= {one.id or id(one): one for one in changes[last + 1 :]}  # a removal stands where the removed one stood
    return [one for one in held.values() if one.type != "remove"]


hide_frames(globals())
