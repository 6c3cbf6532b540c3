"""Ranks the pieces of a text by how informative they are."""

from __future__ import annotations

import heapq
import math
import re
from array import array
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: The start and end of a piece of a text.
Span = tuple[int, int]

# Scripts without spaces between words, in which two neighboring characters stand for a word.
_UNSPACED: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_FIRST_UNSPACED: Final = "\u3040"
_TERM = re.compile(rf"[{_UNSPACED}]+|[^\W{_UNSPACED}]+")
_DIGIT = re.compile(r"\d")
_LONGEST_TERM: Final = 40
#: The bytes that a piece costs in addition to its own: the mark of omitted text in front of it.
_MARK_BYTES: Final = 8
#: The first piece of a text often states its subject, the last one its result.
_OPENING_BONUS: Final = 2.0
_CLOSING_BONUS: Final = 1.5
_QUESTION_BONUS: Final = 1.25
_NUMBER_BONUS: Final = 1.5


def ranked(text: str, pieces: Sequence[Span]) -> Iterator[int]:
    """Yield the indexes of pieces, the most informative first; blank pieces are omitted.

    A piece's worth is the sum of the weights of its terms that no earlier piece contained, divided by its length. A
    term weighs more if it is frequent in the text and occurs in few pieces. A question, and a term with a digit (an id,
    a date, an amount), weigh more. So frequent filler words weigh little, the subject of the text weighs most, and of
    repeated lines one is chosen. The order depends on the text alone.
    """
    vocabulary = _Vocabulary()
    # Arrays in the order of the text: floating-point sums in a set's order would depend on the hash seed.
    terms = [vocabulary.read(text[start:end].casefold()) for start, end in pieces]
    weights = vocabulary.weights(len(pieces))
    covered = bytearray(len(weights))
    factors = [_factor(text[start:end], index, len(pieces)) for index, (start, end) in enumerate(pieces)]

    def worth(index: int) -> float:
        return factors[index] * sum(weights[term] for term in terms[index] if not covered[term])

    # `covered` only grows, so a worth only falls: if the first piece's worth is unchanged, it is the best. Otherwise
    # the piece goes back into the heap, which happens at most as often as there are terms in pieces.
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
            covered[term] = 1
        yield index


class _Vocabulary:
    """The numbered terms of a text, with their frequency and number of pieces."""

    __slots__ = ("_numbers", "_pieces", "_times")

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._times: list[int] = []
        self._pieces: list[int] = []

    def read(self, piece: str) -> array[int]:
        """Return the numbers of a piece's terms, each once, by first occurrence."""
        numbers: dict[int, None] = {}
        for term in terms(piece):
            number = self._numbers.setdefault(term, len(self._times))
            if number == len(self._times):
                self._times.append(0)
                self._pieces.append(0)
            self._times[number] += 1
            numbers[number] = None
        for number in numbers:
            self._pieces[number] += 1
        return array("I", numbers)

    def weights(self, pieces: int) -> list[float]:
        """Return the weight of each term in a text of `pieces` pieces."""
        return [
            math.log1p(times) * math.log1p(pieces / sharing) * (_NUMBER_BONUS if _DIGIT.search(term) else 1.0)
            for term, times, sharing in zip(self._numbers, self._times, self._pieces, strict=True)
        ]


def terms(piece: str) -> Iterator[str]:
    """Yield the terms of a piece.

    They are words, or pairs of characters in scripts without spaces.
    """
    for word in _TERM.findall(piece):
        if word < _FIRST_UNSPACED or len(word) == 1:
            yield word[:_LONGEST_TERM]
        else:
            yield from map("".join, pairwise(word))


def _factor(piece: str, index: int, pieces: int) -> float:
    factor = _OPENING_BONUS if index == 0 else _CLOSING_BONUS if index == pieces - 1 else 1.0
    if "?" in piece or "？" in piece:
        factor *= _QUESTION_BONUS
    return factor / (_MARK_BYTES + len(piece.encode("utf-8", "surrogatepass")))
