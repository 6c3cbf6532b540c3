"""The ledger of a conversation: who its items are, and what the last assembly did with them.

Items have an *item id*, counted from 0 at first sight, that stays theirs however the caller rearranges a list. What a
policy took out in an assembly is held as intervals, so that remembering it, and finding what changed since, cost what
changed, and not what the conversation has grown to.
"""

from __future__ import annotations

import uuid
from operator import is_
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from otel_assembly._internal.forks import in_child, new_lock
from otel_assembly._internal.registry import Registry
from otel_assembly._internal.slices import SLICE, InTurn
from otel_assembly.errors import DescribeError
from otel_assembly.history.history import History, ListHistory
from otel_assembly.history.read_events import ReadEvent, ReadEvents
from otel_assembly.history.view import Run, View, difference, intersection, is_in, merged
from otel_assembly.ledger.read_input import numbered_read
from otel_assembly.ledger.snapshot import (
    FIRST_MADE,
    ItemIds,
    LedgerInput,
    NumberedHistory,
    PendingUsage,
    Snapshot,
)
from otel_assembly.matching.event_index import EventMatcher
from otel_assembly.matching.sequence_diff import diff_sequences
from otel_assembly.messages.content_snapshot import (
    DescribedEvent,
    DescribedEvents,
    changed,
    contents,
    equal,
    readable,
    says_the_same,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from otel_assembly._internal.slices import Slices
    from otel_assembly.context import Context
    from otel_assembly.history.token_counts import TokenTable
    from otel_assembly.ledger.filtered_output import FilteredOutput
    from otel_assembly.ledger.snapshot import Step
    from otel_assembly.messages.describe import EventFacts

Key = TypeVar("Key")

#: Ledgers that are known only by a conversation id; the least recently used are forgotten beyond it.
LEDGERS_BY_ID: Final = 1_000
#: Items that steps made whose own origins are remembered.
_SUMMARIES: Final = 64


#: So many messages are compared with what they said in the time in which a slice is read.
_COMPARED: Final = 2_048

#: What counts tokens, and its generation: where that is another, so are they.
CountedBy: TypeAlias = tuple[str, int]


class Ledger:
    """One conversation under one assembler in one process."""

    def __init__(self, *, observed: bool = False) -> None:
        self.id = uuid.uuid4().hex
        #: Whether somebody else's code assembles, whose output may be the next input.
        self.observed = observed
        #: Of each step, its last output that was a history of its own: it is read on where that only grew.
        self.step_outputs: dict[int, NumberedHistory] = {}
        #: Of each step, its last output if that was in many pieces.
        self.filtered: dict[int, FilteredOutput] = {}
        self.lock = new_lock()
        self.turns = 0
        self.last: Snapshot | None = None
        #: The last assembly whose span was recorded.
        self.recorded_id: str | None = None
        #: The items that recorded assemblies have told of, as runs, and how they were counted then.
        self._told: list[Run] = []
        self._told_by: CountedBy | None = None
        #: The token table of the input, and how many of its estimates had been corrected by then.
        self._told_table: tuple[TokenTable, int] | None = None
        self.pending_usage: PendingUsage | None = None
        self._next = 0
        self._next_made = FIRST_MADE
        self._numbered: NumberedHistory | None = None
        #: What assemblies do here in slices, one of them at a time.
        self.in_turn = InTurn(self.lock)
        #: The last list that came in.
        self._last_list: list[Any] = []
        #: What was read of its events.
        self.described = DescribedEvents()
        #: Whether they are dicts, one and all.
        self._all_dicts = True
        #: What each event of the last list said when it was read.
        self._contents: list[Any] = []
        #: The last stable prefix that was hashed: its prompts, its events and the state of the hash.
        self.hashed_prefix: tuple[tuple[str, ...], View, Any] | None = None
        #: What a step made of others, by its item id: theirs, of those that nobody made.
        self.leaves: dict[int, tuple[tuple[int, int], ...]] = {}

    def take(self, count: int) -> int:
        """Give `count` new items their item ids; the first is returned."""
        with self.lock:
            first = self._next
            self._next += count
            return first

    def take_made(self) -> int:
        """Give an item that a step made its item id: those are counted on their own."""
        with self.lock:
            self._next_made += 1
            return self._next_made - 1

    def told_of(self, by: CountedBy, table: TokenTable, item_ids: ItemIds) -> Sequence[Run]:
        """The items that a reader knows as they are, as runs: not those that are counted otherwise now."""
        if self._told_by != by:
            return ()
        known, upto = self._told_table if self._told_table is not None else (table, 0)
        corrected = table.corrected[upto if known is table else 0 :]
        return difference(self._told, merged((item_ids.of(at), item_ids.of(at) + 1) for at in corrected))

    def tell(self, assembly_id: str, items: Iterable[Run], by: CountedBy, table: TokenTable) -> None:
        """A reader knows of this assembly now, and of all that came in and that its steps made."""
        self._told = merged([*(self._told if self._told_by == by else ()), *items])
        self._told_by, self._told_table = by, (table, len(table.corrected))
        self.recorded_id = assembly_id

    def leaves_of(self, runs: Iterable[Run]) -> list[Run]:
        """Items as runs ``[first, last]``: in the place of what steps made, what that stands for."""
        found = merged((first, last + 1) for first, last in runs)
        made = [item for item in self.leaves if is_in(found, item)]
        left = difference(found, merged((item, item + 1) for item in made))
        theirs = ((first, last + 1) for item in made for first, last in self.leaves[item])
        return [(start, stop - 1) for start, stop in merged([*left, *theirs])]

    def made_by(self, step: Step) -> tuple[tuple[Any, int], ...]:
        """What this step put in in the last assembly, with the item ids, and what is not in yet and did not change."""
        last = self.last
        if last is None or not last.did(step.index, step.policy):
            return ()
        before = last.steps[step.index]
        if not before.created:
            return ()
        there = step.numbered_in.among(before.injected)
        if self.observed and step.earlier:
            there |= step.earlier[0].numbered_in.among(before.injected)
        said = dict(before.created_texts)
        return tuple(
            (event, item) for event, item in before.created if item not in there and self._says(event, said[item])
        )

    def _says(self, event: Any, texts: Sequence[str]) -> bool:
        """Whether an event still says what it said; a dict can be changed in place."""
        return not isinstance(event, dict) or ((facts := self.facts_of(event)) is not None and facts.texts == texts)

    def remember_leaves(self, item: int, leaves: tuple[tuple[int, int], ...]) -> None:
        """What an item that a step made stands for, for as long as it may come in and be compacted itself."""
        self.leaves[item] = leaves
        while len(self.leaves) > _SUMMARIES:
            del self.leaves[next(iter(self.leaves))]

    @property
    def size(self) -> int:
        """How many events it holds."""
        histories = {id(numbered.history): len(numbered.history) for numbered in self.step_outputs.values()}
        if self._numbered is not None:
            histories[id(self._numbered.history)] = len(self._numbered.history)
        return sum(histories.values())

    def turn(self) -> int:
        """Count an assembly; its number, from 0, is returned."""
        with self.lock:
            self.turns += 1
            return self.turns - 1

    def open(self, events: Sequence[Any]) -> LedgerInput:
        """Read an assembly's input.

        Raises:
            DescribeError: An event of a list cannot be read; the ledger stays as it was.
        """
        with self.lock:
            if isinstance(events, History):
                return self._open_history(events)
            if isinstance(events, ReadEvents):
                return self._open_read(events)
            work = self._open_list(events if type(events) is list else list(events))
            try:
                while True:
                    next(work)
            except StopIteration as done:
                opened: LedgerInput = done.value
                return opened

    async def open_in_slices(self, events: Sequence[Any]) -> LedgerInput:
        """As `open`: the event loop has its turn after each slice of a long list, and another assembly waits for it.

        Who is cancelled leaves the ledger as if what was read by then had been all of the list.
        """
        if isinstance(events, History | ReadEvents):
            return self.open(events)
        return await self.in_turn.do(self._open_list(list(events)))

    def _open_history(self, history: History) -> LedgerInput:
        if self._numbered is None:
            self._numbered = NumberedHistory(history, ItemIds())
        numbered = self._numbered
        view = history.view()
        new = len(view) - len(numbered.item_ids)
        if new > 0:
            numbered.item_ids.extend(new, self.take(new))
        return LedgerInput(numbered, view)

    def _open_read(self, events: ReadEvents) -> LedgerInput:
        """Read what was laid out for this turn, and read already: it costs what is new."""
        old, numbered = self._numbered, numbered_read(self._numbered, events, self.take)
        self._numbered, self._contents, self._last_list = numbered, events, events
        if old is not None and (self._told or self.leaves):
            self._forget(old, old.history.events, numbered)
        return LedgerInput(numbered, numbered.history.view(), events)

    def _open_list(self, events: list[Any]) -> Slices[LedgerInput]:
        numbered = self._numbered
        if numbered is None:
            numbered = self._numbered = NumberedHistory(ListHistory(), ItemIds())
        known = len(numbered.history)
        if not (
            (yield from self._said_before(numbered, events, known))
            or self._grown(events, known)
            or self._renewed(numbered, events, known)
        ):
            return (yield from self._rearranged(numbered, events))
        new = events[known:]
        if new:
            made = self._made_before(new)
            yield from self._take(numbered, new, made)
            places = {item: at for at, item in enumerate(made, known) if item is not None}
            if places:
                self._told = difference(self._told, _as_runs(self._changed_since_made(numbered, places)))
        return LedgerInput(numbered, numbered.history.view(), self._last_list)

    def _changed_since_made(self, numbered: NumberedHistory, places: Mapping[int, int]) -> list[int]:
        """Of the items at these places those that the last assembly put in, and that say something else now."""
        said = (one for step in (self.last.steps if self.last is not None else ()) for one in step.created_texts)
        return [item for item, texts in said if item in places and texts != numbered.history.facts(places[item]).texts]

    def _take(
        self, numbered: NumberedHistory, events: Sequence[Any], made: Sequence[int | None] | None
    ) -> Slices[None]:
        """Put events behind those of a numbered history; all of them, or none if one cannot be read.

        They get their item ids where it is known which of them were made before.
        """
        self.described.serve(len(numbered.history) + len(events))
        read: list[DescribedEvent] = []
        for start in range(0, len(events), SLICE):
            if start:
                yield
            read += map(self.described.of, events[start : start + SLICE])
        for start in range(0, len(events), SLICE):
            if start:
                yield
            some = events[start : start + SLICE]
            numbered.listed.take(some, [one.facts for one in read[start : start + SLICE]])
            self._contents += [one.content for one in read[start : start + SLICE]]
            self._all_dicts = self._all_dicts and all(type(event) is dict for event in some)
            if made is not None:
                self._number(numbered, made[start : start + SLICE])

    def _said_before(self, numbered: NumberedHistory, events: list[Any], known: int) -> Slices[bool]:
        """Whether a list of chat messages says what it said, with more behind it.

        They are dicts, so that comparisons in C say it, be they the same objects or fresh ones.
        """
        if not (known and self._all_dicts and len(events) >= known):
            return False
        for start in range(0, known, _COMPARED):
            if start:
                yield
            stop = min(start + _COMPARED, known)
            if not equal(self._contents[start:stop], events[start:stop]):
                return False
        self._last_list = list(events)
        numbered.renew(self._last_list[:known], {})
        return True

    def _grown(self, events: list[Any], known: int) -> bool:
        """Whether a list is what it was, with more behind it.

        What is behind is put behind ours first, and taken away again where it is not so: two lists of one length are
        compared without copying any of them, and without touching what is in them.
        """
        given = self._last_list
        if not known:
            self._last_list = list(events)
            return True
        if len(events) < known or events[0] is not given[0] or events[known - 1] is not given[known - 1]:
            return False
        del given[known:]  # what could not be read
        given += events[known:]
        # What an assembler of ours sends are the very objects that came in; of what others send, equal ones will do.
        if equal(given, events) and (self.observed or all(map(is_, given, events))) and self._unchanged(events, known):
            return True
        del given[known:]
        return False

    def _unchanged(self, events: list[Any], known: int) -> bool:
        """Whether chat messages that were seen before still say what they said; a dict can be changed in place."""
        numbered = self._numbered
        return numbered is None or not numbered.history.of_dicts or equal(self._contents, contents(events[:known]))

    def _renewed(self, numbered: NumberedHistory, events: list[Any], known: int) -> bool:
        """Whether a list holds fresh objects of the events that it held, each of which says what it said, and more.

        They are compared as lists; one by one only those that are not the same to the last attribute.
        """
        held, fresh = numbered.history.events, events[:known]
        if len(fresh) < known or not all(map(is_, map(type, held), map(type, fresh))) or not readable(fresh):
            return False
        read: dict[int, DescribedEvent] = {}
        try:
            for at in changed(self._contents, contents(fresh)):
                read[at] = self.described.of(fresh[at])
                if not says_the_same(DescribedEvent(self._contents[at], numbered.history.facts(at)), read[at]):
                    return False
        except Exception:  # noqa: BLE001  # a foreign type's comparison is not ours to trust
            return False
        for at, one in read.items():
            self._contents[at] = one.content
        numbered.renew(
            fresh, {at: one.facts for at, one in read.items() if one.facts.id != numbered.history.facts(at).id}
        )
        self._last_list = list(events)
        return True

    def _number(self, numbered: NumberedHistory, known: Sequence[int | None]) -> None:
        """Give the newest items of a numbered history their item ids: those that they have already, or new ones."""
        unnumbered = 0
        for item_id in (*known, -1):
            if item_id is None:
                unnumbered += 1
                continue
            numbered.item_ids.extend(unnumbered, self.take(unnumbered))
            unnumbered = 0
            if item_id >= 0:
                numbered.item_ids.extend(1, item_id)

    def _recognised(self, old: NumberedHistory, events: list[Any]) -> list[int | None]:
        """The item ids of those events that came in, or were sent, before."""
        item_ids: list[int | None] = [None] * len(events)
        last = self.last
        if self.observed and last is not None and last.numbered is not old:
            sent = list(last.numbered.of(last.kept))
            found = diff_sequences(list(last.kept), events, read=self.facts_of).found()
            item_ids = [None if at is None else sent[at] for at in found]
        for known in (lambda new: self._came_before(old, new), self._made_before):
            if None in item_ids:
                taken = set(item_ids)
                places = [place for place, item_id in enumerate(item_ids) if item_id is None]
                for place, item_id in zip(places, known([events[place] for place in places]), strict=True):
                    item_ids[place] = None if item_id in taken else item_id
        return item_ids

    def _came_before(self, old: NumberedHistory, events: list[Any]) -> list[int | None]:
        found = diff_sequences(old.history.events, events, old.places, read=self.facts_of).found()
        return [None if at is None else old.item_ids.of(at) for at in found]

    def _made_before(self, events: Sequence[Any]) -> list[int | None]:
        """The item ids of those events that a step of the last assembly made: its output is this input."""
        made = list(self.last.created) if self.observed and self.last is not None else []
        if made and self._numbered is not None:
            there = self._numbered.among(item for _, item in made)
            made = [one for one in made if one[1] not in there]
        if not made:
            return [None] * len(events)
        found = EventMatcher([event for event, _ in made], read=self.facts_of).match(events)
        return [None if at is None else made[at][1] for at in found]

    def facts(self, event: Any) -> EventFacts:
        """What is known of an event, which is read if it was not.

        Raises:
            DescribeError: It cannot be read.
        """
        if isinstance(event, ReadEvent):
            return event.facts
        with self.lock:
            return self.described.of(event).facts

    def facts_of(self, event: Any) -> EventFacts | None:
        """As `facts`; None where it cannot be read."""
        try:
            return self.facts(event)
        except DescribeError:
            return None

    def _rearranged(self, old: NumberedHistory, events: list[Any]) -> Slices[LedgerInput]:
        numbered = NumberedHistory(ListHistory(), ItemIds())
        before, were_dicts = self._contents, self._all_dicts
        self._contents, self._all_dicts = [], True
        try:
            yield from self._take(numbered, events, None)
        except BaseException:  # also where whoever waits for it is cancelled
            self._contents, self._all_dicts = before, were_dicts
            raise
        self._number(numbered, self._recognised(old, events))
        self._forget(old, before, numbered)
        self._numbered = numbered
        self._last_list = list(events)
        return LedgerInput(numbered, numbered.history.view(), self._last_list)

    def _forget(self, old: NumberedHistory, before: Sequence[Any], new: NumberedHistory) -> None:
        """Of what a reader was told, forget what is not here any more, and what says something else than it did."""
        here = dict(zip(new.item_ids.all(), range(len(new.item_ids)), strict=True))
        self.leaves = {item: leaves for item, leaves in self.leaves.items() if item in here}
        if not self._told:
            return
        stays = _as_runs((*here, *(item for _, item in (self.last.created if self.last is not None else ()))))
        changed = [
            item
            for at, item in enumerate(old.item_ids.all())
            if item in here and not self._is_as_it_was(old, before, at, new, here[item])
        ]
        changed += self._changed_since_made(new, here)
        self._told = difference(intersection(self._told, stays), _as_runs(changed))

    def _is_as_it_was(
        self, old: NumberedHistory, before: Sequence[Any], at: int, new: NumberedHistory, place: int
    ) -> bool:
        was, now = old.history, new.history
        said, says = before[at], self._contents[place]
        return (
            (
                (said is says and isinstance(said, ReadEvent))
                or says_the_same(DescribedEvent(said, was.facts(at)), DescribedEvent(says, now.facts(place)))
            )
            and was.calls(at) == now.calls(place)
            and old.item_ids.of(was.atom(at)) == new.item_ids.of(now.atom(place))
        )


class _Keeper:
    """For whom histories keep the ledgers of one assembler, in one process."""

    __slots__ = ("__weakref__",)


class Ledgers:
    """The ledgers of one assembler: by `History`, else by conversation id, else by `Context` object.

    A forked child begins them all anew, for its parent goes on with them: two processes would else tell different
    things of one ledger.
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        self._by_id: Registry[str, Ledger] = Registry(LEDGERS_BY_ID, anew_in_child=True)
        self._begin()
        in_child(self._begin)

    def _begin(self) -> None:
        self._keeper = _Keeper()
        self._by_context: WeakKeyDictionary[Context, Ledger] = WeakKeyDictionary()

    def of(self, events: Sequence[Any], context: Context) -> Ledger:
        """The ledger of the conversation that these events belong to."""
        with self._lock:
            if isinstance(events, History):
                # A ledger refers to its history, so that a dictionary of ours would keep both for ever: it is held by
                # the history itself, and goes with it, or with this assembler.
                held: WeakKeyDictionary[_Keeper, Ledger] = events.kept_for
                return _at(held, self._keeper)
            if context.conversation_id is not None:
                return self._by_id.of(context.conversation_id, Ledger)
            return _at(self._by_context, context)


def _as_runs(items: Iterable[int]) -> list[Run]:
    return merged((item, item + 1) for item in items)


def _at(ledgers: WeakKeyDictionary[Key, Ledger], key: Key) -> Ledger:
    ledger = ledgers.get(key)
    if ledger is None:
        ledger = ledgers[key] = Ledger()
    return ledger
