"""Long texts, counted exactly and in time, where a tokenizer takes seconds for a mebibyte of one character, or panics.

A long run of one character is counted by a shorter one. Byte-pair merging joins the neighbours of the lowest rank
first, and of several the leftmost. In a run all neighbours are alike, so that pairs of one length become tokens of
twice that length, from the left, until no longer token exists. What stands around a run joins with no more of it than
the longest token has, at each length. Beyond that, as many characters more as the last token has are one token more.
"""

from __future__ import annotations

import re
from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    import tiktoken

#: Runs of twice so many characters are sure to be found.
_BLOCK: Final = 16_384
#: Of a run so many characters stay, and less than a token more: several times what the text around it can reach.
_KEPT: Final = 8_192
_TOKEN_BYTES: Final = 4
_NO_SPECIAL: Final[frozenset[str]] = frozenset()

# tiktoken's pattern engine keeps a state for every character of a whitespace run that it may have to give back, and
# panics at a million of them. Such runs are cut where the pattern itself cuts, so the count stays exact: whitespace
# behind the last newline is one piece, except for its last character where a word or sign follows to take it up.
_LONG_SPACE: Final = 500_000
_SPACES: Final = "\t\x0b\x0c \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_SPACE_RUN: Final = re.compile(f"[{_SPACES}]+")


def count_long(encoding: tiktoken.Encoding, text: str, *, splits_trailing_space: bool | None) -> int:
    """The exact number of a long text's tokens.

    Args:
        encoding: What counts.
        text: The text.
        splits_trailing_space: Whether the encoding's pattern splits spaces at the end of a text; None where its
            pattern is not known, so that it is handed whole texts.
    """
    text, lost = _without_long_runs(encoding, text)
    if splits_trailing_space is None or len(text) < _LONG_SPACE or not _has_long_space(text):
        return lost + _count(encoding, text)
    return lost + _count_around_long_space(encoding, text, splits_trailing_space)


def _count(encoding: tiktoken.Encoding, text: str) -> int:
    """The tokens of a text, of which no list is made, for that keeps all other threads waiting."""
    try:
        tokens = encoding._core_bpe.encode_to_tiktoken_buffer(text, _NO_SPECIAL)  # noqa: SLF001  # or numpy is needed
    except UnicodeEncodeError:  # a lone surrogate, which `encode_ordinary` replaces
        return len(encoding.encode_ordinary(text))
    return memoryview(tokens).nbytes // _TOKEN_BYTES


def _without_long_runs(encoding: tiktoken.Encoding, text: str) -> tuple[str, int]:
    """A text with its long runs made short, and the tokens that they lost."""
    parts: list[str] = []
    lost = done = 0
    for at in range(_BLOCK, len(text) + 1, _BLOCK):
        char = text[at - 1]
        if at - _BLOCK < done or text[at - _BLOCK] != char or text[at - _BLOCK : at] != char * _BLOCK:
            continue
        period = _period(encoding, char)
        if period is None:
            continue
        before = text[max(done, at - 2 * _BLOCK) : at]
        start = at - len(before) + len(before.rstrip(char))
        end = _end_of_run(text, at, char)
        kept = _KEPT + (end - start) % period
        lost += (end - start - kept) // period
        parts.append(text[done : start + kept])
        done = end
    return "".join([*parts, text[done:]]), lost


def _end_of_run(text: str, start: int, char: str) -> int:
    run = re.compile(f"{re.escape(char)}*").match(text, start)
    return run.end() if run is not None else start


def _period(encoding: tiktoken.Encoding, char: str) -> int | None:
    """How many of a character the tokens of a long run have; None where the argument above does not hold.

    Digits are cut into threes before anything is merged. A character of several bytes has neighbours of two sorts.
    """
    if not char.isascii() or char.isdigit():
        return None
    ranks: Mapping[bytes, int] = encoding._mergeable_ranks  # noqa: SLF001  # there is no other way to them

    def rank(length: int) -> float:
        return ranks.get(char.encode() * length, inf)

    period = 1
    while (doubled := rank(2 * period)) < inf:
        if min(rank(3 * period), rank(4 * period)) < doubled or 4 * period > _KEPT:
            return None  # what was just joined would be joined on before its neighbours are
        period *= 2
    return period


def _has_long_space(text: str) -> bool:
    # A run of this length covers a whole half-length block, and a block that is not all space shows it at once.
    block = _LONG_SPACE // 2
    return any(text[start : start + block].isspace() for start in range(0, len(text) - block + 1, block))


def _count_around_long_space(encoding: tiktoken.Encoding, text: str, splits_trailing_space: bool) -> int:
    total = done = 0
    for run in _SPACE_RUN.finditer(text):
        start, end = run.span()
        if end - start < _LONG_SPACE:
            continue
        if end == len(text):
            if not splits_trailing_space:
                continue
        elif text[end] in "\r\n":
            continue
        else:
            end -= 1
        total += _count(encoding, text[done:start])
        total += len(encoding._encode_single_piece(text[start:end]))  # noqa: SLF001  # the one call without the pattern
        done = end
    return total + _count(encoding, text[done:])
