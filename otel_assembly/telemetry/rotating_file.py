"""A file of lines that rotates by size, for use by several threads and processes."""

from __future__ import annotations

import os
import stat
import sys

from otel_assembly._internal.fork_safety import after_fork_in_child, new_lock
from otel_assembly.errors import ConfigurationError

if sys.platform != "win32":
    import fcntl

__all__ = ["RotatingFile"]


class RotatingFile:
    """A file of lines that is renamed to ``path.1`` when it would exceed a size; older files get higher numbers.

    A line is never split between files; a line longer than ``max_bytes`` gets a separate file. If a crash left an
    incomplete last line, the next line starts on a new line. Threads may share an instance. On POSIX, several processes
    may append to the same path, because each line is a single write. The file is opened at the first line. Parent
    folders are not created.

    Args:
        path: The file. A relative path is resolved immediately.
        max_bytes: The size at which the file is rotated, in bytes.
        backups: The number of rotated files to keep.

    Raises:
        ConfigurationError: ``max_bytes`` is below 1 or ``backups`` is below 0.
    """

    def __init__(self, path: str | os.PathLike[str], *, max_bytes: int, backups: int) -> None:
        if max_bytes < 1 or backups < 0:
            raise ConfigurationError(
                f"max_bytes must be at least 1 and backups at least 0, not {max_bytes} and {backups}"
            )
        self.path = os.path.abspath(path)
        self.max_bytes = max_bytes
        self.backups = backups
        self._lock = new_lock()
        self._fd: int | None = None
        self._torn = False
        after_fork_in_child(
            self._close
        )  # after a fork, the child opens the file again and so does not share the parent's lock

    def append(self, line: bytes) -> None:
        """Append one line, which must end with a newline.

        Raises:
            OSError: The line could not be written, or the full file could not be rotated.
        """
        with self._lock:
            fd = self._current()
            size = _regular_size(fd)
            if size and size + len(line) > self.max_bytes:
                fd = self._rotated(fd)
            data = b"\n" + line if self._torn else line
            written = 0
            try:
                while written < len(data):
                    written += os.write(fd, data[written:])
            finally:
                self._torn = written < len(data) and (written > 0 or self._torn)

    def close(self) -> None:
        """Close the file; a later `append` opens it again."""
        with self._lock:
            self._close()

    def _current(self) -> int:
        """Return a descriptor of the file at `path`; open it again if another process has renamed the open file."""
        if self._fd is not None and self._same_file(self._fd):
            return self._fd
        self._close()
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        self._fd = fd = os.open(self.path, flags, 0o666)
        self._torn = False
        if _regular_size(fd):
            os.lseek(fd, -1, os.SEEK_END)
            self._torn = os.read(fd, 1) != b"\n"
        return fd

    def _same_file(self, fd: int) -> bool:
        try:
            current = os.stat(self.path)
        except FileNotFoundError:
            return False
        return os.path.samestat(current, os.fstat(fd))

    def _rotated(self, fd: int) -> int:
        """Rotate the full file, unless another process is doing it or has just done it."""
        if sys.platform != "win32":
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return fd
            except OSError:
                pass  # the file system does not support locks
            if not self._same_file(fd):
                return self._current()
        else:
            self._close()  # Windows cannot rename an open file
        try:
            self._shift()
        finally:
            self._close()
        return self._current()

    def _shift(self) -> None:
        """Rename each file to the next higher number; remove the oldest file if there are enough."""
        names = [self.path, *(f"{self.path}.{number}" for number in range(1, self.backups + 1))]
        free = next((index for index, name in enumerate(names) if not os.path.lexists(name)), len(names))
        if free == len(names):
            os.remove(names[-1])
            free -= 1
        for index in range(free, 0, -1):
            os.replace(names[index - 1], names[index])

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def _regular_size(fd: int) -> int:
    """Return the size of a regular file; 0 for a device or a pipe, which is never rotated."""
    status = os.fstat(fd)
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
