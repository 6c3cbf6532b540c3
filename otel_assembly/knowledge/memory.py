"""A knowledge store in memory: for tests, and for agents whose memory ends with the process."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

from otel_assembly._internal.fork_safety import new_lock
from otel_assembly.errors import KnowledgePathError
from otel_assembly.knowledge.files import StoreOfFiles

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")

# A directory is a dict; a file is a bytearray, because offsets are in bytes and an append copies nothing.
_Directory: TypeAlias = "dict[str, _Directory | bytearray]"


class MemoryKnowledgeStore(StoreOfFiles):
    """A `KnowledgeStore` in this object's memory; threads may share it."""

    __slots__ = ("__weakref__", "_lock", "_root")

    def __init__(self) -> None:
        self._root: _Directory = {}
        self._lock = new_lock()

    async def _run(self, action: str, path: str, work: Callable[[], _T]) -> _T:
        with self._lock:
            return work()

    def _bytes(self, path: str, names: tuple[str, ...], first: int, last: int | None) -> bytes | None:
        file = self._find(names)
        return bytes(file[first:last]) if isinstance(file, bytearray) else None

    def _write(self, path: str, names: tuple[str, ...], data: bytes) -> None:
        self._file(path, names)[:] = data

    def _replace(self, path: str, names: tuple[str, ...], old: bytes | None, new: bytes | None) -> bool:
        if self._bytes(path, names, 0, None) != old:
            return False
        if new is not None:
            self._write(path, names, new)
        elif old is not None:
            self._delete(path, names)
        return True

    def _list(self, path: str, names: tuple[str, ...]) -> list[str]:
        node = self._find(names)
        if not isinstance(node, dict):
            return []
        return sorted(name if isinstance(child, bytearray) else f"{name}/" for name, child in node.items())

    def _delete(self, path: str, names: tuple[str, ...]) -> None:
        if not names:
            self._root.clear()
        for depth in range(len(names), 0, -1):
            parent = self._find(names[: depth - 1])
            if not isinstance(parent, dict) or (depth < len(names) and parent.get(names[depth - 1])):
                return
            parent.pop(names[depth - 1], None)

    def _exists(self, path: str, names: tuple[str, ...]) -> bool:
        return self._find(names) is not None

    def _append(self, path: str, names: tuple[str, ...], data: bytes) -> int:
        file = self._file(path, names)
        offset = len(file)
        file += data
        return offset

    def _find(self, names: tuple[str, ...]) -> _Directory | bytearray | None:
        node: _Directory | bytearray | None = self._root
        for name in names:
            node = node.get(name) if isinstance(node, dict) else None
        return node

    def _file(self, path: str, names: tuple[str, ...]) -> bytearray:
        """Return the file's bytes; create the file and its directories if they are missing."""
        directory = self._root
        for depth, name in enumerate(names[:-1], 1):
            # An error never leaves an empty directory: below a directory that was just created, nothing can fail.
            child = directory.setdefault(name, {})
            if isinstance(child, bytearray):
                raise KnowledgePathError(f"path {path!r} is below '/{'/'.join(names[:depth])}', which is a file")
            directory = child
        file = directory.setdefault(names[-1], bytearray())
        if not isinstance(file, bytearray):
            raise KnowledgePathError(f"path {path!r} is a directory; delete it first, or write to a file in it")
        return file
