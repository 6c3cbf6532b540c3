"""The ledger of a conversation: who its items are, and what the last assembly did with them.

Items have an *item id*, counted from 0 at first sight, that stays theirs however the caller rearranges a list. What a
policy took out in an assembly is held as intervals, so that remembering it, and finding what changed since, cost what
changed, and not what the conversation has grown to.
"""

from __future__ import annotations

import hashlib
import uuid
from bisect import bisect_left
from itertools import chain, islice, starmap
from operator import is_, itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary

from otel_assembly._internal.fork_safety import after_fork_in_child, new_lock
from otel_assembly._internal.registry import Registry
from otel_assembly._internal.slices import LISTED, SLICE, SerialSlices
from otel_assembly.errors import DescribeError
from otel_assembly.history.history import History, ListHistory, text_digest
from otel_assembly.history.read_events import ReadEvent, ReadEvents
from otel_assembly.history.view import Run, View, difference, intersection, is_in, merged, to_runs
from otel_assembly.ledger.made_items import Leaves, changed_since_made, created_by, made_before
from otel_assembly.ledger.rearranged import numbered_read, recognised, renewed, still_told
from otel_assembly.ledger.snapshot import FIRST_MADE, ItemIds, LedgerInput, NumberedHistory, PendingUsage, Snapshot
from otel_assembly.messages.content_snapshot import DescribedEvent, DescribedEvents, contents, equal, may_change

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from otel_assembly._internal.slices import Slices
    from otel_assembly.context import Context
    from otel_assembly.history.token_counts import TokenTable
    from otel_assembly.ledger.snapshot import Step
    from otel_assembly.messages.event_facts import EventFacts

Key = TypeVar("Key")
T = TypeVar("T")

#: Ledgers that are known only by a conversation id; the least recently used are forgotten beyond it.
LEDGERS_BY_ID: Final = 1_000
#: Events that the ledgers of all named conversations hold together; beyond it, the same.
EVENTS: Final = 200_000
#: Named conversations whose assemblies are counted.
CONVERSATIONS: Final = 10_000
#: Recorders whose ledgers are kept.
RECORDERS: Final = 32
#: The number of messages whose contents are compared in one slice.
_COMPARED: Final = 2_048
#: Up to this length, all messages of a list are compared with their contents at each assembly.
_COMPARED_WHOLE: Final = 1_024
#: The number of older messages of a longer list that are compared at each assembly, in rotation.
_BLOCK: Final = 256

#: What counts tokens, and its generation: where that is another, so are they.
CountedBy: TypeAlias = tuple[str, int]
#: An item at first sight: its id, its history with the ids there, and its position.
Arrival: TypeAlias = tuple[int, NumberedHistory, int]


class Ledger:
    """One conversation as one agent has it, in one process."""

    def __init__(self, *, observed: bool = False) -> None:
        self.id = uuid.uuid4().hex
        #: Whether somebody else's code assembles, whose output may be the next input.
        self.observed = observed
        #: Of each step, its last output that was a history of its own: it is read on where that only grew.
        self.step_outputs: dict[int, NumberedHistory] = {}
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
        self.next_item = 0
        self._next_made = FIRST_MADE
        self._numbered: NumberedHistory | None = None
        #: What assemblies do here in slices, one of them at a time.
        self.in_turn = SerialSlices(self.lock)
        #: The last list that came in.
        self._last_list: list[Any] = []
        #: What was read of its events.
        self.described = DescribedEvents()
        #: Whether they are dicts, one and all.
        self._all_dicts = True
        #: What each event of the last list said when it was read.
        self._contents: list[Any] = []
        #: From which position on messages were compared in this turn, and which in front of it.
        self._checked: tuple[int, AbstractSet[int]] = (0, frozenset())
        #: Where the rotating block of compared messages starts.
        self._block = 0
        #: Whether the next list is compared whole.
        self._compares_all = False
        #: The last stable prefix that was hashed: its prompts, its events and the state of the hash.
        self._hashed_prefix: tuple[tuple[str, ...], View, Any] | None = None
        #: What a step made of others, by its item id: theirs, of those that nobody made.
        self.leaves = Leaves()

    def take(self, count: int) -> int:
        """Give `count` new items their item ids; the first is returned."""
        with self.lock:
            first = self.next_item
            self.next_item += count
            return first

    def new_created_id(self) -> int:
        """Give an item that a step made its item id: those are counted on their own."""
        with self.lock:
            self._next_made += 1
            return self._next_made - 1

    def prefix_hash(self, prompts: tuple[str, ...], view: View) -> str:
        """16 hex digits that stand for the text of a prefix; of one that only grew since the last, what came is read.

        Args:
            prompts: The prompts in it.
            view: The events in it.
        """
        hashed = self._hashed_prefix
        if hashed is not None and hashed[0] == prompts and view.shared_with(hashed[1]) == len(hashed[1]):
            state, known = hashed[2].copy(), len(hashed[1])
        else:
            state, known = hashlib.blake2b(digest_size=8), 0
            for prompt in prompts:
                state.update(text_digest((prompt,)).to_bytes(8, "little"))
        state.update(view.history.digests(view.pick([(known, len(view))])))
        self._hashed_prefix = prompts, view, state
        digest: str = state.hexdigest()
        return digest

    def arrivals(
        self, source: LedgerInput, steps: Sequence[Step], by: CountedBy, table: TokenTable
    ) -> Slices[list[Arrival]]:
        """What came in, or steps made, that no recorded assembly has told of as it is: also what is counted anew.

        Args:
            source: What came in.
            steps: What was done with it.
            by: What counts it.
            table: The tokens of the input's history.
        """
        numbered, view = source.numbered, source.view
        item_id, told = numbered.item_ids.of, self._told if self._told_by == by else []
        known, upto = self._told_table or (table, 0)
        if told and (corrected := table.corrected[upto if known is table else 0 :]):
            told = difference(told, merged((item_id(at), item_id(at) + 1) for at in corrected))
        new = difference(merged([(first, last + 1) for first, last in source.runs]), told)
        positions = numbered.item_ids.find(chain.from_iterable(starmap(range, new)))
        found: dict[int, tuple[NumberedHistory, int]] = {}
        while some := list(islice(positions, LISTED)):
            found.update([(item_id(position), (numbered, position)) for position in some if view.holds(position)])
            if len(some) == LISTED:
                yield
        for step in steps:
            for (_, item), position in zip(step.created, step.created_positions, strict=True):
                if not is_in(told, item):
                    found.setdefault(item, (step.numbered_out, position))
        return [(item, *place) for item, place in found.items()]

    def mark_exported(
        self, assembly_id: str, source: LedgerInput, steps: Sequence[Step], by: CountedBy, table: TokenTable
    ) -> None:
        """A reader knows of this assembly now, of all that came in, and of what its steps made."""
        told = [(first, last + 1) for first, last in source.runs]
        for step in steps:
            told += [(item, item + 1) for _, item in step.created]
        self._told = merged([*told, *self._told] if self._told_by == by else told)
        self._told_by, self._told_table = by, (table, len(table.corrected))
        self.recorded_id = assembly_id

    def created_by(self, step: Step) -> Sequence[tuple[Any, int]]:
        """What this step put in in the last assembly, with the item ids, and what is not in yet and did not change."""
        return created_by(self.last, step, self.facts_of, observed=self.observed)

    @property
    def size(self) -> int:
        """How many events it holds."""
        histories = [numbered.history for numbered in self.step_outputs.values()]
        if self._numbered is not None:
            histories.append(self._numbered.history)
        return sum(map(len, set(histories)))

    def turn(self) -> int:
        """Count an assembly; its number, from 0, is returned."""
        with self.lock:
            self.turns += 1
            return self.turns - 1

    def repeat_turn(self, turn: int) -> None:
        """Give the number of an assembly that starts again to its next attempt."""
        with self.lock:
            self.turns -= self.turns == turn + 1

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
            return _result_of(self._open_list(events if type(events) is list else list(events)))

    async def open_in_slices(self, events: Sequence[Any]) -> LedgerInput:
        """Read an assembly's input as `open` does, and let the event loop run after each slice of a long list.

        A cancelled caller leaves the ledger as if the part that was read were the whole list.
        """
        if isinstance(events, History):
            with self.lock:
                return self._open_history(events)
        if isinstance(events, ReadEvents):
            return self.open(events)
        if type(events) is list and not self.in_turn.queue:
            with self.lock:
                if self._known and len(events) - self._known <= SLICE and self._continues(events):
                    return _result_of(self._append(events))
        return await self.in_turn.do(self._open_list(list(events)))

    def open_in_place(self, events: Sequence[Any]) -> LedgerInput:
        """As `open`, after the slices that assemblies of other tasks have begun here."""
        with self.lock:
            self.in_turn.finish()
            return self.open(events)

    def _open_history(self, history: History) -> LedgerInput:
        numbered, view = self._numbered, history.view()
        if numbered is None or numbered.history is not history:
            old, numbered = numbered, NumberedHistory(history, ItemIds())
            self._numbered, self._contents, self._last_list = numbered, [], []
            if old is not None:  # the conversation was loaded again
                self._number(numbered, recognised(old, history.events, None, self.facts_of))
                self._keep_known(numbered)
        new = view.end - numbered.item_ids.end
        if new > 0:
            numbered.item_ids.extend(new, self.next_item)
            self.next_item += new
        return LedgerInput(numbered, view)

    def _open_read(self, events: ReadEvents) -> LedgerInput:
        """Read what was laid out for this turn, and read already: it costs what is new."""
        old, numbered = self._numbered, numbered_read(self._numbered, events, self.take)
        given: Any = events  # like a list, but only read
        self._numbered, self._contents, self._last_list = numbered, given, given
        if old is not None and (self._told or self.leaves):
            self._forget(old, old.history.events, numbered)
        return LedgerInput(numbered, numbered.history.view(), given)

    def _open_list(self, events: list[Any]) -> Slices[LedgerInput]:
        numbered = self._numbered
        if numbered is None:
            numbered = self._numbered = NumberedHistory(ListHistory(), ItemIds())
        # The last input may have been a `History`, which belongs to the caller.
        if isinstance(numbered.history, ListHistory) and (
            self._continues(events) or (yield from self._is_copy(numbered, events))
        ):
            return (yield from self._append(events))
        return (yield from self._rearranged(numbered, events))

    def _append(self, events: list[Any]) -> Slices[LedgerInput]:
        """Read the messages of a list that follow those of the previous list."""
        numbered, known = cast("NumberedHistory", self._numbered), self._known
        if new := events[known:]:
            created = self.last.created if self.observed and self.last is not None else ()
            made = made_before(created, numbered, new, self.facts_of) if created else [None] * len(new)
            yield from self._take(numbered, new, made)
            if created:
                places = {item: at for at, item in enumerate(made, known) if item is not None}
                changed = changed_since_made(self.last, numbered, places)
                self._told = difference(self._told, to_runs(sorted(changed)))
        return LedgerInput(numbered, numbered.history.view(), self._last_list)

    @property
    def _known(self) -> int:
        """The number of messages of the previous list; 0 if the previous input was no list."""
        numbered = self._numbered
        return len(numbered.history) if numbered is not None and isinstance(numbered.history, ListHistory) else 0

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

    def _continues(self, events: list[Any]) -> bool:
        """Return True if a list starts with the objects of the previous list, and those were not changed in place.

        The new messages are first appended to this ledger's own list: two lists of one length are compared without a
        copy, and for identical objects without a look at their content.
        """
        given, known = self._last_list, self._known
        if not known:
            self._last_list = list(events)
            return True
        if len(events) < known or events[0] is not given[0] or events[known - 1] is not given[known - 1]:
            return False
        del given[known:]  # messages that could not be read
        given += events[known:]
        if equal(given, events) and self._is_current(events, known):
            return True
        del given[known:]
        return False

    def _is_current(self, events: list[Any], known: int) -> bool:
        """Return True if the messages that are compared in this turn have the content that was read.

        Up to `_COMPARED_WHOLE` messages, all are compared. Of a longer list: what the previous assembly sent, the unit
        of messages in front of it, everything behind, and a block that rotates through the rest.
        """
        start, chosen = 0, list[int]()
        if known > _COMPARED_WHOLE and not self._compares_all:
            start, chosen = self._compared_from(known)
        self._compares_all, self._checked = False, (start, set(chosen))
        given, read = self._last_list, self._contents
        if not self._have_content(events[start:known], given[start:known], read[start:known]):
            return False
        if not chosen:
            return True
        pick = itemgetter(*chosen, chosen[0])  # of a single index, it would return no tuple
        return self._have_content(list(pick(events)), list(pick(given)), list(pick(read)))

    def _have_content(self, events: Sequence[Any], given: Sequence[Any], read: Sequence[Any]) -> bool:
        """Return True if messages are the objects that were given, and have the content that was read.

        Of an observed framework, equal objects are sufficient: it sends its own.
        """
        if not (self.observed or all(map(is_, given, events))):
            return False
        history = cast("NumberedHistory", self._numbered).history
        return not (history.of_dicts or may_change(events)) or equal(read, contents(events))

    def _compared_from(self, known: int) -> tuple[int, list[int]]:
        """Return from which position on all messages are compared, and which positions in front of it."""
        numbered, last = cast("NumberedHistory", self._numbered), self.last
        start, sent = known, list[int]()
        if last is not None and last.kept:
            if last.numbered is numbered:
                start, front = last.kept.newest_run()
                sent += front.all_positions()
            else:
                sent += numbered.item_ids.find(last.numbered.of(last.kept))
                start = to_runs(sent)[-1][0] if sent else known
        start = numbered.history.atom(start - 1) if start else 0
        block = range(self._block if self._block < start else 0, start)[:_BLOCK]
        self._block = block.stop
        return start, [*sent[: bisect_left(sent, start)], *block]

    def verify(self, source: LedgerInput, sent: NumberedHistory, view: View) -> bool:
        """Return True if what an assembly sends, and the unit in front of the cut, has the content that was read.

        It looks only at messages that were not compared when the input was read: a policy may send a message again
        that it had dropped. If one was changed in place, the next `open` compares all messages.

        Args:
            source: The input of the assembly.
            sent: The history of the output, with its item ids.
            view: The events of the output.
        """
        start, compared = self._checked
        if not start or not view or source.given is not self._last_list:
            return True
        first, front = view.newest_run()
        unit = source.numbered.history.atom(first - 1) if first else 0
        positions = (*front.all_positions(), *range(unit, start))
        if sent is not source.numbered:
            positions = tuple(source.numbered.item_ids.find(sent.of(view)))
        rest = [position for position in positions if position < start and position not in compared]
        if not rest:
            return True
        pick = itemgetter(*rest, rest[0])
        given = list(pick(self._last_list))
        self._compares_all = not self._have_content(given, given, list(pick(self._contents)))
        return not self._compares_all

    def compare_all(self) -> None:
        """Compare all messages of the next list with the content that was read."""
        self._compares_all = True

    def _is_copy(self, numbered: NumberedHistory, events: list[Any]) -> Slices[bool]:
        """Return True if a list starts with other objects that have the content of the previous list's messages."""
        known = self._known
        if not (known and self._all_dicts and len(events) >= known):
            equal_so_far = renewed(numbered, events[:known], self._contents, self.described)
            if equal_so_far:
                self._last_list = list(events)
            return equal_so_far
        for start in range(0, known, _COMPARED):
            if start:
                yield
            stop = min(start + _COMPARED, known)
            if not equal(self._contents[start:stop], events[start:stop]):
                return renewed(numbered, events[:known], self._contents, self.described)
        self._last_list = list(events)
        numbered.renew(self._last_list[:known], {})
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
        sent = self.last if self.observed else None
        self._number(numbered, recognised(old, events, sent, self.facts_of))
        if isinstance(old.history, ListHistory):
            self._forget(old, before, numbered)
        else:
            self._keep_known(numbered)
        self._numbered = numbered
        self._last_list = list(events)
        return LedgerInput(numbered, numbered.history.view(), self._last_list)

    def _forget(self, old: NumberedHistory, before: Sequence[Any], new: NumberedHistory) -> None:
        """Of what a reader was told, forget what is not here any more, and what says something else than it did."""
        here = new.among(self.leaves)
        self.leaves = Leaves((item, leaves) for item, leaves in self.leaves.items() if item in here)
        if self._told:
            self._told = still_told(self._told, self.last, (old, before), (new, self._contents))

    def _keep_known(self, numbered: NumberedHistory) -> None:
        """Forget the items that neither this input nor the last assembly has."""
        made = self.last.created if self.last is not None else ()
        self._told = intersection(self._told, to_runs(sorted({*numbered.item_ids.all(), *(item for _, item in made)})))
        here = numbered.among(self.leaves)
        self.leaves = Leaves((item, leaves) for item, leaves in self.leaves.items() if item in here)


def _result_of(work: Slices[T]) -> T:
    """Do work in slices without a pause, and return its result."""
    try:
        while True:
            next(work)
    except StopIteration as done:
        result: T = done.value
        return result


class _Keeper:
    """For whom histories keep the ledgers of one assembler, in one process."""

    __slots__ = ("__weakref__",)


#: Ledgers of named conversations, by the recorder that their spans go to, then by whose they are. A program may create
#: an assembler for each request.
_SHARED: Final[Registry[Any, Registry[tuple[object, ...], Ledger]]] = Registry(RECORDERS, clear_after_fork=True)


def _named_ledgers() -> Registry[tuple[object, ...], Ledger]:
    return Registry(LEDGERS_BY_ID, clear_after_fork=True)


class NamedConversation:
    """What this process knows of a conversation that has an id, whoever of its agents assembles.

    Attributes:
        assemblies: How many assemblies this process has finished for it.
    """

    __slots__ = ("assemblies",)

    def __init__(self) -> None:
        self.assemblies = 0


_NAMED: Final[Registry[Any, Registry[str, NamedConversation]]] = Registry(RECORDERS, clear_after_fork=True)


def named_conversation(conversation_id: str | None, recorder: object) -> NamedConversation | None:
    """The conversation of this id, as far as one recorder knows it; None without an id."""
    if conversation_id is None:
        return None
    try:
        return _NAMED.of(recorder, _named_conversations).of(conversation_id, NamedConversation)
    except TypeError:  # a recorder that cannot be referred to weakly
        return NamedConversation()


def _named_conversations() -> Registry[str, NamedConversation]:
    return Registry(CONVERSATIONS)


class Ledgers:
    """The ledgers of one assembler.

    All assemblers of a process share the ledger of a conversation that the context names, if they have the same class
    and name, and record the same agent with the same recorder. Without a conversation id, a ledger belongs to the
    assembler and the `History`, or to the assembler and the `Context` object.

    A forked child begins them all anew, for its parent goes on with them: two processes would else tell different
    things of one ledger.
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        self._begin()
        after_fork_in_child(self._begin)

    def _begin(self) -> None:
        self._keeper = _Keeper()
        self._own = _named_ledgers()
        self._by_context: WeakKeyDictionary[Context, Ledger] = WeakKeyDictionary()

    def of(self, events: Sequence[Any], context: Context, identity: tuple[object, ...], recorder: object) -> Ledger:
        """The ledger of the conversation that these events belong to.

        Args:
            events: The events.
            context: The context; it may name the conversation and the agent.
            identity: What tells the assembler from others that assemble prompts of the same conversation and agent.
            recorder: Where its records go.
        """
        if context.conversation_id is not None:
            key = context.conversation_id, context.agent_name, *identity
            shared = self._named(recorder)
            ledger = self._own.get(key)
            if ledger is None:
                return self._own.put(key, shared.of(key, Ledger))
            shared.get(key)  # it was used; an assembler keeps its ledgers also if another recorder takes over
            return ledger
        with self._lock:
            if isinstance(events, History):
                # A ledger refers to its history, so that a dictionary of ours would keep both for ever: it is held by
                # the history itself, and goes with it, or with this assembler.
                held: WeakKeyDictionary[_Keeper, Ledger] = events.kept_for
                return _at(held, self._keeper)
            return _at(self._by_context, context)

    def weigh(self, ledger: Ledger, context: Context, identity: tuple[object, ...], recorder: object) -> None:
        """Note how much a ledger holds; the least recently used ones are forgotten if all hold too much."""
        if context.conversation_id is not None:
            key = context.conversation_id, context.agent_name, *identity
            for held in (self._own, self._named(recorder)):
                held.weigh(key, ledger.size, EVENTS)

    def _named(self, recorder: object) -> Registry[tuple[object, ...], Ledger]:
        try:
            return _SHARED.of(recorder, _named_ledgers)
        except TypeError:  # a recorder that cannot be referred to weakly
            return self._own


def _at(ledgers: WeakKeyDictionary[Key, Ledger], key: Key) -> Ledger:
    ledger = ledgers.get(key)
    if ledger is None:
        ledger = ledgers[key] = Ledger()
    return ledger
