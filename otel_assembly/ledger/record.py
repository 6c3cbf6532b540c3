"""The record of one assembly, and the numbers that `Assembly`, spans and metrics compute from it.

The numbers are sums over the outputs of the steps, and differences from the previous assembly. So their cost depends on
the number of changes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionOutcome, Overflow, OverflowCause, PrefixBreak, PromptPart
from otel_assembly.history.history import KINDS
from otel_assembly.history.tool_pairs import ECHO, MEDIA
from otel_assembly.ledger.figures import Prefix, StepTotals, Totals
from otel_assembly.ledger.snapshot import (
    FIRST_MADE,
    NOTHING_SENT,
    ItemGroup,
    PromptState,
    Snapshot,
    lasting_exits,
    subtract_groups,
    without,
)
from otel_assembly.messages.event_facts import EventKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.context import Context
    from otel_assembly.conversation_state import HaltGuard
    from otel_assembly.events import HaltEvent
    from otel_assembly.history.history import History
    from otel_assembly.history.token_counts import TokenTable
    from otel_assembly.history.view import View
    from otel_assembly.ledger.ledger import Ledger, NamedConversation
    from otel_assembly.ledger.snapshot import LedgerInput, Step
    from otel_assembly.tokens import TokenMeter

CALLER = "caller"
#: The kinds of events that a model's answer consists of.
_ANSWERS: Final = frozenset({EventKind.RESPONSE, EventKind.TOOL_CALL})


@dataclass(slots=True)
class Record:
    """One assembly of a ledger: its input, its steps and its result."""

    assembly_id: str
    name: str | None
    model: str | None
    turn: int
    ledger: Ledger
    ledger_input: LedgerInput
    context: Context
    meter: TokenMeter
    prompts_in: tuple[str, ...]
    #: The model's window, in tokens; None if unknown.
    window: int | None = None
    #: What the ledger's previous assembly sent.
    last: Snapshot = NOTHING_SENT
    steps: list[Step] = field(default_factory=list)
    #: Whether a framework's own code assembled, so that tool pairs may be broken.
    observed: bool = False
    #: Whether the input could not be read, so that the record has the output as input.
    unknown: bool = False
    #: The number of output events that the provider stores, so that the request lacks them; None if unknown.
    held_events: int | None = None
    #: The kinds of edits that the request allows the provider to make. If there are any, the span ends with the answer.
    allowed_edits: tuple[str, ...] = ()
    #: Whether a model is called with the output.
    called: bool = True
    #: What is sent, after `end_chain`.
    sent: Snapshot = field(init=False)
    #: The end of the assembly, in nanoseconds since the epoch; None until it is set.
    ended_ns: int | None = None
    #: The exception because of which nothing is sent.
    error: BaseException | None = None
    #: The exception of history maintenance, such as a compaction, whose output the framework keeps despite it.
    maintenance_error: BaseException | None = None
    overflow: Overflow | None = None
    #: The guards that know whether the conversation is halted: that of the context, and that of the input history.
    guards: Sequence[HaltGuard] = ()
    #: The conversation, if it has a name under which another process may continue it.
    named: NamedConversation | None = None
    #: The event that halted the conversation before this assembly ended.
    halt: HaltEvent | None = None
    #: The numbers of the assembly and of its steps; None, and empty, until they are computed.
    totals: Totals | None = None
    step_totals: Sequence[StepTotals] = ()
    #: The departures of this turn and of earlier turns; None until they are computed.
    departures: Departures | None = None
    #: The stable prefix; None until it is computed.
    prefix: Prefix | None = None
    _turns_since_last: int | None = None
    #: The last history whose items were counted, and its token counts.
    _counted: tuple[History | None, TokenTable | None] = None, None
    _tools_tokens: int | None = None
    #: The tokens of each counted prompt.
    _prompt_tokens: dict[str, int] = field(default_factory=dict)

    @property
    def start(self) -> PromptState:
        """The prompts and events before the first step."""
        source, sources = self.ledger_input, (CALLER,) * len(self.prompts_in)
        return PromptState(self.prompts_in, sources, source.numbered, source.view)

    def end_chain(self) -> None:
        """Set what is sent: the output of the last step, or nothing if the assembly failed."""
        end = self.steps[-1].after if self.steps else self.start
        prompts, sources, view = end.prompts, end.sources, end.view
        if self.error is not None:
            prompts, sources, view = (), (), view.pick([])
            self.totals = None  # they may be the numbers of a prompt that is not sent now
        self.sent = Snapshot(prompts, sources, end.numbered, view, tuple(self.steps), self.context.tools)

    @property
    def events_out(self) -> list[Any]:
        """The events to send. Of an input list, the objects of this assembly: a later list may have other objects."""
        view, given = self.sent.view, self.ledger_input.given
        return view.select(given if given and view.history is self.ledger_input.view.history else view.history.events)

    @property
    def made(self) -> set[int]:
        """The items that steps created and that are not in the assembly's input."""
        created: set[int] = set()
        for step in self.steps:
            created.update(step.created)
        for step in self.steps:
            created.difference_update(step.restored_items)
        return created

    def items_tokens(self, view: View) -> int:
        """Return the tokens of a view's items."""
        history, table = self._counted
        if history is not view.history or table is None:
            table = view.history.table(self.meter)
            self._counted = view.history, table
        return table.sum(view)

    def used(self, step: Step) -> int | None:
        """Return the tokens of a step's output that count against its limit; None if it limits the whole prompt."""
        return None if step.beside_tokens is None else self.items_tokens(step.after.view) - step.beside_tokens

    def prompt_tokens(self, prompts: Sequence[str]) -> int:
        """Return the tokens of prompts; each text is counted once."""
        total, known = 0, self._prompt_tokens
        for prompt in prompts:
            if prompt not in known:
                known[prompt] = self.meter.prompt(prompt)
            total += known[prompt]
        return total

    @property
    def tools_tokens(self) -> int:
        """The tokens of the tool schemas, counted once."""
        if self._tools_tokens is None:
            self._tools_tokens = self.meter.tools(self.context.tools)
        return self._tools_tokens

    def tokens(self, prompts: Sequence[str], view: View) -> int:
        """Return the tokens of a whole prompt: system-level texts, tool schemas, the reply's priming and events."""
        return self.prompt_tokens(prompts) + self.tools_tokens + self.meter.priming + self.items_tokens(view)

    def snapshot(self) -> Snapshot:
        """Return what is sent, with which the ledger's next assembly is compared."""
        sent = self.sent
        sent.next_item = self.ledger.next_item
        sent.assemblies = self.named.assemblies if self.named is not None else 0
        sent.resumed = self.last is NOTHING_SENT and self.turns_since_last == 0
        return sent

    @property
    def turns_since_last(self) -> int:
        """The number of turns of the conversation since the ledger's last assembly, including this one.

        Each new request with a response after it is a turn that this ledger did not record, unless this process
        assembled it for another agent of the conversation. 0 if unknown: the first input of the ledger contains a
        response, so that the conversation began in another process, or with another assembler.
        """
        if self._turns_since_last is not None:
            return self._turns_since_last
        last, source, history = self.last, self.ledger_input, self.ledger_input.view.history
        turns, is_open = 1, False
        if last is NOTHING_SENT:
            turns = int(not 0 <= history.pairing.last_response < source.view.end)
        elif self.named is not None:
            for start, stop in source.ranges:
                if last.next_item < stop <= FIRST_MADE:
                    new = range(max(start, last.next_item), stop)
                    for kind in map(history.kind, source.numbered.item_ids.find(new)):
                        if kind is EventKind.REQUEST:
                            is_open = True
                        elif is_open and kind in _ANSWERS:
                            turns, is_open = turns + 1, False
            turns = max(1, turns - (self.named.assemblies - last.assemblies)) if turns > 1 else 1
        self._turns_since_last = turns
        return turns


def totals_of(record: Record) -> Totals:
    """Return the numbers of an assembly, and store those of its steps; they are computed once."""
    if record.totals is not None:
        return record.totals
    meter, source, sent = record.meter, record.ledger_input, record.sent
    view_in, history = source.view, source.view.history
    table = history.table(meter)
    # The items to send are counted exactly, also in the input's table, from which new items have their tokens.
    sent.view.history.table(meter).exact(sent.view)
    if table.estimated and sent.numbered is not source.numbered:
        for position in source.numbered.item_ids.find(sent.numbered.of(sent.view)):
            table.tokens(position)
    view, prompts = view_in, record.prompts_in
    around = meter.priming + record.tools_tokens
    fixed_tokens = around + record.prompt_tokens(prompts)
    tokens_in = tokens = fixed_tokens + table.sum(view)
    around_in = around_out = alerts = halts = 0
    record.step_totals = steps = []
    for step in record.steps:
        entering = tokens + step.around_in
        if step.after.prompts is not prompts:
            prompts = step.after.prompts
            fixed_tokens = around + record.prompt_tokens(prompts)
        view = step.after.view
        if view is not step.before.view or prompts is not step.before.prompts:
            tokens = fixed_tokens + record.items_tokens(view)
        steps.append(_step_totals(record, step, entering, tokens + step.framing + step.separators))
        around_in += step.around_in
        around_out += step.framing + step.separators
        alerts += len(step.alerts)
        halts += step.halts
    if record.error is not None:  # nothing is sent
        view, prompts, tokens, around_out, alerts = sent.view, (), 0, 0, 0
    injected, injected_tokens, dropped, dropped_tokens, compacted, compacted_tokens = _flow(record)
    tokens_out, method = tokens + around_out, meter.counter.method
    budget, used, fixed, overflow, utilization = _limits(record, tokens_out)
    record.totals = Totals(
        tokens_in=tokens_in + around_in,
        estimated_in=table.estimates(view_in) if table.estimated else 0,
        tokens_out=tokens_out,
        method="estimated" if method == "exact" and view.history.any_media(view) else method,
        encoding=meter.counter.name,
        prompts_in=len(record.prompts_in),
        prompts_out=len(prompts),
        events_in=view_in.length,
        events_out=view.length,
        events_injected=injected,
        injected_tokens=injected_tokens,
        dropped=dropped,
        dropped_tokens=dropped_tokens,
        compacted=compacted,
        compacted_tokens=compacted_tokens,
        alerts_delivered=alerts,
        halts_emitted=max(len(record.context.emitted), halts),
        budget=budget,
        fixed=fixed,
        overflow=overflow,
        utilization=utilization,
        window=record.window,
        used=used,
    )
    return record.totals


def _limits(record: Record, tokens: int) -> tuple[int | None, int | None, int | None, Overflow | None, float | None]:
    """Return the fields of `Totals` that depend on limits: budget, used and fixed tokens, overflow and utilization.

    The budget is the limit of the step that exceeded its limit, else of the fullest. A prompt that exceeds the model's
    window is an overflow, unless another limit was exceeded, or no model is called with it.
    """
    budget: int | None = None
    used: int | None = None
    fixed: int | None = None
    is_sent, window, overflow = record.error is None, record.window, record.overflow
    highest: tuple[bool, float, int] | None = None
    for step in record.steps:
        if step.budget is not None:
            step_used = record.used(step) if is_sent and step.beside_tokens is not None else None
            needed = tokens if step_used is None else step_used
            share = needed / step.budget if step.budget > 0 else math.inf
            rank = step.overflow is not None and step.overflow is overflow, share, -step.budget
            if highest is None or rank > highest:
                highest, budget, used, fixed = rank, step.budget, step_used, step.fixed
    is_called = record.called and record.maintenance_error is None
    if window is not None and overflow is None and tokens > window and is_called:
        overflow = Overflow(window, tokens, OverflowCause.WINDOW)
    parts: list[tuple[int, int | None]] = [(tokens if used is None else used, budget), (tokens, window)]
    if not is_sent:
        parts.clear()
    if overflow is not None and overflow.unit == "tokens":  # also if it was raised, or if the excess was dropped
        parts.append((overflow.needed, overflow.budget))
        if not is_sent:
            budget = overflow.budget
            parts.append((overflow.needed, window))
    utilization = None
    for needed, limit in parts:
        if limit is not None and limit > 0 and (utilization is None or needed / limit > utilization):
            utilization = needed / limit
    return budget, used, fixed, overflow, utilization


def _step_totals(record: Record, step: Step, tokens_in: int, tokens_out: int) -> StepTotals:
    if step.error is not None and record.error is not None:
        # A policy that raised and was skipped passes its input on; this one ended the assembly.
        return StepTotals(tokens_in, 0, 0, 0, len(step.before.view), record.items_tokens(step.before.view), 0, 0)
    dropped = dropped_tokens = compacted = compacted_tokens = created_tokens = 0
    for group in step.exits:
        if group.outcome is DecisionOutcome.DROPPED:
            dropped += group.view.length
            dropped_tokens += record.items_tokens(group.view)
        else:
            compacted += group.view.length
            compacted_tokens += record.items_tokens(group.view)
    if step.created:
        created_tokens = record.items_tokens(step.after.view.pick_positions(step.created.values()))
    return StepTotals(
        tokens_in, tokens_out, len(step.created), created_tokens, dropped, dropped_tokens, compacted, compacted_tokens
    )


_CREATED: Final = attrgetter("created")
_FLOW: Final = itemgetter(slice(2, 8))


def _flow(record: Record) -> Sequence[int]:
    """Return the numbers and tokens of injected, dropped and compacted items between the assembly's input and output.

    An item that one step created and another one removed does not count.
    """
    source = record.ledger_input
    if record.error is not None:
        return 0, 0, source.view.length, record.items_tokens(source.view), 0, 0
    if not any(map(_CREATED, record.steps)):
        return list(map(sum, zip((0,) * 6, *map(_FLOW, record.step_totals), strict=True)))
    # Each item of an assembly is from its input, or created by a step.
    created, view, item_id = record.made, record.sent.view, record.sent.numbered.item_ids.of
    injected = view.pick_positions(position for position in view.positions() if item_id(position) in created)
    dropped, compacted = [0, 0], [0, 0]
    for step in record.steps:
        for group in lasting_exits(record.steps, step.index):
            for part in [group] if group.numbered is source.numbered else without([group], created):
                counts = dropped if part.outcome is DecisionOutcome.DROPPED else compacted
                counts[0] += part.view.length
                counts[1] += record.items_tokens(part.view)
    return [injected.length, record.items_tokens(injected), *dropped, *compacted]


#: The names of the parts of a prompt that are not events, and of the kinds of events, in the order of the spans.
_NAMES: Final = (
    PromptPart.PROMPT.value,
    PromptPart.TOOL_SCHEMAS.value,
    PromptPart.FRAMING.value,
    PromptPart.SEPARATORS.value,
    *(kind.value for kind in KINDS),
)


def tokens_by_kind(record: Record) -> dict[str, int]:
    """Return the tokens of the prompt to send by part and event kind; they add up to all its tokens.

    A message's framing is counted with the message. The part ``framing`` contains tokens of no single event: the
    reply's priming, and the framing of messages to which several events are joined.
    """
    if record.error is not None:
        return {}
    framing, separators = record.meter.priming, 0
    for step in record.steps:
        framing += step.framing
        separators += step.separators
    sent, last = record.sent, record.last
    table = sent.view.history.table(record.meter)
    if sent.kinds is None:
        before = (last.view, last.kinds[1]) if last.kinds is not None and last.kinds[0] is table else None
        sent.kinds = table, table.by_kind(sent.view, before)
    parts = record.prompt_tokens(sent.prompts), record.tools_tokens, framing, separators, *sent.kinds[1]
    return {name: tokens for name, tokens in zip(_NAMES, parts, strict=True) if tokens}


@dataclass(slots=True)
class Departures:
    """The items that are absent from a prompt, and that the ledger's last prompt contained, or that are new since.

    Attributes:
        now: By index of the step, the items that left in this turn.
        resumed: The items that left before this turn, in turns that this ledger did not record.
        dropped: The number of items that were dropped in this turn, without those that steps of this turn created.
    """

    now: dict[int, Sequence[ItemGroup]]
    resumed: Sequence[ItemGroup]
    dropped: int


def departures_of(record: Record) -> Departures:
    """Return the departures of an assembly; they are computed once.

    If other processes assembled turns of the conversation since the ledger's last one, it is unknown which items left
    in which turn. Then each turn gets an equal share of them, and this turn gets the newest items, because those are
    nearest to a cut. Each process counts only its own turns, so the sum over all processes does not depend on their
    number. The turn in which a ledger resumed is counted with the next one: its share is not known earlier.
    """
    if record.departures is not None:
        return record.departures
    last, steps = record.last, record.steps
    now: dict[int, Sequence[ItemGroup]] = {}
    for step in steps if record.error is None else ():
        if step.exits:
            now[step.index] = subtract_groups(lasting_exits(steps, step.index), last.exits, tagged=False)
    resumed: list[ItemGroup] = []
    if now and record.turns_since_last != 1:
        groups = list(chain.from_iterable(now.values()))
        items = sorted({item for group in groups for item in group.numbered.of(group.view) if item < FIRST_MADE})
        turns, share = record.turns_since_last, 0
        if turns:
            # The index of the turn selects the turns that get one item more, so that the shares add up to all items.
            start = record.turn % turns
            stop = start + min(turns, 2 if last.resumed else 1)
            share = len(items) * stop // turns - len(items) * start // turns
        earlier = set(items[: len(items) - share])
        resumed = without(groups, set(items[len(items) - share :]) | record.made)
        now = {index: without(departed, earlier) for index, departed in now.items()}
    created, dropped = record.made if now else set(), 0
    for departed in now.values():
        for group in without(departed, created) if created else departed:
            if group.outcome is DecisionOutcome.DROPPED:
                dropped += group.view.length
    record.departures = Departures(now, resumed, dropped)
    return record.departures


def prefix_of(record: Record) -> Prefix:
    """Compare the prompt to send with the ledger's previous prompt, once."""
    if record.prefix is None:
        record.prefix = _prefix(record)
    return record.prefix


def _prefix(record: Record) -> Prefix:
    last = record.last
    if last is NOTHING_SENT or record.error is not None or record.maintenance_error is not None:
        first = PrefixBreak.FIRST if record.turns_since_last else PrefixBreak.RESUMED
        return Prefix(cause=first.value if last is NOTHING_SENT else None)
    prompts, before, view, kept = record.sent.prompts, last.prompts, record.sent.view, last.view
    sizes = list(map(_size, before))
    previous = sum(sizes) + kept.history.view_size(kept)
    if record.context.tools != last.tools:  # providers render the schemas in front of everything else
        cause: str | None = PrefixBreak.PROMPT_CHANGED.value
        return Prefix(previous_bytes=previous, cause=cause, reuse=0.0 if previous else None)
    shared = 0
    for prompt, old_prompt in zip(prompts, before, strict=False):
        if prompt != old_prompt:
            break
        shared += 1
    size = sum(sizes[:shared])
    tokens = record.prompt_tokens(prompts[:shared]) + record.tools_tokens
    events, cause = 0, None
    if shared < len(before) or shared < len(prompts):
        if shared < min(len(before), len(prompts)):
            prompt, old_prompt = prompts[shared], before[shared]
            lengths = range(1, min(len(prompt), len(old_prompt)) + 1)
            differs = bisect_left(lengths, True, key=lambda length: prompt[:length] != old_prompt[:length])
            size += _size(prompt[:differs])
        cause = PrefixBreak.PROMPT_CHANGED.value if shared < len(before) or kept.length else None
    else:
        events = shared_prefix(view, kept)
        is_whole = events == kept.length
        shared_view = kept if is_whole and kept.history is view.history else view.part(0, events)
        size = previous if is_whole else size + view.history.view_size(shared_view)
        tokens += record.items_tokens(shared_view)
        if not is_whole:
            cause = _cause(record, last, view, events)
    if cause is not None and record.turns_since_last > 1:  # the previous prompt was made in another process
        return Prefix(tokens, size, previous, shared, events, PrefixBreak.RESUMED.value)
    return Prefix(tokens, size, previous, shared, events, cause, size / previous if previous else None)


def shared_prefix(new: View, old: View) -> int:
    """Return the number of items with equal text with which two views begin: compared by ranges, then one by one."""
    count = new.shared_with(old)
    if count == new.length or count == old.length:
        return count
    if not _have_equal_content(new.history, new.position(count), old.history, old.position(count)):
        return count
    rest = zip(*(view.part(count, view.length).positions() for view in (new, old)), strict=False)
    for position, old_position in rest:
        if not _have_equal_content(new.history, position, old.history, old_position):
            break
        count += 1
    return count


def _have_equal_content(history: History, position: int, old_history: History, at: int) -> bool:
    """Return True if the model reads the same in the events at two positions."""
    if history is old_history and position == at:
        return True
    if history.sizes[position] != old_history.sizes[at]:
        return False
    flags = history.pairing.flags[position]
    if (flags ^ old_history.pairing.flags[at]) & ECHO or history.digest(position) != old_history.digest(at):
        return False
    # The digest covers texts only, so media are compared as objects.
    return not flags & MEDIA or bool(history.events[position] == old_history.events[at])


def _cause(record: Record, last: Snapshot, view: View, at: int) -> str:
    """Return why the prompt has another item, or changed content, at the first index that is not shared."""
    kept, numbered = last.view, record.sent.numbered
    old, new = kept.position(at), view.position(at) if at < view.length else -1
    item, new_item = last.numbered.item_ids.of(old), numbered.item_ids.of(new) if new >= 0 else -1
    if new_item == item:
        return PrefixBreak.EVENT_CHANGED.value
    for step in record.steps:
        compacts = False
        for group in step.exits:
            compacted = group.outcome is DecisionOutcome.COMPACTED
            if _has_item(group, kept, old, item):
                return PrefixBreak.COMPACTED.value if compacted else PrefixBreak.CUT_MOVED.value
            compacts = compacts or compacted
        if compacts:
            before = last.step_like(step)
            if (before is not None and item in before.created) or new_item in step.created:
                return PrefixBreak.COMPACTED.value
    if item not in numbered.of(view):
        return PrefixBreak.EVENT_CHANGED.value
    if new_item in last.numbered.of(kept):
        return PrefixBreak.REORDERED.value
    had_left = any(_has_item(group, view, new, new_item) for group in last.exits)
    return PrefixBreak.CUT_MOVED.value if had_left else PrefixBreak.EVENT_CHANGED.value


def _has_item(group: ItemGroup, view: View, position: int, item: int) -> bool:
    """Return True if a group has the item that is at a position of the view's history."""
    if group.view.history is view.history:
        return group.view.index_of(position) >= 0
    return any(map(group.view.holds, group.numbered.item_ids.find([item])))


def _size(text: str) -> int:
    """Return the bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
