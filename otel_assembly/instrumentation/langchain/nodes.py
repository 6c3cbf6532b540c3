"""What nodes of a graph do to its messages: middleware before the model, and any node that removes some."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.langchain.comparing import changed, same
from otel_assembly.instrumentation.langchain.conversations import CONVERSATIONS_WITHOUT_THREAD
from otel_assembly.instrumentation.langchain.graph_runs import Place
from otel_assembly.instrumentation.langchain.model_requests import MODEL_NODE, ModelNode
from otel_assembly.instrumentation.langchain.observation import WRAP_MODEL_CALL, ReducerCall
from otel_assembly.instrumentation.langchain.preparing import TASK
from otel_assembly.instrumentation.langchain.reducers import edit_of, is_watched
from otel_assembly.instrumentation.wrapping import bound

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_assembly.instrumentation.instrumentor import Instrumentation
    from otel_assembly.instrumentation.langchain.preparing import Preparation

#: The hooks whose node comes before a model call: whatever they change in the messages is told.
_BEFORE: Final = ("before_model", "abefore_model", "before_agent", "abefore_agent")
_MODEL_NODES: Final = frozenset({"create_agent.<locals>.model_node", "create_agent.<locals>.amodel_node"})
#: The node of `create_react_agent` that comes before its model.
_PRE_MODEL_HOOK: Final = "pre_model_hook"
#: Modules of LangGraph whose functions are no nodes.
_MACHINERY: Final = ("langgraph.pregel", "langgraph.graph")


def invoke(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around ``RunnableCallable.invoke``: the nodes of a graph, whenever it was built."""

    @functools.wraps(original)
    def invoke(self: Any, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002  # its name there
        if not instrumentation.listening():
            return original(self, input, config, **kwargs)
        node = _node(instrumentation, getattr(self, "func", None), input, config)
        if node is None:
            return original(self, input, config, **kwargs)
        with node:
            return node.returned(original(self, input, config, **kwargs))

    return invoke


def ainvoke(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around ``RunnableCallable.ainvoke``; without an async function it leads to ``invoke``, where it is seen."""

    @functools.wraps(original)
    async def ainvoke(self: Any, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002
        if not instrumentation.listening():
            return await original(self, input, config, **kwargs)
        function = getattr(self, "afunc", None)
        node = _node(instrumentation, function, input, config) if function else None
        if node is None:
            return await original(self, input, config, **kwargs)
        with node:
            return node.returned(await original(self, input, config, **kwargs))

    return ainvoke


def _node(instrumentation: Instrumentation, function: Any, state: Any, config: Any) -> _Node | None:
    node: _Node | None = None
    with instrumentation.contained():
        place = Place.here(config)
        run, owner = place.run, getattr(function, "__self__", None)
        if run is not None and isinstance(_messages(state), list):
            CONVERSATIONS_WITHOUT_THREAD.meet(_messages(state), run)
        if owner is not None:
            if is_watched(owner):
                edit = edit_of(instrumentation, owner, list(_messages(state)))
                edit.asker = run.model_node if run is not None else None
                before = _comes_before(function, owner)
                node = _ChangingNode(place, edit, removing=not before, hands_on=before)
        elif getattr(function, "__qualname__", None) in _MODEL_NODES:
            messages = _messages(state)
            edit = ReducerCall(instrumentation, WRAP_MODEL_CALL, list(messages))
            node = _CallingNode(place, ModelNode(edit, messages))
        elif function is not None and isinstance(state, Mapping) and isinstance(state.get("messages"), list):
            name = getattr(function, "__name__", type(function).__name__)
            edit = ReducerCall(instrumentation, name, state["messages"], calls=True)
            edit.asker = run.model_node if run is not None and place.node == _PRE_MODEL_HOOK else None
            node = _ChangingNode(place, edit, removing=True, hands_on=True)
        if node is None and run is not None and not str(getattr(function, "__module__", "")).startswith(_MACHINERY):
            node = _Node(place, instrumentation)
    return node


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

    def __enter__(self) -> None:
        self._task = bound(TASK, self)
        self._task.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        with self._instrumentation.contained():
            self._over(error)
        self._task.__exit__(None, None, None)
        run = self._place.run
        for preparation in [*run.preparations] if run is not None else ():
            if preparation.task is self:
                with self._instrumentation.contained():
                    if error is None and self._hands_on(preparation):
                        preparation.hand_on()
                    else:
                        preparation.end(error if error is preparation.problem else None)

    def returned(self, result: Any) -> Any:
        """What the node returned; it is returned."""
        self._result = result
        return result

    def _over(self, error: BaseException | None) -> None:
        """The node is done."""

    def _hands_on(self, preparation: Preparation) -> bool:
        """Whether a later node may call its model with what was let out."""
        update = _update(self._result)
        values = update.values() if update is not None else (self._result,)
        return any(isinstance(value, list) and same(value, preparation.out) for value in values)


class _ChangingNode(_Node):
    """A node that returns a change of the state."""

    def __init__(self, place: Place, edit: ReducerCall, *, removing: bool, hands_on: bool) -> None:
        super().__init__(place, edit.instrumentation)
        self._edit = edit
        #: Whether only what takes messages out is told.
        self._removing = removing
        #: Whether a model may be called with the state as it leaves it.
        self._before_a_call = hands_on
        #: Whether it changed that, or something in it did that is the change.
        self._changed = False

    def __enter__(self) -> None:
        super().__enter__()
        self._running = self._edit.running()
        self._running.__enter__()

    def _over(self, error: BaseException | None) -> None:
        self._running.__exit__(None, None, None)
        if error is not None:
            self._edit.failed(error)
        else:
            self._tell(self._result)

    def _hands_on(self, preparation: Preparation) -> bool:
        if self._changed and preparation is self._edit.preparation:
            return self._before_a_call
        return super()._hands_on(preparation) or (self._before_a_call and self._leaves(preparation.out))

    def _leaves(self, messages: Sequence[Any]) -> bool:
        """Whether these are the state's messages as the node leaves it."""
        changes = _as_messages((_update(self._result) or {}).get("messages") or [])
        return same(messages, merged(self._edit.messages, changes))

    def _tell(self, result: Any) -> None:
        edit = self._edit
        update = _update(result)
        after = self._after(update) if update is not None and not update.get("jump_to") else None
        if after is None:
            edit.end()
            edit.declined()
            return
        self._changed = True
        if edit.step is not None or changed(edit.before, after):
            edit.tell(after)

    def _after(self, update: Mapping[str, Any]) -> list[Any] | None:
        """What the messages are after this update; None where it says nothing of them that is to be told."""
        if update.get("llm_input_messages"):  # a `pre_model_hook` says so what is sent, and leaves the state alone
            return _as_messages(update["llm_input_messages"])
        changes = _as_messages(update.get("messages") or [])
        if not changes or (self._removing and not any(message.type == "remove" for message in changes)):
            return None
        return merged(self._edit.messages, changes)


class _CallingNode(_Node):
    """The node that calls the model."""

    def __init__(self, place: Place, node: ModelNode) -> None:
        super().__init__(place, node.edit.instrumentation)
        self._node = node

    def __enter__(self) -> None:
        super().__enter__()
        self._before = MODEL_NODE.get()
        MODEL_NODE.set(self._node)

    def _over(self, error: BaseException | None) -> None:
        MODEL_NODE.set(self._before)


def _update(result: Any) -> Mapping[str, Any] | None:
    update = result if isinstance(result, Mapping) else getattr(result, "update", None)
    return update if isinstance(update, Mapping) else None


def _as_messages(update: Any) -> list[Any]:
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
