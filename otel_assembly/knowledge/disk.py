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
    "another process or call kept the lock of the store for too long; look for a process that is stopped, or give a "
    "longer busy_timeout"
)
#: Seconds between two attempts to lock a file: at first, and at most.
_FIRST_PAUSE: Final = 0.0005
_LONGEST_PAUSE: Final = 0.02


class DiskKnowledgeStore(StoreOfFiles):
    """A `KnowledgeStore` of files in the directory `root`, which is created at the first write.

    Nothing outside `root` is read or written. A symbolic link in a path raises `KnowledgePathError`, even if the link
    is created while a call runs; `list` omits links, and `delete` removes a link but not its target. A file with a
    second hard link is copied before an append.

    When a call returns, its data is synced to the disk. After a crash during a write, the file has the old content;
    after a crash during an append, the old content and at most the beginning of the appended text. Any number of
    stores, tasks, threads and processes may share one `root`: changes use a lock file in `root`, reads do not. If a
    call has waited `busy_timeout` seconds for the lock or for a free thread, it raises `KnowledgeStoreError` and
    changes nothing.

    A replaced file keeps its permissions; a new file gets the permissions that the umask allows. Reading a file that
    is not UTF-8 raises `KnowledgeStoreError`. `list` also omits devices, and files whose names are not valid in a path.

    Args:
        root: The directory.
        busy_timeout: The seconds that a call waits for other calls and processes; 0 or more.

    Raises:
        ConfigurationError: The system has no POSIX directory descriptors (use `SqliteKnowledgeStore` there), or
            `busy_timeout` is negative.
    """

    __slots__ = ("__weakref__", "_change_lock", "_root")

    def __init__(self, root: str | os.PathLike[str], *, busy_timeout: float = 30.0) -> None:
        if not _POSIX:
            raise ConfigurationError("DiskKnowledgeStore needs a POSIX system; use SqliteKnowledgeStore here")
        if not busy_timeout >= 0:
            raise ConfigurationError(f"busy_timeout is {busy_timeout}; give seconds from 0")
        super().__init__(busy_timeout)
        # Threads of this store wait for this lock first, so that only one of them polls the lock file.
        self._change_lock = new_lock()
        self._root = os.path.realpath(root)

    @property
    def root(self) -> str:
        """The directory, as an absolute path without links."""
        return self._root

    def _bytes(self, path: str, names: tuple[str, ...], first: int, last: int | None) -> bytes | None:
        with ExitStack() as stack:
            chain = self._open_directories(stack, path, names[:-1])
            if chain is None or fd.file_status(chain[-1], names[-1], path) is None:
                return None
            # O_NONBLOCK: if another program created a named pipe here, the open must not wait for the pipe's writer.
            file = self._open_file(stack, chain[-1], names[-1], path, os.O_RDONLY | os.O_NONBLOCK)
            if file is None:
                return None
            _lock(file, fcntl.LOCK_SH)  # so that a concurrent append is read completely or not at all
            size = os.fstat(file).st_size
            return fd.read_at(file, first, size if last is None else min(last, size))

    def _write(self, path: str, names: tuple[str, ...], data: bytes) -> None:
        with self._locked_root() as root:
            self._put(root, path, names, data)

    def _replace(self, path: str, names: tuple[str, ...], old: bytes | None, new: bytes | None) -> bool:
        with self._locked_root() as root:
            if self._bytes(path, names, 0, None) != old:
                return False
            if new is not None:
                self._put(root, path, names, new)
            elif old is not None:
                self._remove(root, path, names)
            return True

    def _put(self, root: int, path: str, names: tuple[str, ...], data: bytes) -> None:
        with ExitStack() as stack:
            directory = self._make_directories(stack, root, path, names[:-1])
            existing = self._replaceable(path, directory, names[-1])
            fd.replace(directory, names[-1], data, stat.S_IMODE(existing.st_mode) if existing else None)

    def _append(self, path: str, names: tuple[str, ...], data: bytes) -> int:
        with ExitStack() as stack:
            with self._locked_root() as root:
                directory = self._make_directories(stack, root, path, names[:-1])
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
                _append_bytes(file, data, offset)
            # After the lock is released, so that concurrent appends can share one flush of the disk.
            os.fsync(file)
            return offset

    def _list(self, path: str, names: tuple[str, ...]) -> builtins.list[str]:
        with ExitStack() as stack:
            chain = self._open_directories(stack, path, names)
            listed: list[str] = []
            for entry in fd.children(chain[-1]) if chain else ():
                if entry.is_file(follow_symlinks=False):
                    listed.append(entry.name)
                elif entry.is_dir(follow_symlinks=False) and chain and fd.holds_files(chain[-1], entry.name):
                    listed.append(f"{entry.name}/")
            return sorted(listed)

    def _delete(self, path: str, names: tuple[str, ...]) -> None:
        if not os.path.isdir(self._root):
            return
        with self._locked_root() as root:
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
            chain = self._open_directories(stack, path, names[:-1])
            status = fd.file_status(chain[-1], names[-1], path) if chain else None
            if chain is None or status is None:
                return False
            if stat.S_ISDIR(status.st_mode):
                return fd.holds_files(chain[-1], names[-1])
            return stat.S_ISREG(status.st_mode)

    @contextmanager
    def _locked_root(self) -> Iterator[int]:
        """Lock the store for a change, and yield the descriptor of its root."""
        os.makedirs(self._root, exist_ok=True)
        if not self._change_lock.acquire(timeout=remaining_patience()):
            raise TimeoutError(_BUSY)
        try:
            with (
                fd.open_descriptor(self._root, fd.DIRECTORY) as root,
                fd.open_descriptor(fd.LOCK_NAME, os.O_RDWR | os.O_CREAT, root) as lock,
            ):
                _lock(lock, fcntl.LOCK_EX)
                yield root
        finally:
            self._change_lock.release()

    def _open_directories(self, stack: ExitStack, path: str, names: tuple[str, ...]) -> builtins.list[int] | None:
        try:
            root = stack.enter_context(fd.open_descriptor(self._root, fd.DIRECTORY))
        except FileNotFoundError:
            return None
        return fd.descend(stack, root, names, path)

    @staticmethod
    def _make_directories(stack: ExitStack, root: int, path: str, names: tuple[str, ...]) -> int:
        chain = fd.descend(stack, root, names, path, make=True)
        if chain is None:
            raise KnowledgeStoreError(f"cannot write {path!r}: its directory was removed meanwhile; write again")
        return chain[-1]

    @staticmethod
    def _replaceable(path: str, directory: int, name: str) -> os.stat_result | None:
        """Return the status of the file that a write would replace; None if there is no file.

        An empty directory of the same name is removed.

        Raises:
            KnowledgePathError: The path is a directory with files, a link or a device.
        """
        existing = fd.file_status(directory, name, path)
        if existing is None or stat.S_ISREG(existing.st_mode):
            return existing
        if not stat.S_ISDIR(existing.st_mode):
            raise KnowledgePathError(f"path {path!r} is not a regular file, so it is not replaced; delete it first")
        if not fd.prune(directory, name):
            raise KnowledgePathError(f"path {path!r} is a directory; delete it first, or write to a file in it")
        return None

    @staticmethod
    def _open_file(stack: ExitStack, directory: int, name: str, path: str, flags: int) -> int | None:
        """Return the descriptor of a regular file; None if there is no regular file."""
        try:
            file = stack.enter_context(fd.open_descriptor(name, flags, directory))
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
    """Lock a file with ``flock``, polling until the deadline of the running call.

    A blocking ``flock`` has no time limit: if a process were stopped while it has the lock, all threads of this store
    would wait forever.

    Raises:
        TimeoutError: Another process kept the lock for too long.
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


def _append_bytes(file: int, data: bytes, offset: int) -> None:
    """Write `data` from `offset` on and discard the file's bytes after it; if this fails, write nothing.

    The discarded bytes are an incomplete last character.
    """
    _lock(file, fcntl.LOCK_EX)
    try:
        os.ftruncate(file, offset)
        fd.write_at(file, data, offset)
    except BaseException:
        os.ftruncate(file, offset)
        raise
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)
