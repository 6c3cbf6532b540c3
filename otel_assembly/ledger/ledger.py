"""The ledger of a conversation: the ids of its items, and the result of the last assembly.

Each item has an *item id*, counted from 0 in order of arrival. It does not change if the caller rearranges a list. The
items that a policy removed are stored as ranges. So the cost of storing them, and of finding changes since, depends on
the number of changes, not on the length of the conversation.
"""

from __future__ import annotations

import hashlib
import uuid
from functools import partial
from itertools import count, groupby, repeat
from operator import is_
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary

from otel_assembly._internal.fork_safety import after_fork_in_child, new_lock
from otel_assembly._internal.registry import Registry
from otel_assembly._internal.slices import SLICE, SerialSlices
from otel_assembly.errors import DescribeError
from otel_assembly.history.history import History, ListHistory, text_digest
from otel_assembly.history.read_events import ReadEvent, ReadEvents
from otel_assembly.history.view import Range, View, difference, to_ranges
from otel_assembly.ledger.rearranged import (
    changed_created_items,
    created_ids,
    ids_with_unchanged,
    known_ids,
    number_read_events,
    replace_copies,
    unchanged_exported,
    unchanged_positions,
)
from otel_assembly.ledger.snapshot import (
    FIRST_MADE,
    NOTHING_SENT,
    InputList,
    ItemIds,
    Leaves,
    LedgerInput,
    NumberedHistory,
    PendingUsage,
    Snapshot,
)
from otel_assembly.matching.rotation import COMPARED_WHOLE, ComparedMessages
from otel_assembly.messages.content_snapshot import DescribedEvent, DescribedEvents, contents, equal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_assembly._internal.slices import Slices
    from otel_assembly.context import Context
    from otel_assembly.history.token_counts import TokenTable
    from otel_assembly.messages.event_facts import EventFacts

Key = TypeVar("Key")
T = TypeVar("T")

#: The maximum number of ledgers that are found by a conversation id; the least recently used one is removed first.
LEDGERS_BY_ID: Final = 1_000
#: The maximum number of events in all these ledgers together; again, the least recently used one is removed first.
EVENTS: Final = 200_000
#: The maximum number of named conversations whose assemblies are counted.
CONVERSATIONS: Final = 10_000
#: The maximum number of recorders with ledgers.
RECORDERS: Final = 32

#: The name and the generation of a token counter. If one of them changes, all token counts may change.
CountedBy: TypeAlias = tuple[str, int]

_ALL: Final = ComparedMessages()


class Ledger:
    """The items and turns of one conversation of one agent, in one process."""

    def __init__(self, *, observed: bool = False) -> None:
        self.id = uuid.uuid4().hex
        #: Whether a framework's own code assembles, so that an output can be the next input.
        self.observed = observed
        #: By index of a step, its last output with a new history, which is extended if events are appended.
        self.step_outputs: dict[int, NumberedHistory] = {}
        self.lock = new_lock()
        self.turns = 0
        #: The last assembly's prompt, and the steps that made it.
        self.last = NOTHING_SENT
        #: The id of the last assembly whose span was recorded.
        self.recorded_id: str | None = None
        #: The exported items (items that spans of recorded assemblies describe), as ranges, and their token counter.
        self.exported: list[Range] = []
        self.exported_by: CountedBy | None = None
        #: The token table of the exported input, and the number of its estimates that had been corrected by then.
        self.exported_table: tuple[TokenTable, int] | None = None
        self.pending_usage: PendingUsage | None = None
        self.next_item = 0
        #: The item ids of events that steps create.
        self.created_ids = count(FIRST_MADE)
        self._numbered: NumberedHistory | None = None
        #: The work of assemblies in slices, one assembly at a time.
        self.serial_slices = SerialSlices(self.lock)
        #: The facts of messages that were read.
        self.described = DescribedEvents()
        #: The messages that were compared in this turn.
        self._compared = _ALL
        #: Whether all messages of the next list are compared.
        self._compares_all = False
        #: The last stable prefix that was hashed: its prompts, its events and the state of the hash.
        self._hashed_prefix: tuple[tuple[str, ...], View, Any] | None = None
        #: By id of each created item, the input items that it replaces.
        self.leaves = Leaves()

    def new_item_ids(self, count: int) -> int:
        """Reserve consecutive item ids for `count` new items, and return the first of them."""
        with self.lock:
            first = self.next_item
            self.next_item += count
            return first

    def prefix_hash(self, prompts: tuple[str, ...], view: View) -> str:
        """Return a hash of the text of a prefix, as 16 hex digits.

        If the prefix extends the last hashed one, only the new events are hashed.
        """
        hashed = self._hashed_prefix
        if hashed is not None and hashed[0] == prompts and view.shared_with(hashed[1]) == hashed[1].length:
            state, known = hashed[2].copy(), hashed[1].length
        else:
            state, known = hashlib.blake2b(digest_size=8), 0
            for prompt in prompts:
                state.update(text_digest((prompt,)).to_bytes(8, "little"))
        if known < view.length:
            state.update(view.history.digests(view.part(known, view.length)))
        self._hashed_prefix = prompts, view, state
        digest: str = state.hexdigest()
        return digest

    @property
    def size(self) -> int:
        """The number of events in the ledger's histories."""
        histories = [numbered.history for numbered in self.step_outputs.values()]
        if self._numbered is not None:
            histories.append(self._numbered.history)
        return sum(map(len, set(histories)))

    def turn(self) -> int:
        """Count an assembly, and return its turn, from 0."""
        with self.lock:
            self.turns += 1
            return self.turns - 1

    def repeat_turn(self, turn: int) -> None:
        """Let an assembly that starts again have its turn again, unless another one has begun since."""
        with self.lock:
            self.turns -= self.turns == turn + 1

    def open(self, events: Sequence[Any]) -> LedgerInput:
        """Read an assembly's input.

        Raises:
            DescribeError: An event of a list cannot be read; the ledger does not change.
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
                ledger_input: LedgerInput = done.value
                return ledger_input

    async def open_in_slices(self, events: Sequence[Any]) -> LedgerInput:
        """Read an assembly's input as `open` does, and let the event loop run after each slice of a long list.

        A cancelled caller leaves the ledger as if the part that was read were the whole list.
        """
        if isinstance(events, History | ReadEvents):
            return self.open(events)
        slices = self.serial_slices  # if other work comes first, the caller may change the list meanwhile
        return await slices.do(self._open_list(events if type(events) is list and not slices.queue else list(events)))

    def open_in_place(self, events: Sequence[Any]) -> LedgerInput:
        """Read an assembly's input as `open` does, after completing the slices of other tasks' assemblies."""
        with self.lock:
            self.serial_slices.finish()
            return self.open(events)

    def _open_history(self, history: History) -> LedgerInput:
        numbered, view = self._numbered, history.view()
        if numbered is None or numbered.history is not history:
            old, numbered = numbered, NumberedHistory(history, ItemIds())
            self._numbered = numbered
            if old is not None:  # the conversation was loaded again
                self._number(numbered, known_ids(old, history.events, NOTHING_SENT, self.facts_of))
                self._forget_absent(old, numbered)
        new = view.end - numbered.item_ids.end
        if new > 0:
            numbered.item_ids.extend(new, self.next_item)
            self.next_item += new
        return LedgerInput(numbered, view)

    def _open_read(self, events: ReadEvents) -> LedgerInput:
        """Open an input whose events were read already; the cost depends on the number of new events."""
        old, numbered = self._numbered, number_read_events(self._numbered, events, self.new_item_ids)
        self._numbered = numbered
        if old is not None and (self.exported or self.leaves):
            self._forget_absent(old, numbered)
        return LedgerInput(numbered, numbered.history.view(), numbered.objects)

    def _open_list(self, events: list[Any]) -> Slices[LedgerInput]:
        """Open a list: read the messages that follow those of the last list or, if there are others, all of it."""
        old = self._numbered
        if old is None:
            old = self._numbered = InputList(ListHistory(), ItemIds())
        if not isinstance(old, InputList):  # a `History`, which belongs to the caller
            return (yield from self._open_rearranged(old, list(events)))
        if not self._extend_list(old, events):
            events = list(events)  # the caller may change the list between slices
            if not (yield from replace_copies(old, events, self.described)):
                return (yield from self._open_rearranged(old, events))
        known = len(old.history.events)
        if new := old.objects[known:]:  # `objects` has the new messages already, and the history not yet
            created = self.last.created if self.observed else []
            item_ids = created_ids(created, old, new, self.facts_of) if created else [None] * len(new)
            yield from self._read_into(old, new, item_ids, repeat(None))
            if created:
                places = {item: at for at, item in enumerate(item_ids, known) if item is not None}
                self.exported = difference(self.exported, changed_created_items(self.last, old, places))
        return LedgerInput(old, old.history.view(), old.objects)

    def _open_rearranged(self, old: NumberedHistory, events: list[Any]) -> Slices[LedgerInput]:
        """Open a list that is not the last list with messages appended: read all of it into a new history."""
        numbered = InputList(ListHistory(), ItemIds(), objects=events)
        if isinstance(old, InputList) and not self.observed:
            unchanged = unchanged_positions(old, events)
            yield from self._read_into(numbered, events, None, map(old.described, unchanged))
            self._number(numbered, ids_with_unchanged(old, unchanged, events, self.facts_of))
        else:
            yield from self._read_into(numbered, events, None, repeat(None))
            sent = self.last if self.observed else NOTHING_SENT
            self._number(numbered, known_ids(old, events, sent, self.facts_of))
        self._forget_absent(old, numbered)
        self._numbered = numbered
        return LedgerInput(numbered, numbered.history.view(), events)

    def _read_into(
        self,
        source: InputList,
        events: Sequence[Any],
        item_ids: Sequence[int | None] | None,
        known: Iterator[DescribedEvent | None],
    ) -> Slices[None]:
        """Read events, and append them to a list; append none if one cannot be read.

        `item_ids` has the item id of each event, None for a new item. If it is None, no item ids are set yet. `known`
        has each event as it was read before, None for one that has to be read.
        """
        self.described.serve(len(source.history.events) + len(events))
        read: list[DescribedEvent] = []
        for start in range(0, len(events), SLICE):
            if start:
                yield
            for event, known_event in zip(events[start : start + SLICE], known, strict=False):
                read.append(self.described.of(event) if known_event is None else known_event)
        for start in range(0, len(events), SLICE):
            if start:
                yield
            source.append(events[start : start + SLICE], read[start : start + SLICE])
            if item_ids is not None:
                self._number(source, item_ids[start : start + SLICE])

    def _number(self, numbered: NumberedHistory, item_ids: Sequence[int | None]) -> None:
        """Set the item ids of a history's newest events: known ids, or new ones if None."""
        for is_new, group in groupby(item_ids, partial(is_, None)):
            known = list(group)
            if is_new:
                numbered.item_ids.extend(len(known), self.new_item_ids(len(known)))
            else:
                for item_id in known:
                    numbered.item_ids.extend(1, cast("int", item_id))

    def _extend_list(self, source: InputList, events: list[Any]) -> bool:
        """Append a list's new messages to the known ones, if it begins with these, unchanged.

        Of a long list, these are compared: the messages that the previous assembly sent, the atom in front of them (its
        size decides the cut), all later messages, and a block of the others, in rotation. Two lists of one length are
        compared without a copy, and identical objects without a look at their content.
        """
        objects, known = source.objects, len(source.history.events)
        if not known:
            source.objects = list(events)
            return True
        if len(events) < known or events[0] is not objects[0] or events[known - 1] is not objects[known - 1]:
            return False
        del objects[known:]  # messages that could not be read
        objects += events[known:]
        is_same = equal(objects, events)
        if is_same and (source.may_change or not self.observed):
            self._compared = self._to_compare(source) if known > COMPARED_WHOLE and not self._compares_all else _ALL
            self._compares_all = False
            is_same = self._have_content(source, *self._compared.select(known, events, objects, source.contents))
        if not is_same:
            del objects[known:]
        return is_same

    def _have_content(self, source: InputList, events: list[Any], objects: list[Any], read: list[Any]) -> bool:
        """Return True if messages are the known objects, and have the content that was read.

        Of an observed framework, equal objects are sufficient: it sends its own.
        """
        if not (self.observed or all(map(is_, objects, events))):
            return False
        return not source.may_change or equal(read, events if source.all_dicts else contents(events))

    def _to_compare(self, source: InputList) -> ComparedMessages:
        """Return the messages of a long list that are compared."""
        start, sent, last = len(source.history.events), list[int](), self.last
        if last.view.length:
            if last.numbered is source:
                start, front = last.view.newest_range()
                sent += front.positions()
            else:
                sent += source.item_ids.find(last.numbered.of(last.view))
                start = to_ranges(sent)[-1][0] if sent else start
        return self._compared.following(source.history.pairing.atoms[start - 1] if start else 0, sent)

    def verify(self, source: LedgerInput, sent: Snapshot) -> bool:
        """Return True if the messages to send, and the atom in front of the cut, have the content that was read.

        Only messages that were not compared when the input was read are compared now: a policy may send a message again
        that it had dropped. If a message was changed in place, the next `open` compares all messages.
        """
        start, view, read = self._compared.start, sent.view, source.numbered
        if not start or not view.length or not isinstance(read, InputList) or source.given is not read.objects:
            return True
        first, front = view.newest_range()
        unit = read.history.pairing.atoms[first - 1] if first else 0
        positions = (*front.positions(), *range(unit, start))
        if sent.numbered is not read:
            positions = tuple(read.item_ids.find(sent.numbered.of(view)))
        rest = self._compared.others(positions)
        if rest:
            objects, known = (list(map(items.__getitem__, rest)) for items in (read.objects, read.contents))
            self._compares_all = not self._have_content(read, objects, objects, known)
        return not rest or not self._compares_all

    def compare_all(self) -> None:
        """Compare all messages of the next list with the content that was read."""
        self._compares_all = True

    def _forget_absent(self, old: NumberedHistory, new: NumberedHistory) -> None:
        """Remove exported items that are absent or changed in a new input, and absent summaries' leaf items."""
        present = new.among(self.leaves)
        self.leaves = Leaves((item, leaves) for item, leaves in self.leaves.items() if item in present)
        if self.exported:
            self.exported = unchanged_exported(self.exported, self.last, old, new)

    def facts(self, event: Any) -> EventFacts:
        """Return the facts of an event; read it if it was not read before.

        Raises:
            DescribeError: The event cannot be read.
        """
        if isinstance(event, ReadEvent):
            return event.facts
        with self.lock:
            return self.described.of(event).facts

    def facts_of(self, event: Any) -> EventFacts | None:
        """Return the facts of an event; None if it cannot be read."""
        try:
            return self.facts(event)
        except DescribeError:
            return None


class NamedConversation:
    """A conversation with an id, of all its agents, in this process.

    Attributes:
        assemblies: The number of assemblies that this process has finished for the conversation.
    """

    __slots__ = ("assemblies",)

    def __init__(self) -> None:
        self.assemblies = 0


class _Named:
    """The named conversations of one recorder, and their ledgers, by conversation, agent and assembler.

    All assemblers of a process share them, because a program may create an assembler for each request.
    """

    def __init__(self) -> None:
        self.conversations: Registry[str, NamedConversation] = Registry(CONVERSATIONS)
        self.ledgers: Registry[tuple[object, ...], Ledger] = Registry(LEDGERS_BY_ID, clear_after_fork=True)


_NAMED: Final[Registry[Any, _Named]] = Registry(RECORDERS, clear_after_fork=True)


def _named_by(recorder: object) -> _Named:
    try:
        return _NAMED.of(recorder, _Named)
    except TypeError:  # a recorder that cannot be referred to weakly
        return _Named()


def named_conversation(conversation_id: str | None, recorder: object) -> NamedConversation | None:
    """Return the conversation with an id, as counted for one recorder; None without an id."""
    if conversation_id is None:
        return None
    return _named_by(recorder).conversations.of(conversation_id, NamedConversation)


class Ledgers:
    """The ledgers of one assembler.

    All assemblers of a process share the ledger of a conversation that the context names, if they have the same class
    and name, and record the same agent with the same recorder. Without a conversation id, a ledger belongs to the
    assembler and the `History`, or to the assembler and the `Context` object.

    A forked child starts with new ledgers, because its parent continues the old ones: spans of two processes must not
    contradict each other about one ledger.
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        self._begin()
        after_fork_in_child(self._begin)

    def _begin(self) -> None:
        #: By conversation, agent and assembler; also the key under which histories store this assembler's ledgers.
        self._own: Registry[tuple[object, ...], Ledger] = Registry(LEDGERS_BY_ID, clear_after_fork=True)
        self._by_context: WeakKeyDictionary[Context, Ledger] = WeakKeyDictionary()

    def of(self, events: Sequence[Any], context: Context, identity: tuple[object, ...], recorder: object) -> Ledger:
        """Return the ledger of the conversation that these events belong to.

        `identity` distinguishes the assembler from others of the same conversation and agent: its class and name.
        """
        if context.conversation_id is not None:
            key = context.conversation_id, context.agent_name, *identity
            shared = _named_by(recorder).ledgers
            ledger = self._own.get(key)
            if ledger is None:
                return self._own.put(key, shared.of(key, Ledger))
            shared.get(key)  # marks it as used; an assembler keeps its ledgers even if its recorder changes
            return ledger
        with self._lock:
            if isinstance(events, History):
                # A ledger refers to its history, so a dictionary here would keep both alive. The history itself stores
                # the ledger, until the history or this assembler is garbage collected.
                return _get_or_create(events.kept_for, self._own)
            return _get_or_create(self._by_context, context.original)

    def weigh(self, ledger: Ledger, context: Context, identity: tuple[object, ...], recorder: object) -> None:
        """Update the number of events of a ledger of a conversation with an id.

        If all these ledgers together have too many, the least recently used ones are removed.
        """
        key = context.conversation_id, context.agent_name, *identity
        for ledgers in (self._own, _named_by(recorder).ledgers):
            ledgers.weigh(key, ledger.size, EVENTS)


def _get_or_create(ledgers: WeakKeyDictionary[Key, Ledger], key: Key) -> Ledger:
    ledger = ledgers.get(key)
    if ledger is None:
        ledger = ledgers[key] = Ledger()
    return ledger
