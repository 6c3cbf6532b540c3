"""A knowledge store in memory: for tests, and for agents whose memory ends with the process."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from otel_assembly._internal.forks import new_lock
from otel_assembly.errors import KnowledgePathError
from otel_assembly.knowledge.paths import byte_range, decode, encode, range_text, split_file_path, split_path

if TYPE_CHECKING:
    import builtins

# A file is its bytes: appending to them copies nothing, and offsets are theirs.
_Directory: TypeAlias = "dict[str, _Directory | bytearray]"


class MemoryKnowledgeStore:
    """A `KnowledgeStore` that lives as long as the object; safe to share between threads."""

    __slots__ = ("__weakref__", "_lock", "_root")

    def __init__(self) -> None:
        self._root: _Directory = {}
        self._lock = new_lock()

    async def read(self, path: str) -> str | None:
        """See `KnowledgeStore.read`."""
        names = split_file_path(path)
        with self._lock:
            file = self._find(names)
            return decode(bytes(file)) if isinstance(file, bytearray) else None

    async def write(self, path: str, content: str) -> None:
        """See `KnowledgeStore.write`."""
        names, data = split_file_path(path), encode(path, content)
        with self._lock:
            self._file(path, names)[:] = data

    async def list(self, path: str = "/") -> builtins.list[str]:
        """See `KnowledgeStore.list`."""
        names = split_path(path)
        with self._lock:
            node = self._find(names)
            if not isinstance(node, dict):
                return []
            return sorted(name if isinstance(child, bytearray) else f"{name}/" for name, child in node.items())

    async def delete(self, path: str) -> None:
        """See `KnowledgeStore.delete`."""
        names = split_path(path)
        with self._lock:
            if not names:
                self._root.clear()
            for depth in range(len(names), 0, -1):
                parent = self._find(names[: depth - 1])
                if not isinstance(parent, dict) or (depth < len(names) and parent.get(names[depth - 1])):
                    return
                parent.pop(names[depth - 1], None)

    async def exists(self, path: str) -> bool:
        """See `KnowledgeStore.exists`."""
        names = split_path(path)
        with self._lock:
            return self._find(names) is not None

    async def append(self, path: str, content: str) -> int:
        """See `KnowledgeStore.append`."""
        names, data = split_file_path(path), encode(path, content)
        with self._lock:
            file = self._file(path, names)
            offset = len(file)
            file += data
            return offset

    async def read_range(self, path: str, start: int, end: int | None = None) -> str:
        """See `KnowledgeStore.read_range`."""
        names = split_file_path(path)
        first, last = byte_range(start, end)
        with self._lock:
            file = self._find(names)
            return range_text(bytes(file[first:last]), start, end) if isinstance(file, bytearray) else ""

    def _find(self, names: tuple[str, ...]) -> _Directory | bytearray | None:
        node: _Directory | bytearray | None = self._root
        for name in names:
            node = node.get(name) if isinstance(node, dict) else None
        return node

    def _file(self, path: str, names: tuple[str, ...]) -> bytearray:
        """The file's bytes, made with its directories if it is missing."""
        directory = self._root
        for depth, name in enumerate(names[:-1], 1):
            # Where a directory had to be made nothing is beneath it, so a refusal never leaves one behind.
            child = directory.setdefault(name, {})
            if isinstance(child, bytearray):
                raise KnowledgePathError(f"path {path!r} lies beneath '/{'/'.join(names[:depth])}', which is a file")
            directory = child
        file = directory.setdefault(names[-1], bytearray())
        if not isinstance(file, bytearray):
            raise KnowledgePathError(f"path {path!r} is a directory; delete it first, or write to a file beneath it")
        return file
