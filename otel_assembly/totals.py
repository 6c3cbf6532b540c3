"""An assembly in numbers, and what its prompt begins with in common with the previous one."""

from __future__ import annotations

from dataclasses import dataclass
from operator import add, sub
from typing import TYPE_CHECKING, Final

from otel_assembly.changes import shared_prefix
from otel_assembly.decision import DecisionOutcome, PrefixBreak, PromptPart
from otel_assembly.history import KINDS
from otel_assembly.prefixes import PrefixHash

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.decision import Overflow
    from otel_assembly.ledger import Group, Snapshot
    from otel_assembly.record import Record
    from otel_assembly.view import View


@dataclass(frozen=True, slots=True)
class Totals:
    """An assembly in numbers; tokens are those of the rendered prompt, framing included.

    ``events_in + events_injected = events_out + dropped + compacted``.

    Attributes:
        tokens_in: Tokens that came in; a lower bound while `tokens_in_estimated`.
        tokens_in_estimated: Whether items that came in have not been counted yet.
        tokens_out: Tokens of the prompt as it would be sent; 0 where nothing is sent.
        method: ``exact``, ``calibrated`` or ``estimated``.
        encoding: What counted.
        prompts_in: Prompts that came in.
        prompts_out: Prompts to send.
        events_in: Events that came in.
        events_out: Events to send.
        events_injected: Events to send that did not come in.
        injected_tokens: Their tokens.
        dropped: Events that came in and left.
        dropped_tokens: Their tokens, as far as they are counted.
        compacted: Events that came in and for which another one stands.
        compacted_tokens: Their tokens, as far as they are counted.
        alerts_delivered: Observer alerts delivered to the model.
        halts_emitted: `HaltEvent`s emitted meanwhile.
        budget: The tightest token limit that a policy held; None where none did.
        fixed: Tokens of what may not be dropped; None where no policy knew.
        overflow: The limit that could not hold; None where all did.
    """

    tokens_in: int
    tokens_in_estimated: bool
    tokens_out: int
    method: str
    encoding: str
    prompts_in: int
    prompts_out: int
    events_in: int
    events_out: int
    events_injected: int
    injected_tokens: int
    dropped: int
    dropped_tokens: int
    compacted: int
    compacted_tokens: int
    alerts_delivered: int
    halts_emitted: int
    budget: int | None
    fixed: int | None
    overflow: Overflow | None

    @property
    def overflowed(self) -> bool:
        """Whether a limit could not hold."""
        return self.overflow is not None

    @property
    def utilization(self) -> float | None:
        """``tokens_out ÷ budget``, a ratio; None where there is no budget."""
        return self.tokens_out / self.budget if self.budget else None


def totals_of(record: Record) -> Totals:
    """The numbers of an assembly, worked out once; this counts what will be sent."""
    if record.totals is None:
        record.totals = _totals(record)
    return record.totals


def _totals(record: Record) -> Totals:
    record.count(record.view_out)
    view_in, view_out = record.opening.view, record.view_out
    sent = record.error is None
    budget, fixed = min(
        ((step.budget, step.fixed) for step in record.steps if step.budget is not None),
        key=lambda limits: limits[0],
        default=(None, None),
    )
    if not sent and record.overflow is not None and record.overflow.unit == "tokens":
        budget = record.overflow.budget
    injected, injected_tokens, dropped, dropped_tokens, compacted, compacted_tokens = (
        _flow(record) if sent else (0, 0, len(view_in), record.items_tokens(view_in), 0, 0)
    )
    return Totals(
        tokens_in=record.tokens(record.prompts_in, view_in) + sum(step.around_in for step in record.steps),
        tokens_in_estimated=not view_in.history.table(record.meter).complete(view_in),
        tokens_out=(record.tokens(record.prompts_out, view_out) + record.framing + record.separators if sent else 0),
        method=_method(record, view_out),
        encoding=record.meter.encoding,
        prompts_in=len(record.prompts_in),
        prompts_out=len(record.prompts_out),
        events_in=len(view_in),
        events_out=len(view_out),
        events_injected=injected,
        injected_tokens=injected_tokens,
        dropped=dropped,
        dropped_tokens=dropped_tokens,
        compacted=compacted,
        compacted_tokens=compacted_tokens,
        alerts_delivered=sum(len(step.alerts) for step in record.steps) if sent else 0,
        halts_emitted=max(record.context.halts_emitted, sum(step.halts for step in record.steps)),
        budget=budget,
        fixed=fixed,
        overflow=record.overflow,
    )


def _method(record: Record, view_out: View) -> str:
    method: str = record.meter.method
    if method == "exact" and view_out.history.any_media(view_out):
        return "estimated"
    return method


def _flow(record: Record) -> tuple[int, int, int, int, int, int]:
    """Injected, dropped and compacted items and their tokens, from the assembly's input to its output."""
    if record.pure:
        dropped = [g.view for step in record.steps for g in step.groups if g.outcome is DecisionOutcome.DROPPED]
        compacted = [g.view for step in record.steps for g in step.groups if g.outcome is DecisionOutcome.COMPACTED]
        return (
            0,
            0,
            sum(map(len, dropped)),
            sum(map(record.items_tokens, dropped)),
            sum(map(len, compacted)),
            sum(map(record.items_tokens, compacted)),
        )
    # Whatever stands in an assembly came in, or a step of it made it.
    made = {ordinal for step in record.steps for ordinal in step.injected}
    injected = record.view_out.pick_positions(
        position for position in record.view_out.positions() if record.frame_out.ordinals.of(position) in made
    )
    left = {outcome: [0, 0] for outcome in (DecisionOutcome.DROPPED, DecisionOutcome.COMPACTED)}
    for step in record.steps:
        for group in step.groups:
            if group.frame is record.opening.frame:
                left[group.outcome][0] += len(group.view)
                left[group.outcome][1] += record.items_tokens(group.view)
                continue
            table = group.view.history.table(record.meter)
            for position in group.view.positions():
                if group.frame.ordinals.of(position) not in made:
                    left[group.outcome][0] += 1
                    left[group.outcome][1] += max(0, table.known(position))
    return (
        len(injected),
        record.items_tokens(injected),
        *left[DecisionOutcome.DROPPED],
        *left[DecisionOutcome.COMPACTED],
    )  # type: ignore[return-value]  # two pairs unpacked are four numbers


def tokens_by_kind(record: Record) -> dict[str, int]:
    """What fills the prompt to send; the numbers sum to its tokens.

    A message's framing is counted with the message; ``framing`` is what belongs to no single event: the reply's
    priming, and the marks of messages that several texts are joined to.
    """
    if record.error is not None:
        return {}
    view = record.view_out
    parts = (
        record.prompt_tokens(record.prompts_out),
        record.meter.tools(record.context.tools),
        record.meter.priming + record.framing,
        record.separators,
    )
    sums = zip(_NAMES, (*parts, *_tokens_of_kinds(record, view)), strict=True)
    return {name: tokens for name, tokens in sums if tokens}


#: Of what is not an event, and of the kinds of events, in the order in which they are told.
_NAMES: Final = (
    PromptPart.PROMPT.value,
    PromptPart.TOOL_SCHEMAS.value,
    PromptPart.FRAMING.value,
    PromptPart.SEPARATORS.value,
    *(kind.value for kind in KINDS),
)


def _tokens_of_kinds(record: Record, view: View) -> Sequence[int]:
    """By what came and what went since the last prompt, where that is less than all of it."""
    if record.kinds is not None:
        return record.kinds
    history, last = view.history, record.last
    table = history.table(record.meter)
    if last is not None and last.kinds is not None and last.kept.history is history and last.kept_table is table:
        came, went = view.minus(last.kept), last.kept.minus(view)
        if len(came) + len(went) < len(view):
            sums = last.kinds
            if came:
                sums = list(map(add, sums, history.tokens_by_kind(came, table)))
            if went:
                sums = list(map(sub, sums, history.tokens_by_kind(went, table)))
            record.kinds = sums
            return sums
    record.kinds = history.tokens_by_kind(view, table)
    return record.kinds


@dataclass(frozen=True, slots=True)
class Prefix:
    """What a prompt begins with in common with the previous one of its conversation.

    Attributes:
        tokens: Tokens of the prompts and events in it, and of the tool schemas.
        bytes: Bytes of text in it.
        previous_bytes: Bytes of text of the whole previous prompt.
        prompts: Whole prompts in it.
        events: Events in it.
        cause: Why the previous prompt is not a prefix of this one; None where it is.
    """

    tokens: int = 0
    bytes: int = 0
    previous_bytes: int = 0
    prompts: int = 0
    events: int = 0
    cause: str | None = PrefixBreak.FIRST.value

    @property
    def reuse(self) -> float | None:
        """``bytes ÷ previous_bytes``, a ratio; None on a conversation's first turn."""
        return self.bytes / self.previous_bytes if self.previous_bytes else None


@dataclass(frozen=True, slots=True)
class Breakpoints:
    """Where a marker of explicit cache control pays, for providers that want one.

    Attributes:
        prompt: Index of the prompt after which to mark: the last one that all turns have had so far, else the last.
            None where there are no prompts.
        events: Indexes of the events after which to mark: the end of what the provider has cached already, so that it
            is read; and the last event, so that all of this prompt is there for the next turn.
    """

    prompt: int | None
    events: tuple[int, ...]


def breakpoints_of(record: Record, prefix: Prefix) -> Breakpoints:
    """Where the prompt to send is worth marking."""
    prompts, events = len(record.prompts_out), len(record.view_out)
    stable = prefix.prompts if prefix.prompts and prefix.prompts < prompts else prompts
    marks = dict.fromkeys((prefix.events - 1, events - 1))
    return Breakpoints(stable - 1 if prompts else None, tuple(mark for mark in marks if mark >= 0))


def prefix_of(record: Record) -> Prefix:
    """Compare the prompt to send with the one before it in the ledger."""
    last = record.last
    if last is None or record.error is not None or record.spared is not None:
        return Prefix(cause=PrefixBreak.FIRST.value if last is None else None)
    prompts, before = record.prompts_out, last.prompts
    previous = sum(map(_size, before)) + last.kept.history.view_size(last.kept)
    if record.context.tools != last.tools:  # providers render the schemas in front of everything else
        return Prefix(previous_bytes=previous, cause=PrefixBreak.PROMPT_CHANGED.value)
    whole = 0
    for one, other in zip(prompts, before, strict=False):
        if one != other:
            break
        whole += 1
    size = sum(map(_size, prompts[:whole]))
    tokens = record.prompt_tokens(prompts if whole == len(prompts) else prompts[:whole])
    tokens += record.meter.tools(record.context.tools)
    events = 0
    cause: str | None = None
    if whole < len(before) or whole < len(prompts):
        if whole < min(len(before), len(prompts)):
            size += _size(_common_beginning(prompts[whole], before[whole]))
        cause = PrefixBreak.PROMPT_CHANGED.value if whole < len(before) or last.kept else None
    else:
        events = shared_prefix(record.view_out, last.kept)
        shared = record.view_out.pick([(0, events)])
        record.count(shared)
        size += shared.history.view_size(shared)
        tokens += record.items_tokens(shared)
        if events < len(last.kept):
            cause = _cause(record, last, events)
    return Prefix(tokens, size, previous, whole, events, cause)


def _cause(record: Record, last: Snapshot, at: int) -> str:
    """Why the item at index `at` of the previous prompt is not there, or is not what is there now."""
    kept, view = last.kept, record.view_out
    old, new = kept.position(at), view.position(at) if at < len(view) else -1
    item, entrant = last.frame.ordinals.of(old), record.frame_out.ordinals.of(new) if new >= 0 else -1
    if entrant == item:
        return PrefixBreak.EVENT_CHANGED.value
    for step in record.steps:
        for group in step.groups:
            if _holds(group, kept, old, item):
                return (
                    PrefixBreak.COMPACTED.value
                    if group.outcome is DecisionOutcome.COMPACTED
                    else PrefixBreak.CUT_MOVED.value
                )
        summarises = any(group.outcome is DecisionOutcome.COMPACTED for group in step.groups)
        before = last.made[step.index] if last.did(step.index, step.policy) else ()
        if summarises and (item in {ordinal for _, ordinal in before} or entrant in step.injected):
            return PrefixBreak.COMPACTED.value
    if all(ordinal != item for ordinal in record.frame_out.of(view)):
        return PrefixBreak.EVENT_CHANGED.value
    if any(ordinal == entrant for ordinal in last.frame.of(kept)):
        return PrefixBreak.REORDERED.value
    out_before = any(_holds(group, view, new, entrant) for groups in last.groups for group in groups)
    return PrefixBreak.CUT_MOVED.value if out_before else PrefixBreak.EVENT_CHANGED.value


def _holds(group: Group, view: View, position: int, item: int) -> bool:
    """Whether a group has the item that stands at a position of the view's history."""
    if group.view.history is view.history:
        return group.view.holds(position)
    return any(map(group.view.holds, group.frame.ordinals.find([item])))


def prefix_hash(record: Record, prefix: Prefix) -> str:
    """16 hex digits that stand for the text of a prefix, equal in every process."""
    shared = record.view_out.pick([(0, prefix.events)])
    held = record.ledger.prefix
    prompts = record.prompts_out[: prefix.prompts]
    if held is None or not held.begins(prompts, shared):
        held = PrefixHash(prompts)
    held = record.ledger.prefix = held.upto(shared)
    return held.digest


def _common_beginning(one: str, other: str) -> str:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return one[:low]


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
