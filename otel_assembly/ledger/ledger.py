"""The ledger of a conversation: who its items are, and what the last assembly did with them.

Items have an *item id*, counted from 0 at first sight, that stays theirs however the caller rearranges a list. What a
policy took out in an assembly is held as intervals, so that remembering it, and finding what changed since, cost what
changed, and not what the conversation has grown to.
"""

from __future__ import annotations

import hashlib
import uuid
from itertools import chain, islice, starmap
from operator import is_
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary

from otel_assembly._internal.fork_safety import after_fork_in_child, new_lock
from otel_assembly._internal.registry import Registry
from otel_assembly._internal.slices import LISTED, SLICE, SerialSlices
from otel_assembly.errors import DescribeError
from otel_assembly.history.history import History, ListHistory, text_digest
from otel_assembly.history.read_events import ReadEvent, ReadEvents
from otel_assembly.history.view import Run, View, difference, intersection, is_in, merged, to_runs
from otel_assembly.ledger.made_items import Leaves, changed_since_made, made_before, made_by
from otel_assembly.ledger.rearranged import numbered_read, recognised, renewed, still_told
from otel_assembly.ledger.snapshot import FIRST_MADE, ItemIds, LedgerInput, NumberedHistory, PendingUsage, Snapshot
from otel_assembly.messages.content_snapshot import DescribedEvent, DescribedEvents, contents, equal, may_change

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly._internal.slices import Slices
    from otel_assembly.context import Context
    from otel_assembly.history.token_counts import TokenTable
    from otel_assembly.ledger.filtered_output import FilteredOutput
    from otel_assembly.ledger.snapshot import Step
    from otel_assembly.messages.event_facts import EventFacts

Key = TypeVar("Key")

#: Ledgers that are known only by a conversation id; the least recently used are forgotten beyond it.
LEDGERS_BY_ID: Final = 1_000
#: Events that the ledgers of all named conversations hold together; beyond it, the same.
EVENTS: Final = 200_000
#: Named conversations whose assemblies are counted.
CONVERSATIONS: Final = 10_000
#: Recorders whose ledgers are kept.
RECORDERS: Final = 32
#: So many messages are compared with what they said in the time in which a slice is read.
_COMPARED: Final = 2_048

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
        self.in_turn = SerialSlices(self.lock)
        #: The last list that came in.
        self._last_list: list[Any] = []
        #: What was read of its events.
        self.described = DescribedEvents()
        #: Whether they are dicts, one and all.
        self._all_dicts = True
        #: What each event of the last list said when it was read.
        self._contents: list[Any] = []
        #: The last stable prefix that was hashed: its prompts, its events and the state of the hash.
        self._hashed_prefix: tuple[tuple[str, ...], View, Any] | None = None
        #: What a step made of others, by its item id: theirs, of those that nobody made.
        self.leaves = Leaves()

    def take(self, count: int) -> int:
        """Give `count` new items their item ids; the first is returned."""
        with self.lock:
            first = self._next
            self._next += count
            return first

    @property
    def next_item(self) -> int:
        """The id of the next item that arrives."""
        return self._next

    def take_made(self) -> int:
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

    def tell(
        self, assembly_id: str, source: LedgerInput, steps: Sequence[Step], by: CountedBy, table: TokenTable
    ) -> None:
        """A reader knows of this assembly now, of all that came in, and of what its steps made."""
        told = [(first, last + 1) for first, last in source.runs]
        for step in steps:
            told += [(item, item + 1) for _, item in step.created]
        self._told = merged([*told, *self._told] if self._told_by == by else told)
        self._told_by, self._told_table = by, (table, len(table.corrected))
        self.recorded_id = assembly_id

    def made_by(self, step: Step) -> Sequence[tuple[Any, int]]:
        """What this step put in in the last assembly, with the item ids, and what is not in yet and did not change."""
        return made_by(self.last, step, self.facts_of, observed=self.observed)

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

    def open_in_place(self, events: Sequence[Any]) -> LedgerInput:
        """As `open`, after the slices that assemblies of other tasks have begun here."""
        with self.lock:
            self.in_turn.finish()
            return self.open(events)

    def _open_history(self, history: History) -> LedgerInput:
        old = self._numbered
        if old is None or old.history is not history:
            self._numbered = NumberedHistory(history, ItemIds())
            self._contents, self._last_list = [], []
            if old is not None:  # the conversation was loaded again
                self._number(self._numbered, recognised(old, history.events, None, self.facts_of))
                self._keep_known(self._numbered)
        numbered = cast("NumberedHistory", self._numbered)
        view = history.view()
        new = len(view) - len(numbered.item_ids)
        if new > 0:
            numbered.item_ids.extend(new, self.take(new))
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
        if not isinstance(numbered.history, ListHistory):  # the last input was a `History`, which is the caller's
            return (yield from self._rearranged(numbered, events))
        known = len(numbered.history)
        if not ((yield from self._said_before(numbered, events, known)) or self._grown(events, known)):
            if not renewed(numbered, events[:known], self._contents, self.described):
                return (yield from self._rearranged(numbered, events))
            self._last_list = list(events)
        new = events[known:]
        if new:
            created = self.last.created if self.observed and self.last is not None else ()
            made = made_before(created, numbered, new, self.facts_of) if created else [None] * len(new)
            yield from self._take(numbered, new, made)
            if created:
                places = {item: at for at, item in enumerate(made, known) if item is not None}
                changed = changed_since_made(self.last, numbered, places)
                self._told = difference(self._told, to_runs(sorted(changed)))
        return LedgerInput(numbered, numbered.history.view(), self._last_list)

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
        """Whether messages that were seen before still say what they said, where they may be changed in place."""
        numbered = self._numbered
        if numbered is None or not (numbered.history.of_dicts or may_change(islice(events, known))):
            return True
        return equal(self._contents, contents(events[:known]))

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
