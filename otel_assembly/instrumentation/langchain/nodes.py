"""What nodes of a graph do to its messages: middleware before the model, and any node that removes some."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.langchain.model_requests import MODEL_NODE, ModelNode
from otel_assembly.instrumentation.langchain.reducers import edit_of, is_watched
from otel_assembly.instrumentation.langchain.telling import WRAP_MODEL_CALL, Edit, changed, same

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_assembly.instrumentation.instrumentor import Instrumentation

#: The hooks whose node comes before a model call: whatever they change in the messages is told.
_BEFORE: Final = ("before_model", "abefore_model", "before_agent", "abefore_agent")
_MODEL_NODES: Final = frozenset({"create_agent.<locals>.model_node", "create_agent.<locals>.amodel_node"})


def invoke(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around ``RunnableCallable.invoke``: the nodes of a graph, whenever it was built."""

    @functools.wraps(original)
    def invoke(self: Any, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002  # its name there
        if not instrumentation.listening():
            return original(self, input, config, **kwargs)
        node = _node(instrumentation, getattr(self, "func", None), input)
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
        node = _node(instrumentation, function, input) if function else None
        if node is None:
            return await original(self, input, config, **kwargs)
        with node:
            return node.returned(await original(self, input, config, **kwargs))

    return ainvoke


def _node(instrumentation: Instrumentation, function: Any, state: Any) -> _ChangingNode | _CallingNode | None:
    node: _ChangingNode | _CallingNode | None = None
    with instrumentation.contained():
        owner = getattr(function, "__self__", None)
        if owner is not None:
            if is_watched(owner):
                edit = edit_of(instrumentation, owner, list(_messages(state)))
                node = _ChangingNode(edit, removing=not _comes_before(function, owner))
        elif getattr(function, "__qualname__", None) in _MODEL_NODES:
            messages = _messages(state)
            node = _CallingNode(ModelNode(Edit(instrumentation, WRAP_MODEL_CALL, list(messages)), messages))
        elif function is not None and isinstance(state, Mapping) and isinstance(state.get("messages"), list):
            name = getattr(function, "__name__", type(function).__name__)
            node = _ChangingNode(Edit(instrumentation, name, state["messages"]), removing=True)
    return node


def _comes_before(method: Any, owner: Any) -> bool:
    """Whether a middleware's method is a hook before the model; what a decorator made has another name of its own."""
    return any(getattr(type(owner), name, None) is method.__func__ for name in _BEFORE)


def _messages(state: Any) -> Sequence[Any]:
    messages = state.get("messages") if isinstance(state, Mapping) else getattr(state, "messages", None)
    return messages or ()


class _ChangingNode:
    """A node that returns a change of the state."""

    __slots__ = ("_edit", "_instrumentation", "_removing", "_running")

    def __init__(self, edit: Edit, *, removing: bool) -> None:
        self._edit = edit
        self._instrumentation = edit.instrumentation
        #: Whether only what takes messages out is told.
        self._removing = removing

    def __enter__(self) -> None:
        self._running = self._edit.running()
        self._running.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._running.__exit__(None, None, None)
        if error is not None:
            with self._instrumentation.contained():
                self._edit.failed(error)

    def returned(self, result: Any) -> Any:
        with self._instrumentation.contained():
            self._tell(result)
        return result

    def _tell(self, result: Any) -> None:
        edit = self._edit
        update = getattr(result, "update", None) if not isinstance(result, Mapping) else result
        after = self._after(update) if isinstance(update, Mapping) and not update.get("jump_to") else None
        if after is None:
            edit.end()
            edit.declined()
            return
        told = any(same(after, trimmed) for trimmed in edit.trimmed)
        if edit.assembly is not None or (not told and changed(edit.messages, after)):
            edit.tell(after)

    def _after(self, update: Mapping[str, Any]) -> list[Any] | None:
        """What the messages are after this update; None where it says nothing of them that is to be told."""
        if update.get("llm_input_messages"):  # a `pre_model_hook` says so what is sent, and leaves the state alone
            return _as_messages(update["llm_input_messages"])
        changes = _as_messages(update.get("messages") or [])
        if not changes or (self._removing and not any(message.type == "remove" for message in changes)):
            return None
        return merged(self._edit.messages, changes)


class _CallingNode:
    """The node that calls the model."""

    __slots__ = ("_before", "_node")

    def __init__(self, node: ModelNode) -> None:
        self._node = node

    def __enter__(self) -> None:
        self._before = MODEL_NODE.get()
        MODEL_NODE.set(self._node)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        MODEL_NODE.set(self._before)

    def returned(self, result: Any) -> Any:
        return result


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
