"""`GraphKnowledgeStore`: the store that a LangGraph agent is compiled with, as the store that our policies read."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.errors import ConfigurationError, KnowledgePathError, KnowledgeStoreError
from otel_assembly.knowledge.paths import byte_range, encode, range_text, split_file_path, split_path

if TYPE_CHECKING:
    import builtins
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


class GraphKnowledgeStore:
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

    def __init__(self, store: BaseStore, namespace: Sequence[str] = NAMESPACE) -> None:
        self.store = store
        self.namespace = tuple(namespace)
        labels: tuple[Any, ...] = self.namespace
        wrong = [label for label in labels if not isinstance(label, str) or not label or "." in label]
        if isinstance(namespace, str) or not self.namespace or wrong:
            raise ConfigurationError(
                f"a namespace is a sequence of labels, none of them empty or with a '.', not {namespace!r}"
            )

    async def read(self, path: str) -> str | None:
        """See `KnowledgeStore.read`."""
        return await self._text(split_file_path(path))

    async def write(self, path: str, content: str) -> None:
        """See `KnowledgeStore.write`."""
        names = split_file_path(path)
        encode(path, content)
        for depth in range(1, len(names)):
            if await self._text(names[:depth]) is not None:
                raise KnowledgePathError(f"path {path!r} lies beneath '/{'/'.join(names[:depth])}', which is a file")
        async for _ in self._beneath(names):
            raise KnowledgePathError(f"path {path!r} is a directory; delete it first, or write to a file beneath it")
        await self._ask("put", self._place(names[:-1]), names[-1], {CONTENT: content})

    async def list(self, path: str = "/") -> builtins.list[str]:
        """See `KnowledgeStore.list`."""
        names = split_path(path)
        return sorted({found[0] if len(found) == 1 else f"{found[0]}/" async for found in self._beneath(names)})

    async def delete(self, path: str) -> None:
        """See `KnowledgeStore.delete`."""
        names = split_path(path)
        gone = [(*names, *found) async for found in self._beneath(names)]
        if names and await self._text(names) is not None:
            gone.append(names)
        for one in gone:
            await self._ask("delete", self._place(one[:-1]), one[-1])

    async def exists(self, path: str) -> bool:
        """See `KnowledgeStore.exists`."""
        names = split_path(path)
        if not names or await self._text(names) is not None:
            return True
        async for _ in self._beneath(names):
            return True
        return False

    async def append(self, path: str, content: str) -> int:
        """Refuse.

        Raises:
            KnowledgeStoreError: Always.
        """
        raise KnowledgeStoreError(
            f"cannot append to {path!r}: a store of LangGraph's has no way to do it that loses nothing of what others "
            "append at once; write the whole content, or give the policies a store of otel_assembly.knowledge"
        )

    async def read_range(self, path: str, start: int, end: int | None = None) -> str:
        """See `KnowledgeStore.read_range`."""
        names = split_file_path(path)
        first, last = byte_range(start, end)
        text = await self._text(names)
        return "" if text is None else range_text(encode(path, text)[first:last], start, end)

    def _place(self, names: Sequence[str]) -> tuple[str, ...]:
        return (*self.namespace, *(name.replace("%", "%25").replace(".", "%2E") for name in names))

    async def _text(self, names: tuple[str, ...]) -> str | None:
        item = await self._ask("get", self._place(names[:-1]), names[-1])
        return _text_of(item) if item is not None else None

    async def _beneath(self, names: tuple[str, ...]) -> AsyncIterator[tuple[str, ...]]:
        """The files beneath a directory, by their paths from there."""
        place, offset = self._place(names), 0
        while items := await self._ask("search", place, limit=_PAGE, offset=offset):
            offset += len(items)
            for item in items:
                if _text_of(item) is not None:
                    deeper = item.namespace[len(place) :]
                    yield (*(label.replace("%2E", ".").replace("%25", "%") for label in deeper), item.key)

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
    text = item.value.get(CONTENT)
    return text if isinstance(text, str) else None
