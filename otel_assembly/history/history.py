"""`History`: an append-only conversation that remembers, as integers, what the engine learnt of each event once.

A list works wherever a `History` does. What a `History` buys is that a turn costs what is new and what is in the
window, however long the conversation is: facts are read as events arrive, tokens are counted when they come into an
assembly, and slices and filters are views.
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
from otel_assembly.history.tool_pairs import ANSWERS, ASKS, ECHO, MEDIA, ORPHAN, PAIRED, REASONED, Pairing
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
#: The places of `History.classes`: what may be sent, what is no conversation, results without a call, the calls and the
#: results of atoms with a call that was given up, and reasoning, or what belongs to it, that may not be sent.
_SENDABLE, _NON_CONVERSATION, _ORPHAN, _ABANDONED_CALL, _ABANDONED_RESULT, _SEPARATED = range(6)
#: Facts of so many newest events are held until they are counted and digested, so that a text is read once.
_FRESH: Final = 1024
#: Token tables of so many meters are held: a second assembler with another model is common, a tenth is not.
_METERS: Final = 4


class History(Sequence[Any]):
    """An append-only sequence of events of any described types.

    Args:
        events: Events to begin with; each is read once.
        strict: Refuse an event with a part of a type that nobody knows, instead of counting that by its JSON.

    Raises:
        DescribeError: An event cannot be read; nothing of it is appended.
    """

    #: Whether this history lives for a list that somebody else holds, so that what was read is kept for the next one.
    passing = False

    def __init__(self, events: Iterable[Any] = (), *, strict: bool = False) -> None:
        self.strict = strict
        #: The first event with a part of a type that nobody knows: its type, and that of the part.
        self.unknown: tuple[type, str] | None = None
        self.conversation = Conversation()
        #: The provider whose message form the conversation has, as its first event with such a form states it.
        self.provider = ""
        #: What assemblers keep of this conversation, by whoever keeps it; it goes with the history.
        self.kept_for: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self.lock = new_lock(self, History._read_again)
        self._begin()
        self.extend(events)

    def _begin(self) -> None:
        #: The events by position; not to be changed by others.
        self.events: list[Any] = []
        self.kind_codes = bytearray()
        #: The bytes of text (UTF-8) in front of each event, and of all.
        self.offsets = array("Q", [0])
        self._sizes = array("I")
        #: Items that restate another event.
        self.echoes = array("I")
        self._media = array("I")
        #: Whether an event is a dict, which the caller may change in place.
        self.of_dicts = False
        #: What stands for the texts of each event, as far as somebody has asked; 0 where nobody has.
        self.known_digests = array("Q")
        #: Which result answers which call.
        self.pairing = Pairing()
        #: What was read of the newest events, by position, until it was counted and digested.
        self.fresh_facts: dict[int, EventFacts] = {}
        self._tables: dict[Hashable, TokenTable] = {}
        #: The table that was asked for last, and for whom: it is asked for many times a turn.
        self._last_table: tuple[TokenMeter | None, int, TokenTable | None] = (None, 0, None)
        #: The newest response that says what the provider billed, and that number of input tokens.
        self.billed: tuple[int, int] | None = None
        #: The positions of all events.
        self.all = Column()
        #: Each event is in one of these columns: events that may be sent, events outside the conversation, results
        #: without a call, abandoned calls, results of their units, and separated reasoning. If an event changes its
        #: class, both columns are replaced, and views of the old ones stay as they are.
        self.classes = [Column(place=place) for place in range(_SEPARATED + 1)]
        #: The events that changed their class, once for each change.
        self.moved = array("I")
        #: The results without a call.
        self.orphans = self.classes[_ORPHAN]
        self.requests = Column()
        self.alerts = Column()
        self.summaries = Column()
        #: By the code of an event's kind, the column that lists it in addition to its class.
        named = {EventKind.ALERT: self.alerts, EventKind.REQUEST: self.requests, EventKind.SUMMARY: self.summaries}
        self._named = tuple(named[kind].positions if kind in named else None for kind in KINDS)
        #: One past the last system message that leads the conversation: a prompt that stands among the events. Alerts
        #: and lifecycle notes, which the model does not read, may stand before it.
        self.leading = 0
        self._leads = True

    def _read_again(self) -> None:
        """A fork caught another thread while it was writing here: what was read cannot be relied upon."""
        events = self.events
        self._begin()
        self.extend(events)

    def append(self, event: Any) -> None:
        """Add the newest event; it is read now, and counted when an assembly begins."""
        self._add(event, self._read(event))

    def _read(self, event: Any) -> EventFacts:
        facts = describe(event)
        if self.strict and facts.unknown:
            raise unknown_part(type(event), facts.unknown[0])
        return facts

    def _add(self, event: Any, facts: EventFacts) -> None:
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
            if len(self.fresh_facts) > _FRESH and not self.passing:
                del self.fresh_facts[next(iter(self.fresh_facts))]
            if facts.unknown and self.unknown is None:
                self.unknown = type(event), facts.unknown[0]
            self.provider = self.provider or facts.provider
            if facts.billed_tokens:
                self.billed = (position, facts.billed_tokens)
            if self._leads:
                if facts.kind == EventKind.SYSTEM:
                    self.leading = position + 1
                elif facts.rendered:
                    self._leads = False
            self.of_dicts = self.of_dicts or isinstance(event, dict)
            self.events.append(event)
            self.all.positions.append(position)
            pairing = self.pairing
            if pairing.turned and (pairing.given_up or self.classes[_ABANDONED_CALL] or pairing.dangling):
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
        if not (pairing.given_up or pairing.dangling) or pairing.is_sendable(position, pairing.last_response):
            return _SENDABLE
        return self._given_up_class(position, flags)

    def _given_up_class(self, position: int, flags: int) -> int:
        """Return the class of an item while its atom may not be sent."""
        if flags & PAIRED == REASONED:
            return _SEPARATED
        asks = flags & ASKS or (flags & ECHO and self.kind(position) is EventKind.TOOL_CALL)
        return _ABANDONED_CALL if asks else _ABANDONED_RESULT

    def _move(self, end: int) -> None:
        """Change the classes of events whose unit the newest event made sendable, or unsendable."""
        pairing, sendable = self.pairing, self.classes[_SENDABLE]
        moves: dict[int, tuple[int, int]] = {}
        for members in pairing.turned:
            sent = pairing.is_sendable(members[0], pairing.last_response)
            for position in members:
                if position < end and _IS_CONVERSATION[self.kind_codes[position]] and sendable.holds(position) != sent:
                    places = _SENDABLE, self._given_up_class(position, pairing.flags[position])
                    moves[position] = places[::-1] if sent else places
        before = len(self.moved)
        self.moved.extend(moves)
        for place in sorted({place for places in moves.values() for place in places}):
            column = self.classes[place]
            removed = [position for position, (old, _) in moves.items() if old == place]
            added = [position for position, (_, new) in moves.items() if new == place]
            self.classes[place] = edited = column.edited(removed, added)
            column.until, edited.since = before, len(self.moved)
            for table in self._tables.values():
                table.follow(column, edited, edited.index(min(removed + added)))

    def moved_between(self, column: Column, other: Column) -> Sequence[int]:
        """Return the events that can be in two columns of different classes, because they changed their class.

        While both columns are in use, no event is in both.
        """
        ends = [until for until in (column.until, other.until) if until is not None]
        return self.moved[min(ends) : max(column.since, other.since)] if ends else ()

    @property
    def columns(self) -> tuple[Column, ...]:
        """All its columns."""
        return self.all, *self.classes, self.requests, self.alerts, self.summaries

    def by_class(self, end: int) -> list[View] | None:
        """Return a view of each class, the events that may be sent first.

        The list is empty if all events may be sent. The result is None if the history does not end at `end` any more.
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
        """The events with others behind them, as a list."""
        return [*self, *other]

    def __radd__(self, other: Sequence[Any]) -> list[Any]:
        """The events with others in front of them, as a list."""
        return [*other, *self]

    def __repr__(self) -> str:
        return f"History({len(self)} events)"

    def view(self) -> View:
        """All events up to now; what is appended later is not in it."""
        end = len(self.events)
        return View(self, self.all, [(0, end)] if end else [])

    def event(self, position: int) -> Any:
        """The event at a position."""
        return self.events[position]

    def facts(self, position: int) -> EventFacts:
        """What `describe` says of an event."""
        fresh = self.fresh_facts.get(position)
        return fresh if fresh is not None else describe(self.events[position])

    def kind(self, position: int) -> EventKind:
        """The kind of an event."""
        return KINDS[self.kind_codes[position]]

    def flags(self, position: int) -> int:
        """The pairing flags of an event."""
        return self.pairing.flags[position]

    def atom(self, position: int) -> int:
        """The position of the first item of the event's atom."""
        return self.pairing.atoms[position]

    def calls(self, position: int) -> int:
        """Return how many tool calls an event asks for, or, below 0, how many it answers.

        An event that restates them does neither. An orphan answers none, but a message that is more than a result (a
        user's message with an orphaned result) says how many it is meant to answer: its kind alone does not.
        """
        flags, links = self.pairing.flags[position], self.pairing.links[position]
        if flags & ORPHAN and self.kind(position) is not EventKind.TOOL_RESULT:
            return -len(self.facts(position).closes)
        return -links if flags & ANSWERS else links

    @property
    def has_pairs(self) -> bool:
        """Whether items may belong together: a tool was called, something answers a call, or a model's reasoning."""
        pairing = self.pairing
        return bool(pairing.span or pairing.incomplete or self.orphans.positions or pairing.dangling)

    def offset(self, position: int) -> int:
        """Bytes of text (UTF-8) in front of an item, from the conversation's start."""
        return self.offsets[position]

    def behind(self, size: int) -> int:
        """The first item with at least so many bytes of text in front of it; the end where there is none."""
        return bisect_left(self.offsets, size, 0, len(self.events))

    def size(self, position: int) -> int:
        """Bytes of an item's text (UTF-8); an echo has none."""
        return self._sizes[position]

    def newest(self, start: int, end: int, size: int) -> int:
        """Where the newest of the events ``start`` to ``end`` begin that have so many bytes of text, at least one."""
        return max(start, min(end - 1, bisect_left(self.offsets, self.offsets[end] - size, start, end)))

    def has_media(self, position: int) -> bool:
        """Whether part of an item can only be estimated."""
        return bool(self.pairing.flags[position] & MEDIA)

    def any_media(self, view: View) -> bool:
        """Whether part of a view can only be estimated."""
        return any(map(view.holds, self._media))

    def view_size(self, view: View) -> int:
        """Bytes of the text (UTF-8) of a view's items."""
        if view.column is self.all:
            return sum([self.offsets[stop] - self.offsets[start] for start, stop in view.runs])
        return sum(map(self._sizes.__getitem__, view.positions()))

    def digests(self, view: View) -> bytes:
        """Return what stands for the texts of a view's items: 8 bytes for each, equal in every process."""
        if view.end > len(self.known_digests):
            self.digest(view.end - 1)
        found = array("Q", map(self.known_digests.__getitem__, view.positions()))
        missing = -1
        for _ in range(found.count(0)):
            missing = found.index(0, missing + 1)
            found[missing] = self.digest(view.position(missing))
        if sys.byteorder == "big":
            found.byteswap()
        return found.tobytes()

    def digest(self, position: int) -> int:
        """64 bits that stand for an item's rendered texts, equal in every process."""
        with self.lock:
            missing = position + 1 - len(self.known_digests)
            if missing > 0:
                self.known_digests.extend(array("Q", bytes(8 * missing)))
            if not self.known_digests[position]:
                facts = self.facts(position)
                self.known_digests[position] = text_digest((self.kind(position), *facts.texts))
                if not self.passing:  # nobody will read them again
                    self.fresh_facts.pop(position, None)
            return self.known_digests[position]

    def table(self, meter: TokenMeter) -> TokenTable:
        """What `meter` counted of this history."""
        last, generation, table = self._last_table
        if last is meter and generation == meter.counter.generation and table is not None:
            return table
        table = self._tables.get(meter.key)
        if table is None:
            with self.lock:
                table = self._tables.setdefault(meter.key, TokenTable(self, meter))
                while len(self._tables) > _METERS:
                    del self._tables[next(iter(self._tables))]
        self._last_table = meter, meter.counter.generation, table
        return table

    def newest_request(self, view: View) -> int:
        """The position of the newest user request in a view; −1 where it has none."""
        requests = self.requests.positions
        for index in range(bisect_left(requests, view.end) - 1, -1, -1):
            if view.holds(requests[index]):
                return requests[index]
            if requests[index] < view.position(0):
                break
        return -1


class ListHistory(History):
    """The history of a list that somebody else holds, and may hand in again: what was read of its events is kept.

    Args:
        events: The events.
        facts: What was read of them, where that is known.

    Raises:
        DescribeError: An event's type has no ``describe()`` row.
    """

    passing = True

    def __init__(self, events: Iterable[Any] = (), facts: Iterable[EventFacts] | None = None) -> None:
        super().__init__()
        held = list(events)
        self.take(held, list(map(describe, held)) if facts is None else facts)

    def take(self, events: Iterable[Any], facts: Iterable[EventFacts]) -> None:
        """Add events that were read already."""
        for event, known in zip(events, facts, strict=True):
            self._add(event, known)

    def renew(self, events: Sequence[Any]) -> None:
        """Hold these objects instead of the first ones, which are the same events and say the same."""
        with self.lock:
            self.events[: len(events)] = events

    def reread(self, position: int, facts: EventFacts) -> None:
        """An event says the same as before, and has been given an id since."""
        self.fresh_facts[position] = facts


def _size_of(texts: Iterable[str]) -> int:
    """Return the bytes of texts in UTF-8."""
    return sum([len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass")) for text in texts])


def unknown_part(event_type: type, part: str) -> DescribeError:
    """What a strict reader says to an event with a part of a type that nobody knows."""
    return DescribeError(event_type, f"it has a part of type {part!r}, which nobody knows, and 'strict' is asked for")


def text_digest(texts: Iterable[str]) -> int:
    """64 bits (never 0) that stand for these texts."""
    state = hashlib.blake2b(digest_size=8)
    for text in texts:
        raw = text.encode("utf-8", "surrogatepass")
        state.update(len(raw).to_bytes(8, "big"))
        state.update(raw)
    return int.from_bytes(state.digest(), "big") or 1
