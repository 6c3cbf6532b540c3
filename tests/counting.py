"""A counter with which a test can say how many tokens there are, and counts of what the library does."""

from __future__ import annotations

import dis
import gc
import sys
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import otel_assembly
from otel_assembly import describe
from otel_assembly.tokens import TiktokenCounter

_LIBRARY = str(Path(otel_assembly.__file__).parent)


class WordCounter:
    """One token a word."""

    name = "words"
    method = "exact"
    generation = 0

    def count(self, text):
        return len(text.split())


class Calls:
    """Calls of the library's functions, counted: what is done for each of many messages shows in them.

    The garbage collector waits: what it tells the library of things that died before is no work of the block.
    """

    def __enter__(self):
        self.made, self._collects = 0, gc.isenabled()
        gc.disable()
        self._begin()
        return self

    def __exit__(self, *_):
        self._end()
        if self._collects:
            gc.enable()

    def _begin(self):
        self._before = sys.getprofile()
        sys.setprofile(self._seen)

    def _end(self):
        sys.setprofile(self._before)

    def _seen(self, frame, what, argument):
        self.made += what == "call" and _LIBRARY in frame.f_code.co_filename


#: By identity, for a code object works out its hash anew each time; it is kept, so that no other one gets its id.
_going_back: dict[int, tuple[CodeType, bool]] = {}


def _goes_back(code):
    """Whether a function has a loop: an instruction that jumps to one before it."""
    known = _going_back.get(id(code))
    if known is None:
        back = any("BACKWARD" in instruction.opname for instruction in dis.get_instructions(code))
        known = _going_back[id(code)] = (code, back)
    return known[1]


class Rounds(Calls):
    """Calls of the library's functions, and rounds of its loops, counted: nothing that is done for each of many shows
    as nothing, however it is written and on however many lines.
    """

    def _begin(self):
        self._before = sys.gettrace()
        sys.settrace(self._called)

    def _end(self):
        sys.settrace(self._before)

    def _called(self, frame, what, argument):
        if _LIBRARY not in frame.f_code.co_filename:
            return None
        self.made += 1
        if not _goes_back(frame.f_code):
            return None  # no line of it is looked at, which takes many times what it does
        last = frame.f_lasti

        def ran(frame, what, argument):
            nonlocal last
            if what == "line":
                self.made += frame.f_lasti < last  # backwards, and so in a loop
                last = frame.f_lasti
            return ran

        return ran


class Reads:
    """Messages that `describe()` reads, counted, of types that have a row.

    Args:
        types: The classes for which the rows are registered.
    """

    def __init__(self, *types):
        self._rows = {kind: describe.registry[kind] for kind in types}
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


def ours_alive():
    """How many objects of the library's classes there are."""
    gc.collect()
    return sum(str(type(candidate).__module__).startswith("otel_assembly") for candidate in gc.get_objects())


def held_by(*owners):
    """How many objects these hold on to, themselves and through others; code and classes aside."""
    seen, found = {id(entry): entry for entry in owners}, list(owners)
    while found:
        for item in gc.get_referents(found.pop()):
            if id(item) not in seen and not isinstance(item, type | ModuleType | FunctionType | CodeType):
                seen[id(item)] = item
                found.append(item)
    return len(seen)
