"""`StoreOfFiles`: the base class of the stores in memory, on disk and in SQLite."""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

from otel_assembly._internal.threads import NoFreeThreadError, ThreadLimit
from otel_assembly.errors import KnowledgeStoreError
from otel_assembly.knowledge.paths import byte_range, decode, encode, range_text, split_file_path, split_path

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable

_T = TypeVar("_T")


#: The number of threads that one store uses concurrently, for each event loop.
_MOST_THREADS: Final = 16
#: The time by `time.monotonic` at which the running call stops waiting for locks.
_deadline: ContextVar[float] = ContextVar("deadline")


def remaining_patience() -> float:
    """Return the seconds that the running call of a store may still wait for locks; 0 if there are none left."""
    return max(0.0, _deadline.get() - time.monotonic())


class StoreOfFiles:
    """Implements `KnowledgeStore` with blocking methods that subclasses define; each call runs one of them in a thread.

    Paths are checked and texts are encoded as UTF-8 before the thread starts.

    Args:
        busy_timeout: The seconds that one call waits for a free thread and for locks, together.
    """

    __slots__ = ("_busy_timeout", "_threads")

    def __init__(self, busy_timeout: float) -> None:
        self._busy_timeout = busy_timeout
        self._threads = ThreadLimit("store", _MOST_THREADS)

    #: The exceptions of the storage, which are raised as `KnowledgeStoreError`.
    _raises: ClassVar[tuple[type[Exception], ...]] = (OSError, UnicodeDecodeError)

    async def read(self, path: str) -> str | None:
        """Return the content of a file; None if there is no file, or for a directory."""
        names = split_file_path(path)

        def work() -> str | None:
            data = self._bytes(path, names, 0, None)
            return None if data is None else decode(data)

        return await self._run("read", path, work)

    async def write(self, path: str, content: str) -> None:
        """Replace the content of a file; a missing file is created."""
        names, data = split_file_path(path), encode(path, content)
        await self._run("write", path, lambda: self._write(path, names, data))

    async def list(self, path: str = "/") -> builtins.list[str]:
        """Return the names in a directory, sorted by code point; names of directories end with ``/``."""
        names = split_path(path)
        return await self._run("list", path, lambda: self._list(path, names))

    async def delete(self, path: str) -> None:
        """Remove a file, or a directory with its content; a missing path is no error."""
        names = split_path(path)
        await self._run("delete", path, lambda: self._delete(path, names))

    async def exists(self, path: str) -> bool:
        """Return True if a file or a directory exists at this path."""
        names = split_path(path)
        return await self._run("look up", path, lambda: self._exists(path, names))

    async def append(self, path: str, content: str) -> int:
        """Append to a file, and return the offset in bytes at which the new content begins."""
        names, data = split_file_path(path), encode(path, content)
        return await self._run("append to", path, lambda: self._append(path, names, data))

    async def read_range(self, path: str, start: int, end: int | None = None) -> str:
        """Return the characters whose first byte is in ``[start, end)``; with `end` None, up to the end of the file.

        Only the bytes of the range are read.
        """
        names = split_file_path(path)
        first, last = byte_range(start, end)
        return await self._run(
            "read", path, lambda: range_text(self._bytes(path, names, first, last) or b"", start, end)
        )

    async def replace(self, path: str, old: str | None, new: str | None) -> bool:
        """Replace the content `old` of a file by `new`, where None means no file; return False if it is not `old`."""
        names = split_file_path(path)
        before = None if old is None else encode(path, old)
        after = None if new is None else encode(path, new)
        return await self._run("replace", path, lambda: self._replace(path, names, before, after))

    async def _run(self, action: str, path: str, work: Callable[[], _T]) -> _T:
        token = _deadline.set(time.monotonic() + self._busy_timeout)
        try:
            return await self._threads.run(work, patience=self._busy_timeout)
        except self._raises as error:
            raise KnowledgeStoreError(f"cannot {action} {path!r}: {error}") from error
        except NoFreeThreadError as error:
            raise KnowledgeStoreError(f"cannot {action} {path!r}: {error}") from error
        finally:
            _deadline.reset(token)

    def _bytes(self, path: str, names: tuple[str, ...], first: int, last: int | None) -> bytes | None:
        """Return the bytes of a file from `first` up to `last` (exclusive); None if there is no file."""
        raise NotImplementedError

    def _write(self, path: str, names: tuple[str, ...], data: bytes) -> None:
        raise NotImplementedError

    def _replace(self, path: str, names: tuple[str, ...], old: bytes | None, new: bytes | None) -> bool:
        """Replace the content `old` by `new`, where None means no file; return False if the content is not `old`."""
        raise NotImplementedError

    def _list(self, path: str, names: tuple[str, ...]) -> builtins.list[str]:
        raise NotImplementedError

    def _delete(self, path: str, names: tuple[str, ...]) -> None:
        raise NotImplementedError

    def _exists(self, path: str, names: tuple[str, ...]) -> bool:
        raise NotImplementedError

    def _append(self, path: str, names: tuple[str, ...], data: bytes) -> int:
        raise NotImplementedError
