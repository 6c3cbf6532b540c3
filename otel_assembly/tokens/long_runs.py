"""A long run of one character is counted by a shorter one, exactly: a tokenizer takes seconds for a mebibyte of it.

Byte-pair merging joins the neighbours of the lowest rank first, and of several the leftmost. In a run all neighbours
are alike, so that pairs of one length become tokens of twice that length, from the left, until no longer token exists.
What stands around a run joins with no more of it than the longest token has, at each length. Beyond that, as many
characters more as the last token has are one token more.
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


def without_long_runs(encoding: tiktoken.Encoding, text: str) -> tuple[str, int]:
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
