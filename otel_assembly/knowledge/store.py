"""The knowledge store: texts under paths that an agent keeps between conversations (as in AG2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import builtins

#: The path of the working memory; ``WorkingMemoryPolicy`` reads it, ``WorkingMemoryAggregate`` writes it.
WORKING_MEMORY_PATH = "/memory/working.md"

#: The directory of the conversations' summaries, one file each; their names sort by time.
CONVERSATIONS_PREFIX = "/memory/conversations/"


@runtime_checkable
class KnowledgeStore(Protocol):
    """Texts under paths, with the same behavior in memory, on disk, in SQLite and in Redis.

    * A path is absolute within the store (``/memory/working.md``). ``.`` and ``..``, empty segments, backslashes, NUL,
      drive letters, reserved names and paths that are too long raise `KnowledgePathError`.
    * A directory exists as long as it contains a file; it is never created or removed itself. A path is a file or a
      directory, never both: writing a file over a directory, or below a file, raises `KnowledgePathError`.
    * The content is a Unicode text, stored unchanged as UTF-8 (newlines are not translated). Offsets are in bytes.
    * Each call is atomic: a reader gets the content before or after a write or append. Of two concurrent writes, one
      whole content remains; no append is lost. A cancelled call may still be executed.
    * A failure of the storage raises `KnowledgeStoreError`, with the original error as ``__cause__``.
    """

    async def read(self, path: str) -> str | None:
        """Return the content of a file; None if there is no file, or for a directory."""
        ...

    async def write(self, path: str, content: str) -> None:
        """Replace the content of a file; a missing file is created."""
        ...

    async def list(self, path: str = "/") -> builtins.list[str]:
        """Return the names in a directory, sorted by code point; names of directories end with ``/``.

        The list is empty if there is no directory.
        """
        ...

    async def delete(self, path: str) -> None:
        """Remove a file, or a directory with its content (``/`` empties the store); a missing path is no error."""
        ...

    async def exists(self, path: str) -> bool:
        """Return True if a file or a directory exists; the root always exists."""
        ...

    async def append(self, path: str, content: str) -> int:
        """Append to a file, and return the offset in bytes at which the new content begins.

        A missing file is created.
        """
        ...

    async def read_range(self, path: str, start: int, end: int | None = None) -> str:
        """Return the characters whose first byte is in ``[start, end)``; with `end` None, up to the end of the file.

        A range never splits a character, and adjacent ranges give the whole text, each character once: the first
        character can begin up to three bytes after `start`, the last can end up to three bytes after `end`. The result
        is empty if there is no file, or no content in the range.

        Raises:
            ConfigurationError: An offset is negative.
        """
        ...


@runtime_checkable
class ComparingKnowledgeStore(KnowledgeStore, Protocol):
    """A `KnowledgeStore` with compare-and-set: a write succeeds only if the content has not changed since it was read.

    The stores in memory, on disk, in SQLite and in Redis support this. With any other store, one of two concurrent
    updates of the working memory is lost.
    """

    async def replace(self, path: str, old: str | None, new: str | None) -> bool:
        """Replace the content `old` of a file by `new`, atomically.

        Args:
            path: The file.
            old: The expected content; None if the file must not exist (a directory is not a file).
            new: The new content; None removes the file.

        Returns:
            True if the file had the content `old`; if not, nothing was changed.
        """
        ...
