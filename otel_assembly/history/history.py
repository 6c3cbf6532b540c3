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
from typing import TYPE_CHECKING, Any, Final, overload
from weakref import WeakKeyDictionary

from otel_assembly._internal.fork_safety import new_lock
from otel_assembly.conversation_state import Conversation
from otel_assembly.errors import DescribeError
from otel_assembly.history.token_counts import TokenTable
from otel_assembly.history.tool_pairs import CLOSES, ECHO, MEDIA, OPENS, ORPHAN, PAIRED, REASONED, Pairing
from otel_assembly.history.view import Column, EventSequence, View
from otel_assembly.messages.event_facts import EventFacts, EventKind, describe

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

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


class History(EventSequence):
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
        #: The bytes of text of each event; 0 for an echo.
        self.sizes = array("I")
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
        self.classes = [Column() for _ in range(_SEPARATED + 1)]
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
            self.sizes.append(size)
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
            if pairing.affected_atoms and (
                self.classes[_ABANDONED_CALL] or pairing.dangling or pairing.abandoned(pairing.last_response)
            ):
                self._move(position)
            place = _SENDABLE if _IS_CONVERSATION[code] else _NON_CONVERSATION
            if flags & PAIRED:
                place = self.class_of(position, is_sendable=pairing.is_sendable(position, pairing.last_response))
            self.classes[place].positions.append(position)
            listed = self._named[code]
            if listed is not None and place != _ORPHAN:
                listed.append(position)

    def class_of(self, position: int, *, is_sendable: bool) -> int:
        """Return the class of an item of a tool pair or of reasoning, as its index in `classes`."""
        flags = self.pairing.flags[position]
        if flags & ORPHAN:
            return _ORPHAN
        if is_sendable:
            return _SENDABLE
        if flags & PAIRED == REASONED:
            return _SEPARATED
        is_call = flags & OPENS or (flags & ECHO and self.kind(position) is EventKind.TOOL_CALL)
        return _ABANDONED_CALL if is_call else _ABANDONED_RESULT

    def _move(self, end: int) -> None:
        """Change the classes of events before `end` whose atom the newest event made sendable or unsendable."""
        pairing, sendable = self.pairing, self.view(self.classes[_SENDABLE])
        moves: dict[int, tuple[int, int]] = {}
        for members in pairing.affected_atoms:
            is_sendable = pairing.is_sendable(members[0], pairing.last_response)
            for position in members:
                is_older = position < end and _IS_CONVERSATION[self.kind_codes[position]]
                if is_older and sendable.holds(position) != is_sendable:
                    old, new = (self.class_of(position, is_sendable=state) for state in (not is_sendable, is_sendable))
                    moves[position] = old, new
        for place in sorted({place for places in moves.values() for place in places}):
            removed = [position for position, (old, _) in moves.items() if old == place]
            added = [position for position, (_, new) in moves.items() if new == place]
            column, edited = self.classes[place], Column(self.classes[place].positions)
            for position in removed:
                del edited.positions[edited.index(position)]
            for position in added:
                edited.positions.insert(edited.index(position), position)
            self.classes[place], column.is_current = edited, False
            for table in self._tables.values():
                table.follow(column, edited, edited.index(min(removed + added)))

    def by_class(self, end: int) -> list[View] | None:
        """Return a view of each class, the events that may be sent first.

        The list is empty if all events may be sent. The result is None if events were appended after position `end`.
        """
        with self.lock:
            if len(self.events) != end:
                return None
            if len(self.classes[_SENDABLE].positions) == end:
                return []
            return list(map(self.view, self.classes))

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

    def __repr__(self) -> str:
        return f"History({len(self)} events)"

    def view(self, column: Column | None = None) -> View:
        """Return a view of all events so far, or of those in a column; it does not grow with the history."""
        column = self.all if column is None else column
        end = len(column.positions)
        return View(self, column, [(0, end)] if end else [])

    def facts(self, position: int) -> EventFacts:
        """Return the facts of an event, as `describe` returns them."""
        fresh = self.fresh_facts.get(position)
        return fresh if fresh is not None else describe(self.events[position])

    def kind(self, position: int) -> EventKind:
        """Return the kind of an event."""
        return KINDS[self.kind_codes[position]]

    def calls(self, position: int) -> int:
        """Return the number of tool calls that an event requests, or minus the number that it answers.

        An echo has 0, and so has an orphaned tool result. If the orphan is a message with more than results, such as a
        user's message, the number is minus the number of its results, because its kind does not show them.
        """
        flags, links = self.pairing.flags[position], self.pairing.links[position]
        if flags & ORPHAN and self.kind(position) is not EventKind.TOOL_RESULT:
            return -len(self.facts(position).closes)
        return -links if flags & CLOSES else links

    def position_after(self, size: int) -> int:
        """Return the first position with at least `size` bytes of text before it; the length if there is none."""
        return bisect_left(self.offsets, size, 0, len(self.events))

    def any_media(self, view: View) -> bool:
        """Return True if an item of a view has media, whose tokens are always an estimate."""
        return any(map(view.holds, self._media))

    def view_size(self, view: View) -> int:
        """Return the bytes of text (UTF-8) of a view's items."""
        if view.column is self.all:
            size = 0
            for start, stop in view.ranges:
                size += self.offsets[stop] - self.offsets[start]
            return size
        return sum(map(self.sizes.__getitem__, view.positions()))

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
        """Return the token counts of this history by a meter; the last result is stored, because the key is slow."""
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
