"""What the stores of this package share: paths are checked and texts encoded before a store's own work begins."""

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


#: Threads of one store at the same time, for each event loop.
_MOST_THREADS: Final = 16
#: When the running call stops to wait for locks, by `time.monotonic`.
_deadline: ContextVar[float] = ContextVar("deadline")


def remaining_patience() -> float:
    """Return the seconds that the running call of a store may still wait for locks; 0 if there are none left."""
    return max(0.0, _deadline.get() - time.monotonic())


class StoreOfFiles:
    """A `KnowledgeStore` whose work blocks: each call is one piece of it, done in a thread.

    Args:
        busy_timeout: Seconds that one call waits for a thread and for locks of others, together.
    """

    __slots__ = ("_busy_timeout", "_threads")

    def __init__(self, busy_timeout: float) -> None:
        self._busy_timeout = busy_timeout
        self._threads = ThreadLimit("store", _MOST_THREADS)

    #: What its work may raise that `KnowledgeStoreError` stands for.
    _raises: ClassVar[tuple[type[Exception], ...]] = (OSError, UnicodeDecodeError)

    async def read(self, path: str) -> str | None:
        """See `KnowledgeStore.read`."""
        names = split_file_path(path)

        def work() -> str | None:
            data = self._bytes(path, names, 0, None)
            return None if data is None else decode(data)

        return await self._run("read", path, work)

    async def write(self, path: str, content: str) -> None:
        """See `KnowledgeStore.write`."""
        names, data = split_file_path(path), encode(path, content)
        await self._run("write", path, lambda: self._write(path, names, data))

    async def list(self, path: str = "/") -> builtins.list[str]:
        """See `KnowledgeStore.list`."""
        names = split_path(path)
        return await self._run("list", path, lambda: self._list(path, names))

    async def delete(self, path: str) -> None:
        """See `KnowledgeStore.delete`."""
        names = split_path(path)
        await self._run("delete", path, lambda: self._delete(path, names))

    async def exists(self, path: str) -> bool:
        """See `KnowledgeStore.exists`."""
        names = split_path(path)
        return await self._run("look up", path, lambda: self._exists(path, names))

    async def append(self, path: str, content: str) -> int:
        """See `KnowledgeStore.append`."""
        names, data = split_file_path(path), encode(path, content)
        return await self._run("append to", path, lambda: self._append(path, names, data))

    async def read_range(self, path: str, start: int, end: int | None = None) -> str:
        """See `KnowledgeStore.read_range`; no more than the range is fetched."""
        names = split_file_path(path)
        first, last = byte_range(start, end)
        return await self._run(
            "read", path, lambda: range_text(self._bytes(path, names, first, last) or b"", start, end)
        )

    async def replace(self, path: str, old: str | None, new: str | None) -> bool:
        """See `ComparingKnowledgeStore.replace`."""
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
        """The bytes of a file in ``[first, last)``; None where there is none."""
        raise NotImplementedError

    def _write(self, path: str, names: tuple[str, ...], data: bytes) -> None:
        raise NotImplementedError

    def _replace(self, path: str, names: tuple[str, ...], old: bytes | None, new: bytes | None) -> bool:
        """Write `new`, or delete where it is None, if the file holds `old` (None: if there is none); whether it did."""
        raise NotImplementedError

    def _list(self, path: str, names: tuple[str, ...]) -> builtins.list[str]:
        raise NotImplementedError

    def _delete(self, path: str, names: tuple[str, ...]) -> None:
        raise NotImplementedError

    def _exists(self, path: str, names: tuple[str, ...]) -> bool:
        raise NotImplementedError

    def _append(self, path: str, names: tuple[str, ...], data: bytes) -> int:
        raise NotImplementedError
