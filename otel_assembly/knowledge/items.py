"""What stores have in common that keep a file as an item of another store, such as one that a framework brings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from otel_assembly.errors import ConfigurationError, KnowledgePathError, KnowledgeStoreError
from otel_assembly.knowledge.paths import byte_range, encode, range_text, split_file_path, split_path

if TYPE_CHECKING:
    import builtins
    from collections.abc import AsyncIterator, Sequence


class StoreOfItems:
    """A `KnowledgeStore` of items: each has a key, in a place of labels that holds no dots, and perhaps a text.

    Args:
        namespace: Where in the other store the paths begin.

    Raises:
        ConfigurationError: The namespace is empty, or has a label that is not taken.
    """

    #: What the other store is called in an error.
    _identity: ClassVar[str]

    def __init__(self, namespace: Sequence[str]) -> None:
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
        await self._put(self._place(names[:-1]), names[-1], content)

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
            await self._remove(self._place(one[:-1]), one[-1])

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
            f"cannot append to {path!r}: {self._identity} has no way to do it that loses nothing of what others "
            "append at once; write the whole content, or give the policies a store of otel_assembly.knowledge"
        )

    async def read_range(self, path: str, start: int, end: int | None = None) -> str:
        """See `KnowledgeStore.read_range`."""
        names = split_file_path(path)
        first, last = byte_range(start, end)
        text = await self._text(names)
        return "" if text is None else range_text(encode(path, text)[first:last], start, end)

    async def _text(self, names: tuple[str, ...]) -> str | None:
        return await self._get(self._place(names[:-1]), names[-1])

    def _place(self, names: Sequence[str]) -> tuple[str, ...]:
        return (*self.namespace, *(name.replace("%", "%25").replace(".", "%2E") for name in names))

    async def _beneath(self, names: tuple[str, ...]) -> AsyncIterator[tuple[str, ...]]:
        """The files beneath a directory, by their paths from there."""
        place = self._place(names)
        async for labels, key in self._search(place):
            deeper = labels[len(place) :]
            yield (*(label.replace("%2E", ".").replace("%25", "%") for label in deeper), key)

    async def _get(self, place: tuple[str, ...], key: str) -> str | None:
        """The text of an item; None where there is no such item, or it has none."""
        raise NotImplementedError

    async def _put(self, place: tuple[str, ...], key: str, text: str) -> None:
        raise NotImplementedError

    async def _remove(self, place: tuple[str, ...], key: str) -> None:
        raise NotImplementedError

    def _search(self, place: tuple[str, ...]) -> AsyncIterator[tuple[Sequence[str], str]]:
        """The items that have a text, in a place and in all beneath it: the place of each, and its key."""
        raise NotImplementedError
