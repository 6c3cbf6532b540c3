"""An assembly in numbers, and what its prompt begins with in common with the previous one."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from otel_assembly.decision import DecisionOutcome, PrefixBreak, PromptPart
from otel_assembly.history.history import KINDS, text_digest
from otel_assembly.history.tool_pairs import ECHO
from otel_assembly.ledger.record import Breakpoints, Prefix, StepTotals, Totals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.history.history import History
    from otel_assembly.history.token_counts import TokenTable
    from otel_assembly.history.view import View
    from otel_assembly.ledger.record import Record
    from otel_assembly.ledger.snapshot import ItemGroup, Snapshot, Step


class Sums:
    """Tokens of what one assembly passes on: of a view that one step lets out and the next takes in, they are one sum.

    A sum is remembered by the identity of what was summed, so that it must not outlive the record.
    """

    __slots__ = ("_around", "_items", "_meter", "_prompts", "_tables")

    def __init__(self, record: Record) -> None:
        self._meter = record.meter
        self._around = record.meter.priming + record.meter.tools(record.context.tools)
        self._tables: dict[int, TokenTable] = {}
        self._items: dict[int, int] = {}
        self._prompts: dict[int, int] = {}

    def items(self, view: View) -> int:
        """Tokens of a view's items."""
        tokens = self._items.get(id(view))
        if tokens is None:
            history = view.history
            table = self._tables.get(id(history))
            if table is None:
                table = self._tables[id(history)] = history.table(self._meter)
            tokens = self._items[id(view)] = table.sum(view)
        return tokens

    def rendered(self, prompts: tuple[str, ...], view: View) -> int:
        """Tokens of a rendered prompt."""
        tokens = self._prompts.get(id(prompts))
        if tokens is None:
            tokens = self._prompts[id(prompts)] = sum(map(self._meter.prompt, prompts))
        return self._around + tokens + self.items(view)


def totals_of(record: Record) -> Totals:
    """The numbers of an assembly, worked out once; what will be sent is counted where it had an estimate."""
    if record.totals is None:
        record.count_sent()
        sums = Sums(record)
        record.step_totals = [_step_totals(record, step, sums) for step in record.steps]
        record.totals = _totals(record, sums)
    return record.totals


def _step_totals(record: Record, step: Step, sums: Sums) -> StepTotals:
    dropped = dropped_tokens = compacted = compacted_tokens = injected = injected_tokens = 0
    tokens_in = sums.rendered(step.prompts_in, step.view_in) + step.around_in
    if step.error is not None and record.error is not None:
        # A policy that raised and was skipped let everything through; this one let nothing.
        return StepTotals(tokens_in, 0, 0, 0, len(step.view_in), sums.items(step.view_in), 0, 0)
    for group in step.exits:
        if group.outcome is DecisionOutcome.DROPPED:
            dropped += len(group.view)
            dropped_tokens += sums.items(group.view)
        else:
            compacted += len(group.view)
            compacted_tokens += sums.items(group.view)
    if step.created:
        made = set(step.injected)
        item_id = step.numbered_out.item_ids.of
        table = record.table(step.view_out)
        for position in step.view_out.positions():
            if item_id(position) in made:
                injected += 1
                injected_tokens += table.known(position)
    tokens_out = sums.rendered(step.prompts_out, step.view_out) + step.framing + step.separators
    return StepTotals(
        tokens_in, tokens_out, injected, injected_tokens, dropped, dropped_tokens, compacted, compacted_tokens
    )


def _totals(record: Record, sums: Sums) -> Totals:
    view_in, view_out = record.ledger_input.view, record.view_out
    sent = record.error is None
    budget = fixed = None
    for step in record.steps:
        if step.budget is not None and (budget is None or step.budget < budget):
            budget, fixed = step.budget, step.fixed
    if not sent and record.overflow is not None and record.overflow.unit == "tokens":
        budget = record.overflow.budget
    injected, injected_tokens, dropped, dropped_tokens, compacted, compacted_tokens = (
        _flow(record) if sent else (0, 0, len(view_in), sums.items(view_in), 0, 0)
    )
    around_in = sum([step.around_in for step in record.steps])
    around_out = sum([step.framing + step.separators for step in record.steps])
    return Totals(
        tokens_in=sums.rendered(record.prompts_in, view_in) + around_in,
        estimated_in=record.table(view_in).estimates(view_in),
        tokens_out=sums.rendered(record.prompts_out, view_out) + around_out if sent else 0,
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
        alerts_delivered=sum([len(step.alerts) for step in record.steps]) if sent else 0,
        halts_emitted=max(record.context.halts_emitted, sum([step.halts for step in record.steps])),
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
        steps = record.step_totals
        return (
            0,
            0,
            sum([step.dropped for step in steps]),
            sum([step.dropped_tokens for step in steps]),
            sum([step.compacted for step in steps]),
            sum([step.compacted_tokens for step in steps]),
        )
    # Whatever stands in an assembly came in, or a step of it made it.
    made = record.made
    injected = record.view_out.pick_positions(
        position for position in record.view_out.positions() if record.numbered_out.item_ids.of(position) in made
    )
    left = {outcome: [0, 0] for outcome in (DecisionOutcome.DROPPED, DecisionOutcome.COMPACTED)}
    for step in record.steps:
        for group in record.gone(step):
            if group.numbered is record.ledger_input.numbered:
                left[group.outcome][0] += len(group.view)
                left[group.outcome][1] += record.items_tokens(group.view)
                continue
            table = record.table(group.view)
            for position in group.view.positions():
                if group.numbered.item_ids.of(position) not in made:
                    left[group.outcome][0] += 1
                    left[group.outcome][1] += table.known(position)
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
    table = record.table(view)
    if last is not None and last.kinds is not None and last.kept.history is history and last.kept_table is table:
        came, went = view.minus(last.kept), last.kept.minus(view)
        if len(came) + len(went) < len(view):
            changes = zip(last.kinds, table.by_kind(came), table.by_kind(went), strict=True)
            record.kinds = [tokens + more - less for tokens, more, less in changes]
            return record.kinds
    record.kinds = table.by_kind(view)
    return record.kinds


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
        size += shared.history.view_size(shared)
        tokens += record.items_tokens(shared)
        if events < len(last.kept):
            cause = _cause(record, last, events)
    return Prefix(tokens, size, previous, whole, events, cause)


def shared_prefix(new: View, old: View) -> int:
    """How many items two views begin with that read the same: by interval as far as that goes, then by their text."""
    count = shared_positions(new, old)
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


def shared_positions(new: View, old: View) -> int:
    """How many items two views of one history begin with at the same positions, as far as their intervals tell."""
    count = 0
    for (column, start, stop), (other, low, high) in zip(new.current, old.current, strict=False):
        if column is not other or start != low:
            break
        count += min(stop, high) - start
        if stop != high:
            break
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
    kept, view = last.kept, record.view_out
    old, new = kept.position(at), view.position(at) if at < len(view) else -1
    item, entrant = last.numbered.item_ids.of(old), record.numbered_out.item_ids.of(new) if new >= 0 else -1
    if entrant == item:
        return PrefixBreak.EVENT_CHANGED.value
    for step in record.steps:
        for group in step.exits:
            if _holds(group, kept, old, item):
                return (
                    PrefixBreak.COMPACTED.value
                    if group.outcome is DecisionOutcome.COMPACTED
                    else PrefixBreak.CUT_MOVED.value
                )
        summarises = any(group.outcome is DecisionOutcome.COMPACTED for group in step.exits)
        before = last.steps[step.index].created if last.did(step.index, step.policy) else ()
        if summarises and (item in {item_id for _, item_id in before} or entrant in step.injected):
            return PrefixBreak.COMPACTED.value
    if all(item_id != item for item_id in record.numbered_out.of(view)):
        return PrefixBreak.EVENT_CHANGED.value
    if any(item_id == entrant for item_id in last.numbered.of(kept)):
        return PrefixBreak.REORDERED.value
    out_before = any(_holds(group, view, new, entrant) for group in last.gone)
    return PrefixBreak.CUT_MOVED.value if out_before else PrefixBreak.EVENT_CHANGED.value


def _holds(group: ItemGroup, view: View, position: int, item: int) -> bool:
    """Whether a group has the item that stands at a position of the view's history."""
    if group.view.history is view.history:
        return group.view.holds(position)
    return any(map(group.view.holds, group.numbered.item_ids.find([item])))


def prefix_hash(record: Record, prefix: Prefix) -> str:
    """16 hex digits that stand for the text of a prefix, equal in every process; one that only grew is read on."""
    prompts = record.prompts_out[: prefix.prompts]
    view = record.view_out.pick([(0, prefix.events)])
    hashed = record.ledger.hashed_prefix
    if hashed is not None and hashed[0] == prompts and shared_positions(view, hashed[1]) == len(hashed[1]):
        state, known = hashed[2].copy(), len(hashed[1])
    else:
        state, known = hashlib.blake2b(digest_size=8), 0
        for prompt in prompts:
            state.update(text_digest((prompt,)).to_bytes(8, "little"))
    state.update(view.history.digests(view.pick([(known, len(view))])))
    record.ledger.hashed_prefix = prompts, view, state
    digest: str = state.hexdigest()
    return digest


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
