"""A counter with which a test can say how many tokens there are, and counts of what the library does."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path

import otel_assembly
from otel_assembly import TiktokenCounter, describe

_LIBRARY = str(Path(otel_assembly.__file__).parent)


class WordCounter:
    """One token a word."""

    name = "words"
    method = "exact"
    generation = 0

    def count(self, text):
        return len(text.split())


class Calls:
    """Calls of the library's functions, counted: what is done for each of many messages shows in them."""

    def __enter__(self):
        self.made, self._before = 0, sys.getprofile()
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *_):
        sys.setprofile(self._before)

    def _seen(self, frame, what, argument):
        self.made += what == "call" and _LIBRARY in frame.f_code.co_filename


class Reads:
    """Messages that `describe()` reads, counted, of types that have a row.

    Args:
        types: The classes for which the rows are registered.
    """

    def __init__(self, *types):
        self._rows = {one: describe.registry[one] for one in types}
        self.made = 0

    def __enter__(self):
        for event_type, row in self._rows.items():
            describe.register(event_type, self._counting(row))
        return self

    def __exit__(self, *_):
        for event_type, row in self._rows.items():
            describe.register(event_type, row)

    def _counting(self, row):
        def read(event):
            self.made += 1
            return row(event)

        return read


class Work:
    """What the library did in a block: messages read, texts counted, functions called."""

    def __init__(self, reads, counted):
        self._reads, self._counted, self._calls = reads or Reads(), counted, Calls()

    def __enter__(self):
        self._before = self._reads.made, len(self._counted)
        self._calls.__enter__()
        return self

    def __exit__(self, *_):
        self._calls.__exit__()
        self.reads, self.counts = self._reads.made - self._before[0], len(self._counted) - self._before[1]
        self.calls = self._calls.made


@contextmanager
def counted_texts():
    """Every text that a tokenizer of ours is asked for in this block."""
    texts, count = [], TiktokenCounter.count

    def counting(self, text):
        texts.append(text)
        return count(self, text)

    TiktokenCounter.count = counting
    try:
        yield texts
    finally:
        TiktokenCounter.count = count
