"""`GraphKnowledgeStore`: the store that a LangGraph agent is compiled with, as the store that our policies read."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.errors import KnowledgeStoreError
from otel_assembly.knowledge import StoreOfItems

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from langgraph.store.base import BaseStore

#: The namespace in which a plug-in reads, where it is told of no other.
NAMESPACE: Final = ("knowledge",)
#: What of an item is the text of a file.
CONTENT: Final = "content"
_PAGE: Final = 100

#: Whether the agent was invoked without being awaited: its store is then to be asked likewise, for one that belongs to
#: another event loop cannot be awaited here.
BLOCKING: Final[ContextVar[bool]] = ContextVar("otel_assembly_langchain_blocking", default=False)


class GraphKnowledgeStore(StoreOfItems):
    """A `KnowledgeStore` in a store of LangGraph's: a file is an item, whose text is its value's ``content``.

    ``/memory/working.md`` is the item ``working.md`` of the namespace ``(*namespace, "memory")``; of a directory's name
    ``.`` and ``%`` are written ``%2E`` and ``%25``, for LangGraph takes no dots there. Items without such a text are no
    files. To list or delete a directory, all items beneath it are read.

    LangGraph's stores cannot append without losing what somebody else appends at once, so `append` refuses to.

    Args:
        store: The store, of any kind; `runtime.store` of an agent that was made with one.
        namespace: Where in it the paths begin: such as ``("users", user_id)``, where each user's memory is their own.

    Raises:
        ConfigurationError: The namespace is empty, or has a label that LangGraph does not take.
    """

    _identity = "a store of LangGraph's"

    def __init__(self, store: BaseStore, namespace: Sequence[str] = NAMESPACE) -> None:
        self.store = store
        super().__init__(namespace)

    async def _get(self, place: tuple[str, ...], key: str) -> str | None:
        return _text_of(await self._ask("get", place, key))

    async def _put(self, place: tuple[str, ...], key: str, text: str) -> None:
        await self._ask("put", place, key, {CONTENT: text})

    async def _remove(self, place: tuple[str, ...], key: str) -> None:
        await self._ask("delete", place, key)

    async def _search(self, place: tuple[str, ...]) -> AsyncIterator[tuple[Sequence[str], str]]:
        offset = 0
        while items := await self._ask("search", place, limit=_PAGE, offset=offset):
            offset += len(items)
            for item in items:
                if _text_of(item) is not None:
                    yield item.namespace, item.key

    async def _ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            if BLOCKING.get():
                return getattr(self.store, method)(*args, **kwargs)
            return await getattr(self.store, f"a{method}")(*args, **kwargs)
        except Exception as error:
            raise KnowledgeStoreError(
                f"{type(self.store).__name__}.{method} raised {type(error).__name__}; its own error is the cause of "
                "this one"
            ) from error


def _text_of(item: Any) -> str | None:
    text = item.value.get(CONTENT) if item is not None else None
    return text if isinstance(text, str) else None
