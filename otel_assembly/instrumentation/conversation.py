"""What is known of objects as long as they live, such as whose ledger an assembly is in.

A ledger is one conversation as one asker, such as an agent or a node, has it.
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
    """What is known of objects, whatever they are equal to, for as long as they live.

    Of an object that cannot be weakly referred to nothing is remembered.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[int, tuple[weakref.ref[Any], T]] = {}

    def get(self, of: Any) -> T | None:
        """What is known of an object; None where that is nothing."""
        held = self._held.get(id(of))
        return held[1] if held is not None and held[0]() is of else None

    def put(self, of: Any, known: T) -> T:
        """Remember this of an object; it is returned."""
        key, all_held = id(of), self._held
        with suppress(TypeError):
            forget = _forget  # as the interpreter ends, a module's names go first
            all_held[key] = weakref.ref(of, lambda gone: forget(all_held, key, gone)), known
        return known

    def get_or_create(self, of: Any, make: Callable[[Any], T]) -> T:
        """What is known of an object; worked out once."""
        known = self.get(of)
        return self.put(of, make(of)) if known is None else known

    def pop(self, of: Any) -> T | None:
        """What is known of an object, which is forgotten."""
        known = self.get(of)
        self._held.pop(id(of), None)
        return known


def _forget(held: dict[int, tuple[weakref.ref[Any], Any]], key: int, gone: weakref.ref[Any]) -> None:
    known = held.get(key)
    if known is not None and known[0] is gone:
        del held[key]


class LedgerKey:
    """Stands for the ledger of one conversation as one asker has it; the ledger goes when this goes."""

    __slots__ = ("__weakref__",)


class LedgerKeys:
    """The keys of each conversation that is an object, by who asks; they live as long as that object."""

    __slots__ = ("_lock", "_of")

    def __init__(self) -> None:
        self._lock = new_lock()
        self._of: IdentityWeakMap[dict[str, LedgerKey]] = IdentityWeakMap()

    def of(self, conversation: object, invoking_agent: str) -> LedgerKey | None:
        """The same key for the same asker; None where nobody can tell when the conversation is gone."""
        with self._lock:
            keys = self._of.get(conversation)
            if keys is None:
                keys = self._of.put(conversation, {})
                if self._of.get(conversation) is None:  # an object with slots may not be weakly held
                    return None
            return keys.setdefault(invoking_agent, LedgerKey())


LEDGER_KEYS: Final = LedgerKeys()


class ConversationsByFirstMessage:
    """Conversations that are lists which a program keeps: known by the message objects that they have opened with.

    Args:
        role: Whose a message is; one of the role ``system``, or of none, opens nothing.
    """

    __slots__ = ("_of", "_role")

    def __init__(self, role: Callable[[Any], str]) -> None:
        self._of: IdentityWeakMap[object] = IdentityWeakMap()
        self._role = role

    def of(self, messages: Iterable[Any], otherwise: object = None) -> object:
        """What stands for the conversation that opens with these messages, or has gone on with them.

        Args:
            messages: The messages.
            otherwise: The conversation that it is else.
        """
        for message in messages:
            with suppress(AttributeError):
                if self._role(message) != "system":
                    return self._of.get(message) or self._of.put(message, otherwise or LedgerKey())
        return otherwise


class InvokingAgent(NamedTuple):
    """Who asks a model, in which conversation.

    Attributes:
        conversation: An object that lives as long as the conversation, or an id of it; None: a conversation of this one
            call.
        name: What tells who asks from any other asker of the conversation; it may hold more than a name.
        agent_name: The agent's name, as on spans.
        conversation_id: The conversation's real id, where it has one.
    """

    conversation: Any = None
    name: str = ""
    agent_name: str | None = None
    conversation_id: str | None = None

    @classmethod
    def of(cls, conversation_id: str | None, agent_name: str | None = None, agent_id: str = "") -> InvokingAgent:
        """An agent in a conversation that has an id, and no other agent of that name, or of that id without a name."""
        return cls(conversation_id, agent_name or agent_id, agent_name, conversation_id)

    def ledger(self, stage: int = 0) -> Any:
        """The key of the ledger: an id, or an object that goes with the conversation; None for one call alone.

        Args:
            stage: How many plug-ins of ours have made an assembly of this call's messages: what comes behind them has
                their output for a conversation.
        """
        own = f"{self.name}\0{stage}" if stage else self.name
        if self.conversation is None:
            return None
        if isinstance(self.conversation, str):
            return f"{self.conversation}\0{own}"
        return LEDGER_KEYS.of(self.conversation, own)
