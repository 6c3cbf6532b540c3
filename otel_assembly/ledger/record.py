"""The record of one assembly, from which `Assembly`, spans and metrics are read, and its numbers, worked out of it.

The numbers are sums over what each step passes on, and differences from the assembly before: they cost what changed.
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
from otel_assembly.ledger.snapshot import FIRST_MADE, ItemGroup, Snapshot, entered, gone, without
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
    """One assembly, whole."""

    name: str | None
    model: str | None
    turn: int
    ledger: Ledger
    ledger_input: LedgerInput
    context: Context
    meter: TokenMeter
    prompts_in: tuple[str, ...]
    #: The model's window, in tokens, where it is known.
    window: int | None = None
    _assembly_id: str = ""
    #: The assembly before this one in the ledger.
    last: Snapshot | None = None
    #: The id of the ledger's last assembly whose span was recorded.
    previous_id: str | None = None
    steps: list[Step] = field(default_factory=list)
    #: Whether somebody else's code ran it, so that nobody has seen to it that what belongs together stays together.
    observed: bool = False
    #: Whether what came in could not be known: what is said to have come in is what is sent.
    unknown: bool = False
    #: How many events of its output the provider stores, so that the request does not contain them; None if unknown.
    held_events: int | None = None
    #: The kinds of edits that the request allows the provider to make. If there are any, the span ends with the answer.
    allowed_edits: tuple[str, ...] = ()
    #: Whether a model is called with what it sends.
    called: bool = True
    #: When it was over, where it is told later than that.
    ended_ns: int | None = None
    #: What went wrong, where nothing is sent.
    error: BaseException | None = None
    #: What went wrong, where what came in stays as it was all the same: a framework's care of a history, and no prompt.
    spared: BaseException | None = None
    overflow: Overflow | None = None
    #: Those that close where the conversation is halted: the context's, and that of the history that came in.
    guards: Sequence[HaltGuard] = ()
    #: The conversation, if it has a name under which another process may continue it.
    named: NamedConversation | None = None
    #: What halted the conversation before this assembly came to its end.
    halt: HaltEvent | None = None
    _prompts: tuple[tuple[str, ...], int] | None = None
    #: Tokens of what is sent, by kind, once somebody has asked.
    kinds: Sequence[int] | None = None
    #: Its numbers and those of its steps, once somebody has asked.
    totals: Totals | None = None
    step_totals: Sequence[StepTotals] = ()
    #: By step, the items that it took out in this turn; and those that are absent, and left before it.
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
        """Where each prompt to send is from."""
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
        """The events to send, of a list those that came in with this assembly: a later one may bring other objects."""
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
        """What counts its tokens, and the generation of that: where it is another, so are they."""
        return self.meter.encoding, self.meter.counter.generation

    @property
    def made(self) -> AbstractSet[int]:
        """The items that steps made: those that they let out, that did not go in, and that did not come in either."""
        made: set[int] = set()
        for step in self.steps:
            made.update([item for _, item in step.created] if step.created else ())
        for step in self.steps:
            made.difference_update(step.restored_items)
        return made

    def mark_exported(self) -> None:
        """A reader knows of this assembly now, and of all that came in and that its steps made."""
        source = self.ledger_input
        self.ledger.mark_exported(self.assembly_id, source, self.steps, self.counted_by, self.table(source.view))

    def gone(self, step: Step) -> Sequence[ItemGroup]:
        """What left by a step, and no later step put back."""
        return gone(self.steps, step.index)

    def broken(self, view: View) -> int:
        """Events of what a step let out that lost the other half of their pair."""
        return broken_in(view, self._separated(view))

    def _separated(self, view: View) -> set[int]:
        """Return the positions of a view that hold reasoning, or the item behind it, without the other.

        If a step inserted or reordered events, its output is a history of its own, in which an answer does not show
        that its reasoning is absent, and reasoning may stand in front of another answer.
        """
        given, ids = self.ledger_input.view, self.ledger_input.numbered.item_ids
        before, now = given.history.pairing, view.history.pairing
        step = next((step for step in self.steps if step.view_out is view), None)
        if step is None or view.history is given.history or not before.reasoned:
            return set()
        places = {step.numbered_out.item_ids.of(position): position for position in view.positions()}
        apart: set[int] = set()
        for atom in before.reasoned:
            whole = [at for at in before.members(atom) if before.flags[at] & REASONED and given.holds(at)]
            stays = [places[item] for item in map(ids.of, whole) if item in places]
            joined = len({now.atoms[at] for at in stays}) == 1 and all(now.flags[at] & REASONED for at in stays)
            if len(stays) < len(whole) or not joined:
                apart.update(stays)
        return apart

    def items_tokens(self, view: View) -> int:
        """Tokens of a view's items."""
        return view.history.table(self.meter).sum(view)

    def used(self, step: Step) -> int | None:
        """Tokens that a step let out and that count against its limit; None where that is one of the whole prompt."""
        return None if step.beside_tokens is None else self.items_tokens(step.view_out) - step.beside_tokens

    def prompt_tokens(self, prompts: Sequence[str]) -> int:
        """Tokens of prompts; of the same ones, which several steps let through, they are counted once."""
        key = tuple(prompts)
        if self._prompts is None or self._prompts[0] != key:
            self._prompts = key, sum(map(self.meter.prompt, key))
        return self._prompts[1]

    def tokens(self, prompts: Sequence[str], view: View) -> int:
        """Tokens of a rendered prompt."""
        return (
            self.prompt_tokens(prompts)
            + self.meter.tools(self.context.tools)
            + self.meter.priming
            + self.items_tokens(view)
        )

    def table(self, view: View) -> TokenTable:
        """What was counted of a view's history."""
        return view.history.table(self.meter)

    def count_sent(self) -> None:
        """Count what is sent and has an estimate; where it came in too, for the tokens of arrivals are read there."""
        view, source = self.view_out, self.ledger_input.numbered
        self.table(view).exact(view)
        if self.numbered_out is not source and (table := source.history.table(self.meter)).estimated:
            for position in source.item_ids.find(self.numbered_out.of(view)):
                table.tokens(position)

    def snapshot(self) -> Snapshot:
        """What the next assembly needs of this one."""
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
            arrived=self.ledger.next_item,
            assemblies=self.named.assemblies if self.named is not None else 0,
            resumed=self.last is None and self.turns == 0,
        )

    @property
    def turns(self) -> int:
        """How many turns of the conversation there were since the ledger's last assembly, this one included.

        0 if that is unknown: the ledger begins with an input that contains a response, so that the conversation began
        in another process, or with another assembler.
        """
        if self._turns is None:
            self._turns = _turns_since(self.last, self.ledger_input, self.named)
        return self._turns


def totals_of(record: Record) -> Totals:
    """The numbers of an assembly and its steps, worked out once; what is sent is counted where it had an estimate."""
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
        **_limited(record, tokens_out, budget, used),
    )
    return record.totals


def set_window(record: Record, window: int | None) -> None:
    """The model's window is known only now: numbers that somebody has asked for already are of it too."""
    record.window = window
    if window is not None and (totals := record.totals) is not None:
        record.totals = replace(totals, **_limited(record, totals.tokens_out, totals.budget, totals.used))


def _budget(record: Record, tokens: int) -> tuple[int | None, int | None, int | None]:
    """The limit met first, broken or else fullest, what counts against it if not the prompt, and what is fixed."""
    held: list[tuple[Any, int | None, int | None, int | None]] = [((), None, None, None)]
    for step in record.steps:
        if step.budget is not None:
            used = None if record.error is not None else record.used(step)
            share = _share(tokens if used is None else used, step.budget)
            broken = step.overflow is not None and step.overflow is record.overflow
            held.append(((broken, math.inf if share is None else share, -step.budget), step.budget, used, step.fixed))
    _, budget, used, fixed = max(held, key=itemgetter(0))
    if record.error is not None and record.overflow is not None and record.overflow.unit == "tokens":
        budget = record.overflow.budget
    return budget, used, fixed


def _share(tokens: int, limit: int | None) -> float | None:
    return tokens / limit if limit is not None and limit > 0 else None


def _limited(record: Record, tokens: int, budget: int | None, used: int | None) -> dict[str, Any]:
    """What of an assembly's numbers follows from its limits: its budget, and the window that its model has.

    A prompt over the window is an overflow, unless another limit could not hold before, or no model is called with it.
    """
    window, overflow = record.window, record.overflow
    if window is not None and overflow is None and tokens > window and record.called and record.spared is None:
        overflow = Overflow(window, tokens, OverflowCause.WINDOW)
    shares: list[float | None] = []
    if record.error is None:
        shares += _share(tokens if used is None else used, budget), _share(tokens, window)
    if overflow is not None and overflow.unit == "tokens":  # also if it was raised, or if what was over was dropped
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
        # A policy that raised and was skipped let everything through; this one let nothing.
        return StepTotals(tokens_in, 0, 0, 0, len(step.view_in), record.items_tokens(step.view_in), 0, 0)
    dropped = dropped_tokens = compacted = compacted_tokens = 0
    for group in step.exits:
        if group.outcome is DecisionOutcome.DROPPED:
            dropped += len(group.view)
            dropped_tokens += record.items_tokens(group.view)
        else:
            compacted += len(group.view)
            compacted_tokens += record.items_tokens(group.view)
    made = record.items_tokens(step.view_out.pick_positions(step.created_positions)) if step.created else 0
    return StepTotals(
        tokens_in, tokens_out, len(step.created), made, dropped, dropped_tokens, compacted, compacted_tokens
    )


def _flow(record: Record) -> Sequence[int]:
    """Injected, dropped and compacted items and their tokens, from the assembly's input to its output."""
    source = record.ledger_input
    if record.error is not None:
        return 0, 0, len(source.view), record.items_tokens(source.view), 0, 0
    if not [step for step in record.steps if step.created]:
        return list(map(sum, zip((0,) * 6, *[one[2:] for one in record.step_totals], strict=True)))
    # Whatever stands in an assembly came in, or a step of it made it.
    made, view, item_id = record.made, record.view_out, record.numbered_out.item_ids.of
    injected = view.pick_positions(position for position in view.positions() if item_id(position) in made)
    dropped, compacted = [0, 0], [0, 0]
    for step in record.steps:
        for group in record.gone(step):
            for part in [group] if group.numbered is source.numbered else without([group], made):
                left = dropped if part.outcome is DecisionOutcome.DROPPED else compacted
                left[0] += len(part.view)
                left[1] += record.items_tokens(part.view)
    return [len(injected), record.items_tokens(injected), *dropped, *compacted]


#: Of what is not an event, and of the kinds of events, in the order in which they are told.
_NAMES: Final = (
    PromptPart.PROMPT.value,
    PromptPart.TOOL_SCHEMAS.value,
    PromptPart.FRAMING.value,
    PromptPart.SEPARATORS.value,
    *(kind.value for kind in KINDS),
)


def tokens_by_kind(record: Record) -> dict[str, int]:
    """What fills the prompt to send; the numbers sum to its tokens.

    A message's framing is counted with the message; ``framing`` is what belongs to no single event: the reply's
    priming, and the marks of messages that several texts are joined to.
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
    """By what came and what went since the last prompt, where that is less than all of it."""
    if record.kinds is not None:
        return record.kinds
    view, last = record.view_out, record.last
    table = record.table(view)
    if last is not None and last.kinds is not None and last.kept.history is view.history and last.kept_table is table:
        came, went = view.minus(last.kept), last.kept.minus(view)
        if len(came) + len(went) < len(view):
            changes = zip(last.kinds, table.by_kind(came), table.by_kind(went), strict=True)
            record.kinds = [tokens + more - less for tokens, more, less in changes]
            return record.kinds
    record.kinds = table.by_kind(view)
    return record.kinds


def arrivals(record: Record) -> Slices[list[Arrival]]:
    """The items that no recorded assembly has told of as they are: those that came in, and those that steps made."""
    source = record.ledger_input
    return record.ledger.arrivals(source, record.steps, record.counted_by, record.table(source.view))


#: Events that a model's answer consists of.
_ANSWERS: Final = frozenset({EventKind.RESPONSE, EventKind.TOOL_CALL})


def _turns_since(last: Snapshot | None, source: LedgerInput, named: NamedConversation | None) -> int:
    """`Record.turns`: each request that arrived with a response behind it was a turn that this ledger did not see.

    The turns that this process assembled for other agents of the conversation are not counted.
    """
    view, history = source.view, source.view.history
    if last is None:
        return 0 if 0 <= history.pairing.last_response < view.end else 1
    if named is None:
        return 1
    arrived = ((max(first, last.arrived), until) for first, until in source.runs if last.arrived <= until < FIRST_MADE)
    turns, asked = 1, False
    for position in source.numbered.item_ids.find(chain.from_iterable(range(low, high + 1) for low, high in arrived)):
        kind = history.kind(position)
        if kind is EventKind.REQUEST:
            asked = True
        elif asked and kind in _ANSWERS:
            turns, asked = turns + 1, False
    return max(1, turns - (named.assemblies - last.assemblies)) if turns > 1 else 1


@dataclass(slots=True)
class Departures:
    """The items that are absent from a prompt, and were in the last one of the ledger, or arrived since.

    Attributes:
        now: By step, the items that left in this turn.
        resumed: The items that left before it, in turns that this ledger did not see.
    """

    now: dict[int, Sequence[ItemGroup]]
    resumed: Sequence[ItemGroup]


def departures_of(record: Record) -> Departures:
    """Find out which items left in this turn; worked out once.

    If other processes assembled turns of the conversation since the ledger's last one, it is unknown which items left
    in which turn. Then each turn has an equal share of them, and this turn the newest, which are the nearest to a cut:
    every process counts its own turns only, so that the sum over all processes does not depend on their number. The
    turn in which a ledger resumed is counted with the next one, because its share is unknown by then.
    """
    if record.departures is None:
        last = record.last
        now: dict[int, Sequence[ItemGroup]] = {}
        for step in record.steps if record.error is None else ():
            if step.exits:
                left = record.gone(step)
                now[step.index] = left if last is None else entered(left, last.gone, tagged=False)
        resumed: list[ItemGroup] = []
        if now and record.turns != 1:
            groups = list(chain.from_iterable(now.values()))
            came = sorted({item for group in groups for item in group.numbered.of(group.view) if item < FIRST_MADE})
            counted = 2 if last is not None and last.resumed else 1
            share = _share_of(len(came), record.turns, record.turn, counted)
            earlier = set(came[: len(came) - share])
            resumed = without(groups, set(came[len(came) - share :]) | record.made)
            now = {index: without(some, earlier) for index, some in now.items()}
        record.departures = Departures(now, resumed)
    return record.departures


def _share_of(items: int, turns: int, turn: int, counted: int) -> int:
    """How many of the items that left in several turns are counted now; none if the number of turns is unknown (0).

    Args:
        items: How many left.
        turns: In how many turns, this one included.
        turn: The index of this turn: the remainder goes to some of the turns, so that they sum to the items.
        counted: How many of the turns are counted: this one, and the one in which the ledger resumed.
    """
    if not turns:
        return 0
    start, counted = turn % turns, min(turns, counted)
    return items * (start + counted) // turns - items * start // turns


def exits_from_the_prompt(record: Record, step: Step) -> Sequence[ItemGroup]:
    """What was in the previous prompt, or arrived since, and left by this step: what a counter counts."""
    return departures_of(record).now.get(step.index, ()) if step.exits else ()


def dropped_new(record: Record, step: Step, *, net: bool = False) -> int:
    """How many items a step dropped that were in the previous prompt, or are new; net: that no step made."""
    if not step.exits or record.error is not None:
        return 0
    groups = [group for group in exits_from_the_prompt(record, step) if group.outcome is DecisionOutcome.DROPPED]
    if net and (made := record.made):
        groups = without(groups, made)
    return sum([len(group.view) for group in groups])


def prefix_of(record: Record) -> Prefix:
    """Compare the prompt to send with the one before it in the ledger."""
    last = record.last
    if last is None or record.error is not None or record.spared is not None:
        first = PrefixBreak.FIRST if record.turns else PrefixBreak.RESUMED
        return Prefix(cause=first.value if last is None else None)
    prompts, before, view = record.prompts_out, last.prompts, record.view_out
    previous = sum(map(_size, before)) + last.kept.history.view_size(last.kept)
    if record.context.tools != last.tools:  # providers render the schemas in front of everything else
        cause: str | None = PrefixBreak.PROMPT_CHANGED.value
        return Prefix(previous_bytes=previous, cause=cause, reuse=0.0 if previous else None)
    whole = 0
    for one, other in zip(prompts, before, strict=False):
        if one != other:
            break
        whole += 1
    size = sum(map(_size, prompts[:whole]))
    tokens = record.prompt_tokens(prompts if whole == len(prompts) else prompts[:whole])
    tokens += record.meter.tools(record.context.tools)
    events, cause = 0, None
    if whole < len(before) or whole < len(prompts):
        if whole < min(len(before), len(prompts)):
            one, other = prompts[whole], before[whole]
            lengths = range(1, min(len(one), len(other)) + 1)
            size += _size(one[: bisect_left(lengths, True, key=lambda length: one[:length] != other[:length])])
        cause = PrefixBreak.PROMPT_CHANGED.value if whole < len(before) or last.kept else None
    else:
        events = shared_prefix(view, last.kept)
        shared = view.pick([(0, events)])
        size += shared.history.view_size(shared)
        tokens += record.items_tokens(shared)
        if events < len(last.kept):
            cause = _cause(record, last, events)
    if cause is not None and record.turns > 1:  # the previous prompt was made in another process
        return Prefix(tokens, size, previous, whole, events, PrefixBreak.RESUMED.value)
    return Prefix(tokens, size, previous, whole, events, cause, size / previous if previous else None)


def shared_prefix(new: View, old: View) -> int:
    """How many items two views begin with that read the same: by interval as far as that goes, then by their text."""
    count = new.shared_with(old)
    if count == min(len(new), len(old)):
        return count
    if not _reads_the_same(new.history, new.position(count), old.history, old.position(count)):
        return count
    rest = zip(*(view.pick([(count, len(view))]).positions() for view in (new, old)), strict=False)
    for position, other in rest:
        if not _reads_the_same(new.history, position, old.history, other):
            break
        count += 1
    return count


def _reads_the_same(history: History, position: int, other: History, at: int) -> bool:
    if history is other and position == at:
        return True
    if history.size(position) != other.size(at):
        return False
    if (history.flags(position) ^ other.flags(at)) & ECHO or history.digest(position) != other.digest(at):
        return False
    # What an image shows is in no text.
    return not history.has_media(position) or bool(history.event(position) == other.event(at))


def _cause(record: Record, last: Snapshot, at: int) -> str:
    """Why the item at index `at` of the previous prompt is not there, or is not what is there now."""
    kept, view, numbered = last.kept, record.view_out, record.numbered_out
    old, new = kept.position(at), view.position(at) if at < len(view) else -1
    item, entrant = last.numbered.item_ids.of(old), numbered.item_ids.of(new) if new >= 0 else -1
    if entrant == item:
        return PrefixBreak.EVENT_CHANGED.value
    for step in record.steps:
        for group in step.exits:
            if _holds(group, kept, old, item):
                compacted = group.outcome is DecisionOutcome.COMPACTED
                return PrefixBreak.COMPACTED.value if compacted else PrefixBreak.CUT_MOVED.value
        summarises = DecisionOutcome.COMPACTED in [group.outcome for group in step.exits]
        before = last.steps[step.index].created if last.did(step.index, step.policy) else ()
        if summarises and (item in {item_id for _, item_id in before} or entrant in step.injected):
            return PrefixBreak.COMPACTED.value
    if item not in numbered.of(view):
        return PrefixBreak.EVENT_CHANGED.value
    if entrant in last.numbered.of(kept):
        return PrefixBreak.REORDERED.value
    out_before = any(_holds(group, view, new, entrant) for group in last.gone)
    return PrefixBreak.CUT_MOVED.value if out_before else PrefixBreak.EVENT_CHANGED.value


def _holds(group: ItemGroup, view: View, position: int, item: int) -> bool:
    """Whether a group has the item that stands at a position of the view's history."""
    if group.view.history is view.history:
        return group.view.holds(position)
    return any(map(group.view.holds, group.numbered.item_ids.find([item])))


def prefix_hash(record: Record, prefix: Prefix) -> str:
    """16 hex digits that stand for the text of a prefix, equal in every process."""
    view = record.view_out.pick([(0, prefix.events)])
    return record.ledger.prefix_hash(record.prompts_out[: prefix.prompts], view)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
