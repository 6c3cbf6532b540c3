"""What an agent's middleware, and the nodes of a graph, do to the messages on their way to the model.

Middleware around the model call is seen one by one, or together where the agent was made before it was instrumented.
Of nodes, those before the model are seen, and any that removes messages.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.hooks import around, around_awaited, instead
from otel_assembly.instrumentation.instrumented import argument, bound, ending
from otel_assembly.instrumentation.langchain.conversation import (
    CONVERSATIONS_WITHOUT_THREAD,
    TASK,
    Place,
    awaiting,
    same,
)
from otel_assembly.instrumentation.langchain.model_calls import model_of, schemas_of
from otel_assembly.instrumentation.langchain.reducers import (
    REDUCER_CALL,
    WRAP_MODEL_CALL,
    ReducerCall,
    is_observed,
    reducer_call_of,
)
from otel_assembly.instrumentation.langchain.runs import GRAPH_RUN
from otel_assembly.instrumentation.runs import followed
from otel_assembly.observe.conversations import contained
from otel_assembly.telemetry.stamp import CalledModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from otel_assembly.instrumentation.hooks import Observation, Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.langchain.conversation import ModelCall
    from otel_assembly.instrumentation.langchain.runs import GraphRun


class ModelNode:
    """A run of the node that calls the model, of an agent that was made before it was instrumented.

    Attributes:
        reducer: What all its middleware together does to the messages.
        request: The last request that one of them made.
        prompts: The system prompts of the one that it was made of; None where none was made.
    """

    def __init__(self, reducer: ReducerCall, messages: Any) -> None:
        self.reducer = reducer
        self.prompts: tuple[str, ...] | None = None
        self.request: Any = None
        #: The state's own list, which LangChain before 1.1 let middleware change in place.
        self._messages = messages

    def sent(self, given: Sequence[Any]) -> None:
        """The model is called with these messages: report what was done to them, if this is the agent's call."""
        request, prompts = self.request, self.prompts
        messages = self._messages if request is None else request.messages
        if not isinstance(messages, list) or not messages or not given:
            return
        if given[-1] is messages[-1] and len(given) - len(messages) in {0, 1}:
            self.request = self.prompts = None
            report_request(self.reducer, messages, prompts, request)


MODEL_NODE: Final[ContextVar[ModelNode | None]] = ContextVar("otel_assembly_langchain_model_node", default=None)


@around
def override(instrumentation: Instrumentation, request: Any, /, **overrides: Any) -> Observation:
    """Around ``ModelRequest.override``: what an agent that was made before does to its messages."""
    made = yield
    node = MODEL_NODE.get()
    if node is not None:
        if node.request is None:
            node.prompts = prompts_of(request)
        node.request = made


def _invoked(instrumentation: Instrumentation, chat_model: Any, /, *args: Any, **kwargs: Any) -> Observation:
    with _model_called(instrumentation, chat_model, args, kwargs).current():
        yield


#: Around ``BaseChatModel.invoke`` and ``ainvoke``: what was prepared for this call ends before it.
model_invoke, model_ainvoke = around(_invoked), around_awaited(_invoked)


@instead
def model_stream(instrumentation: Instrumentation, original: Any, chat_model: Any, /, *args: Any, **kwargs: Any) -> Any:
    """In the place of ``BaseChatModel.stream`` and ``astream``, whose call begins with their first step."""
    return followed(_model_called(instrumentation, chat_model, args, kwargs), original(chat_model, *args, **kwargs))


class _CalledInRun(CalledModel):
    """A model call in a run whose span was opened while the node ran already: the call belongs to the run too."""

    def __init__(self, run: GraphRun) -> None:
        super().__init__()
        self._run = run

    @contextmanager
    def current(self) -> Iterator[None]:
        """The model is called in this block."""
        with self._run.joined(), super().current():
            yield


def _model_called(
    instrumentation: Instrumentation, model: Any, args: Sequence[Any], settings: Mapping[str, Any]
) -> CalledModel:
    running = REDUCER_CALL.get()
    if running is not None and not running.calls:
        return CalledModel(prepared=False)  # a reducer's own, as a summariser's
    node, run = MODEL_NODE.get(), GRAPH_RUN.get()
    if node is not None or (run is not None and run.prepares_model_call()):
        _prepared(instrumentation, node, model, argument(args, settings, 0, "input"), settings)
    return CalledModel() if run is None or run.ended else _CalledInRun(run)


def _prepared(
    instrumentation: Instrumentation, node: ModelNode | None, model: Any, given: Any, settings: Mapping[str, Any]
) -> None:
    """What was prepared for this call ends before it, with what the model is sent."""
    with instrumentation.contained():
        messages = _as_messages(given)
        if node is not None:
            node.sent(messages)
        place = Place.here()
        model_call = awaiting(place, messages)
        if model_call is not None:
            with contained(model_call.fail):
                _sent(model_call, messages, model, settings)
            model_call.end(at=place)


def _as_messages(given: Any) -> list[Any]:
    """What a chat model is given, as messages; what is a message already is the same one."""
    if hasattr(given, "to_messages"):
        return list(given.to_messages())
    from langchain_core.messages import convert_to_messages  # where a model is called, it has been imported

    return convert_to_messages([given] if isinstance(given, str) else given)


def _sent(model_call: ModelCall, messages: list[Any], model: Any, settings: Mapping[str, Any]) -> None:
    """The model is sent the last output, behind the system prompts that are made for the call."""
    known, start = set(map(id, model_call.out)), 0
    while start < len(messages) and messages[start].type == "system" and id(messages[start]) not in known:
        start += 1
    prompts = tuple(str(message.text) for message in messages[:start])
    model_call.knows(prompts, schemas_of(settings.get("tools") or ()), model_of(model, settings))
    model_call.arrives(messages[start:])


def prompts_of(request: Any) -> tuple[str, ...]:
    """The system prompt of a request to the model."""
    prompt = None if request is None else request.system_prompt
    return (str(prompt),) if prompt else ()


def report_request(reducer: ReducerCall, messages: Sequence[Any], came: tuple[str, ...] | None, request: Any) -> None:
    """A request goes on with these messages: report what became of those, and of the prompts, that it came with."""
    before, after = came or (), prompts_of(request)
    sent = reducer.prompts if reducer.model_call is not None and not reducer.model_call.ended else before
    if reducer.step is not None or not same(reducer.before, messages) or after != sent:
        reducer.report(list(messages), prompts=after)
    else:
        reducer.declined()
    if came is not None and reducer.model_call is not None:
        reducer.model_call.knows(before, schemas_of(request.tools), model_of(request.model))


def _chain(watched: Wrap, original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    @functools.wraps(original)
    def _chain_model_call_handlers(handlers: Any, *args: Any, **kwargs: Any) -> Any:
        if instrumentation.open:
            handlers = [watched(handler, instrumentation) for handler in handlers]
        return original(handlers, *args, **kwargs)

    return _chain_model_call_handlers


def _is_bound(handler: Any) -> bool:
    return hasattr(handler, "__self__")


def _reducer_of_request(instrumentation: Instrumentation, handler: Any, request: Any) -> ReducerCall | None:
    reducer = None
    with instrumentation.contained():
        MODEL_NODE.set(None)  # each of its middleware is watched: there is nothing left to report of them together
        # A decorator inside of the method has hidden whose it is, unless one stops at the method.
        owner = getattr(inspect.unwrap(handler, stop=_is_bound), "__self__", None)
        if getattr(owner, "otel_assembly_plugin", False):
            _give_way(request)
        elif is_observed(owner):
            reducer = reducer_call_of(instrumentation, owner, list(request.messages))
            reducer.asker = Place.here().node
            reducer.came = prompts_of(request)  # LangChain 1.0 lets middleware change a request in place
    return reducer


def _give_way(request: Any) -> None:
    """A plug-in of ours makes an assembly of its own, which is what the model is sent."""
    model_call = awaiting(Place.here(), request.messages)
    if model_call is not None:
        model_call.end()


@instead
def _handler(instrumentation: Instrumentation, handler: Any, request: Any, call: Any) -> Any:
    reducer = _reducer_of_request(instrumentation, handler, request)
    if reducer is None:
        return handler(request, call)

    def goes_on(request: Any) -> Any:
        _report_once(reducer, request)
        with reducer.set_aside():
            return call(request)

    with reducer.running(), _ending(reducer):
        return handler(request, goes_on)


@instead
async def _async_handler(instrumentation: Instrumentation, handler: Any, request: Any, call: Any) -> Any:
    reducer = _reducer_of_request(instrumentation, handler, request)
    if reducer is None:
        return await handler(request, call)

    async def goes_on(request: Any) -> Any:
        _report_once(reducer, request)
        with reducer.set_aside():
            return await call(request)

    with reducer.running(), _ending(reducer):
        return await handler(request, goes_on)


#: Around what ``create_agent`` makes one of all its middleware with, for calls that are not awaited, and for those that
#: are: the changes that each one's ``wrap_model_call`` or ``awrap_model_call`` makes of the request are reported.
chain, async_chain = partial(_chain, _handler), partial(_chain, _async_handler)


def _report_once(reducer: ReducerCall, request: Any) -> None:
    """What is sent is reported once for each call of the model, however often a middleware asks for one."""
    reducer.sent = True
    with reducer.instrumentation.contained():
        report_request(reducer, list(request.messages), reducer.came, request)


def _ending(reducer: ReducerCall) -> AbstractContextManager[None]:
    """A block at whose end what is still open of a reducer comes to its end."""

    def end(error: BaseException | None) -> None:
        with reducer.instrumentation.contained():
            if error is None:
                reducer.end()
            else:
                reducer.failed(error)

    return ending(end)


#: The hooks whose node comes before a model call: whatever they change in the messages is reported.
_BEFORE: Final = ("before_model", "abefore_model", "before_agent", "abefore_agent")
_MODEL_NODES: Final = frozenset({"create_agent.<locals>.model_node", "create_agent.<locals>.amodel_node"})
#: The node of `create_react_agent` that comes before its model.
_PRE_MODEL_HOOK: Final = "pre_model_hook"
#: Modules of LangGraph whose functions are no nodes.
_MACHINERY: Final = ("langgraph.pregel", "langgraph.graph")


@around
def invoke(instrumentation: Instrumentation, runnable: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around ``RunnableCallable.invoke``: the nodes of a graph, whenever it was built."""
    return _executed(instrumentation, getattr(runnable, "func", None), args, kwargs)


@around_awaited
def ainvoke(instrumentation: Instrumentation, runnable: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around ``RunnableCallable.ainvoke``; without an async function it leads to ``invoke``, where it is seen."""
    function = getattr(runnable, "afunc", None)
    if function:
        yield from _executed(instrumentation, function, args, kwargs)


def _executed(instrumentation: Instrumentation, function: Any, args: Any, kwargs: Any) -> Observation:
    state, config = argument(args, kwargs, 0, "input"), argument(args, kwargs, 1, "config")
    node = _node(instrumentation, function, state, config)
    if node is not None:
        yield from node.run()


def _node(instrumentation: Instrumentation, function: Any, state: Any, config: Any) -> _Node | None:
    place = Place.here(config)
    run, owner = place.run, getattr(function, "__self__", None)
    if run is not None and isinstance(_messages(state), list):
        CONVERSATIONS_WITHOUT_THREAD.meet(_messages(state), run)
    if owner is not None:
        if is_observed(owner):
            reducer = reducer_call_of(instrumentation, owner, list(_messages(state)))
            reducer.asker = run.model_node if run is not None else None
            before = _comes_before(function, owner)
            return _ChangingNode(place, reducer, removing=not before, hands_on=before)
    elif getattr(function, "__qualname__", None) in _MODEL_NODES:
        messages = _messages(state)
        reducer = ReducerCall(instrumentation, WRAP_MODEL_CALL, list(messages))
        return _CallingNode(place, ModelNode(reducer, messages))
    elif function is not None and isinstance(state, Mapping) and isinstance(state.get("messages"), list):
        name = getattr(function, "__name__", type(function).__name__)
        reducer = ReducerCall(instrumentation, name, state["messages"], calls=True)
        reducer.asker = run.model_node if run is not None and place.node == _PRE_MODEL_HOOK else None
        return _ChangingNode(place, reducer, removing=True, hands_on=True)
    if run is None or str(getattr(function, "__module__", "")).startswith(_MACHINERY):
        return None
    return _Node(place, instrumentation)


def _comes_before(method: Any, owner: Any) -> bool:
    """Whether a middleware's method is a hook before the model; what a decorator made has another name of its own."""
    return any(getattr(owner, name, None) == method for name in _BEFORE)


def _messages(state: Any) -> Sequence[Any]:
    messages = state.get("messages") if isinstance(state, Mapping) else getattr(state, "messages", None)
    return messages or ()


class _Node:
    """One execution of a node: what it prepared and did not hand on ends with it."""

    def __init__(self, place: Place, instrumentation: Instrumentation) -> None:
        self._place = place
        self._instrumentation = instrumentation
        self._result: Any = None

    def run(self) -> Observation:
        """What runs around it."""
        with ending(self._left), bound(TASK, self), ending(self._over), self._running():
            self._result = yield

    def _running(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _over(self, error: BaseException | None) -> None:
        """The node is done."""

    def _left(self, error: BaseException | None) -> None:
        run = self._place.run
        for model_call in [*run.model_calls] if run is not None else ():
            if model_call.task is self:
                with self._instrumentation.contained():
                    if error is None and self._hands_on(model_call):
                        model_call.hand_on()
                    else:
                        model_call.end(error if error is model_call.problem else None)

    def _hands_on(self, model_call: ModelCall) -> bool:
        """Whether a later node may call its model with what was let out."""
        update = _update(self._result)
        values = update.values() if update is not None else (self._result,)
        return any(isinstance(value, list) and same(value, model_call.out) for value in values)


class _ChangingNode(_Node):
    """A node that returns a change of the state."""

    def __init__(self, place: Place, reducer: ReducerCall, *, removing: bool, hands_on: bool) -> None:
        super().__init__(place, reducer.instrumentation)
        self._reducer = reducer
        #: Whether only what takes messages out is reported.
        self._removing = removing
        #: Whether a model may be called with the state as it leaves it.
        self._before_a_call = hands_on
        #: Whether it changed that, or something in it did that is the change.
        self._changed = False

    def _running(self) -> AbstractContextManager[None]:
        return self._reducer.running()

    def _over(self, error: BaseException | None) -> None:
        with self._instrumentation.contained():
            if error is not None:
                self._reducer.failed(error)
            else:
                self._report(self._result)

    def _hands_on(self, model_call: ModelCall) -> bool:
        if self._changed and model_call is self._reducer.model_call:
            return self._before_a_call
        return super()._hands_on(model_call) or (self._before_a_call and self._leaves(model_call.out))

    def _leaves(self, messages: Sequence[Any]) -> bool:
        """Whether these are the state's messages as the node leaves it."""
        changes = _update_messages((_update(self._result) or {}).get("messages") or [])
        return same(messages, merged(self._reducer.messages, changes))

    def _report(self, result: Any) -> None:
        reducer = self._reducer
        update = _update(result)
        after = self._after(update) if update is not None and not update.get("jump_to") else None
        if after is None:
            reducer.end()
            reducer.declined()
            return
        self._changed = True
        if reducer.step is not None or not same(reducer.before, after):
            reducer.report(after)

    def _after(self, update: Mapping[str, Any]) -> list[Any] | None:
        """What the messages are after this update; None where it says nothing of them that is to be reported."""
        if update.get("llm_input_messages"):  # a `pre_model_hook` says so what is sent, and leaves the state alone
            return _update_messages(update["llm_input_messages"])
        changes = _update_messages(update.get("messages") or [])
        if not changes or (self._removing and not any(message.type == "remove" for message in changes)):
            return None
        return merged(self._reducer.messages, changes)


class _CallingNode(_Node):
    """The node that calls the model."""

    def __init__(self, place: Place, node: ModelNode) -> None:
        super().__init__(place, node.reducer.instrumentation)
        self._node = node

    def _running(self) -> AbstractContextManager[None]:
        return bound(MODEL_NODE, self._node)


def _update(result: Any) -> Mapping[str, Any] | None:
    update = result if isinstance(result, Mapping) else getattr(result, "update", None)
    return update if isinstance(update, Mapping) else None


def _update_messages(update: Any) -> list[Any]:
    from langchain_core.messages import convert_to_messages  # where a node returned messages, it has been imported

    return convert_to_messages(update if isinstance(update, list) else [update])


def merged(messages: Sequence[Any], changes: Sequence[Any]) -> list[Any]:
    """What the messages are once LangGraph has taken in a change of them; nothing is given an id for it."""
    last = max((place for place, one in enumerate(changes) if _removes_all(one)), default=None)
    if last is not None:
        return list(changes[last + 1 :])
    result: list[Any] = list(messages)
    places = {message.id: place for place, message in enumerate(result) if message.id is not None}
    gone: set[Any] = set()
    for message in changes:
        place = places.get(message.id) if message.id is not None else None
        if message.type == "remove":
            gone.add(message.id)
        elif place is not None:
            gone.discard(message.id)
            result[place] = message
        else:
            if message.id is not None:
                places[message.id] = len(result)
            result.append(message)
    return [message for message in result if message.id is None or message.id not in gone]


def _removes_all(message: Any) -> bool:
    return bool(message.type == "remove" and message.id == "__remove_all__")
