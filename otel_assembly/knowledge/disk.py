"""A knowledge store in a directory: plain files that a person can read and edit."""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from otel_assembly._internal.fork_safety import new_lock
from otel_assembly.errors import ConfigurationError, KnowledgePathError, KnowledgeStoreError
from otel_assembly.knowledge import _descriptors as fd
from otel_assembly.knowledge.files import StoreOfFiles, remaining_patience
from otel_assembly.knowledge.paths import torn_bytes

try:
    import fcntl
except ImportError:  # not a POSIX system; the constructor says so
    _POSIX = False
else:
    _POSIX = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterator


_BUSY: Final = (
    "another process or call kept the lock of the store for too long; look for one that is stopped, or give a longer "
    "busy_timeout"
)
#: Seconds between two attempts to lock a file: at first, and at most.
_FIRST_PAUSE: Final = 0.0005
_LONGEST_PAUSE: Final = 0.02


class DiskKnowledgeStore(StoreOfFiles):
    """A `KnowledgeStore` whose files lie beneath `root`, which is made at the first write.

    Nothing outside `root` is ever read or written: a symbolic link beneath it is refused with `KnowledgePathError`
    (`list` leaves it out, `delete` removes the link itself), also one that is put there while a call runs. A file with
    a second hard link is copied before something is appended to it.

    What was written is on the disk when a call returns. A crash in the middle of a write leaves the old content, in the
    middle of an append the old content and at most a beginning of what was to be added. Any number of stores, tasks,
    threads and processes may share one `root`: changes wait for each other on a lock file in it, reads do not. A call
    that has waited `busy_timeout` seconds for the lock of another process, or for a free thread, raises
    `KnowledgeStoreError` and has changed nothing.

    A file that is replaced keeps its permissions; new ones have those that the umask gives. To read one that is not
    UTF-8 raises `KnowledgeStoreError`. Links, devices and names that no path can have are not listed.

    Args:
        root: The directory.
        busy_timeout: Seconds that a call waits for others, from 0.

    Raises:
        ConfigurationError: The system has no POSIX directory descriptors; use `SqliteKnowledgeStore` there. Or
            `busy_timeout` is negative.
    """

    __slots__ = ("__weakref__", "_changing", "_root")

    def __init__(self, root: str | os.PathLike[str], *, busy_timeout: float = 30.0) -> None:
        if not _POSIX:
            raise ConfigurationError("DiskKnowledgeStore needs a POSIX system; use SqliteKnowledgeStore here")
        if not busy_timeout >= 0:
            raise ConfigurationError(f"busy_timeout is {busy_timeout}; give seconds from 0")
        super().__init__(busy_timeout)
        # Threads of this store queue here, so that few of them try the lock file at the same time.
        self._changing = new_lock()
        self._root = os.path.realpath(root)

    @property
    def root(self) -> str:
        """The directory, as an absolute path without links."""
        return self._root

    def _bytes(self, path: str, names: tuple[str, ...], first: int, last: int | None) -> bytes | None:
        with ExitStack() as stack:
            chain = self._chain(stack, path, names[:-1])
            if chain is None or fd.look(chain[-1], names[-1], path) is None:
                return None
            # Opening a pipe that somebody put there must not wait for its writer.
            file = self._open_file(stack, chain[-1], names[-1], path, os.O_RDONLY | os.O_NONBLOCK)
            if file is None:
                return None
            _lock(file, fcntl.LOCK_SH)  # an append that runs is seen whole or not at all
            size = os.fstat(file).st_size
            return fd.read_at(file, first, size if last is None else min(last, size))

    def _write(self, path: str, names: tuple[str, ...], data: bytes) -> None:
        with self._locked() as root:
            self._put(root, path, names, data)

    def _replace(self, path: str, names: tuple[str, ...], old: bytes | None, new: bytes | None) -> bool:
        with self._locked() as root:
            if self._bytes(path, names, 0, None) != old:
                return False
            if new is not None:
                self._put(root, path, names, new)
            elif old is not None:
                self._remove(root, path, names)
            return True

    def _put(self, root: int, path: str, names: tuple[str, ...], data: bytes) -> None:
        with ExitStack() as stack:
            directory = self._made(stack, root, path, names[:-1])
            existing = self._replaceable(path, directory, names[-1])
            fd.replace(directory, names[-1], data, stat.S_IMODE(existing.st_mode) if existing else None)

    def _append(self, path: str, names: tuple[str, ...], data: bytes) -> int:
        with ExitStack() as stack:
            with self._locked() as root:
                directory = self._made(stack, root, path, names[:-1])
                existing = self._replaceable(path, directory, names[-1])
                if existing is None:
                    fd.replace(directory, names[-1], data, None)
                    return 0
                file = self._open_file(stack, directory, names[-1], path, os.O_RDWR | os.O_NONBLOCK)
                if file is None:
                    raise KnowledgeStoreError(f"cannot append to {path!r}: it was removed meanwhile; append again")
                size = os.fstat(file).st_size
                offset = size - torn_bytes(fd.read_at(file, max(0, size - 3), size))
                if existing.st_nlink > 1:
                    content = fd.read_at(file, 0, offset) + data
                    fd.replace(directory, names[-1], content, stat.S_IMODE(existing.st_mode))
                    return offset
                _extend(file, data, offset)
            # Outside the lock, so that appends to several files, or by several writers, share a flush.
            os.fsync(file)
            return offset

    def _list(self, path: str, names: tuple[str, ...]) -> builtins.list[str]:
        with ExitStack() as stack:
            chain = self._chain(stack, path, names)
            found: list[str] = []
            for entry in fd.children(chain[-1]) if chain else ():
                if entry.is_file(follow_symlinks=False):
                    found.append(entry.name)
                elif entry.is_dir(follow_symlinks=False) and chain and fd.holds_files(chain[-1], entry.name):
                    found.append(f"{entry.name}/")
            return sorted(found)

    def _delete(self, path: str, names: tuple[str, ...]) -> None:
        if not os.path.isdir(self._root):
            return
        with self._locked() as root:
            self._remove(root, path, names)

    @staticmethod
    def _remove(root: int, path: str, names: tuple[str, ...]) -> None:
        with ExitStack() as stack:
            chain = fd.descend(stack, root, names[:-1], path)
            if chain is None:
                return
            for name in names[-1:] or [name for name in os.listdir(root) if name != fd.LOCK_NAME]:
                fd.remove(chain[-1], name)
            os.fsync(chain[-1])
            for parent, name in reversed(list(zip(chain, names[:-1], strict=False))):
                if not fd.prune(parent, name):
                    break

    def _exists(self, path: str, names: tuple[str, ...]) -> bool:
        if not names:
            return True
        with ExitStack() as stack:
            chain = self._chain(stack, path, names[:-1])
            found = fd.look(chain[-1], names[-1], path) if chain else None
            if chain is None or found is None:
                return False
            if stat.S_ISDIR(found.st_mode):
                return fd.holds_files(chain[-1], names[-1])
            return stat.S_ISREG(found.st_mode)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The root's descriptor, while nobody else changes anything."""
        os.makedirs(self._root, exist_ok=True)
        if not self._changing.acquire(timeout=remaining_patience()):
            raise TimeoutError(_BUSY)
        try:
            with (
                fd.opened(self._root, fd.DIRECTORY) as root,
                fd.opened(fd.LOCK_NAME, os.O_RDWR | os.O_CREAT, root) as lock,
            ):
                _lock(lock, fcntl.LOCK_EX)
                yield root
        finally:
            self._changing.release()

    def _chain(self, stack: ExitStack, path: str, names: tuple[str, ...]) -> builtins.list[int] | None:
        try:
            root = stack.enter_context(fd.opened(self._root, fd.DIRECTORY))
        except FileNotFoundError:
            return None
        return fd.descend(stack, root, names, path)

    @staticmethod
    def _made(stack: ExitStack, root: int, path: str, names: tuple[str, ...]) -> int:
        chain = fd.descend(stack, root, names, path, make=True)
        if chain is None:
            raise KnowledgeStoreError(f"cannot write {path!r}: its directory was removed meanwhile; write again")
        return chain[-1]

    @staticmethod
    def _replaceable(path: str, directory: int, name: str) -> os.stat_result | None:
        """The file that a write replaces, None where there is none."""
        existing = fd.look(directory, name, path)
        if existing is None or stat.S_ISREG(existing.st_mode):
            return existing
        if not stat.S_ISDIR(existing.st_mode):
            raise KnowledgePathError(f"path {path!r} is no regular file, and is left alone")
        if not fd.prune(directory, name):
            raise KnowledgePathError(f"path {path!r} is a directory; delete it first, or write to a file beneath it")
        return None

    @staticmethod
    def _open_file(stack: ExitStack, directory: int, name: str, path: str, flags: int) -> int | None:
        """The descriptor of a regular file; None where there is none."""
        try:
            file = stack.enter_context(fd.opened(name, flags, directory))
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.EMLINK}:
                raise KnowledgePathError(f"path {path!r} is a symbolic link; links are not followed") from error
            if error.errno in {errno.ENXIO, errno.EISDIR}:
                return None
            raise
        return file if stat.S_ISREG(os.fstat(file).st_mode) else None


def _lock(file: int, mode: int) -> None:
    """Lock a file for this process, or raise if another one keeps its lock for too long.

    A blocking ``flock`` has no time limit: a process that is stopped while it holds the lock would keep every thread of
    this store for ever.
    """
    pause = _FIRST_PAUSE
    while True:
        try:
            fcntl.flock(file, mode | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in {errno.EWOULDBLOCK, errno.EACCES, errno.EINTR}:
                raise
        else:
            return
        patience = remaining_patience()
        if not patience:
            raise TimeoutError(_BUSY)
        time.sleep(min(pause, patience))
        pause = min(2 * pause, _LONGEST_PAUSE)


def _extend(file: int, data: bytes, offset: int) -> None:
    """Put `data` at `offset`, the end of the file but for a torn character; all of it, or nothing."""
    _lock(file, fcntl.LOCK_EX)
    try:
        os.ftruncate(file, offset)
        fd.write_at(file, data, offset)
    except BaseException:
        os.ftruncate(file, offset)
        raise
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)
