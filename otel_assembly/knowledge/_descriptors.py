"""File operations for `DiskKnowledgeStore` that never follow symbolic links.

Each name is opened relative to the descriptor of its directory, with ``O_NOFOLLOW``. A check before the open would not
be enough, because another process could create a link between the check and the open.
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

#: The name of the lock file in the root of the store; each change locks it.
LOCK_NAME = f"{RESERVED_PREFIX}lock"

#: The name of a file that is being written, in the directory of its target. One name is enough, because only the
#: process that has the lock writes. After a crash, the next writer removes the file.
TEMP_NAME = f"{RESERVED_PREFIX}tmp"

NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)


@contextmanager
def open_descriptor(name: str, flags: int, directory: int | None = None) -> Iterator[int]:
    """Open `name` in `directory` without following a link; close the descriptor at the end of the block."""
    descriptor = os.open(name, flags | NO_FOLLOW, 0o666, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def file_status(directory: int, name: str, path: str) -> os.stat_result | None:
    """Return the status of the file `name` in `directory`; None if it does not exist.

    Args:
        directory: The descriptor of the directory.
        name: The file's name.
        path: The whole path, for the error message.

    Raises:
        KnowledgePathError: `name` is a symbolic link.
    """
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(status.st_mode):
        raise KnowledgePathError(f"path {path!r} contains the symbolic link {name!r}; links are not followed")
    return status


def descend(stack: ExitStack, root: int, names: tuple[str, ...], path: str, *, make: bool = False) -> list[int] | None:
    """Open the nested directories `names` below `root`.

    Args:
        stack: Closes the descriptors.
        root: The descriptor of the store's root.
        names: The names of the directories, from the outermost to the innermost.
        path: The whole path, for the error messages.
        make: True to create missing directories.

    Returns:
        The descriptor of `root`, followed by those of the directories; None if a directory does not exist.

    Raises:
        KnowledgePathError: One of the names is a symbolic link; or, if `make` is set, a file.
    """
    chain = [root]
    for name in names:
        parent = chain[-1]
        if make:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=parent)
                os.fsync(parent)
        try:
            chain.append(stack.enter_context(open_descriptor(name, DIRECTORY, parent)))
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in {errno.ENOTDIR, errno.ELOOP, errno.EMLINK}:
                raise
            file_status(parent, name, path)
            if make:
                raise KnowledgePathError(f"path {path!r} is below {name!r}, which is a file") from error
            return None
    return chain


def children(directory: int) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a directory whose names are valid in a path of the store."""
    with os.scandir(directory) as entries:
        yield from (entry for entry in entries if is_segment(entry.name))


def holds_files(directory: int, name: str) -> bool:
    """Return True if the directory `name`, or a directory at any depth in it, contains a file."""
    try:
        with open_descriptor(name, DIRECTORY, directory) as inside:
            return any(
                entry.is_file(follow_symlinks=False)
                or (entry.is_dir(follow_symlinks=False) and holds_files(inside, entry.name))
                for entry in children(inside)
            )
    except (FileNotFoundError, NotADirectoryError):
        return False  # removed, or replaced by a file, since it was listed


def remove(directory: int, name: str) -> None:
    """Remove the file or directory `name` with its content; of a symbolic link, only the link is removed."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(name, dir_fd=directory)
        return
    with open_descriptor(name, DIRECTORY, directory) as inside:
        for child in os.listdir(inside):
            remove(inside, child)
    os.rmdir(name, dir_fd=directory)


def prune(directory: int, name: str) -> bool:
    """Remove the directory `name` with its subdirectories if they contain only temporary files.

    Returns:
        True if the directory no longer exists.
    """
    with suppress(FileNotFoundError), open_descriptor(name, DIRECTORY, directory) as inside:
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
    """Replace the content of the file `name` atomically: after a crash, it has the old or the new content.

    Args:
        directory: The descriptor of the file's directory.
        name: The file's name.
        data: The new content.
        mode: The file's permissions; None for those that the umask gives.
    """
    with suppress(FileNotFoundError):
        os.unlink(TEMP_NAME, dir_fd=directory)
    try:
        with open_descriptor(TEMP_NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL, directory) as file:
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
    """Write all of `data` from `offset` on; one ``pwrite`` may write only a part."""
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written


def read_at(file: int, offset: int, end: int) -> bytes:
    """Return the bytes from `offset` up to `end` (exclusive), or fewer if the file is shorter."""
    parts: list[bytes] = []
    while offset < end and (part := os.pread(file, end - offset, offset)):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)
