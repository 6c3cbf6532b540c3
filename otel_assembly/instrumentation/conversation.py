"""Conversations, invoking agents, and the ledger that an assembly belongs to.

A ledger numbers the items and turns of one conversation for one invoking agent (an agent or a graph node). Frameworks
without conversation ids keep a conversation in an object; the data about such an object is dropped together with it.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from otel_assembly._internal.fork_safety import new_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")


class IdentityWeakMap(Generic[T]):
    """A mapping from objects, compared by identity, to values; an entry is removed when its object is collected.

    Objects that do not support weak references are not stored.
    """

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], T]] = {}

    def get(self, key: Any) -> T | None:
        """Return the value of an object; None if it has none."""
        entry = self._entries.get(id(key))
        return entry[1] if entry is not None and entry[0]() is key else None

    def put(self, key: Any, value: T) -> T:
        key_id, entries = id(key), self._entries
        with suppress(TypeError):
            remove = _remove_entry  # the module's names may be gone when the interpreter exits
            entries[key_id] = weakref.ref(key, lambda dead: remove(entries, key_id, dead)), value
        return value

    def get_or_create(self, key: Any, make: Callable[[Any], T]) -> T:
        """Return the value of an object; if it has none, make the value from the object first."""
        value = self.get(key)
        return self.put(key, make(key)) if value is None else value

    def pop(self, key: Any) -> T | None:
        """Remove an object and return its value; None if it has none."""
        value = self.get(key)
        self._entries.pop(id(key), None)
        return value


def _remove_entry(entries: dict[int, tuple[weakref.ref[Any], Any]], key_id: int, dead: weakref.ref[Any]) -> None:
    entry = entries.get(key_id)
    if entry is not None and entry[0] is dead:  # a new object may have the same id
        del entries[key_id]


class LedgerKey:
    """The key of a ledger whose conversation has no id; the ledger is dropped when this object is collected."""

    __slots__ = ("__weakref__",)


#: By conversation, its ledger keys by invoking agent; kept as long as the conversation.
_LEDGER_KEYS: Final[IdentityWeakMap[dict[str, LedgerKey]]] = IdentityWeakMap()
_LEDGER_KEYS_LOCK: Final = new_lock()


def ledger_key(conversation: object, invoking_agent: str) -> LedgerKey | None:
    """Return the ledger key of an invoking agent in a conversation that is an object; each call returns the same key.

    The result is None if the conversation does not support weak references, because its end is then unknown.
    """
    with _LEDGER_KEYS_LOCK:
        keys = _LEDGER_KEYS.get(conversation)
        if keys is None:
            keys = _LEDGER_KEYS.put(conversation, {})
            if _LEDGER_KEYS.get(conversation) is None:  # `put` stores no object without weak references
                return None
        return keys.setdefault(invoking_agent, LedgerKey())


class ConversationsByFirstMessage:
    """Identifies conversations that a program keeps as plain lists by their first message object.

    Args:
        role: Returns the role of a message. A message with the role ``system``, or without a role (`AttributeError`),
            is not a first message.
    """

    __slots__ = ("_conversations", "_role")

    def __init__(self, role: Callable[[Any], str]) -> None:
        self._conversations: IdentityWeakMap[object] = IdentityWeakMap()
        self._role = role

    def of(self, messages: Iterable[Any], default: object = None) -> object:
        """Return the object that identifies the conversation that begins with these messages.

        If the first message is new, that is `default` or, if that is None, a new `LedgerKey`. If there is no first
        message, the result is `default`.
        """
        for message in messages:
            with suppress(AttributeError):
                if self._role(message) != "system":
                    return self._conversations.get(message) or self._conversations.put(message, default or LedgerKey())
        return default


class InvokingAgent(NamedTuple):
    """The agent or graph node that makes a model call, and the conversation in which it does.

    Attributes:
        conversation: The conversation's id, or an object that exists as long as the conversation; None if the call is
            not part of a conversation.
        name: A key that is unique among the invoking agents of the conversation. It may contain more than a name.
        agent_name: The agent's name, as recorded on spans.
        conversation_id: The conversation's id as recorded on spans; None if the framework has none.
    """

    conversation: Any = None
    name: str = ""
    agent_name: str | None = None
    conversation_id: str | None = None

    @classmethod
    def of(cls, conversation_id: str | None, agent_name: str | None = None, agent_id: str = "") -> InvokingAgent:
        """Return the invoking agent in a conversation that has an id.

        Agents are distinguished by their names or, if an agent has none, by `agent_id`.
        """
        return cls(conversation_id, agent_name or agent_id, agent_name, conversation_id)

    def ledger(self, stage: int = 0) -> Any:
        """Return the key of the ledger; None if the call is not part of a conversation.

        The key is a string if the conversation has an id, else an object that is kept as long as the conversation. The
        `stage` is the number of plug-ins of this library that have already assembled the call's messages. The steps
        after each of them have a separate ledger, whose conversation is the plug-in's output.
        """
        agent_key = f"{self.name}\0{stage}" if stage else self.name
        if self.conversation is None:
            return None
        if isinstance(self.conversation, str):
            return f"{self.conversation}\0{agent_key}"
        return ledger_key(self.conversation, agent_key)
