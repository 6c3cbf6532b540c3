"""The record of one assembly, and the numbers that `Assembly`, spans and metrics compute from it.

The numbers are sums over the outputs of the steps, and differences from the previous assembly. So their cost depends on
the number of changes.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionOutcome, Overflow, OverflowCause, PrefixBreak, PromptPart
from otel_assembly.history.history import KINDS
from otel_assembly.history.tool_pairs import ECHO, REASONED, broken_in
from otel_assembly.ledger.figures import Prefix, StepTotals, Totals
from otel_assembly.ledger.snapshot import FIRST_MADE, ItemGroup, Snapshot, lasting_exits, subtract_groups, without
from otel_assembly.messages.event_facts import EventKind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from otel_assembly._internal.slices import Slices
    from otel_assembly.context import Context
    from otel_assembly.conversation_state import HaltGuard
    from otel_assembly.events import HaltEvent
    from otel_assembly.history.history import History
    from otel_assembly.history.token_counts import TokenTable
    from otel_assembly.history.view import View
    from otel_assembly.ledger.ledger import Arrival, Ledger, NamedConversation
    from otel_assembly.ledger.snapshot import LedgerInput, NumberedHistory, Step
    from otel_assembly.tokens import TokenMeter

CALLER = "caller"


@dataclass(slots=True)
class Record:
    """One assembly of a ledger: its input, its steps and its result."""

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
    _assembly_id: str = ""
    #: The ledger's previous assembly; None if there is none.
    last: Snapshot | None = None
    #: The id of the ledger's last assembly whose span was recorded.
    previous_id: str | None = None
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
    #: The prompts that were counted last, and their tokens.
    _prompts: tuple[tuple[str, ...], int] | None = None
    #: The tokens of the output by event kind; None until they are computed.
    kinds: Sequence[int] | None = None
    #: The numbers of the assembly and of its steps; None, and empty, until they are computed.
    totals: Totals | None = None
    step_totals: Sequence[StepTotals] = ()
    #: The departures of this turn and of earlier turns; None until they are computed.
    departures: Departures | None = None
    _turns: int | None = None

    @property
    def assembly_id(self) -> str:
        """The random id of the assembly, created on first use."""
        if not self._assembly_id:
            self._assembly_id = os.urandom(16).hex()
        return self._assembly_id

    @property
    def prompts_out(self) -> tuple[str, ...]:
        """The prompts to send."""
        if self.error is not None:
            return ()
        return self.steps[-1].prompts_out if self.steps else self.prompts_in

    @property
    def sources(self) -> tuple[str, ...]:
        """The source of each prompt to send: ``caller`` or a policy's name."""
        if self.error is not None:
            return ()
        return self.steps[-1].sources if self.steps else (CALLER,) * len(self.prompts_in)

    @property
    def view_out(self) -> View:
        """The events to send."""
        view = self.steps[-1].view_out if self.steps else self.ledger_input.view
        return view if self.error is None else view.pick([])

    @property
    def events_out(self) -> list[Any]:
        """The events to send. Of an input list, the objects of this assembly: a later list may have other objects."""
        view, given = self.view_out, self.ledger_input.given
        if given and view.history is self.ledger_input.view.history:
            return list(map(given.__getitem__, view.all_positions()))
        return list(map(view.history.events.__getitem__, view.all_positions()))

    @property
    def numbered_out(self) -> NumberedHistory:
        """The numbered history of the events to send."""
        return self.steps[-1].numbered_out if self.steps else self.ledger_input.numbered

    @property
    def counted_by(self) -> tuple[str, int]:
        """The name and the generation of the token counter; if one of them changes, all token counts may change."""
        return self.meter.encoding, self.meter.counter.generation

    @property
    def made(self) -> AbstractSet[int]:
        """The items that steps created and that are not in the assembly's input."""
        created: set[int] = set()
        for step in self.steps:
            created.update([item for _, item in step.created] if step.created else ())
        for step in self.steps:
            created.difference_update(step.restored_items)
        return created

    def mark_exported(self) -> None:
        """Mark the items of the input, and those that the steps created, as exported by this assembly's span."""
        source = self.ledger_input
        self.ledger.mark_exported(self.assembly_id, source, self.steps, self.counted_by, self.table(source.view))

    def lasting_exits(self, step: Step) -> Sequence[ItemGroup]:
        """Return the items that left by a step, and that no later step restored."""
        return lasting_exits(self.steps, step.index)

    def broken(self, view: View) -> int:
        """Return the number of events in a view that lost the other half of their tool pair or reasoning."""
        return broken_in(view, self._separated(view))

    def _separated(self, view: View) -> set[int]:
        """Return the positions of a view that have reasoning, or its following item, without the other one.

        The pairing of the view's history does not show them if a step inserted or reordered events. Its output is then
        a new history, in which nothing marks absent reasoning, and reasoning may be in front of another answer.
        """
        source, ids = self.ledger_input.view, self.ledger_input.numbered.item_ids
        before, now = source.history.pairing, view.history.pairing
        step = next((step for step in self.steps if step.view_out is view), None)
        if step is None or view.history is source.history or not before.reasoned:
            return set()
        places = {step.numbered_out.item_ids.of(position): position for position in view.positions()}
        separated: set[int] = set()
        for atom in before.reasoned:
            members = [at for at in before.members(atom) if before.flags[at] & REASONED and source.holds(at)]
            present = [places[item] for item in map(ids.of, members) if item in places]
            joined = len({now.atoms[at] for at in present}) == 1 and all(now.flags[at] & REASONED for at in present)
            if len(present) < len(members) or not joined:
                separated.update(present)
        return separated

    def items_tokens(self, view: View) -> int:
        """Return the tokens of a view's items."""
        return view.history.table(self.meter).sum(view)

    def used(self, step: Step) -> int | None:
        """Return the tokens of a step's output that count against its limit; None if it limits the whole prompt."""
        return None if step.beside_tokens is None else self.items_tokens(step.view_out) - step.beside_tokens

    def prompt_tokens(self, prompts: Sequence[str]) -> int:
        """Return the tokens of prompts; prompts that several steps pass on unchanged are counted once."""
        key = tuple(prompts)
        if self._prompts is None or self._prompts[0] != key:
            self._prompts = key, sum(map(self.meter.prompt, key))
        return self._prompts[1]

    def tokens(self, prompts: Sequence[str], view: View) -> int:
        """Return the tokens of a whole prompt: system-level texts, tool schemas, the reply's priming and events."""
        return (
            self.prompt_tokens(prompts)
            + self.meter.tools(self.context.tools)
            + self.meter.priming
            + self.items_tokens(view)
        )

    def table(self, view: View) -> TokenTable:
        """Return the token counts of a view's history."""
        return view.history.table(self.meter)

    def count_sent(self) -> None:
        """Replace estimates of events to send by counts, also in the input's table, which has new items' tokens."""
        view, source = self.view_out, self.ledger_input.numbered
        self.table(view).exact(view)
        if self.numbered_out is not source and (table := source.history.table(self.meter)).estimated:
            for position in source.item_ids.find(self.numbered_out.of(view)):
                table.tokens(position)

    def snapshot(self) -> Snapshot:
        """Return the result of this assembly, with which the next one is compared."""
        last = self.steps[-1] if self.steps else None
        kept = last.view_out if last is not None else self.ledger_input.view
        return Snapshot(
            steps=tuple(self.steps),
            prompts=last.prompts_out if last is not None else self.prompts_in,
            tools=self.context.tools,
            kept=kept,
            numbered=last.numbered_out if last is not None else self.ledger_input.numbered,
            kinds=self.kinds,
            kept_table=kept.history.table(self.meter),
            next_item=self.ledger.next_item,
            assemblies=self.named.assemblies if self.named is not None else 0,
            resumed=self.last is None and self.turns == 0,
        )

    @property
    def turns(self) -> int:
        """The number of turns of the conversation since the ledger's last assembly, including this one.

        0 if unknown: the first input of the ledger contains a response, so that the conversation began in another
        process, or with another assembler.
        """
        if self._turns is None:
            self._turns = _turns_since(self.last, self.ledger_input, self.named)
        return self._turns


def totals_of(record: Record) -> Totals:
    """Return the numbers of an assembly, and store those of its steps; they are computed once."""
    if record.totals is not None:
        return record.totals
    record.count_sent()
    meter, view_in = record.meter, record.ledger_input.view
    around = meter.priming + meter.tools(record.context.tools)
    view, prompts = view_in, record.prompts_in
    tokens_in = tokens = around + record.prompt_tokens(prompts) + record.items_tokens(view)
    around_in = around_out = alerts = halts = 0
    record.step_totals = steps = []
    for step in record.steps:
        if step.view_in is not view or step.prompts_in is not prompts:
            tokens = around + record.prompt_tokens(step.prompts_in) + record.items_tokens(step.view_in)
        entering, view, prompts = tokens + step.around_in, step.view_out, step.prompts_out
        if view is not step.view_in or prompts is not step.prompts_in:
            tokens = around + record.prompt_tokens(prompts) + record.items_tokens(view)
        steps.append(_step_totals(record, step, entering, tokens + step.framing + step.separators))
        around_in += step.around_in
        around_out += step.framing + step.separators
        alerts += len(step.alerts)
        halts += step.halts
    if record.error is not None:  # nothing is sent
        view, prompts, tokens, around_out, alerts = record.view_out, (), 0, 0, 0
    injected, injected_tokens, dropped, dropped_tokens, compacted, compacted_tokens = _flow(record)
    tokens_out = tokens + around_out
    budget, used, fixed = _budget(record, tokens_out)
    method: str = meter.method
    record.totals = Totals(
        tokens_in=tokens_in + around_in,
        estimated_in=record.table(view_in).estimates(view_in),
        tokens_out=tokens_out,
        method="estimated" if method == "exact" and view.history.any_media(view) else method,
        encoding=meter.encoding,
        prompts_in=len(record.prompts_in),
        prompts_out=len(prompts),
        events_in=len(view_in),
        events_out=len(view),
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
        used=used,
        **_limit_totals(record, tokens_out, budget, used),
    )
    return record.totals


def set_window(record: Record, window: int | None) -> None:
    """Set the model's window, and update numbers that were computed without it."""
    record.window = window
    if window is not None and (totals := record.totals) is not None:
        record.totals = replace(totals, **_limit_totals(record, totals.tokens_out, totals.budget, totals.used))


def _budget(record: Record, tokens: int) -> tuple[int | None, int | None, int | None]:
    """Return limit, used and fixed tokens (as in `Totals`) of the step that exceeded its limit, else of the fullest."""
    limits: list[tuple[Any, int | None, int | None, int | None]] = [((), None, None, None)]
    for step in record.steps:
        if step.budget is not None:
            used = None if record.error is not None else record.used(step)
            share = _share(tokens if used is None else used, step.budget)
            exceeded = step.overflow is not None and step.overflow is record.overflow
            limits.append(
                ((exceeded, math.inf if share is None else share, -step.budget), step.budget, used, step.fixed)
            )
    _, budget, used, fixed = max(limits, key=itemgetter(0))
    if record.error is not None and record.overflow is not None and record.overflow.unit == "tokens":
        budget = record.overflow.budget
    return budget, used, fixed


def _share(tokens: int, limit: int | None) -> float | None:
    return tokens / limit if limit is not None and limit > 0 else None


def _limit_totals(record: Record, tokens: int, budget: int | None, used: int | None) -> dict[str, Any]:
    """Return the fields of `Totals` that depend on the limits: the budget and the model's window.

    A prompt that exceeds the window is an overflow, unless another limit was exceeded, or no model is called with it.
    """
    window, overflow = record.window, record.overflow
    if (
        window is not None
        and overflow is None
        and tokens > window
        and record.called
        and record.maintenance_error is None
    ):
        overflow = Overflow(window, tokens, OverflowCause.WINDOW)
    shares: list[float | None] = []
    if record.error is None:
        shares += _share(tokens if used is None else used, budget), _share(tokens, window)
    if overflow is not None and overflow.unit == "tokens":  # also if it was raised, or if the excess was dropped
        shares.append(_share(overflow.needed, overflow.budget))
        if record.error is not None:
            shares.append(_share(overflow.needed, window))
    return {
        "overflow": overflow,
        "overflowed": overflow is not None,
        "utilization": max([share for share in shares if share is not None], default=None),
        "window": window,
    }


def _step_totals(record: Record, step: Step, tokens_in: int, tokens_out: int) -> StepTotals:
    if step.error is not None and record.error is not None:
        # A policy that raised and was skipped passes its input on; this one ended the assembly.
        return StepTotals(tokens_in, 0, 0, 0, len(step.view_in), record.items_tokens(step.view_in), 0, 0)
    dropped = dropped_tokens = compacted = compacted_tokens = 0
    for group in step.exits:
        if group.outcome is DecisionOutcome.DROPPED:
            dropped += len(group.view)
            dropped_tokens += record.items_tokens(group.view)
        else:
            compacted += len(group.view)
            compacted_tokens += record.items_tokens(group.view)
    created_tokens = record.items_tokens(step.view_out.pick_positions(step.created_positions)) if step.created else 0
    return StepTotals(
        tokens_in, tokens_out, len(step.created), created_tokens, dropped, dropped_tokens, compacted, compacted_tokens
    )


def _flow(record: Record) -> Sequence[int]:
    """Return the numbers and tokens of injected, dropped and compacted items between the assembly's input and output.

    An item that one step created and another one removed does not count.
    """
    source = record.ledger_input
    if record.error is not None:
        return 0, 0, len(source.view), record.items_tokens(source.view), 0, 0
    if not [step for step in record.steps if step.created]:
        return list(map(sum, zip((0,) * 6, *[totals[2:] for totals in record.step_totals], strict=True)))
    # Each item of an assembly is from its input, or created by a step.
    created, view, item_id = record.made, record.view_out, record.numbered_out.item_ids.of
    injected = view.pick_positions(position for position in view.positions() if item_id(position) in created)
    dropped, compacted = [0, 0], [0, 0]
    for step in record.steps:
        for group in record.lasting_exits(step):
            for part in [group] if group.numbered is source.numbered else without([group], created):
                counts = dropped if part.outcome is DecisionOutcome.DROPPED else compacted
                counts[0] += len(part.view)
                counts[1] += record.items_tokens(part.view)
    return [len(injected), record.items_tokens(injected), *dropped, *compacted]


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
    prompts, tools = record.prompt_tokens(record.prompts_out), record.meter.tools(record.context.tools)
    sums = zip(_NAMES, (prompts, tools, framing, separators, *_tokens_of_kinds(record)), strict=True)
    return {name: tokens for name, tokens in sums if tokens}


def _tokens_of_kinds(record: Record) -> Sequence[int]:
    """Return the output's tokens by event kind: those of the last prompt plus the changes, if that is less work."""
    if record.kinds is not None:
        return record.kinds
    view, last = record.view_out, record.last
    table = record.table(view)
    if last is not None and last.kinds is not None and last.kept.history is view.history and last.kept_table is table:
        added, removed = view.minus(last.kept), last.kept.minus(view)
        if len(added) + len(removed) < len(view):
            changes = zip(last.kinds, table.by_kind(added), table.by_kind(removed), strict=True)
            record.kinds = [tokens + more - less for tokens, more, less in changes]
            return record.kinds
    record.kinds = table.by_kind(view)
    return record.kinds


def arrivals(record: Record) -> Slices[list[Arrival]]:
    """Return the items of the input, and those that steps created, that are not exported as they are now."""
    source = record.ledger_input
    return record.ledger.arrivals(source, record.steps, record.counted_by, record.table(source.view))


#: The kinds of events that a model's answer consists of.
_ANSWERS: Final = frozenset({EventKind.RESPONSE, EventKind.TOOL_CALL})


def _turns_since(last: Snapshot | None, source: LedgerInput, named: NamedConversation | None) -> int:
    """Return `Record.turns`: each new request with a response after it is a turn that this ledger did not record.

    The turns that this process assembled for other agents of the conversation are not counted.
    """
    view, history = source.view, source.view.history
    if last is None:
        return 0 if 0 <= history.pairing.last_response < view.end else 1
    if named is None:
        return 1
    start = last.next_item
    arrived = ((max(first, start), last_item) for first, last_item in source.runs if start <= last_item < FIRST_MADE)
    turns, is_open = 1, False
    for position in source.numbered.item_ids.find(chain.from_iterable(range(low, high + 1) for low, high in arrived)):
        kind = history.kind(position)
        if kind is EventKind.REQUEST:
            is_open = True
        elif is_open and kind in _ANSWERS:
            turns, is_open = turns + 1, False
    return max(1, turns - (named.assemblies - last.assemblies)) if turns > 1 else 1


@dataclass(slots=True)
class Departures:
    """The items that are absent from a prompt, and that the ledger's last prompt contained, or that are new since.

    Attributes:
        now: By index of the step, the items that left in this turn.
        resumed: The items that left before this turn, in turns that this ledger did not record.
    """

    now: dict[int, Sequence[ItemGroup]]
    resumed: Sequence[ItemGroup]


def departures_of(record: Record) -> Departures:
    """Return the departures of an assembly; they are computed once.

    If other processes assembled turns of the conversation since the ledger's last one, it is unknown which items left
    in which turn. Then each turn gets an equal share of them, and this turn gets the newest items, because those are
    nearest to a cut. Each process counts only its own turns, so the sum over all processes does not depend on their
    number. The turn in which a ledger resumed is counted with the next one: its share is not known earlier.
    """
    if record.departures is None:
        last = record.last
        now: dict[int, Sequence[ItemGroup]] = {}
        for step in record.steps if record.error is None else ():
            if step.exits:
                exits = record.lasting_exits(step)
                now[step.index] = exits if last is None else subtract_groups(exits, last.exits, tagged=False)
        resumed: list[ItemGroup] = []
        if now and record.turns != 1:
            groups = list(chain.from_iterable(now.values()))
            items = sorted({item for group in groups for item in group.numbered.of(group.view) if item < FIRST_MADE})
            counted = 2 if last is not None and last.resumed else 1
            share = _share_of(len(items), record.turns, record.turn, counted)
            earlier = set(items[: len(items) - share])
            resumed = without(groups, set(items[len(items) - share :]) | record.made)
            now = {index: without(departed, earlier) for index, departed in now.items()}
        record.departures = Departures(now, resumed)
    return record.departures


def _share_of(items: int, turns: int, turn: int, counted: int) -> int:
    """Return how many of the items that left in several turns are counted now; 0 if the number of turns is unknown.

    Args:
        items: The number of items that left.
        turns: The number of turns in which they left, including this one; 0 if unknown.
        turn: The index of this turn. It selects the turns that get one of the remaining items each, so that the shares
            add up to `items`.
        counted: The number of turns that are counted now: 1, or 2 with the turn in which the ledger resumed.
    """
    if not turns:
        return 0
    start, counted = turn % turns, min(turns, counted)
    return items * (start + counted) // turns - items * start // turns


def exits_from_the_prompt(record: Record, step: Step) -> Sequence[ItemGroup]:
    """Return the departures by a step in this turn, which the counter metrics add up."""
    return departures_of(record).now.get(step.index, ()) if step.exits else ()


def dropped_new(record: Record, step: Step, *, net: bool = False) -> int:
    """Return how many items a step dropped that were in the previous prompt, or are new.

    Args:
        record: The assembly.
        step: The step.
        net: Whether to leave out items that a step of this assembly created.
    """
    if not step.exits or record.error is not None:
        return 0
    groups = [group for group in exits_from_the_prompt(record, step) if group.outcome is DecisionOutcome.DROPPED]
    if net and (created := record.made):
        groups = without(groups, created)
    return sum([len(group.view) for group in groups])


def prefix_of(record: Record) -> Prefix:
    """Compare the prompt to send with the ledger's previous prompt."""
    last = record.last
    if last is None or record.error is not None or record.maintenance_error is not None:
        first = PrefixBreak.FIRST if record.turns else PrefixBreak.RESUMED
        return Prefix(cause=first.value if last is None else None)
    prompts, before, view = record.prompts_out, last.prompts, record.view_out
    previous = sum(map(_size, before)) + last.kept.history.view_size(last.kept)
    if record.context.tools != last.tools:  # providers render the schemas in front of everything else
        cause: str | None = PrefixBreak.PROMPT_CHANGED.value
        return Prefix(previous_bytes=previous, cause=cause, reuse=0.0 if previous else None)
    shared = 0
    for prompt, old_prompt in zip(prompts, before, strict=False):
        if prompt != old_prompt:
            break
        shared += 1
    size = sum(map(_size, prompts[:shared]))
    tokens = record.prompt_tokens(prompts if shared == len(prompts) else prompts[:shared])
    tokens += record.meter.tools(record.context.tools)
    events, cause = 0, None
    if shared < len(before) or shared < len(prompts):
        if shared < min(len(before), len(prompts)):
            prompt, old_prompt = prompts[shared], before[shared]
            lengths = range(1, min(len(prompt), len(old_prompt)) + 1)
            differs = bisect_left(lengths, True, key=lambda length: prompt[:length] != old_prompt[:length])
            size += _size(prompt[:differs])
        cause = PrefixBreak.PROMPT_CHANGED.value if shared < len(before) or last.kept else None
    else:
        events = shared_prefix(view, last.kept)
        shared_view = view.pick([(0, events)])
        size += shared_view.history.view_size(shared_view)
        tokens += record.items_tokens(shared_view)
        if events < len(last.kept):
            cause = _cause(record, last, events)
    if cause is not None and record.turns > 1:  # the previous prompt was made in another process
        return Prefix(tokens, size, previous, shared, events, PrefixBreak.RESUMED.value)
    return Prefix(tokens, size, previous, shared, events, cause, size / previous if previous else None)


def shared_prefix(new: View, old: View) -> int:
    """Return the number of items with equal text with which two views begin: compared by runs, then one by one."""
    count = new.shared_with(old)
    if count == min(len(new), len(old)):
        return count
    if not _have_equal_content(new.history, new.position(count), old.history, old.position(count)):
        return count
    rest = zip(*(view.pick([(count, len(view))]).positions() for view in (new, old)), strict=False)
    for position, old_position in rest:
        if not _have_equal_content(new.history, position, old.history, old_position):
            break
        count += 1
    return count


def _have_equal_content(history: History, position: int, old_history: History, at: int) -> bool:
    """Return True if the model reads the same in the events at two positions."""
    if history is old_history and position == at:
        return True
    if history.size(position) != old_history.size(at):
        return False
    if (history.flags(position) ^ old_history.flags(at)) & ECHO or history.digest(position) != old_history.digest(at):
        return False
    # The digest covers texts only, so media are compared as objects.
    return not history.has_media(position) or bool(history.event(position) == old_history.event(at))


def _cause(record: Record, last: Snapshot, at: int) -> str:
    """Return why the prompt to send has another item, or changed content, at the first index that is not shared.

    Args:
        record: The assembly.
        last: The previous assembly.
        at: The index in both prompts' events.
    """
    kept, view, numbered = last.kept, record.view_out, record.numbered_out
    old, new = kept.position(at), view.position(at) if at < len(view) else -1
    item, new_item = last.numbered.item_ids.of(old), numbered.item_ids.of(new) if new >= 0 else -1
    if new_item == item:
        return PrefixBreak.EVENT_CHANGED.value
    for step in record.steps:
        for group in step.exits:
            if _has_item(group, kept, old, item):
                compacted = group.outcome is DecisionOutcome.COMPACTED
                return PrefixBreak.COMPACTED.value if compacted else PrefixBreak.CUT_MOVED.value
        compacts = DecisionOutcome.COMPACTED in [group.outcome for group in step.exits]
        before = last.steps[step.index].created if last.has_step(step.index, step.policy) else ()
        if compacts and (item in {item_id for _, item_id in before} or new_item in step.injected):
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
        return group.view.holds(position)
    return any(map(group.view.holds, group.numbered.item_ids.find([item])))


def prefix_hash(record: Record, prefix: Prefix) -> str:
    """Return a hash of a prefix's text, as 16 hex digits that are equal in every process."""
    view = record.view_out.pick([(0, prefix.events)])
    return record.ledger.prefix_hash(record.prompts_out[: prefix.prompts], view)


def _size(text: str) -> int:
    """Return the bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
