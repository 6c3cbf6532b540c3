"""Whether SQLite's write-ahead log is whole, asked before SQLite reads it.

SQLite ends the log at the first frame that is not what was written, and says nothing of the frames behind it. After a
crash that is right, for one transaction at most was being written, and was not accepted. Where more than one stand
behind, accepted ones were damaged (https://www.sqlite.org/fileformat.html#the_write_ahead_log).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEADER: Final = struct.Struct(">8I")
_FRAME: Final = struct.Struct(">6I")
#: The last bit says how the checksums read words.
_MAGIC: Final = 0x377F0682


@dataclass(frozen=True, slots=True)
class WalState:
    """What a write-ahead log was found to hold.

    Attributes:
        whole: Its frames that are what was written, from the first on.
        behind: The transactions, one after another, whose ends stand behind the first frame that is not.
        torn: Whether anything of this log stands behind its last whole transaction.
        readable: Whether its header is what was written, or nothing stands behind it.
    """

    whole: int = 0
    behind: int = 0
    torn: bool = False
    readable: bool = True


def look_at_wal(path: str) -> WalState:
    """Read a write-ahead log, if there is one; nobody may be writing to it."""
    try:
        log = Path(path).read_bytes()
    except FileNotFoundError:
        return WalState()
    if len(log) <= _HEADER.size + _FRAME.size:
        return WalState()
    magic, _, page_size, _, *salts, first, second = _HEADER.unpack_from(log)
    words = ">" if magic & 1 else "<"
    sums = _summed(log[: _HEADER.size - 8], words, (0, 0))
    if magic & ~1 != _MAGIC or sums != (first, second):
        return WalState(readable=False)
    whole = committed = behind = ended = rest = 0
    for at, head in _frames(log, page_size):
        _, size_after, salt_1, salt_2, first, second = head
        if [salt_1, salt_2] != salts:
            break  # what an earlier log, which is in the database by now, left behind
        content = log[at : at + 8] + log[at + _FRAME.size : at + _FRAME.size + page_size]
        follows = len(content) == 8 + page_size and _summed(content, words, sums) == (first, second)
        sums = first, second
        if follows and not rest:
            whole += 1
            committed = whole if size_after else committed
        else:
            rest += 1
            # Transactions that failed one after another, at one place, leave frames that do not follow each other.
            ended = (ended if follows else 0) + (size_after > 0)
            behind = max(behind, ended)
    return WalState(whole, behind, torn=rest > 0 or whole > committed)


def _frames(log: bytes, page_size: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Where each frame begins, and its head; the last one may be cut."""
    for at in range(_HEADER.size, len(log) - _FRAME.size + 1, _FRAME.size + page_size):
        yield at, _FRAME.unpack_from(log, at)


def _summed(content: bytes, words: str, sums: tuple[int, int]) -> tuple[int, int]:
    """SQLite's checksum of a content, going on from what came before it."""
    first, second = sums
    numbers = iter(struct.unpack(f"{words}{len(content) // 4}I", content[: len(content) // 4 * 4]))
    for even, odd in zip(numbers, numbers, strict=False):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second
