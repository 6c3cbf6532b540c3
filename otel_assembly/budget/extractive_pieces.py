"""A text taken apart into pieces to choose from, and put together again from the chosen ones."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Where text was left out.
LEFT_OUT: Final = "[…]"

Span = tuple[int, int]

_LONG_LINE: Final = 120
_SHORT_SENTENCE: Final = 20
_BLANK_TO_KEEP: Final = 64
_MOST_PIECES: Final = 20_000
_LINE = re.compile(r"[^\n]*\n+|[^\n]+")
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？])[」』”’）]*")
#: Where a piece without sentences may end, the best first: between rows, between fields, between words.
_JOINTS: Final = (("},", "],", ";"), (",", "|", "\t"), (" ",))

_ZWJ: Final = "\u200d"
_SKIN_TONES: Final = ("\U0001f3fb", "\U0001f3ff")
_REGIONAL: Final = ("\U0001f1e6", "\U0001f1ff")
_JAMO_FOLLOWS: Final = ("\u1160", "\u11ff")


def pieces_of(text: str, longest: int) -> list[Span]:
    """`text` cut into lines, long lines into sentences, long sentences at joints; together they are all of it.

    Args:
        text: Any text; of a large one, short lines stay together, so that there are some 20,000 pieces at most.
        longest: Characters of the longest piece, if it can be cut.
    """
    shortest = len(text) // _MOST_PIECES
    longest = max(longest, 2 * shortest)
    whole: list[Span] = []
    start = 0
    for _, end in _cut(text, longest):
        if end - start > shortest or end == len(text):
            whole.append((start, end))
            start = end
    return whole


def _cut(text: str, longest: int) -> Iterator[Span]:
    for line in _LINE.finditer(text):
        start, end = line.span()
        if end - start <= min(_LONG_LINE, longest):
            yield start, end
            continue
        for sentence in _sentences(text, start, end):
            yield from _parts(text, *sentence, longest)


def _sentences(text: str, start: int, end: int) -> Iterator[Span]:
    for stop in _SENTENCE_END.finditer(text, start, end):
        if stop.end() - start >= _SHORT_SENTENCE:
            yield start, stop.end()
            start = stop.end()
    if start < end:
        yield start, end


def _parts(text: str, start: int, end: int, longest: int) -> Iterator[Span]:
    while end - start > longest:
        high = start + longest
        cut = _joint(text, start + longest // 2, high) or grapheme_start(text, high, start)
        if cut == start:  # one character with hundreds of marks
            cut = high
        yield start, cut
        start = cut
    if start < end:
        yield start, end


def _joint(text: str, low: int, high: int) -> int:
    for marks in _JOINTS:
        found = max(((at + len(mark)) for mark in marks if (at := text.rfind(mark, low, high)) >= 0), default=0)
        if found:
            return found
    return 0


def grapheme_start(text: str, at: int, low: int) -> int:
    """The last place from `low` to `at` where no visible character is cut apart; `low` where there is none."""
    while at > low and not _may_cut(text, at, low):
        at -= 1
    return at


def _may_cut(text: str, at: int, low: int) -> bool:
    if not 0 < at < len(text):
        return True
    before, after = text[at - 1], text[at]
    if after.isascii():
        return not (before == "\r" and after == "\n")
    if (
        before == _ZWJ
        or after == _ZWJ
        or unicodedata.category(after) in ("Mn", "Me", "Mc")
        or _SKIN_TONES[0] <= after <= _SKIN_TONES[1]
        or _JAMO_FOLLOWS[0] <= after <= _JAMO_FOLLOWS[1]
    ):
        return False
    if _REGIONAL[0] <= after <= _REGIONAL[1]:  # flags are pairs
        first = at
        while first > low and _REGIONAL[0] <= text[first - 1] <= _REGIONAL[1]:
            first -= 1
        return (at - first) % 2 == 0
    return True


def render(text: str, spans: Iterable[Span], *, marked: bool = True) -> str:
    """The kept spans in the text's order, with `LEFT_OUT` wherever something before, between or behind is missing."""
    out: list[str] = []
    done = 0
    for start, end in _merged(text, spans):
        if out or text[:start].strip():
            out.append(_gap(text, done if out else None, start, marked=marked))
        kept = text[start:end].rstrip()
        out.append(kept.lstrip("\r\n") if _begins_line(text, start) else kept.lstrip())
        done = end
    if out and marked and text[done:].strip():
        out.append(_gap(text, done, None, marked=True))
    return "".join(out)


def _merged(text: str, spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged:
            before = merged[-1][1]
            if start == before or (start - before <= _BLANK_TO_KEEP and text[before:start].isspace()):
                merged[-1] = (merged[-1][0], end)
                continue
        merged.append((start, end))
    return merged


def _gap(text: str, before: int | None, after: int | None, *, marked: bool) -> str:
    left = "" if before is None else "\n" if _begins_line(text, before) else " "
    right = "" if after is None else "\n" if _begins_line(text, after) else " "
    return left + LEFT_OUT + right if marked else left


def _begins_line(text: str, at: int) -> bool:
    return at == 0 or text[at - 1] == "\n"
