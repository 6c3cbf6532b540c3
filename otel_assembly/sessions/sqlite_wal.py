"""Checks SQLite's write-ahead log for damage before SQLite reads it.

SQLite silently ignores all frames from the first one with a wrong checksum on. After a crash this is correct: at most
one transaction was being written, and it was not accepted. If more transactions follow, accepted ones are damaged
(https://www.sqlite.org/fileformat.html#the_write_ahead_log).
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
#: The last bit sets the byte order of the checksums.
_MAGIC: Final = 0x377F0682


@dataclass(frozen=True, slots=True)
class WalState:
    """The state of a write-ahead log.

    Attributes:
        whole: The number of intact frames at the start.
        behind: The number of consecutive transactions that end after the first damaged frame.
        torn: True if this log continues after its last complete transaction.
        readable: True if the header is intact, or no frames follow it.
    """

    whole: int = 0
    behind: int = 0
    torn: bool = False
    readable: bool = True


def look_at_wal(path: str) -> WalState:
    """Check a write-ahead log, if there is one; no process may be writing to it."""
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
            break  # left by an earlier log, which is already checkpointed
        content = log[at : at + 8] + log[at + _FRAME.size : at + _FRAME.size + page_size]
        follows = len(content) == 8 + page_size and _summed(content, words, sums) == (first, second)
        sums = first, second
        if follows and not rest:
            whole += 1
            committed = whole if size_after else committed
        else:
            rest += 1
            # Failed transactions that overwrote each other leave frames that are not consecutive.
            ended = (ended if follows else 0) + (size_after > 0)
            behind = max(behind, ended)
    return WalState(whole, behind, torn=rest > 0 or whole > committed)


def _frames(log: bytes, page_size: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the offset and header of each frame; the last frame may be truncated."""
    for at in range(_HEADER.size, len(log) - _FRAME.size + 1, _FRAME.size + page_size):
        yield at, _FRAME.unpack_from(log, at)


def _summed(content: bytes, words: str, sums: tuple[int, int]) -> tuple[int, int]:
    """Return SQLite's checksum of a content, continued from the previous checksum."""
    first, second = sums
    numbers = iter(struct.unpack(f"{words}{len(content) // 4}I", content[: len(content) // 4 * 4]))
    for even, odd in zip(numbers, numbers, strict=False):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second
