"""Which pieces of a text say most, for their length and beside what was chosen before them."""

from __future__ import annotations

import heapq
import math
import re
from array import array
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Where a piece of a text begins, and where it ends.
Span = tuple[int, int]

# Scripts without spaces between words: there, two neighbouring characters are the nearest thing to a word.
_UNSPACED: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_FIRST_UNSPACED: Final = "\u3040"
_TERM = re.compile(rf"[{_UNSPACED}]+|[^\W{_UNSPACED}]+")
_DIGIT = re.compile(r"\d")
_LONGEST_TERM: Final = 40
#: What a piece costs beyond its bytes, in bytes: the mark of what was left out before it.
_MARK_BYTES: Final = 8
#: The opening says what the text is about, its end how things stand.
_OPENING_BONUS: Final = 2.0
_CLOSING_BONUS: Final = 1.5
_QUESTION_BONUS: Final = 1.25
_NUMBER_BONUS: Final = 1.5


def ranked(text: str, pieces: Sequence[Span]) -> Iterator[int]:
    """Indexes into `pieces`, the most telling first; blank pieces are left out.

    A piece is worth the terms in it that no piece before it had, each weighed by how often it comes in the text and by
    how few pieces share it; with a number in it (an id, a date, an amount) or a question it is worth more. The worth is
    set against the piece's length. So words that stand everywhere weigh little, the subject of the text weighs most,
    and of a line that is repeated one is chosen. The order depends on the text alone.
    """
    vocabulary = _Vocabulary()
    # Arrays in the order of the text: summed in a set's order, the last digit would depend on the hash seed.
    terms = [vocabulary.read(text[start:end].casefold()) for start, end in pieces]
    weights = vocabulary.weights(len(pieces))
    said = bytearray(len(weights))
    factors = [_factor(text[start:end], index, len(pieces)) for index, (start, end) in enumerate(pieces)]

    def worth(index: int) -> float:
        return factors[index] * sum(weights[term] for term in terms[index] if not said[term])

    # What is said only grows, so a worth only falls: the piece on top whose worth is still what it was is the best. One
    # that has fallen goes back, which happens at most as often as there are terms in pieces.
    heap = [(-worth(index), index) for index, (start, end) in enumerate(pieces) if not text[start:end].isspace()]
    heapq.heapify(heap)
    while heap:
        value, index = heap[0]
        now = -worth(index)
        if now > value:
            heapq.heapreplace(heap, (now, index))
            continue
        heapq.heappop(heap)
        for term in terms[index]:
            said[term] = 1
        yield index


class _Vocabulary:
    """The terms of a text by number: how often each comes, and in how many pieces."""

    __slots__ = ("_numbers", "_pieces", "_times")

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._times: list[int] = []
        self._pieces: list[int] = []

    def read(self, piece: str) -> array[int]:
        """The numbers of a piece's terms, each once, in the order in which they first come."""
        found: dict[int, None] = {}
        for term in terms(piece):
            number = self._numbers.setdefault(term, len(self._times))
            if number == len(self._times):
                self._times.append(0)
                self._pieces.append(0)
            self._times[number] += 1
            found[number] = None
        for number in found:
            self._pieces[number] += 1
        return array("I", found)

    def weights(self, pieces: int) -> list[float]:
        """What each term is worth in a text of so many pieces."""
        return [
            math.log1p(times) * math.log1p(pieces / sharing) * (_NUMBER_BONUS if _DIGIT.search(term) else 1.0)
            for term, times, sharing in zip(self._numbers, self._times, self._pieces, strict=True)
        ]


def terms(piece: str) -> Iterator[str]:
    for found in _TERM.findall(piece):
        if found < _FIRST_UNSPACED or len(found) == 1:
            yield found[:_LONGEST_TERM]
        else:
            yield from map("".join, pairwise(found))


def _factor(piece: str, index: int, pieces: int) -> float:
    factor = _OPENING_BONUS if index == 0 else _CLOSING_BONUS if index == pieces - 1 else 1.0
    if "?" in piece or "？" in piece:
        factor *= _QUESTION_BONUS
    return factor / (_MARK_BYTES + len(piece.encode("utf-8", "surrogatepass")))
