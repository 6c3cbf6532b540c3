"""Finds the conversation of a request that has no name: it begins with all messages of an earlier request."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_assembly._internal.fork_safety import new_lock
from otel_assembly.context import Context

if TYPE_CHECKING:
    from otel_assembly.instrumentation.provider_clients.requests import ProviderRequest

#: The most conversations that one client remembers, and the most characters of all their messages.
_CONVERSATIONS: Final = 1_000
_CHARACTERS: Final = 20_000_000


class UnnamedConversation(NamedTuple):
    """The context of a conversation without a name, the key of its latest request, and that request's characters."""

    context: Context
    key: int
    size: int


class UnnamedConversations:
    """The conversations without a name of one client. A program that is bounded sends its whole history each time.

    A conversation is removed while one of its requests is assembled. So two conversations that began with equal
    messages are separate as soon as they differ, and no two requests change one context at the same time.
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        self._by_key: OrderedDict[int, UnnamedConversation] = OrderedDict()
        self._size = 0

    def take(self, request: ProviderRequest, agent: str | None) -> UnnamedConversation:
        """Remove and return the conversation that a request continues, or return a new one, with the request's key."""
        key = hash((agent, *request.prompts))
        keys, size = [], 0
        for message in request.messages:
            text = repr(message)
            key, size = hash((key, text)), size + len(text)
            keys.append(key)
        with self._lock:
            earlier = next((self._by_key.pop(known) for known in reversed(keys) if known in self._by_key), None)
            if earlier is not None:
                self._size -= earlier.size
        return UnnamedConversation(Context() if earlier is None else earlier.context, key, size)

    def put(self, conversation: UnnamedConversation) -> None:
        """Remember a conversation until a request continues it, or others need the room."""
        with self._lock:
            replaced = self._by_key.pop(conversation.key, None)
            self._by_key[conversation.key] = conversation
            self._size += conversation.size - (0 if replaced is None else replaced.size)
            while len(self._by_key) > _CONVERSATIONS or (self._size > _CHARACTERS and len(self._by_key) > 1):
                self._size -= self._by_key.popitem(last=False)[1].size
