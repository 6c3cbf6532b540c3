"""`ExtractiveCompactor`: keeps a text's most informative parts, without a model."""

from __future__ import annotations

import bisect
import itertools
import math
import re
import unicodedata
from typing import TYPE_CHECKING, Final

from otel_assembly._internal.arguments import function, of_type
from otel_assembly.budget.extractive_rank import Span, ranked
from otel_assembly.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

#: The bounds of a piece's length in characters; between them, it is the target's number of tokens.
_LONGEST_PIECES: Final = (40, 400)
#: The most counts of one search: one finds how many pieces fit, another where to cut the last one.
_MOST_COUNTS: Final = 8
#: A search ends if the result has at least this fraction of the target.
_FULL: Final = 0.98
#: The estimated bytes of a token before the first count.
_BYTES_PER_TOKEN: Final = 4.0
#: Below this target there is no mark for omitted text, because it would take a large part of the target.
_MARKED_FROM: Final = 12
#: The fewest free tokens for which a part of a further piece is added.
_WORTH_CUTTING: Final = 4
_LONGEST_WORD: Final = 24

#: The mark for omitted text.
LEFT_OUT: Final = "[…]"

_LONG_LINE: Final = 120
_SHORT_SENTENCE: Final = 20
_BLANK_TO_KEEP: Final = 64
_MOST_PIECES: Final = 20_000
_LINE = re.compile(r"[^\n]*\n+|[^\n]+")
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？])[」』”’）]*")
#: Places to cut a piece without sentences, best first: between rows, between fields, between words.
_JOINTS: Final = (("},", "],", ";"), (",", "|", "\t"), (" ",))

_ZWJ: Final = "\u200d"
_SKIN_TONES: Final = ("\U0001f3fb", "\U0001f3ff")
_REGIONAL: Final = ("\U0001f1e6", "\U0001f1ff")
_JAMO_FOLLOWS: Final = ("\u1160", "\u11ff")


class ExtractiveCompactor:
    """Keep a text's most informative sentences and lines, in their order.

    The compactor accepts any text in any language: prose, JSON, logs, code, one endless line. It adds no words, only
    the mark ``[…]`` where text was omitted; below 12 tokens, there is no mark. The last piece is cut between two words
    or characters, so that the result is close to the target. By the exact count of the returned text, it never exceeds
    the target.

    The result depends only on the text, the target and the counter, so it is the same in every process. A text of n
    characters costs O(n log n), and at most 24 counts of texts that are about as long as the result.

    Args:
        count: Counts the tokens of a text; by default the caller's counter, and without one ``counter_for(None)``.
    """

    __slots__ = ("_count",)

    #: The compactor calls no model, so it needs neither a thread nor a deadline.
    never_waits: Final = True

    def __init__(self, count: Callable[[str], int] | None = None) -> None:
        if count is not None:
            function("count", count)
        self._count = count

    def __call__(self, text: str, target_tokens: int, *, count: Callable[[str], int] | None = None) -> str:
        """Return at most `target_tokens` of `text`.

        The result is empty if the text is blank, or if not even one character fits.

        Raises:
            ConfigurationError: `text` is not a text, or `target_tokens` is not a whole number.
        """
        of_type("text", text, str)
        if type(target_tokens) is not int:
            raise ConfigurationError(f"target_tokens must be a whole number, got a {type(target_tokens).__name__}")
        if target_tokens < 1 or not text or text.isspace():
            return ""
        fitting = _Fitting(text, target_tokens, self._count or count or default_count())
        marked = fitting.fill(marked=True) if target_tokens >= _MARKED_FROM else ""
        return marked or fitting.fill(marked=False)


class _Fitting:
    """Fills a target with pieces of one text."""

    def __init__(self, text: str, target: int, count: Callable[[str], int]) -> None:
        self._text = text
        self._target = target
        self._count = count
        low, high = _LONGEST_PIECES
        self._pieces = pieces_of(text, max(low, min(high, target)))
        self._ranked = ranked(text, self._pieces)
        #: The pieces in the order of their rank, as far as they were ranked, and their cumulated bytes.
        self._chosen: list[Span] = []
        self._bytes: list[int] = [0]
        self._marked = True
        self._best = "", 0

    def fill(self, *, marked: bool) -> str:
        self._marked = marked
        self._best = "", 0
        kept, bytes_per_token = self._whole_pieces()
        if self._target - self._best[1] >= _WORTH_CUTTING or not kept:
            self._part_of_next(kept, bytes_per_token)
        return self._best[0]

    def _whole_pieces(self) -> tuple[list[Span], float]:
        """Return the best pieces that fit together, and the measured bytes per token."""
        fits, too_many = 0, math.inf
        bytes_per_token = _BYTES_PER_TOKEN
        for turn in range(_MOST_COUNTS):
            number = self._number_within(self._target * bytes_per_token)
            if turn % 2 and too_many < math.inf:
                # Bisect, because an estimate that always errs to one side converges slowly.
                number = (fits + int(too_many)) // 2
            number = int(max(fits + 1, min(number, too_many - 1)))
            if self._choose(number) < number:
                number = len(self._chosen)
                if number == fits:
                    break
            tokens = self._try(self._chosen[:number])
            bytes_per_token = self._bytes[number] / max(tokens, 1)
            if tokens > self._target:
                too_many = number
            else:
                fits = number
                if tokens >= _FULL * self._target:
                    break
            if too_many - fits <= 1:
                break
        return self._chosen[:fits], bytes_per_token

    def _part_of_next(self, kept: list[Span], bytes_per_token: float) -> None:
        """Add as much of the beginning of the next piece as fits."""
        if self._choose(len(kept) + 1) <= len(kept):
            return
        start, end = self._chosen[len(kept)]
        per_byte = (end - start) / (self._bytes[len(kept) + 1] - self._bytes[len(kept)])
        room = int((self._target - self._best[1]) * bytes_per_token * per_byte)
        low, high, cut_before = start, end, start
        for turn in range(_MOST_COUNTS):
            if high - low <= 1:
                break
            at = (low + high) // 2 if turn else max(low + 1, min(start + room, high - 1))
            cut = self._cut_at(at, cut_before)
            if cut > cut_before:
                tokens = self._try([*kept, (start, cut)])
                if tokens > self._target:
                    high = cut
                    continue
                cut_before = cut
                if tokens >= _FULL * self._target:
                    break
            low = at

    def _cut_at(self, at: int, low: int) -> int:
        """Return the last place up to `at` to cut at; `low` if there is none.

        It is the end of a word, or otherwise the end of a visible character.
        """
        for place in range(at, max(low, at - _LONGEST_WORD), -1):
            if self._text[place].isspace():
                return place
        return grapheme_start(self._text, at, low)

    def _try(self, spans: list[Span]) -> int:
        rendered = render(self._text, spans, marked=self._marked)
        tokens = self._count(rendered) if rendered else 0
        if self._best[1] < tokens <= self._target:
            self._best = rendered, tokens
        return tokens

    def _number_within(self, total: float) -> int:
        known = -1
        while self._bytes[-1] <= total and len(self._chosen) > known:
            known = len(self._chosen)
            self._choose(known + 1)
        return bisect.bisect_right(self._bytes, total) - 1

    def _choose(self, number: int) -> int:
        """Rank pieces until `number` are ranked, or all.

        Returns:
            How many are ranked.
        """
        for index in itertools.islice(self._ranked, max(0, number - len(self._chosen))):
            start, end = self._pieces[index]
            self._chosen.append((start, end))
            self._bytes.append(self._bytes[-1] + len(self._text[start:end].encode("utf-8", "surrogatepass")))
        return len(self._chosen)


def default_count() -> Callable[[str], int]:
    """Return the exact counter if no model is known."""
    from otel_assembly.tokens import counter_for  # imported on first use, because it loads a vocabulary

    return counter_for().count


def pieces_of(text: str, longest: int) -> list[Span]:
    """Split a text into lines, long lines into sentences, and long sentences at joints.

    Together the pieces are the whole text.

    Args:
        text: Any text. In a large text, short lines are joined, so that there are at most about 20,000 pieces.
        longest: The most characters of a piece, if it can be cut.
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
        if cut == start:  # one character with hundreds of combining marks
            cut = high
        yield start, cut
        start = cut
    if start < end:
        yield start, end


def _joint(text: str, low: int, high: int) -> int:
    for marks in _JOINTS:
        end = max(((at + len(mark)) for mark in marks if (at := text.rfind(mark, low, high)) >= 0), default=0)
        if end:
            return end
    return 0


def grapheme_start(text: str, at: int, low: int) -> int:
    """Return the last place up to `at` that does not split a visible character.

    It is `low` if there is none after that place.
    """
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
    if _REGIONAL[0] <= after <= _REGIONAL[1]:  # flags are pairs of regional indicators
        first = at
        while first > low and _REGIONAL[0] <= text[first - 1] <= _REGIONAL[1]:
            first -= 1
        return (at - first) % 2 == 0
    return True


def render(text: str, spans: Iterable[Span], *, marked: bool = True) -> str:
    """Return the kept spans in the text's order, with `LEFT_OUT` in place of omitted text."""
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
