"""`ExtractiveCompactor`: shortens a text to its most informative sentences and lines, without a model."""

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

#: The maximum length of a piece in characters is the target in tokens, but within these bounds.
_LONGEST_PIECES: Final = (40, 400)
#: The maximum number of token counts in each of the two searches: how many pieces fit, and where to cut the last one.
_MOST_COUNTS: Final = 8
#: A search ends as soon as the result has at least this fraction of the target.
_FULL: Final = 0.98
#: The estimated bytes of a token before the first count.
_BYTES_PER_TOKEN: Final = 4.0
#: Below this target, omitted text is not marked, because the mark would use a large part of the target.
_MARKED_FROM: Final = 12
#: If fewer tokens than this are left, no part of a further piece is added.
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
#: The strings after which a long piece is cut, the best first: between rows, between fields, between words.
_JOINTS: Final = (("},", "],", ";"), (",", "|", "\t"), (" ",))

_ZWJ: Final = "\u200d"
_SKIN_TONES: Final = ("\U0001f3fb", "\U0001f3ff")
_REGIONAL: Final = ("\U0001f1e6", "\U0001f1ff")
_JAMO_FOLLOWS: Final = ("\u1160", "\u11ff")


class ExtractiveCompactor:
    """A compactor that keeps the most informative sentences and lines of a text, in their order, without a model.

    It accepts any text in any language: prose, JSON, logs, code, a single long line. It adds no words, only the mark
    ``[…]`` in place of omitted text; if the target is below 12 tokens, it adds no mark. The last piece is cut between
    two words or characters, so that the result is close to the target. The result never has more tokens than the
    target.

    The result depends only on the text, the target and the counter, so it is equal in every process. The run time is
    O(n log n) for a text of n characters; tokens are counted at most 24 times, of texts about as long as the result.

    Args:
        count: Returns the tokens of a text. None: the `count` argument of the call, or else
            ``counter_for(None).count``.
    """

    __slots__ = ("_count",)

    #: The compactor calls no model, so it needs neither a thread nor a deadline.
    never_waits: Final = True

    def __init__(self, count: Callable[[str], int] | None = None) -> None:
        if count is not None:
            function("count", count)
        self._count = count

    def __call__(self, text: str, target_tokens: int, *, count: Callable[[str], int] | None = None) -> str:
        """Return a shorter text of at most `target_tokens`; it is empty if no character fits or `text` is blank.

        Args:
            text: The text to shorten.
            target_tokens: The maximum number of tokens of the result.
            count: Returns the tokens of a text; used if the compactor was created without a counter.

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
    """Searches the pieces of one text that together have as many tokens as possible, but not more than the target."""

    def __init__(self, text: str, target: int, count: Callable[[str], int]) -> None:
        self._text = text
        self._target = target
        self._count = count
        low, high = _LONGEST_PIECES
        self._pieces = pieces_of(text, max(low, min(high, target)))
        self._ranked = ranked(text, self._pieces)
        #: The pieces that were ranked so far, the best first; and their cumulated bytes.
        self._chosen: list[Span] = []
        self._bytes: list[int] = [0]
        self._marked = True
        #: The best result so far and its tokens.
        self._best = "", 0

    def fill(self, *, marked: bool) -> str:
        self._marked = marked
        self._best = "", 0
        kept, bytes_per_token = self._whole_pieces()
        if self._target - self._best[1] >= _WORTH_CUTTING or not kept:
            self._part_of_next(kept, bytes_per_token)
        return self._best[0]

    def _whole_pieces(self) -> tuple[list[Span], float]:
        """Find how many of the best pieces fit together; return these pieces and the measured bytes per token."""
        fits, too_many = 0, math.inf
        bytes_per_token = _BYTES_PER_TOKEN
        for turn in range(_MOST_COUNTS):
            number = self._number_within(self._target * bytes_per_token)
            if turn % 2 and too_many < math.inf:
                # Bisect, because an estimate that always errs to one side converges slowly.
                number = (fits + int(too_many)) // 2
            number = int(max(fits + 1, min(number, too_many - 1)))
            if self._rank_up_to(number) < number:
                number = len(self._chosen)
                if number == fits:
                    break
            tokens = self._count_rendered(self._chosen[:number])
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
        """Add as much as fits of the beginning of the next best piece."""
        if self._rank_up_to(len(kept) + 1) <= len(kept):
            return
        start, end = self._chosen[len(kept)]
        per_byte = (end - start) / (self._bytes[len(kept) + 1] - self._bytes[len(kept)])
        room = int((self._target - self._best[1]) * bytes_per_token * per_byte)
        low, high, cut_before = start, end, start
        for turn in range(_MOST_COUNTS):
            if high - low <= 1:
                break
            position = (low + high) // 2 if turn else max(low + 1, min(start + room, high - 1))
            cut = self._cut_at(position, cut_before)
            if cut > cut_before:
                tokens = self._count_rendered([*kept, (start, cut)])
                if tokens > self._target:
                    high = cut
                    continue
                cut_before = cut
                if tokens >= _FULL * self._target:
                    break
            low = position

    def _cut_at(self, position: int, low: int) -> int:
        """Return the last position from `low` to `position` at which the text can be cut.

        This is the end of a word, or else the end of a visible character.
        """
        for word_end in range(position, max(low, position - _LONGEST_WORD), -1):
            if self._text[word_end].isspace():
                return word_end
        return grapheme_start(self._text, position, low)

    def _count_rendered(self, spans: list[Span]) -> int:
        rendered = render(self._text, spans, marked=self._marked)
        tokens = self._count(rendered) if rendered else 0
        if self._best[1] < tokens <= self._target:
            self._best = rendered, tokens
        return tokens

    def _number_within(self, total: float) -> int:
        """Return how many of the best pieces have at most `total` bytes together."""
        known = -1
        while self._bytes[-1] <= total and len(self._chosen) > known:
            known = len(self._chosen)
            self._rank_up_to(known + 1)
        return bisect.bisect_right(self._bytes, total) - 1

    def _rank_up_to(self, number: int) -> int:
        """Rank further pieces until `number` pieces are ranked, or all.

        Returns:
            The number of ranked pieces.
        """
        for index in itertools.islice(self._ranked, max(0, number - len(self._chosen))):
            start, end = self._pieces[index]
            self._chosen.append((start, end))
            self._bytes.append(self._bytes[-1] + len(self._text[start:end].encode("utf-8", "surrogatepass")))
        return len(self._chosen)


def default_count() -> Callable[[str], int]:
    """Return the function that counts the tokens of a text if the caller names neither a counter nor a model."""
    from otel_assembly.tokens import counter_for  # imported on first use, because it loads a vocabulary

    return counter_for().count


def pieces_of(text: str, longest: int) -> list[Span]:
    """Split a text into lines, long lines into sentences, and long sentences between rows, fields or words.

    Args:
        text: Any text. In a large text, short lines are joined, so that there are at most about 20,000 pieces.
        longest: The maximum length of a piece in characters. A visible character of several code points is not cut.

    Returns:
        The start and end of each piece; the pieces cover the whole text.
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
        cut = _last_joint(text, start + longest // 2, high) or grapheme_start(text, high, start)
        if cut == start:  # one character with hundreds of combining marks
            cut = high
        yield start, cut
        start = cut
    if start < end:
        yield start, end


def _last_joint(text: str, low: int, high: int) -> int:
    for marks in _JOINTS:
        end = max(
            ((position + len(mark)) for mark in marks if (position := text.rfind(mark, low, high)) >= 0), default=0
        )
        if end:
            return end
    return 0


def grapheme_start(text: str, position: int, low: int) -> int:
    """Return the last position from `low` to `position` that does not split a visible character.

    A visible character may consist of several code points, such as a letter with accents or an emoji.
    """
    while position > low and not _may_cut(text, position, low):
        position -= 1
    return position


def _may_cut(text: str, position: int, low: int) -> bool:
    if not 0 < position < len(text):
        return True
    before, after = text[position - 1], text[position]
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
        first = position
        while first > low and _REGIONAL[0] <= text[first - 1] <= _REGIONAL[1]:
            first -= 1
        return (position - first) % 2 == 0
    return True


def render(text: str, spans: Iterable[Span], *, marked: bool = True) -> str:
    """Join the spans of a text in their order, with the mark ``[…]`` in place of omitted text if `marked` is True."""
    parts: list[str] = []
    copied_up_to = 0
    for start, end in _merged(text, spans):
        if parts or text[:start].strip():
            parts.append(_gap(text, copied_up_to if parts else None, start, marked=marked))
        kept = text[start:end].rstrip()
        parts.append(kept.lstrip("\r\n") if _begins_line(text, start) else kept.lstrip())
        copied_up_to = end
    if parts and marked and text[copied_up_to:].strip():
        parts.append(_gap(text, copied_up_to, None, marked=True))
    return "".join(parts)


def _merged(text: str, spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged:
            previous_end = merged[-1][1]
            if start == previous_end or (start - previous_end <= _BLANK_TO_KEEP and text[previous_end:start].isspace()):
                merged[-1] = (merged[-1][0], end)
                continue
        merged.append((start, end))
    return merged


def _gap(text: str, before: int | None, after: int | None, *, marked: bool) -> str:
    space_before = "" if before is None else "\n" if _begins_line(text, before) else " "
    space_after = "" if after is None else "\n" if _begins_line(text, after) else " "
    return space_before + LEFT_OUT + space_after if marked else space_before


def _begins_line(text: str, position: int) -> bool:
    return position == 0 or text[position - 1] == "\n"
