"""Atomic writes of files."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["is_written_into", "write_whole"]


def is_written_into(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a device, a pipe or similar, which is written to and not replaced."""
    if os.path.abspath(path).startswith(("/dev/", "/proc/")):
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def write_whole(files: Mapping[Path, bytes], *, make_folders: bool = False) -> None:
    """Write several files atomically: existing files are replaced once all new ones are complete, or not at all.

    The target of a symbolic link is replaced, not the link. Paths for which `is_written_into` is true are appended to.

    Args:
        files: The content of each file.
        make_folders: Whether missing folders are created.

    Raises:
        OSError: A file could not be written; ``filename`` is its path.
    """
    parts: dict[Path, Path] = {}
    made: list[Path] = []
    try:
        for path, content in files.items():
            try:
                if make_folders:
                    _make_folder(path.parent, made)
                if is_written_into(path):
                    _write_into(path, content)
                else:
                    target = Path(os.path.realpath(path))
                    parts[target] = target.with_name(f".{target.name}.{os.getpid()}.part")
                    _write_part(parts[target], content, target)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(path)) from error
        for target, part in list(parts.items()):
            try:
                part.replace(target)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(target)) from error
            del parts[target]
    except BaseException:
        for part in parts.values():
            part.unlink(missing_ok=True)
        for folder in reversed(made):
            with suppress(OSError):
                folder.rmdir()
        raise


def _make_folder(folder: Path, made: list[Path]) -> None:
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    for parent in reversed(missing):
        parent.mkdir(exist_ok=True)
        made.append(parent)


def _write_into(path: Path, content: bytes) -> None:
    with open(path, "ab") as stream:  # append, in case it is a file after all
        stream.write(content)


def _write_part(part: Path, content: bytes, target: Path) -> None:
    part.write_bytes(content)
    with suppress(FileNotFoundError):
        part.chmod(stat.S_IMODE(target.stat().st_mode))
