"""What a ledger holds of one assembly: who its items are, what each step let out and why, and what the next one needs.

Items are compared as intervals over the columns of their history, so that finding what is new costs what changed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from otel_assembly.decision import DecisionOutcome
from otel_assembly.history.view import Column, Run, View, to_runs
from otel_assembly.matching.event_index import EventIndex

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from otel_assembly.budget.attempt import Attempt
    from otel_assembly.conversation_state import AlertFacts
    from otel_assembly.decision import BudgetReport, DecisionReason, Overflow
    from otel_assembly.history.history import History, ListHistory
    from otel_assembly.history.token_counts import TokenTable
    from otel_assembly.history.view import View
    from otel_assembly.messages.event_facts import EventFacts

#: The first of the items that policies made: they are numbered on their own, above all that came in.
FIRST_MADE: Final = 1 << 62
#: So many runs of what it dropped a step lists.
MAX_RUNS: Final = 64
#: What happened to an item, and why.
Tag: TypeAlias = "tuple[DecisionOutcome, DecisionReason]"


def item_text(item: int) -> str:
    """An item id as it is written: ``7`` of what came in, ``m7`` of what a policy made."""
    return str(item) if item < FIRST_MADE else f"m{item - FIRST_MADE}"


def run_text(first: int, last: int) -> str:
    """A run of item ids as it is written: ``7``, or ``7-9``."""
    return item_text(first) if first == last else f"{item_text(first)}-{item_text(last)}"


class ItemIds:
    """The item ids of a history's positions, as runs of consecutive ones."""

    __slots__ = ("_ids", "_positions", "end")

    def __init__(self) -> None:
        self._positions: list[int] = []
        self._ids: list[int] = []
        self.end = 0

    def extend(self, count: int, first: int) -> None:
        """The next `count` positions have the item ids from `first` on."""
        if count <= 0:
            return
        if not self._positions or self._ids[-1] + self.end - self._positions[-1] != first:
            self._positions.append(self.end)
            self._ids.append(first)
        self.end += count

    def extend_from(self, other: ItemIds, start: int, stop: int) -> None:
        """The next positions have the item ids that ``start`` to ``stop`` have in another history."""
        if start == self.end == 0 and stop:
            runs = bisect_left(other._positions, stop)
            self._positions, self._ids, self.end = other._positions[:runs], other._ids[:runs], stop
            return
        for first, last in other.spans(start, stop):
            self.extend(last - first + 1, first)

    def of(self, position: int) -> int:
        """The item id of a position."""
        run = bisect_right(self._positions, position) - 1
        return self._ids[run] + position - self._positions[run]

    def find(self, item_ids: Iterable[int]) -> Iterator[int]:
        """The positions that have these item ids; those that none has are passed over, and what comes in meanwhile."""
        starts, ids = list(self._positions), list(self._ids)
        ends = [*starts[1:], self.end]
        if any(one > other for one, other in pairwise(ids)):
            wanted = sorted(set(item_ids))
            for start, first, stop in zip(starts, ids, ends, strict=True):
                low, high = bisect_left(wanted, first), bisect_left(wanted, first + stop - start)
                yield from (start + item_id - first for item_id in wanted[low:high])
            return
        for item_id in item_ids:
            run = bisect_right(ids, item_id) - 1
            if run >= 0 and (position := starts[run] + item_id - ids[run]) < ends[run]:
                yield position

    def spans(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The item ids of positions ``[start, stop)``, as runs ``[first, last]``."""
        run = bisect_right(self._positions, start) - 1
        while start < stop:
            upto = min(stop, self._positions[run + 1] if run + 1 < len(self._positions) else self.end)
            first = self._ids[run] + start - self._positions[run]
            yield first, first + upto - start - 1
            start, run = upto, run + 1

    def spans_backward(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """The same from the end, on demand: the position of each run, and the run."""
        run = bisect_right(self._positions, stop - 1) - 1
        while start < stop:
            low = max(start, self._positions[run])
            first = self._ids[run] + low - self._positions[run]
            yield low, first, first + stop - low - 1
            stop, run = low, run - 1

    def __len__(self) -> int:
        return self.end

    def all(self) -> Iterator[int]:
        """Every item id, by position."""
        for first, last in self.spans(0, self.end):
            yield from range(first, last + 1)


@dataclass(slots=True)
class NumberedHistory:
    """A history together with the item ids that a ledger gave its positions."""

    history: History
    item_ids: ItemIds
    #: Of a step's output: the numbered history that came into the step.
    step_input: NumberedHistory | None = None
    _places: EventIndex | None = None

    @property
    def listed(self) -> ListHistory:
        """Its history, where that is of a list: what came in as one, or what a step made."""
        return cast("ListHistory", self.history)

    def places(self) -> EventIndex:
        """Where its events stand."""
        if self._places is None:
            self._places = EventIndex(self.history.events, self.history.facts)
        return self._places

    def renew(self, events: Sequence[Any], reread: Mapping[int, EventFacts]) -> None:
        """Its events are fresh objects of those that it had; some were read again, and may have been given an id."""
        self.listed.renew(events)
        for position, facts in reread.items():
            self.listed.reread(position, facts)
        if reread:
            self._places = None
        elif self._places is not None:
            self._places.renewed()

    def among(self, items: Iterable[int]) -> set[int]:
        """Those of these items that it has."""
        return set(map(self.item_ids.of, self.item_ids.find(items)))

    def of(self, view: View) -> Iterator[int]:
        """The item ids of a view's items, in order."""
        item_id = self.item_ids.of
        return (item_id(position) for position in view.positions())


@dataclass(slots=True)
class ItemGroup:
    """Some items with one outcome and one reason."""

    view: View
    numbered: NumberedHistory
    outcome: DecisionOutcome
    reason: DecisionReason

    @property
    def tag(self) -> Tag:
        """What makes two groups the same to a reader."""
        return self.outcome, self.reason


def item_id_runs(view: View, numbered: NumberedHistory) -> list[Run]:
    """A view's item ids, in its order, as runs ``[first, last]``; a run only ever ascends."""
    runs: list[Run] = []
    for start, stop in view.runs:
        for first, last in _spans(view.column, start, stop, numbered):
            if runs and runs[-1][1] + 1 == first:
                runs[-1] = (runs[-1][0], last)
            else:
                runs.append((first, last))
    return runs


def item_id_runs_backward(view: View, numbered: NumberedHistory) -> Iterator[tuple[int, int, int]]:
    """A view's item ids from its end, on demand: the position of each run, and the run ``[first, last]``."""
    held: tuple[int, int, int] | None = None
    for at, first, last in _pieces_backward(view, numbered):
        if held is not None and last + 1 == held[1]:
            held = at, first, held[2]
            continue
        if held is not None:
            yield held
        held = at, first, last
    if held is not None:
        yield held


def _pieces_backward(view: View, numbered: NumberedHistory) -> Iterator[tuple[int, int, int]]:
    item_ids, column = numbered.item_ids, view.column
    for start, stop in reversed(view.runs):
        while start < stop:
            first, end = column.start_of_run(start, stop), column.positions[stop - 1] + 1
            yield from item_ids.spans_backward(end - (stop - first), end)
            stop = first


def _spans(column: Column, start: int, stop: int, numbered: NumberedHistory) -> Iterable[Run]:
    low, high = column.positions[start], column.positions[stop - 1]
    if high - low == stop - start - 1:
        return numbered.item_ids.spans(low, high + 1)
    return ((item_id, item_id) for item_id in map(numbered.item_ids.of, column.positions[start:stop]))


@dataclass(frozen=True, slots=True)
class StepCompaction:
    """Events for which a shorter one stands, by item id, and what it took.

    Attributes:
        provenance: What it was made of, as runs ``[first, last]``: leaves alone, also of a summary of summaries.
        result: What stands for them.
        attempts: Every attempt of this assembly, in order.
    """

    provenance: tuple[tuple[int, int], ...]
    result: int
    attempts: tuple[Attempt, ...]


@dataclass(slots=True)
class Step:
    """One policy's application; what it changed nothing of is as it came in."""

    policy: str
    index: int
    kind: str | None
    config: Mapping[str, Any]
    prompts_in: tuple[str, ...]
    prompts_out: tuple[str, ...]
    #: Where each outgoing prompt is from: ``caller`` or a policy's name.
    sources: tuple[str, ...]
    numbered_in: NumberedHistory
    view_in: View
    numbered_out: NumberedHistory
    view_out: View
    #: What left, and why.
    exits: tuple[ItemGroup, ...] = ()
    #: What stayed although the rule would have taken it, and why.
    pinned: tuple[ItemGroup, ...] = ()
    #: The events in the output that were not in the input, with their item ids.
    created: tuple[tuple[Any, int], ...] = ()
    #: Where those stand in the output's history.
    created_positions: tuple[int, ...] = ()
    #: Those of them that came into the assembly and that an earlier step had left out.
    restored_items: tuple[int, ...] = ()
    #: What those of them that stand for others stand for: items that nobody made, as runs ``[first, last]``.
    stands_for: Mapping[int, Sequence[Run]] = field(default_factory=dict)
    #: The steps before it.
    earlier: tuple[Step, ...] = field(default=(), repr=False)
    #: Item ids of the events that stand in another order than before.
    moved: tuple[int, ...] = ()
    budget: int | None = None
    #: Tokens of those events of the output that do not count against that limit, where it is one of the events alone;
    #: None where it is of the whole prompt.
    beside_tokens: int | None = None
    fixed: int | None = None
    overflow: Overflow | None = None
    alerts: tuple[AlertFacts, ...] = ()
    halts: int = 0
    #: What a framework's reducer says itself that it left out.
    reported: int | None = None
    #: How the policy gave its budget out, if it is an allocator.
    report: BudgetReport | None = None
    compactions: tuple[StepCompaction, ...] = ()
    #: Tokens of messages that several events are joined to, and what joining them added.
    framing: int = 0
    separators: int = 0
    around_in: int = 0
    #: What the policy raised.
    error: BaseException | None = None

    @property
    def injected(self) -> tuple[int, ...]:
        """Item ids of the events in the output that were not in the input."""
        return tuple([item_id for _, item_id in self.created]) if self.created else ()

    @property
    def created_texts(self) -> Iterator[tuple[int, Sequence[str]]]:
        """What those said when they were put in, by item id: a dict can be changed in place."""
        facts = self.numbered_out.history.facts
        return ((item, facts(at).texts) for item, at in zip(self.injected, self.created_positions, strict=True))

    def let_out(self, prompts: tuple[str, ...]) -> None:
        """These are the prompts now: one that came in keeps its source, and a new one is the policy's."""
        known: dict[str, list[str]] = {}
        for prompt, source in zip(reversed(self.prompts_in), reversed(self.sources), strict=True):
            known.setdefault(prompt, []).append(source)
        self.prompts_out = prompts
        self.sources = tuple(some.pop() if (some := known.get(prompt)) else self.policy for prompt in prompts)


@dataclass(slots=True)
class Snapshot:
    """What one assembly did, as far as the next one needs it."""

    steps: tuple[Step, ...]
    prompts: tuple[str, ...]
    tools: tuple[Mapping[str, Any], ...]
    kept: View
    numbered: NumberedHistory
    #: Tokens of what was kept, by kind, if somebody has asked, as this table has them.
    kinds: Sequence[int] | None
    kept_table: TokenTable
    #: Items from this id on had not arrived by then.
    arrived: int
    #: How many assemblies this process had finished for the conversation, this one included.
    assemblies: int
    #: Whether the ledger resumed the conversation with it, so that nothing that it left out was counted.
    resumed: bool

    @property
    def gone(self) -> list[ItemGroup]:
        """What its steps took out."""
        return [group for step in self.steps if step.exits for group in gone(self.steps, step.index)]

    @property
    def created(self) -> list[tuple[Any, int]]:
        """The events that its steps made, with their item ids."""
        return [made for step in self.steps for made in step.created]

    def did(self, index: int, policy: str) -> bool:
        """Whether this policy stood at this place of the chain: a framework's chain need not be the same each time."""
        return index < len(self.steps) and self.steps[index].policy == policy


@dataclass(slots=True)
class PendingUsage:
    """What was counted for a prompt, until the provider says what it billed."""

    numbered: NumberedHistory
    #: A response at this position or later is the answer to that prompt.
    seen: int
    tokens: int
    generation: int


@dataclass(slots=True)
class LedgerInput:
    """The input of one assembly, read into the ledger."""

    numbered: NumberedHistory
    view: View
    #: The events as a list, which later ones may have been put behind since.
    given: list[Any] = field(default_factory=list)
    _runs: list[Run] | None = None

    @property
    def runs(self) -> list[Run]:
        """The item ids, as runs ``[first, last]``."""
        if self._runs is None:
            self._runs = item_id_runs(self.view, self.numbered)
        return self._runs


def without(groups: Iterable[ItemGroup], items: Container[int]) -> list[ItemGroup]:
    """What these groups have beside some items."""
    found: list[ItemGroup] = []
    for group in groups:
        stays = to_runs(at for at, item in enumerate(group.numbered.of(group.view)) if item not in items)
        if stays:
            found.append(ItemGroup(group.view.pick(stays), group.numbered, *group.tag))
    return found


def gone(steps: Sequence[Step], index: int) -> Sequence[ItemGroup]:
    """What left by one of an assembly's steps, and no later step put back."""
    exits = steps[index].exits
    back = {item for later in steps[index + 1 :] for item in later.injected} if exits else ()
    return without(exits, back) if back else exits


def entered(new: Sequence[ItemGroup], old: Sequence[ItemGroup], *, tagged: bool = True) -> list[ItemGroup]:
    """The items of `new` that are not in `old`; with `tagged`, also those whose outcome or reason was another."""
    if not old or not new:
        return list(new)
    found: list[ItemGroup] = []
    for group in new:
        view, elsewhere = group.view, list[ItemGroup]()
        for former in old:
            if tagged and former.tag != group.tag:
                continue
            if former.view.history is view.history:
                view = view.minus(former.view)
            else:
                elsewhere.append(former)
        entrants = ItemGroup(view, group.numbered, *group.tag)
        if elsewhere and view:
            found += without([entrants], {item for former in elsewhere for item in former.numbered.of(former.view)})
        elif view:
            found.append(entrants)
    return found


def listed_exits(step: Step, last: Snapshot | None) -> tuple[list[tuple[Tag, list[Run]]], list[str]]:
    """What a step keeps out in this turn, as runs of item ids by outcome and reason; and the reasons of the rest.

    Of what it dropped at most `MAX_RUNS` runs are listed.
    """
    if not step.exits:
        return [], []
    dropped = [group for group in step.exits if group.outcome is DecisionOutcome.DROPPED]
    others = [group for group in step.exits if group.outcome is not DecisionOutcome.DROPPED]
    compacted = [(group.tag, item_id_runs(group.view, group.numbered)) for group in others]
    chosen = _newest(dropped, MAX_RUNS + 1)
    rest: list[str] = []
    if len(chosen) > MAX_RUNS:
        chosen = _most_telling(step, dropped, last)
        left = Counter({group.reason.value: 0 for group in dropped})
        for group in dropped:
            left[group.reason.value] += len(group.view)
        for _, tag, (first, last_id) in chosen:
            left[tag[1].value] -= last_id - first + 1
        rest = [reason for reason, count in left.items() if count]
    listed: dict[Tag, list[Run]] = {}
    for _, tag, (first, last_id) in sorted(chosen, key=itemgetter(0)):
        runs = listed.setdefault(tag, [])
        if runs and runs[-1][1] + 1 == first:
            runs[-1] = (runs[-1][0], last_id)
        else:
            runs.append((first, last_id))
    return [*listed.items(), *compacted], rest


def _most_telling(step: Step, dropped: Sequence[ItemGroup], last: Snapshot | None) -> list[tuple[int, Tag, Run]]:
    """The runs to list: first what another rule left out in the last assembly, then what is new, then the newest.

    Who reads a later turn that does not list an item goes back to one that does: a change must not be missing there.
    """
    if last is None:
        return _newest(dropped, MAX_RUNS)
    new = entered(dropped, gone(last.steps, step.index) if last.did(step.index, step.policy) else ())
    fresh = entered(new, last.gone, tagged=False)
    chosen: list[tuple[int, Tag, Run]] = []
    for groups in (entered(new, fresh, tagged=False), fresh, entered(dropped, new, tagged=False)):
        chosen += _newest(groups, MAX_RUNS - len(chosen))
    return chosen


def _newest(groups: Sequence[ItemGroup], count: int) -> list[tuple[int, Tag, Run]]:
    """The newest runs of these groups, each with its position and what its group says."""
    found = [
        (position, group.tag, (first, last))
        for group in groups
        for position, first, last in islice(item_id_runs_backward(group.view, group.numbered), count)
    ]
    return sorted(found, key=itemgetter(0))[-count:] if count else []
