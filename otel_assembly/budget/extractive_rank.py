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
#: The bytes that are added to a piece's length: the mark of omitted text before it.
_MARK_BYTES: Final = 8
#: The first piece of a text often states its subject, the last one its result.
_OPENING_BONUS: Final = 2.0
_CLOSING_BONUS: Final = 1.5
_QUESTION_BONUS: Final = 1.25
_NUMBER_BONUS: Final = 1.5


def ranked(text: str, pieces: Sequence[Span]) -> Iterator[int]:
    """Yield the indexes of pieces, the most informative first; blank pieces are omitted.

    The score of a piece is the sum of the weights of its terms, divided by its length; terms of pieces that were
    already yielded do not count. A term has a higher weight if it is frequent in the text but occurs in few pieces, or
    if it contains a digit (an id, a date, an amount). The first piece, the last piece and questions have a higher
    score. So filler words have little effect, and only one of several equal lines has a high score. The order depends
    only on the text.
    """
    vocabulary = _Vocabulary()
    # Arrays in the order of the text: floating-point sums in a set's order would depend on the hash seed.
    terms = [vocabulary.read(text[start:end].casefold()) for start, end in pieces]
    weights = vocabulary.weights(len(pieces))
    covered = bytearray(len(weights))
    factors = [_factor(text[start:end], index, len(pieces)) for index, (start, end) in enumerate(pieces)]

    def score(index: int) -> float:
        return factors[index] * sum(weights[term] for term in terms[index] if not covered[term])

    # `covered` only grows, so scores only fall: if the score of the heap's first piece is unchanged, the piece is the
    # best. Otherwise it goes back into the heap, which happens at most once per term of a piece.
    heap = [(-score(index), index) for index, (start, end) in enumerate(pieces) if not text[start:end].isspace()]
    heapq.heapify(heap)
    while heap:
        value, index = heap[0]
        current_value = -score(index)
        if current_value > value:
            heapq.heapreplace(heap, (current_value, index))
            continue
        heapq.heappop(heap)
        for term in terms[index]:
            covered[term] = 1
        yield index


class _Vocabulary:
    """The terms of a text, each with a number, its frequency, and the number of pieces that contain it."""

    __slots__ = ("_numbers", "_pieces", "_times")

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._times: list[int] = []
        self._pieces: list[int] = []

    def read(self, piece: str) -> array[int]:
        """Add a piece's terms to the vocabulary, and return their numbers without repetitions."""
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
        """Return the weight of each term by its number; `pieces` is the number of pieces of the text."""
        return [
            math.log1p(times) * math.log1p(pieces / piece_count) * (_NUMBER_BONUS if _DIGIT.search(term) else 1.0)
            for term, times, piece_count in zip(self._numbers, self._times, self._pieces, strict=True)
        ]


def terms(piece: str) -> Iterator[str]:
    """Yield the terms of a piece: words, or pairs of characters in scripts that do not separate words by spaces."""
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
