"""Hooks of middleware and graph nodes, which record their changes of the messages before a model call.

* `RunnableCallable.invoke` and `ainvoke` run the nodes of a graph, and middleware methods such as `before_model`, which
  are nodes. A node before the model is recorded if it changes the messages, any other node if it removes messages.
* `create_agent` combines the `wrap_model_call` methods of all middleware in `_chain_model_call_handlers`; each of them
  is wrapped there. For an agent that was built before it was instrumented, only their joint effect is recorded, when
  the model is called.
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
from otel_assembly.instrumentation.langchain.reducers import begin_reduction, is_observed, is_summarizing_node
from otel_assembly.instrumentation.langchain.runs import GRAPH_CONTEXT
from otel_assembly.instrumentation.middleware_calls import MiddlewareCall, wrap_middleware
from otel_assembly.instrumentation.model_call import ClientRequest
from otel_assembly.instrumentation.reductions import compacted_verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.middleware_calls import MiddlewareReduction


def _read_request(request: Any) -> ClientRequest:
    prompt = request.system_prompt
    return ClientRequest(request.messages, (str(prompt),) if prompt else ())


def model_call_handlers(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Wrap a function with which ``create_agent`` combines the (async) ``wrap_model_call`` methods of its middleware.

    The wrapper passes wrapped methods to the original function; each one records its own changes of the request.
    """

    @wraps(original)
    def combine(handlers: Any, *args: Any, **kwargs: Any) -> Any:
        if instrumentation.open:
            handlers = [_wrap_handler(handler, instrumentation) for handler in handlers]
        return original(handlers, *args, **kwargs)

    return combine


def _wrap_handler(handler: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    # `handler` may be a decorated function around the bound method, which alone has the middleware as `__self__`.
    method = inspect.unwrap(handler, stop=lambda function: hasattr(function, "__self__"))
    owner = getattr(method, "__self__", None)
    if not is_observed(owner):  # a plug-in of otel-assembly records its own changes
        return handler

    def begin_call(request: Any) -> MiddlewareCall:
        position = GRAPH_CONTEXT.position()
        # A model that the middleware itself calls is not called by the node; what its handler calls is.
        own = replace(position, outside_node=f"{position.node}/{type(owner).__name__}")
        return MiddlewareCall(
            instrumentation,
            partial(begin_reduction, instrumentation, owner),
            _read_request,
            request,
            middleware_context={GRAPH_CONTEXT.current_position: own},
            next_layer_context={GRAPH_CONTEXT.current_position: position},
        )

    return wrap_middleware(handler, instrumentation, begin_call)


#: Middleware methods whose node runs before a model call: all their changes of the messages are recorded.
_BEFORE_MODEL: Final = ("before_model", "abefore_model", "before_agent", "abefore_agent")
#: The node of `create_react_agent` that runs before its model.
_PRE_MODEL_HOOK: Final = "pre_model_hook"
#: Modules of LangGraph with internal functions that run as `RunnableCallable` but are no nodes.
_INTERNAL_MODULES: Final = ("langgraph.pregel", "langgraph.graph")


def _observe_node(attribute: str, _: Instrumentation, runnable: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Observe one execution of a node: its changes of the messages become a step of the model call that follows.

    `attribute` is the runnable's attribute with the function that the hooked method calls.
    """
    function = getattr(runnable, attribute, None)
    position = GRAPH_CONTEXT.position(argument(args, kwargs, 1, "config"))
    owner, run = getattr(function, "__self__", None), GRAPH_CONTEXT.run.get()
    is_middleware = is_observed(owner)
    is_internal = str(getattr(function, "__module__", "")).startswith(_INTERNAL_MODULES) and not is_middleware
    if function is None or run is None or position.run is None or is_internal:
        return  # without an async function, `ainvoke` calls `invoke`, which is observed
    state = argument(args, kwargs, 0, "input")
    summarizes = owner is runnable and is_summarizing_node(runnable)  # LangMem's node is itself the runnable
    messages = _messages(state, runnable.input_messages_key if summarizes else "messages")
    position = replace(position, messages=messages, outside_node=None)
    # Registers the conversation by these objects: a middleware may pass only copies of them to later reducers.
    position.invoking_agent_for(position.messages)
    name = getattr(function, "__name__", type(function).__name__)
    # These run as nodes of their own, before or after the node that calls the model.
    model_node = run.model_node if is_middleware or position.node == _PRE_MODEL_HOOK else None
    reduction = begin_reduction(
        run.instrumentation, owner if is_middleware or summarizes else name, position.messages, model_node
    )
    # Any node may be followed by a model, except for middleware that runs after it.
    before_model = not is_middleware or any(getattr(owner, method, None) == function for method in _BEFORE_MODEL)
    with GRAPH_CONTEXT.node(position, reduction):
        result = yield
    removals_only, outputs = not (is_middleware and before_model), list[Sequence[Any]]()
    try:
        outputs = _record_result(reduction, result, before_model=before_model, removals_only=removals_only)
    finally:  # also if the update cannot be read
        position.finish(outputs)


#: Hooks of ``RunnableCallable.invoke`` and ``ainvoke``, which run the nodes of graphs, also of those built earlier.
invoke, ainvoke = observe_hook(partial(_observe_node, "func")), observe_async_hook(partial(_observe_node, "afunc"))


def _messages(state: Any, key: str = "messages") -> Sequence[Any]:
    messages = state.get(key) if isinstance(state, Mapping) else getattr(state, key, None)
    return [*messages] if isinstance(messages, list) else ()  # a copy: middleware of LangChain 1.0 may change the list


def _record_result(
    reduction: MiddlewareReduction, result: Any, *, before_model: bool, removals_only: bool
) -> list[Sequence[Any]]:
    """Record how a node changed the messages, and return the lists of messages that later nodes may get from it.

    A model may be called with the state that the node leaves if `before_model` is True. With `removals_only`, additions
    alone are ignored.
    """
    updates, before = _updates_of(result), reduction.before
    outputs: list[Sequence[Any]] = [value for _, value in updates if isinstance(value, list)]
    if isinstance(result, list):  # a function that is no node of a graph with a state returned messages
        outputs.append(result)
    after = before
    if before and not any(
        key == "jump_to" and value for key, value in updates
    ):  # a jump, as to the end, skips the model
        changes = [change for key, value in updates if key == "messages" and value for change in _changes_by(value)]
        state = _apply_changes(before, changes)
        if (model_input := _separate_model_input(updates, before)) is not None:
            after = model_input
        elif not removals_only or any(change.type == "remove" for change in changes):
            after = state
        outputs += [state, after] if before_model else []
    if reduction.attempt is not None and not reduction.report.verdicts:
        reduction.add_verdict(compacted_verdict(reduction, after))
    reduction.done(after)
    return outputs


def _updates_of(result: Any) -> list[tuple[str, Any]]:
    """Return the keys and values with which a node's result updates the state of its graph, or of the parent graph.

    LangGraph accepts a dict, an object of the state's class, a `Command` with one of these or with pairs, and a list of
    commands and dicts.
    """
    from langgraph.types import Command  # where a node ran, it has been imported

    if isinstance(result, list | tuple) and any(isinstance(part, Command) for part in result):
        return [update for part in result for update in _updates_of(part)]
    if isinstance(result, Command):
        result = result.update
        if isinstance(result, list | tuple):
            return [*result]
    if isinstance(result, Mapping):
        return [*result.items()]
    fields = getattr(result, "__dataclass_fields__", None) or getattr(type(result), "model_fields", None) or ()
    return [(name, getattr(result, name, None)) for name in fields]


def _separate_model_input(updates: Sequence[tuple[str, Any]], before: Sequence[Any]) -> Sequence[Any] | None:
    """Return messages that an update contains for the model alone, separate from the state's messages; else None.

    `create_react_agent` reads `llm_input_messages`. Other graphs have their own keys, such as LangMem's
    `summarized_messages`; a list counts if it contains some of the messages, but not all.
    """
    before_ids = set(map(id, before))
    for key, value in updates:
        if key == "llm_input_messages" and value:
            return _changes_by(value)
        if key != "messages" and isinstance(value, list):
            shared = before_ids.intersection(map(id, value))
            if shared and shared != before_ids:
                return value
    return None


#: The id of a `RemoveMessage` that removes all messages, and LangGraph's name for an update that replaces a value.
_REMOVE_ALL: Final = "__remove_all__"
_OVERWRITE: Final = "__overwrite__"


def _changes_by(update: Any) -> list[Any]:
    """Return the messages of an update, as `add_messages` gets them; an `Overwrite` begins with a removal of all."""
    from langchain_core.messages import RemoveMessage, convert_to_messages  # imported before, as in `_updates_of`

    is_overwrite = type(update).__name__ == "Overwrite"
    if is_overwrite:
        update = update.value
    elif isinstance(update, dict) and (_OVERWRITE in update or update.get("type") == _OVERWRITE):
        is_overwrite, update = True, update.get(_OVERWRITE, update.get("value"))
    messages = convert_to_messages(update if isinstance(update, list) else [update])
    return [RemoveMessage(_REMOVE_ALL), *messages] if is_overwrite else messages


def _apply_changes(messages: Sequence[Any], changes: Sequence[Any]) -> list[Any]:
    """Return the messages after an update of them, as LangGraph's `add_messages` does, but without assigning ids."""
    # Also removes the messages of the update before it.
    last = max((index for index, message in enumerate(changes) if message.id == _REMOVE_ALL), default=-1)
    by_id = {message.id or id(message): message for message in (() if last >= 0 else messages)}
    by_id |= {message.id or id(message): message for message in changes[last + 1 :]}  # keeps the position of each id
    return [message for message in by_id.values() if message.type != "remove"]


hide_frames(globals())
