"""The data of one assembly in a ledger: item ids, steps with their results and reasons, and the snapshot of the turn.

Items are compared as ranges of their history's columns. So the cost of finding new items depends on the number of
changes, not on the length of the conversation.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import chain, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from otel_assembly.history.history import ListHistory
from otel_assembly.history.view import Range, View, difference, is_in, merged, to_ranges
from otel_assembly.matching.event_index import EventIndex
from otel_assembly.messages.content_snapshot import DescribedEvent, may_change

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from otel_assembly.budget.attempt import Attempt
    from otel_assembly.conversation_state import AlertFacts
    from otel_assembly.decision import BudgetReport, DecisionOutcome, DecisionReason, Overflow
    from otel_assembly.history.history import History
    from otel_assembly.history.token_counts import TokenTable
    from otel_assembly.history.view import View
    from otel_assembly.messages.event_facts import EventFacts

#: The first item id of events that steps created. They are numbered apart from input events, and above them.
FIRST_MADE: Final = 1 << 62
#: The maximum number of created items whose leaf items are stored.
_MAX_LEAVES: Final = 64
#: The outcome of an item, and the reason for it.
Tag: TypeAlias = "tuple[DecisionOutcome, DecisionReason]"
_START_AND_STOP: Final = itemgetter(1, 2)


def item_text(item: int) -> str:
    """Return an item id as text: ``7`` for an event of the input, ``m7`` for one that a step created."""
    return str(item) if item < FIRST_MADE else f"m{item - FIRST_MADE}"


class ItemIds:
    """The item id of each position of a history, stored as ranges of consecutive ids.

    Attributes:
        end: One past the last position that has an item id.
    """

    __slots__ = ("_ids", "_is_ascending", "_positions", "end")

    def __init__(self) -> None:
        self._positions: list[int] = []
        self._ids: list[int] = []
        #: Whether the ids of the ranges ascend.
        self._is_ascending = True
        self.end = 0

    def extend(self, count: int, first: int) -> None:
        """Give the next `count` positions consecutive item ids, from `first` on."""
        if count <= 0:
            return
        if not self._positions or self._ids[-1] + self.end - self._positions[-1] != first:
            self._is_ascending = self._is_ascending and (not self._ids or self._ids[-1] < first)
            self._positions.append(self.end)
            self._ids.append(first)
        self.end += count

    def extend_from(self, source: ItemIds, start: int, stop: int) -> None:
        """Give the next positions the item ids of positions ``[start, stop)`` in another history."""
        if start == self.end == 0 and stop:  # the usual case: copy all ranges in one step
            ranges = bisect_left(source._positions, stop)
            self._positions, self._ids, self.end = source._positions[:ranges], source._ids[:ranges], stop
            self._is_ascending = source._is_ascending or all(first < second for first, second in pairwise(self._ids))
            return
        for first, last in source.ranges(start, stop):
            self.extend(last - first, first)

    def of(self, position: int) -> int:
        """Return the item id of a position."""
        place = bisect_right(self._positions, position) - 1
        return self._ids[place] + position - self._positions[place]

    def find(self, item_ids: Iterable[int]) -> Iterator[int]:
        """Yield the positions of these item ids. Ids without a position, and positions added meanwhile, are skipped."""
        starts, ids = list(self._positions), list(self._ids)
        ends = [*starts[1:], self.end]
        if not self._is_ascending:  # search the ids of each range
            wanted = sorted(set(item_ids))
            for start, first, stop in zip(starts, ids, ends, strict=True):
                low, high = bisect_left(wanted, first), bisect_left(wanted, first + stop - start)
                yield from (start + item_id - first for item_id in wanted[low:high])
            return
        for item_id in item_ids:
            place = bisect_right(ids, item_id) - 1
            if place >= 0 and (position := starts[place] + item_id - ids[place]) < ends[place]:
                yield position

    def ranges(self, start: int, stop: int) -> list[Range]:
        """Return the item ids of positions ``[start, stop)`` as ranges, in the order of the positions."""
        ranges: list[Range] = []
        place = bisect_right(self._positions, start) - 1
        while start < stop:
            end = min(stop, self._positions[place + 1] if place + 1 < len(self._positions) else self.end)
            first = self._ids[place] + start - self._positions[place]
            ranges.append((first, first + end - start))
            start, place = end, place + 1
        return ranges

    def newest_ranges(self, view: View, count: int) -> list[tuple[int, int, int]]:
        """Return at most `count` ranges of a view's item ids, the newest first, each as first position, start, stop."""
        column, ranges = view.column, list[tuple[int, int, int]]()
        for start, stop in reversed(view.ranges):
            while start < stop:
                end = column.positions[stop - 1] + 1
                are_consecutive = column.positions[start] == end - (stop - start)
                first = start if are_consecutive else column.start_of_range(start, stop)
                place = bisect_right(self._positions, end - 1) - 1
                at = max(end - (stop - first), self._positions[place])
                item = self._ids[place] + at - self._positions[place]
                next_item = item + end - at
                if ranges and next_item == ranges[-1][1]:
                    ranges[-1] = at, item, ranges[-1][2]
                elif len(ranges) == count:
                    return ranges
                else:
                    ranges.append((at, item, next_item))
                stop -= end - at
        return ranges

    def __len__(self) -> int:
        return self.end

    def all(self) -> Iterator[int]:
        """Yield every item id, in the order of positions."""
        for start, stop in self.ranges(0, self.end):
            yield from range(start, stop)


@dataclass(slots=True)
class NumberedHistory:
    """A history together with the item ids that a ledger gave its positions."""

    history: History
    item_ids: ItemIds
    #: If this is a step's output: the numbered history of the step's input.
    step_input: NumberedHistory | None = None
    _places: EventIndex | None = None

    @property
    def list_history(self) -> ListHistory:
        """The history, which must be that of a list: a list as input, or a step's output."""
        return cast("ListHistory", self.history)

    def event_index(self) -> EventIndex:
        """Return an index of the history's events, which finds their positions."""
        if self._places is None:
            self._places = EventIndex(self.history.events, self.history.facts)
        return self._places

    def renew(self, events: Sequence[Any], reread: Mapping[int, EventFacts]) -> None:
        """Replace the event objects by others of the same events; `reread` has the facts of those with a new id."""
        self.list_history.renew(events)
        for position, facts in reread.items():
            self.list_history.fresh_facts[position] = facts
        if reread:
            self._places = None
        elif self._places is not None:
            self._places.renewed()

    def among(self, items: Iterable[int]) -> set[int]:
        """Return those of these item ids that the history has."""
        return set(map(self.item_ids.of, self.item_ids.find(items)))

    def of(self, view: View) -> Iterator[int]:
        """Return the item ids of a view's items, in order."""
        item_id = self.item_ids.of
        return (item_id(position) for position in view.positions())


@dataclass(slots=True)
class InputList(NumberedHistory):
    """An input that was a list, with the content of its messages."""

    #: The messages, and at the end those that could not be read.
    objects: list[Any] = field(default_factory=list)
    #: The content of each message when it was read.
    contents: list[Any] = field(default_factory=list)
    #: Whether all messages are dicts.
    all_dicts: bool = True
    #: Whether a message may change in place.
    may_change: bool = False

    def append(self, events: Sequence[Any], read: Sequence[DescribedEvent]) -> None:
        """Append messages that were read to the history."""
        self.list_history.take(events, [event.facts for event in read])
        self.contents += [event.content for event in read]
        self.all_dicts = self.all_dicts and {*map(type, events)} <= {dict}
        self.may_change = self.may_change or self.history.of_dicts or may_change(events)

    def described(self, position: int | None) -> DescribedEvent | None:
        """Return a message as it was read; None for no position."""
        return None if position is None else DescribedEvent(self.contents[position], self.history.facts(position))


@dataclass(slots=True)
class ItemGroup:
    """Items of a step with the same outcome and reason."""

    view: View
    numbered: NumberedHistory
    outcome: DecisionOutcome
    reason: DecisionReason

    @property
    def tag(self) -> Tag:
        """The outcome and the reason."""
        return self.outcome, self.reason


def item_id_ranges(view: View, numbered: NumberedHistory) -> list[Range]:
    """Return a view's item ids as ranges, in the view's order."""
    return list(map(_START_AND_STOP, reversed(numbered.item_ids.newest_ranges(view, view.length))))


@dataclass(frozen=True, slots=True)
class StepCompaction:
    """A compaction of a step: events that a shorter event, such as a summary, replaced.

    Attributes:
        provenance: The ids of the replaced items, as ranges. They are leaf items: instead of a
            summary among the replaced events, this lists the items that the summary had replaced.
        result: The item id of the shorter event.
        attempts: Every attempt of this assembly to compact the events, in order.
    """

    provenance: tuple[tuple[int, int], ...]
    result: int
    attempts: tuple[Attempt, ...]


@dataclass(slots=True, eq=False)
class PromptState:
    """The prompts and events between two steps of an assembly, or before its first or after its last step."""

    prompts: tuple[str, ...]
    #: The source of each prompt: ``caller`` or a policy's name.
    sources: tuple[str, ...]
    numbered: NumberedHistory
    view: View


@dataclass(slots=True)
class Step:
    """One policy application. Prompts or events that it did not change are the same object in input and output."""

    policy: str
    index: int
    kind: str | None
    config: Mapping[str, Any]
    before: PromptState
    #: The output; until a change is set, the object `before`, which the previous step refers to, too.
    after: PromptState
    #: The items that left by this step.
    exits: tuple[ItemGroup, ...] = ()
    #: The items that stayed although the policy's rule would have removed them.
    pinned: tuple[ItemGroup, ...] = ()
    #: By item id, the position in the output's history of each event that was not in the step's input.
    created: Mapping[int, int] = field(default_factory=dict)
    #: The items of `created` that are in the assembly's input, and that an earlier step removed.
    restored_items: tuple[int, ...] = ()
    #: By id of a created item, the leaf items (items of the input) that it replaced, as ranges.
    provenance: Mapping[int, Sequence[Range]] = field(default_factory=dict)
    #: The previous steps of the assembly.
    earlier: tuple[Step, ...] = field(default=(), repr=False)
    #: The item ids of events that the step reordered: the fewest that explain the new order.
    moved: tuple[int, ...] = ()
    #: The policy's token limit.
    budget: int | None = None
    #: If the limit applies to events alone, the tokens of output events that do not count against it. None if the limit
    #: applies to the whole prompt.
    beside_tokens: int | None = None
    #: The tokens of content that must not be dropped.
    fixed: int | None = None
    overflow: Overflow | None = None
    alerts: tuple[AlertFacts, ...] = ()
    halts: int = 0
    #: The number of events that a framework's reducer reports to have removed; None if it reports none.
    reported: int | None = None
    #: How the policy distributed its budget, if it is an allocator.
    report: BudgetReport | None = None
    compactions: tuple[StepCompaction, ...] = ()
    #: If events are joined to messages: tokens of the messages' framing, of the texts between the events, and of both
    #: in the step's input.
    framing: int = 0
    separators: int = 0
    around_in: int = 0
    #: The exception that the policy raised.
    error: BaseException | None = None

    @property
    def created_events(self) -> list[tuple[Any, int]]:
        """The events of `created`, with their item ids."""
        events = self.after.numbered.history.events
        return [(events[at], item) for item, at in self.created.items()]

    @property
    def created_texts(self) -> dict[int, Sequence[str]]:
        """The texts of the created events when they were created, by item id; a dict can change in place later."""
        facts = self.after.numbered.history.facts
        return {item: facts(at).texts for item, at in self.created.items()}

    def set_events(self, view: View, numbered: NumberedHistory | None = None) -> None:
        """Set the output events; without `numbered`, they are a part of the input's history."""
        after = self.after
        self.after = PromptState(after.prompts, after.sources, numbered or after.numbered, view)

    def set_prompts(self, prompts: tuple[str, ...]) -> None:
        """Set the output prompts. A prompt of the input keeps its source; a new one has the policy's name as source."""
        known: dict[str, list[str]] = {}
        for prompt, source in zip(reversed(self.before.prompts), reversed(self.before.sources), strict=True):
            known.setdefault(prompt, []).append(source)
        sources = tuple(origins.pop() if (origins := known.get(prompt)) else self.policy for prompt in prompts)
        self.after = PromptState(prompts, sources, self.after.numbered, self.after.view)


@dataclass(slots=True, eq=False)
class Snapshot(PromptState):
    """What an assembly sends. The ledger keeps it, and compares its next assembly with it."""

    steps: tuple[Step, ...]
    tools: tuple[Mapping[str, Any], ...]
    #: The tokens of `view` by event kind, with the table that counted them; None until they are computed.
    kinds: tuple[TokenTable, Sequence[int]] | None = None
    #: The ledger's next item id at that time: items with this id or a higher one are new since.
    next_item: int = 0
    #: The number of assemblies that this process had finished for the conversation, including this one.
    assemblies: int = 0
    #: Whether the ledger resumed the conversation with this assembly, so that its departures were not counted.
    resumed: bool = False

    @property
    def exits(self) -> list[ItemGroup]:
        """The items that left by a step, and that no later step restored."""
        exits: list[ItemGroup] = []
        for step in self.steps:
            if step.exits:
                exits += lasting_exits(self.steps, step.index)
        return exits

    @property
    def created(self) -> list[tuple[Any, int]]:
        """The events that the steps created, with their item ids."""
        return [pair for step in self.steps if step.created for pair in step.created_events]

    def step_like(self, step: Step) -> Step | None:
        """Return the step with a step's index and policy, if any: a framework's steps can differ from turn to turn."""
        own = self.steps[step.index] if step.index < len(self.steps) else None
        return own if own is not None and own.policy == step.policy else None

    def exits_of(self, step: Step) -> Sequence[ItemGroup]:
        """Return the items that left by the step with a step's index and policy, and that no later step restored."""
        return lasting_exits(self.steps, step.index) if self.step_like(step) is not None else ()


#: The snapshot of a ledger without an assembly.
NOTHING_SENT: Final = Snapshot((), (), NumberedHistory(ListHistory(), ItemIds()), ListHistory().view(), (), ())


@dataclass(slots=True)
class PendingUsage:
    """The token count of a sent prompt, to be compared with the tokens that the provider bills for it."""

    numbered: NumberedHistory
    #: One past the last position of the input: a response at this position or later is the answer to that prompt.
    input_end: int
    tokens: int
    #: The counter's `generation` when the prompt was counted.
    generation: int


@dataclass(slots=True)
class LedgerInput:
    """The input of one assembly, read into the ledger."""

    numbered: NumberedHistory
    view: View
    #: The events as a list, to which later inputs may have appended events; empty if the input was a `History`.
    given: list[Any] = field(default_factory=list)
    _ranges: list[Range] | None = None

    @property
    def ranges(self) -> list[Range]:
        """The item ids of the input, as ranges."""
        if self._ranges is None:
            self._ranges = item_id_ranges(self.view, self.numbered)
        return self._ranges


class Leaves(dict[int, "tuple[Range, ...]"]):
    """The leaf items that each created item replaces, by its item id, as ranges.

    Leaf items are items of the input. A summary of summaries replaces the leaf items of those summaries.
    """

    def remember(self, item: int, leaves: tuple[Range, ...]) -> None:
        """Store the leaf items of a created item, which may be compacted itself later; the oldest entry is removed."""
        self[item] = leaves
        while len(self) > _MAX_LEAVES:
            del self[next(iter(self))]

    def of(self, ranges: Iterable[Range]) -> list[Range]:
        """Return items with each created item replaced by its leaf items, as ascending ranges."""
        items = merged(ranges)
        created = [item for item in self if is_in(items, item)]
        rest = difference(items, merged((item, item + 1) for item in created))
        return merged([*rest, *chain.from_iterable(map(self.__getitem__, created))])


def without(groups: Iterable[ItemGroup], items: Container[int]) -> list[ItemGroup]:
    """Return the groups without some items, and without groups that would be empty."""
    result: list[ItemGroup] = []
    for group in groups:
        ranges = to_ranges(at for at, item in enumerate(group.numbered.of(group.view)) if item not in items)
        if ranges:
            result.append(ItemGroup(group.view.pick(ranges), group.numbered, *group.tag))
    return result


def lasting_exits(steps: Sequence[Step], index: int) -> Sequence[ItemGroup]:
    """Return the items that left by the step at an index of an assembly, and that no later step restored."""
    exits, restored = steps[index].exits, set[int]()
    for later in steps[index + 1 :] if exits else ():
        restored.update(later.created)
    return without(exits, restored) if restored else exits


def subtract_groups(new: Sequence[ItemGroup], old: Sequence[ItemGroup], *, tagged: bool = True) -> list[ItemGroup]:
    """Return the items of `new` that are not in `old`; with `tagged`, also items with another outcome or reason there.

    Views of one history are subtracted by ranges; groups of other histories are compared by item id.
    """
    if not old:
        return list(new)
    result: list[ItemGroup] = []
    for group in new:
        view, items = group.view, set[int]()
        for former in old:
            if tagged and former.tag != group.tag:
                continue
            if former.view.history is view.history:
                view = view.minus(former.view)
            else:
                items.update(former.numbered.of(former.view))
        rest = [ItemGroup(view, group.numbered, group.outcome, group.reason)] if view.length else []
        result += without(rest, items) if items else rest
    return result
