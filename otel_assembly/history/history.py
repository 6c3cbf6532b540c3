"""`History`: an append-only conversation that reads each event once and stores the result as integers.

A list works wherever a `History` does. With a `History`, the cost of a turn depends on the new events and the window,
not on the length of the conversation: facts are read as events are appended, tokens are counted in the first assembly
with the event, and slices and filters are views.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, overload
from weakref import WeakKeyDictionary

from otel_assembly._internal.fork_safety import new_lock
from otel_assembly.conversation_state import Conversation
from otel_assembly.errors import DescribeError
from otel_assembly.history.token_counts import TokenTable
from otel_assembly.history.tool_pairs import CLOSES, ECHO, MEDIA, OPENS, ORPHAN, PAIRED, REASONED, Pairing
from otel_assembly.history.view import Column, View
from otel_assembly.messages.event_facts import EventFacts, EventKind, describe

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from otel_assembly.tokens import TokenMeter

KINDS: Final = tuple(EventKind)
_CODES: Final[Mapping[str, int]] = {kind: code for code, kind in enumerate(KINDS)}
CONVERSATION_KINDS: Final = frozenset(
    {
        EventKind.REQUEST,
        EventKind.RESPONSE,
        EventKind.TOOL_CALL,
        EventKind.TOOL_RESULT,
        EventKind.SUMMARY,
        EventKind.SYSTEM,
    }
)
#: Whether an event is conversation, by the code of its kind.
_IS_CONVERSATION: Final = bytes(kind in CONVERSATION_KINDS for kind in KINDS)
#: The indexes of `History.classes`: events that may be sent, events outside the conversation, results without a call,
#: the calls and the results of atoms with an abandoned call, and reasoning that was separated from the next item.
_SENDABLE, _NON_CONVERSATION, _ORPHAN, _ABANDONED_CALL, _ABANDONED_RESULT, _SEPARATED = range(6)
#: The facts of this many newest events are kept until they are counted and digested, so that each text is read once.
_FRESH: Final = 1024
#: The most meters whose token tables are kept: two assemblers with different models are common, ten are not.
_MOST_METERS: Final = 4


class History(Sequence[Any]):
    """An append-only sequence of events of any described types.

    Args:
        events: The first events; each is read once.
        strict: Raise an error for an event with a part of an unknown type, instead of counting the part by its JSON.

    Raises:
        DescribeError: An event cannot be read; no event is appended.
    """

    #: Whether the facts of all events are kept. A history of a caller's list needs them for the next version of it.
    keeps_facts = False

    def __init__(self, events: Iterable[Any] = (), *, strict: bool = False) -> None:
        self.strict = strict
        #: The type of the first event with a part of an unknown type, and the name of the part's type.
        self.unknown: tuple[type, str] | None = None
        self.conversation = Conversation()
        #: The provider of the first event whose format is unique to one provider; empty if there is none.
        self.provider = ""
        #: The state that assemblers and policies keep for this conversation, by owner; it is freed with the history.
        self.kept_for: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self.lock = new_lock(self, History._reset_after_fork)
        self._clear()
        self.extend(events)

    def _clear(self) -> None:
        """Set all columns to empty."""
        #: The events by position; read-only outside this module.
        self.events: list[Any] = []
        self.kind_codes = bytearray()
        #: The bytes of text (UTF-8) before each event; the last entry is the total.
        self.offsets = array("Q", [0])
        self._sizes = array("I")
        #: The positions of events that restate another event.
        self.echoes = array("I")
        self._media = array("I")
        #: Whether an event is a dict, which the caller may change in place.
        self.of_dicts = False
        #: The digest of each event's texts; 0 if it is not computed yet. May be shorter than the history.
        self.known_digests = array("Q")
        #: The pairs of tool calls and results.
        self.pairing = Pairing()
        #: The facts of the newest events by position, until they are counted and digested.
        self.fresh_facts: dict[int, EventFacts] = {}
        self._tables: dict[Hashable, TokenTable] = {}
        #: The meter, generation of its counter and table of the last lookup; one turn has many lookups of one table.
        self._last_table: tuple[TokenMeter | None, int, TokenTable | None] = (None, 0, None)
        #: The position of the newest response with a billed number of input tokens, and that number; None without one.
        self.billed: tuple[int, int] | None = None
        #: The positions of all events.
        self.all = Column()
        #: Each event is in one of these columns: events that may be sent, events outside the conversation, results
        #: without a call, abandoned calls, results of their units, and separated reasoning. If an event changes its
        #: class, both columns are replaced, and views of the old ones stay as they are.
        self.classes = [Column(place=place) for place in range(_SEPARATED + 1)]
        #: The events that changed their class, once for each change.
        self.reclassified = array("I")
        #: The results without a call.
        self.orphans = self.classes[_ORPHAN]
        self.requests = Column()
        self.alerts = Column()
        self.summaries = Column()
        #: By the code of an event's kind, the column that lists it in addition to its class.
        named = {EventKind.ALERT: self.alerts, EventKind.REQUEST: self.requests, EventKind.SUMMARY: self.summaries}
        self._named = tuple(named[kind].positions if kind in named else None for kind in KINDS)
        #: One past the last system message at the beginning of the conversation: a prompt among the events. Alerts and
        #: lifecycle events, which the model does not read, may precede it.
        self.leading = 0
        #: Whether the next system message still belongs to the beginning.
        self._is_leading = True

    def _reset_after_fork(self) -> None:
        """Read all events again: the process was forked while another thread was writing, so columns may be partial."""
        events = self.events
        self._clear()
        self.extend(events)

    def append(self, event: Any) -> None:
        """Add the newest event. It is read now, and its tokens are counted when the next assembly begins."""
        self._add(event, self._read(event))

    def _read(self, event: Any) -> EventFacts:
        facts = describe(event)
        if self.strict and facts.unknown:
            raise unknown_part_error(type(event), facts.unknown[0])
        return facts

    def _add(self, event: Any, facts: EventFacts) -> None:
        """Append an event to all columns that list it, and update the classes of earlier events."""
        code = _CODES[facts.kind]
        with self.lock:
            position = len(self.events)
            flags = self.pairing.append(facts)
            size = 0 if flags & ECHO else _size_of(facts.texts)
            self.kind_codes.append(code)
            self.offsets.append(self.offsets[-1] + size)
            self._sizes.append(size)
            if flags:
                if flags & ECHO:
                    self.echoes.append(position)
                if flags & MEDIA:
                    self._media.append(position)
            self.fresh_facts[position] = facts
            if len(self.fresh_facts) > _FRESH and not self.keeps_facts:
                del self.fresh_facts[next(iter(self.fresh_facts))]
            if facts.unknown and self.unknown is None:
                self.unknown = type(event), facts.unknown[0]
            self.provider = self.provider or facts.provider
            if facts.billed_tokens:
                self.billed = (position, facts.billed_tokens)
            if self._is_leading:
                if facts.kind == EventKind.SYSTEM:
                    self.leading = position + 1
                elif facts.rendered:
                    self._is_leading = False
            self.of_dicts = self.of_dicts or isinstance(event, dict)
            self.events.append(event)
            self.all.positions.append(position)
            pairing = self.pairing
            if pairing.affected_atoms and (pairing.abandoned or self.classes[_ABANDONED_CALL] or pairing.dangling):
                self._move(position)
            if not _IS_CONVERSATION[code]:
                place = _NON_CONVERSATION
            else:
                place = self._class_of(position, flags) if flags & PAIRED else _SENDABLE
            self.classes[place].positions.append(position)
            listed = self._named[code]
            if listed is not None and place != _ORPHAN:
                listed.append(position)

    def _class_of(self, position: int, flags: int) -> int:
        """Return the class of the newest event, which belongs to a tool pair or to reasoning."""
        pairing = self.pairing
        if flags & ORPHAN:
            return _ORPHAN
        if not (pairing.abandoned or pairing.dangling) or pairing.is_sendable(position, pairing.last_response):
            return _SENDABLE
        return self._unsendable_class(position, flags)

    def _unsendable_class(self, position: int, flags: int) -> int:
        """Return the class of an item while its atom may not be sent."""
        if flags & PAIRED == REASONED:
            return _SEPARATED
        is_call = flags & OPENS or (flags & ECHO and self.kind(position) is EventKind.TOOL_CALL)
        return _ABANDONED_CALL if is_call else _ABANDONED_RESULT

    def _move(self, end: int) -> None:
        """Change the classes of events before `end` whose atom the newest event made sendable or unsendable."""
        pairing, sendable = self.pairing, self.classes[_SENDABLE]
        moves: dict[int, tuple[int, int]] = {}
        for members in pairing.affected_atoms:
            is_sendable = pairing.is_sendable(members[0], pairing.last_response)
            for position in members:
                if (
                    position < end
                    and _IS_CONVERSATION[self.kind_codes[position]]
                    and sendable.holds(position) != is_sendable
                ):
                    places = _SENDABLE, self._unsendable_class(position, pairing.flags[position])
                    moves[position] = places[::-1] if is_sendable else places
        before = len(self.reclassified)
        self.reclassified.extend(moves)
        for place in sorted({place for places in moves.values() for place in places}):
            column = self.classes[place]
            removed = [position for position, (old, _) in moves.items() if old == place]
            added = [position for position, (_, new) in moves.items() if new == place]
            self.classes[place] = edited = column.edited(removed, added)
            column.until, edited.since = before, len(self.reclassified)
            for table in self._tables.values():
                table.follow(column, edited, edited.index(min(removed + added)))

    def reclassified_between(self, first: Column, second: Column) -> Sequence[int]:
        """Return the events that can be in two columns of different classes, because they changed their class.

        While both columns are in use, no event is in both.
        """
        ends = [until for until in (first.until, second.until) if until is not None]
        return self.reclassified[min(ends) : max(first.since, second.since)] if ends else ()

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns of the history."""
        return self.all, *self.classes, self.requests, self.alerts, self.summaries

    def by_class(self, end: int) -> list[View] | None:
        """Return a view of each class, the events that may be sent first.

        The list is empty if all events may be sent. The result is None if events were appended after position `end`.
        """
        with self.lock:
            if len(self.events) != end:
                return None
            if len(self.classes[_SENDABLE].positions) == end:
                return []
            return [View(self, column, [(0, len(column))] if column.positions else []) for column in self.classes]

    def extend(self, events: Iterable[Any]) -> None:
        """Add events in order; all of them, or none if one cannot be read."""
        for event, facts in [(event, self._read(event)) for event in events]:
            self._add(event, facts)

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.events)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self.view()[index] if isinstance(index, slice) else self.events[index]

    def __add__(self, other: Sequence[Any]) -> list[Any]:
        """Return the events followed by others, as a list."""
        return [*self, *other]

    def __radd__(self, other: Sequence[Any]) -> list[Any]:
        """Return the events after others, as a list."""
        return [*other, *self]

    def __repr__(self) -> str:
        return f"History({len(self)} events)"

    def view(self) -> View:
        """Return a view of all events so far; it does not grow with the history."""
        end = len(self.events)
        return View(self, self.all, [(0, end)] if end else [])

    def event(self, position: int) -> Any:
        """Return the event at a position."""
        return self.events[position]

    def facts(self, position: int) -> EventFacts:
        """Return the facts of an event, as `describe` returns them."""
        fresh = self.fresh_facts.get(position)
        return fresh if fresh is not None else describe(self.events[position])

    def kind(self, position: int) -> EventKind:
        """Return the kind of an event."""
        return KINDS[self.kind_codes[position]]

    def flags(self, position: int) -> int:
        """Return the pairing flags of an event (`ORPHAN`, `ECHO`, …)."""
        return self.pairing.flags[position]

    def atom(self, position: int) -> int:
        """Return the position of the first item of the event's atom."""
        return self.pairing.atoms[position]

    def calls(self, position: int) -> int:
        """Return the number of tool calls that an event requests, or minus the number that it answers.

        An echo has 0, and so has an orphaned tool result. If the orphan is a message with more than results, such as a
        user's message, the number is minus the number of its results, because its kind does not show them.
        """
        flags, links = self.pairing.flags[position], self.pairing.links[position]
        if flags & ORPHAN and self.kind(position) is not EventKind.TOOL_RESULT:
            return -len(self.facts(position).closes)
        return -links if flags & CLOSES else links

    def entry(self, position: int) -> tuple[EventKind, int, int, int]:
        """Return an event's kind, size, atom and calls, as the methods of these names do."""
        pairing = self.pairing
        calls = pairing.links[position]
        if pairing.flags[position] & (ORPHAN | CLOSES):
            calls = self.calls(position)
        return KINDS[self.kind_codes[position]], self._sizes[position], pairing.atoms[position], calls

    @property
    def has_pairs(self) -> bool:
        """True if an atom may have more than one item: the history has a tool call, a result or reasoning."""
        pairing = self.pairing
        return bool(pairing.span or pairing.incomplete or self.orphans.positions or pairing.dangling)

    def offset(self, position: int) -> int:
        """Return the bytes of text (UTF-8) before an item, from the conversation's start."""
        return self.offsets[position]

    def position_after(self, size: int) -> int:
        """Return the first position with at least `size` bytes of text before it; the length if there is none."""
        return bisect_left(self.offsets, size, 0, len(self.events))

    def size(self, position: int) -> int:
        """Return the bytes of an item's text (UTF-8); 0 for an echo."""
        return self._sizes[position]

    def newest(self, start: int, end: int, size: int) -> int:
        """Return the first position in ``start`` to ``end`` from which the events have at most `size` bytes of text.

        The event before `end` is always included, even if it is longer.
        """
        return max(start, min(end - 1, bisect_left(self.offsets, self.offsets[end] - size, start, end)))

    def has_media(self, position: int) -> bool:
        """Return True if an item has media, whose tokens are always an estimate."""
        return bool(self.pairing.flags[position] & MEDIA)

    def any_media(self, view: View) -> bool:
        """Return True if an item of a view has media, whose tokens are always an estimate."""
        return any(map(view.holds, self._media))

    def view_size(self, view: View) -> int:
        """Return the bytes of text (UTF-8) of a view's items."""
        if view.column is self.all:
            size = 0
            for start, stop in view.runs:
                size += self.offsets[stop] - self.offsets[start]
            return size
        return sum(map(self._sizes.__getitem__, view.positions()))

    def digests(self, view: View) -> bytes:
        """Return the digests of a view's items, 8 bytes each, little-endian; they are equal in every process."""
        if view.end > len(self.known_digests):
            self.digest(view.end - 1)
        digests = array("Q", map(self.known_digests.__getitem__, view.positions()))
        missing = -1
        for _ in range(digests.count(0)):
            missing = digests.index(0, missing + 1)
            digests[missing] = self.digest(view.position(missing))
        if sys.byteorder == "big":
            digests.byteswap()
        return digests.tobytes()

    def digest(self, position: int) -> int:
        """Return the 64-bit digest of an item's kind and texts; it is equal in every process."""
        with self.lock:
            missing = position + 1 - len(self.known_digests)
            if missing > 0:
                self.known_digests.extend(array("Q", bytes(8 * missing)))
            if not self.known_digests[position]:
                facts = self.fresh_facts.get(position) or describe(self.events[position])
                kind = KINDS[self.kind_codes[position]]
                self.known_digests[position] = text_digest((kind, *facts.texts))
                if not self.keeps_facts:  # no later code needs them
                    self.fresh_facts.pop(position, None)
            return self.known_digests[position]

    def table(self, meter: TokenMeter) -> TokenTable:
        """Return the token counts of this history by a meter."""
        last, generation, table = self._last_table
        if last is meter and generation == meter.counter.generation and table is not None:
            return table
        table = self._tables.get(meter.key)
        if table is None:
            with self.lock:
                table = self._tables.setdefault(meter.key, TokenTable(self, meter))
                while len(self._tables) > _MOST_METERS:
                    del self._tables[next(iter(self._tables))]
        self._last_table = meter, meter.counter.generation, table
        return table

    def newest_request(self, view: View) -> int:
        """Return the position of the newest user request in a view; −1 if the view has none."""
        requests = self.requests.positions
        for index in range(bisect_left(requests, view.end) - 1, -1, -1):
            if view.index_of(requests[index]) >= 0:
                return requests[index]
            if requests[index] < view.position(0):
                break
        return -1


class ListHistory(History):
    """The history of a caller's list, which the caller may pass again; the facts of all events are kept for then.

    Args:
        events: The events.
        facts: The facts of the events; None to read them here.

    Raises:
        DescribeError: No reader is registered with `describe` for the type of an event.
    """

    keeps_facts = True

    def __init__(self, events: Iterable[Any] = (), facts: Iterable[EventFacts] | None = None) -> None:
        super().__init__()
        items = list(events)
        self.take(items, list(map(describe, items)) if facts is None else facts)

    def take(self, events: Iterable[Any], facts: Iterable[EventFacts]) -> None:
        """Append events whose facts are known."""
        for event, event_facts in zip(events, facts, strict=True):
            self._add(event, event_facts)

    def renew(self, events: Sequence[Any]) -> None:
        """Replace the first objects of the history by new objects for the same events with the same content."""
        with self.lock:
            self.events[: len(events)] = events

    def reread(self, position: int, facts: EventFacts) -> None:
        """Replace the facts of an event that received an id after it was read; its content is the same."""
        self.fresh_facts[position] = facts


def _size_of(texts: Iterable[str]) -> int:
    """Return the number of bytes of texts in UTF-8."""
    size = 0
    for text in texts:
        size += len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return size


def unknown_part_error(event_type: type, part: str) -> DescribeError:
    """Return the error for an event with a part of an unknown type in a strict history."""
    return DescribeError(event_type, f"it has a part of the unknown type {part!r}, and 'strict' is True")


def text_digest(texts: Iterable[str]) -> int:
    """Return a 64-bit digest of texts; never 0, which means that a digest is missing."""
    parts: list[bytes] = []
    for text in texts:
        raw = text.encode("utf-8", "surrogatepass")
        parts += len(raw).to_bytes(8, "big"), raw
    return int.from_bytes(hashlib.blake2b(b"".join(parts), digest_size=8).digest(), "big") or 1
