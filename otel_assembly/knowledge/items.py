"""`StoreOfItems`: the base class of knowledge stores on top of another store, such as LangGraph's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from otel_assembly.errors import ConfigurationError, KnowledgePathError, KnowledgeStoreError
from otel_assembly.knowledge.paths import byte_range, encode, range_text, split_file_path, split_path

if TYPE_CHECKING:
    import builtins
    from collections.abc import AsyncIterator, Sequence


class StoreOfItems:
    """A `KnowledgeStore` that stores each file as one item of another store.

    The other store has items with a place (a tuple of labels without dots), a key and perhaps a text. The directory of
    a file is the item's place, after the labels of `namespace`; the name of the file is the item's key.

    Args:
        namespace: The place of the root directory in the other store.

    Raises:
        ConfigurationError: The namespace is empty, or has an empty label or one with a dot.
    """

    #: The other store's name in error messages.
    _identity: ClassVar[str]

    def __init__(self, namespace: Sequence[str]) -> None:
        self.namespace = tuple(namespace)
        labels: tuple[Any, ...] = self.namespace
        invalid = [label for label in labels if not isinstance(label, str) or not label or "." in label]
        if isinstance(namespace, str) or not self.namespace or invalid:
            raise ConfigurationError(
                f"a namespace is a sequence of labels, none of them empty or with a '.', not {namespace!r}"
            )

    async def read(self, path: str) -> str | None:
        """Return the content of a file; None if there is no file, or for a directory."""
        return await self._text(split_file_path(path))

    async def write(self, path: str, content: str) -> None:
        """Replace the content of a file; a missing file is created."""
        names = split_file_path(path)
        encode(path, content)
        for depth in range(1, len(names)):
            if await self._text(names[:depth]) is not None:
                raise KnowledgePathError(f"path {path!r} is below '/{'/'.join(names[:depth])}', which is a file")
        async for _ in self._files_in(names):
            raise KnowledgePathError(f"path {path!r} is a directory; delete it first, or write to a file in it")
        await self._put(self._place(names[:-1]), names[-1], content)

    async def list(self, path: str = "/") -> builtins.list[str]:
        """Return the names in a directory, sorted by code point; names of directories end with ``/``."""
        names = split_path(path)
        return sorted({file[0] if len(file) == 1 else f"{file[0]}/" async for file in self._files_in(names)})

    async def delete(self, path: str) -> None:
        """Remove a file, or a directory with its content; a missing path is no error."""
        names = split_path(path)
        files = [(*names, *file) async for file in self._files_in(names)]
        if names and await self._text(names) is not None:
            files.append(names)
        for file in files:
            await self._remove(self._place(file[:-1]), file[-1])

    async def exists(self, path: str) -> bool:
        """Return True if a file or a directory exists at this path."""
        names = split_path(path)
        if not names or await self._text(names) is not None:
            return True
        async for _ in self._files_in(names):
            return True
        return False

    async def append(self, path: str, content: str) -> int:
        """Raise `KnowledgeStoreError`, because the other store has no atomic append.

        Raises:
            KnowledgeStoreError: Always.
        """
        raise KnowledgeStoreError(
            f"cannot append to {path!r}: {self._identity} has no way to append without losing concurrent "
            "appends; write the whole content, or use a store of otel_assembly.knowledge"
        )

    async def read_range(self, path: str, start: int, end: int | None = None) -> str:
        """Return the characters whose first byte is in ``[start, end)``; with `end` None, up to the end of the file."""
        names = split_file_path(path)
        first, last = byte_range(start, end)
        text = await self._text(names)
        return "" if text is None else range_text(encode(path, text)[first:last], start, end)

    async def _text(self, names: tuple[str, ...]) -> str | None:
        return await self._get(self._place(names[:-1]), names[-1])

    def _place(self, names: Sequence[str]) -> tuple[str, ...]:
        return (*self.namespace, *(name.replace("%", "%25").replace(".", "%2E") for name in names))

    async def _files_in(self, names: tuple[str, ...]) -> AsyncIterator[tuple[str, ...]]:
        """Yield the paths of all files in a directory, at any depth, relative to the directory."""
        place = self._place(names)
        async for labels, key in self._search(place):
            directories = labels[len(place) :]
            yield (*(label.replace("%2E", ".").replace("%25", "%") for label in directories), key)

    async def _get(self, place: tuple[str, ...], key: str) -> str | None:
        """Return the text of an item; None if there is no such item, or if the item has no text."""
        raise NotImplementedError

    async def _put(self, place: tuple[str, ...], key: str, text: str) -> None:
        raise NotImplementedError

    async def _remove(self, place: tuple[str, ...], key: str) -> None:
        raise NotImplementedError

    def _search(self, place: tuple[str, ...]) -> AsyncIterator[tuple[Sequence[str], str]]:
        """Yield the place and key of each item with a text, whose place is `place` or begins with it."""
        raise NotImplementedError
