"""Checks SQLite's write-ahead log for damage before SQLite reads it.

The write-ahead log is a file of frames: a frame is one changed page with a checksum. SQLite silently ignores the first
frame with a wrong checksum, and all frames after it. After a crash this is correct, because at most one transaction was
being written, and it was not accepted. If more transactions follow, accepted transactions are damaged
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
#: The first number of a write-ahead log, without its last bit, which is the byte order of the checksums.
_MAGIC: Final = 0x377F0682


@dataclass(frozen=True, slots=True)
class WalState:
    """The state of a write-ahead log.

    Attributes:
        whole: The number of intact frames at the start.
        behind: The number of consecutive transactions that end after the first damaged frame.
        torn: True if frames of an incomplete transaction are at the end.
        readable: False if the header is damaged and frames follow it.
    """

    whole: int = 0
    behind: int = 0
    torn: bool = False
    readable: bool = True


def check_wal(path: str) -> WalState:
    """Return the state of a write-ahead log, which may be missing; no process may be writing to it."""
    try:
        log = Path(path).read_bytes()
    except FileNotFoundError:
        return WalState()
    if len(log) <= _HEADER.size + _FRAME.size:
        return WalState()
    magic, _, page_size, _, *salts, first, second = _HEADER.unpack_from(log)
    words = ">" if magic & 1 else "<"
    sums = _checksum(log[: _HEADER.size - 8], words, (0, 0))
    if magic & ~1 != _MAGIC or sums != (first, second):
        return WalState(readable=False)
    intact = committed = behind = consecutive = damaged = 0
    for offset, header in _frames(log, page_size):
        _, size_after, salt_1, salt_2, first, second = header
        if [salt_1, salt_2] != salts:
            break  # a frame of an earlier log, which SQLite has already copied to the main file
        content = log[offset : offset + 8] + log[offset + _FRAME.size : offset + _FRAME.size + page_size]
        is_intact = len(content) == 8 + page_size and _checksum(content, words, sums) == (first, second)
        sums = first, second
        if is_intact and not damaged:
            intact += 1
            committed = intact if size_after else committed
        else:
            damaged += 1
            # Only consecutive transactions count: failed transactions that overwrote each other leave other frames.
            consecutive = (consecutive if is_intact else 0) + (size_after > 0)
            behind = max(behind, consecutive)
    return WalState(intact, behind, torn=damaged > 0 or intact > committed)


def _frames(log: bytes, page_size: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the offset and the header's numbers of each frame; the last frame may be truncated."""
    for offset in range(_HEADER.size, len(log) - _FRAME.size + 1, _FRAME.size + page_size):
        yield offset, _FRAME.unpack_from(log, offset)


def _checksum(content: bytes, words: str, sums: tuple[int, int]) -> tuple[int, int]:
    """Return SQLite's checksum of some bytes, continued from the previous checksum.

    Args:
        content: The bytes.
        words: The byte order of the 32-bit numbers, as in `struct`.
        sums: The previous checksum, which consists of two numbers.
    """
    first, second = sums
    numbers = iter(struct.unpack(f"{words}{len(content) // 4}I", content[: len(content) // 4 * 4]))
    for even, odd in zip(numbers, numbers, strict=False):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second
