"""File operations on directory descriptors that never follow symbolic links, for the store on disk.

Each name is opened relative to the descriptor of its directory and with ``O_NOFOLLOW``. A link that is created at any
moment therefore makes the open itself fail, and not only a check before it.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from otel_assembly.errors import KnowledgePathError
from otel_assembly.knowledge.paths import RESERVED_PREFIX, is_segment

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The lock file in the root of the store; each change takes the lock.
LOCK_NAME = f"{RESERVED_PREFIX}lock"

#: A file that is being written, in the directory of its target. One name is enough, because its writer has the lock.
#: After a crash, the next writer removes the file, or it is removed with the directory.
TEMP_NAME = f"{RESERVED_PREFIX}tmp"

NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)


@contextmanager
def opened(name: str, flags: int, directory: int | None = None) -> Iterator[int]:
    """Open `name` as a descriptor; a link is not followed."""
    descriptor = os.open(name, flags | NO_FOLLOW, 0o666, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def look(directory: int, name: str, path: str) -> os.stat_result | None:
    """Return the status of `name`; None if it does not exist.

    Raises:
        KnowledgePathError: `name` is a symbolic link.
    """
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(found.st_mode):
        raise KnowledgePathError(f"path {path!r} leads over the symbolic link {name!r}; links are not followed")
    return found


def descend(stack: ExitStack, root: int, names: tuple[str, ...], path: str, *, make: bool = False) -> list[int] | None:
    """Return the descriptors from `root` down to the directory `names`; None if it does not exist.

    Raises:
        KnowledgePathError: A link is in the path; or a file, if directories are created.
    """
    chain = [root]
    for name in names:
        parent = chain[-1]
        if make:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=parent)
                os.fsync(parent)
        try:
            chain.append(stack.enter_context(opened(name, DIRECTORY, parent)))
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in {errno.ENOTDIR, errno.ELOOP, errno.EMLINK}:
                raise
            look(parent, name, path)
            if make:
                raise KnowledgePathError(f"path {path!r} lies beneath {name!r}, which is a file") from error
            return None
    return chain


def children(directory: int) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a directory whose names are valid segments."""
    with os.scandir(directory) as entries:
        yield from (entry for entry in entries if is_segment(entry.name))


def holds_files(directory: int, name: str) -> bool:
    """Return whether the directory `name` or a directory in it contains a file."""
    try:
        with opened(name, DIRECTORY, directory) as inside:
            return any(
                entry.is_file(follow_symlinks=False)
                or (entry.is_dir(follow_symlinks=False) and holds_files(inside, entry.name))
                for entry in children(inside)
            )
    except (FileNotFoundError, NotADirectoryError):
        return False  # removed, or replaced by a file, since it was listed


def remove(directory: int, name: str) -> None:
    """Remove `name` with its content; links are removed, their targets are not."""
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode):
        os.unlink(name, dir_fd=directory)
        return
    with opened(name, DIRECTORY, directory) as inside:
        for child in os.listdir(inside):
            remove(inside, child)
    os.rmdir(name, dir_fd=directory)


def prune(directory: int, name: str) -> bool:
    """Remove the directory `name` if it has only temporary files; return whether it was removed."""
    with suppress(FileNotFoundError), opened(name, DIRECTORY, directory) as inside:
        if holds_files(directory, name):
            return False
        with suppress(FileNotFoundError):
            os.unlink(TEMP_NAME, dir_fd=inside)
        for child in [entry.name for entry in children(inside) if entry.is_dir(follow_symlinks=False)]:
            prune(inside, child)
    try:
        os.rmdir(name, dir_fd=directory)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise
        return False
    return True


def replace(directory: int, name: str, data: bytes, mode: int | None) -> None:
    """Replace `name` by a file with `data`, atomically also after a crash."""
    with suppress(FileNotFoundError):
        os.unlink(TEMP_NAME, dir_fd=directory)
    try:
        with opened(TEMP_NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL, directory) as file:
            if mode is not None:
                os.fchmod(file, mode)
            write_at(file, data, 0)
            os.fsync(file)
        os.replace(TEMP_NAME, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(TEMP_NAME, dir_fd=directory)
        raise
    os.fsync(directory)


def write_at(file: int, data: bytes, offset: int) -> None:
    """Write all of `data`, in as many system calls as needed."""
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written


def read_at(file: int, offset: int, end: int) -> bytes:
    """Return the bytes of ``[offset, end)``, or fewer if the file ends before."""
    parts: list[bytes] = []
    while offset < end and (part := os.pread(file, end - offset, offset)):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)
