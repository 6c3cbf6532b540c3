"""The knowledge store: what an agent keeps between conversations, as texts under paths (as in AG2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import builtins

#: Where the working memory is kept; ``WorkingMemoryPolicy`` reads it, ``WorkingMemoryAggregate`` writes it.
WORKING_MEMORY_PATH = "/memory/working.md"

#: The directory of the conversations' summaries, one file each; their names sort by time.
CONVERSATIONS_PREFIX = "/memory/conversations/"


@runtime_checkable
class KnowledgeStore(Protocol):
    """Texts under paths; the same behaviour in memory, on disk, in SQLite and in Redis.

    * A path is absolute within the store (``/memory/working.md``). ``.`` and ``..``, empty segments, backslashes, NUL,
      drive letters, names the store keeps for itself and paths that are too long raise `KnowledgePathError`.
    * A directory is there as long as a file is beneath it; nobody makes or removes one. A path is a file or a
      directory, never both: writing a file over a directory, or beneath a file, raises `KnowledgePathError`.
    * A content is a Unicode text, kept byte by byte as UTF-8 (no newline is translated). Offsets are bytes.
    * Each call is atomic: a reader sees a content as it was before a write or append, or after it. Of two writers at
      once one whole content remains; no append is lost. A cancelled call may still be carried out.
    * What the store cannot do raises `KnowledgeStoreError`, with the original error as ``__cause__``.
    """

    async def read(self, path: str) -> str | None:
        """The content of a file; None where no file is there (nor for a directory)."""
        ...

    async def write(self, path: str, content: str) -> None:
        """Put `content` in the place of whatever the file held."""
        ...

    async def list(self, path: str = "/") -> builtins.list[str]:
        """The names directly beneath a directory, sorted by code point; those of directories end with ``/``.

        Empty where no directory is there.
        """
        ...

    async def delete(self, path: str) -> None:
        """Remove a file, or a directory with all that is beneath it (``/`` empties the store); missing is no error."""
        ...

    async def exists(self, path: str) -> bool:
        """Whether a file or a directory is there; the root always is."""
        ...

    async def append(self, path: str, content: str) -> int:
        """Add `content` at the end of a file, which is made if it is missing; the offset in bytes where it starts."""
        ...

    async def read_range(self, path: str, start: int, end: int | None = None) -> str:
        """The characters whose first byte lies in ``[start, end)``; no `end` means up to the end of the file.

        So a range never fails in the middle of a character, and ranges that adjoin give the whole text, each character
        once: the first character may begin up to three bytes after `start`, the last may end up to three after `end`.
        Empty where no file is there, or nothing of it in the range.

        Raises:
            ConfigurationError: An offset is negative.
        """
        ...


@runtime_checkable
class ComparingKnowledgeStore(KnowledgeStore, Protocol):
    """A `KnowledgeStore` in which whoever read, and thought, writes only if nobody has written meanwhile.

    Ours all are. In a store that is none, the later one of two processes' updates of the working memory remains.
    """

    async def replace(self, path: str, old: str | None, new: str | None) -> bool:
        """Put `new` in the place of `old`, in one step that nobody else's change comes between.

        Args:
            path: The file.
            old: What it has to hold; None for no file (a directory is none).
            new: What it holds then; None removes it.

        Returns:
            Whether it held `old`; if not, nothing was changed.
        """
        ...
