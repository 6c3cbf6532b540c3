"""Exact and fast counting of long texts.

tiktoken takes seconds for a mebibyte of one repeated character (a run), or panics. Therefore each long run is replaced
by a shorter run, and the tokens of the removed characters are computed by a division.

This is exact because of how byte-pair merging works. It joins the pair of the lowest rank first, and the leftmost of
equal pairs. In a run, all pairs are equal: tokens double in length, from the left, until the vocabulary has no longer
token. The text around a run merges only with a limited part of the run. The rest is a repetition of the longest token.
"""

from __future__ import annotations

import re
from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    import tiktoken

#: The step of the search for runs, in characters. Every run of at least twice this length is found.
_BLOCK: Final = 16_384
#: How many characters of a run are kept (plus less than a token): several times the part that merges with other text.
_KEPT: Final = 8_192
_TOKEN_BYTES: Final = 4
_NO_SPECIAL: Final[frozenset[str]] = frozenset()

# tiktoken's regular expression engine stores a backtracking state for each character of a whitespace run, and panics at
# a million of them. Long runs are therefore split here, at the same places as by the expression, so that the count is
# exact: whitespace after the last newline is one piece, without its last character if a word or sign follows.
_LONG_SPACE: Final = 500_000
_SPACES: Final = "\t\x0b\x0c \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_SPACE_RUN: Final = re.compile(f"[{_SPACES}]+")


def count_long(encoding: tiktoken.Encoding, text: str, *, splits_trailing_space: bool | None) -> int:
    """Return the exact number of tokens of a long text.

    Args:
        encoding: The encoding.
        text: The text.
        splits_trailing_space: True if the encoding's pattern splits spaces at the end of a text. None if the pattern is
            unknown; long runs of spaces are not split then.
    """
    text, removed = _without_long_runs(encoding, text)
    if splits_trailing_space is None or len(text) < _LONG_SPACE or not _has_long_space(text):
        return removed + _count(encoding, text)
    return removed + _count_around_long_space(encoding, text, splits_trailing_space)


def _count(encoding: tiktoken.Encoding, text: str) -> int:
    """Count the tokens of a text without building a list, which would block all other threads."""
    try:
        tokens = encoding._core_bpe.encode_to_tiktoken_buffer(text, _NO_SPECIAL)  # noqa: SLF001  # the public method needs numpy
    except UnicodeEncodeError:  # a lone surrogate, which `encode_ordinary` replaces
        return len(encoding.encode_ordinary(text))
    return memoryview(tokens).nbytes // _TOKEN_BYTES


def _without_long_runs(encoding: tiktoken.Encoding, text: str) -> tuple[str, int]:
    """Return the text with shortened runs of equal characters, and the number of tokens that were removed."""
    parts: list[str] = []
    removed = done = 0
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
        removed += (end - start - kept) // period
        parts.append(text[done : start + kept])
        done = end
    return "".join([*parts, text[done:]]), removed


def _end_of_run(text: str, start: int, char: str) -> int:
    run = re.compile(f"{re.escape(char)}*").match(text, start)
    return run.end() if run is not None else start


def _period(encoding: tiktoken.Encoding, char: str) -> int | None:
    """Return the characters per token in a long run of one character; None if such a run cannot be shortened.

    Runs of digits cannot, because they are split into groups of three before merging; nor can runs of a multi-byte
    character, whose bytes form different pairs.
    """
    if not char.isascii() or char.isdigit():
        return None
    ranks: Mapping[bytes, int] = encoding._mergeable_ranks  # noqa: SLF001  # there is no public access

    def rank(length: int) -> float:
        return ranks.get(char.encode() * length, inf)

    period = 1
    while (doubled := rank(2 * period)) < inf:
        if min(rank(3 * period), rank(4 * period)) < doubled or 4 * period > _KEPT:
            return None  # a new token would merge before all pairs are joined
        period *= 2
    return period


def _has_long_space(text: str) -> bool:
    # A run of this length covers at least one block of half its length, so checking the blocks is enough.
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
        total += len(encoding._encode_single_piece(text[start:end]))  # noqa: SLF001  # the only call that does not apply the pattern
        done = end
    return total + _count(encoding, text[done:])
