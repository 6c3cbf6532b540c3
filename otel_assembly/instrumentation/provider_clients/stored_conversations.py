"""Conversations of OpenAI's API that a program creates: what it puts into them before a model call reads them."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_assembly._internal.registry import Registry
from otel_assembly._internal.tracked_runs import TrackedRun
from otel_assembly.instrumentation.provider_clients.requests import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.instrumentation.instrumented import Instrumentation

#: The most conversations that are remembered.
_CONVERSATIONS: Final = 1_000
_PATH: Final = re.compile(r"/?conversations(?:/([^/?]+)/items)?/?(?:\?.*)?")


class UnreadItems(NamedTuple):
    """The items that no model call has read.

    Attributes:
        is_all: True if the conversation has no other items.
    """

    items: list[Any]
    is_all: bool


class StoredConversations:
    """The conversations that this process created."""

    def __init__(self) -> None:
        self._unread: Registry[str, UnreadItems] = Registry(_CONVERSATIONS, clear_after_fork=True)

    def add_conversation(self, conversation_id: str, items: list[Any]) -> None:
        """Remember a conversation that the program created, and its first items."""
        self._unread.put(conversation_id, UnreadItems(items, is_all=True))

    def add_items(self, conversation_id: str, items: list[Any]) -> None:
        """Remember items that the program added to a conversation, if this process created the conversation."""
        unread = self._unread.get(conversation_id)
        if unread is not None:
            self._unread.put(conversation_id, unread._replace(items=[*unread.items, *items]))

    def take_unread(self, conversation_id: str) -> UnreadItems:
        """Return the items that no model call has read, and forget them: the caller's model call reads them now."""
        unread = self._unread.get(conversation_id)
        if unread is None:
            return UnreadItems([], is_all=False)
        self._unread.put(conversation_id, UnreadItems([], is_all=False))
        return unread


STORED_CONVERSATIONS: Final = StoredConversations()


class StoreRequest(TrackedRun):
    """A request that creates a conversation or adds items to it.

    Args:
        conversation_id: The conversation that gets the items; None if the request creates it.
    """

    def __init__(self, instrumentation: Instrumentation, conversation_id: str | None, items: list[Any]) -> None:
        self._instrumentation = instrumentation
        self._conversation_id = conversation_id
        self._items = items

    @contextmanager
    def current(self) -> Iterator[None]:
        yield

    def on_result(self, answer: Any) -> None:
        with self._instrumentation.suppress_errors():
            if self._conversation_id is not None:
                STORED_CONVERSATIONS.add_items(self._conversation_id, self._items)
            elif isinstance(answer_id := getattr(answer, "id", None), str):
                STORED_CONVERSATIONS.add_conversation(answer_id, self._items)

    def end(self, error: BaseException | None = None) -> None:
        """Do nothing: a failed request stores nothing."""


def store_request(instrumentation: Instrumentation, path: str, body: Any) -> StoreRequest | None:
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    items = body.get("items") if isinstance(body, dict) else None
    return StoreRequest(instrumentation, found[1], [plain(item) for item in items or ()])
