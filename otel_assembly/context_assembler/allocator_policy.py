"""`AllocatorPolicy`: runs the allocator as the policy of an ordinary assembly.

The assembly's events are the items of blocks. So the ledger, the spans and `explain` work for the items of blocks as
for the messages of a conversation.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from otel_assembly._internal.fork_safety import new_lock
from otel_assembly.assembler import Assembler
from otel_assembly.budget.allocator import run_plan_async
from otel_assembly.budget.measure import Measure, meter_of_blocks
from otel_assembly.budget.ordering import OrderedPrompt, order_for_attention_and_cache
from otel_assembly.budget.plan import plan
from otel_assembly.budget.reports import report_of
from otel_assembly.context_assembler.block_event import BlockEvent, facts_in
from otel_assembly.context_assembler.compaction_cache import CompactionResults, compact_with_cache
from otel_assembly.context_assembler.gather import error_type_of
from otel_assembly.context_assembler.layout import Layout, PreviousEvents
from otel_assembly.decision import Compaction, DecisionOutcome, DecisionReason, Outcome, Verdict
from otel_assembly.history.token_counts import arrive
from otel_assembly.history.view import Range, View, difference, merged, to_ranges
from otel_assembly.messages.provider_rules import rules_for
from otel_assembly.policies.base import REDUCTION, DecidingPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.assembly import Assembly
    from otel_assembly.budget.allocation import Allocation, DecidedBlock
    from otel_assembly.budget.compaction import Compactors
    from otel_assembly.budget.ordering import Order
    from otel_assembly.chain.open_assembly import OpenAssembly
    from otel_assembly.context import Context
    from otel_assembly.decision import BudgetReport
    from otel_assembly.errors import SourceFailedError
    from otel_assembly.ledger.ledger import Ledger
    from otel_assembly.ledger.record import Record
    from otel_assembly.messages.provider_rules import ClientRules
    from otel_assembly.tokens import TokenCounter, TokenMeter


@dataclass(slots=True)
class BlockSession:
    """The input and the result of one run of `AllocatorPolicy`.

    Attributes:
        layout: The blocks, and the positions of their items among the assembly's events.
        cache: Texts of the conversation that were shortened on earlier turns.
        lay_out: Creates the layout again, after a turn was changed in place.
        result: The allocation and the ordered prompt; None until the policy has run.
    """

    layout: Layout
    cache: CompactionResults
    lay_out: Callable[[], Layout]
    result: tuple[Allocation, OrderedPrompt] | None = None


#: Passes the session from `ContextAssembler.assemble` to the policy; the caller reads the result from it.
block_session: ContextVar[BlockSession | None] = ContextVar("otel_assembly_block_session", default=None)


class AllocatorPolicy(DecidingPolicy):
    """A policy that selects the items of blocks that fit in the budget, and orders them. The events are these items.

    Args:
        window: The model's window, in tokens.
        output_reserve: Tokens kept free for the reply.
        compactors: Shorten the texts that do not fit.
        order: The order of the prompt: ``attention`` or ``cache``.
    """

    name: str = "allocator"
    kind: str = REDUCTION

    def __init__(self, window: int, output_reserve: int, compactors: Compactors, order: Order) -> None:
        self._window = window
        self._output_reserve = output_reserve
        self._compactors = compactors
        self._order = order

    @property
    def config(self) -> Mapping[str, int | float | bool | str | None]:
        """The settings that the policy's span records."""
        return {"window": self._window, "output_reserve": self._output_reserve}

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Run the allocator, and return the items that fit in the order of the prompt, with a verdict on each item.

        Raises:
            ContextOverflowError: The content that cannot be cut does not fit.
        """
        session = block_session.get()
        if session is None:
            raise AssertionError("AllocatorPolicy runs only in a ContextAssembler")
        layout = session.layout
        measure = Measure(context.meter, framed=True)
        schemas = context.meter.tools(context.tools)
        measure.priming += schemas
        steps = plan(
            layout.blocks,
            self._window,
            self._output_reserve,
            measure,
            schemas=schemas,
            user_first=lambda form: rules_for(context.provider, form, context.model).is_user_first,
            read=layout.read,
        )
        answer = compact_with_cache(self._compactors, lambda block: context.watch(block.kind.value), session.cache)
        allocation = await run_plan_async(steps, answer)
        prompt = order_for_attention_and_cache(allocation, order=self._order)
        session.result = allocation, prompt
        decided = allocation.decided
        sent, shortened = _sent(prompt, layout, decided)
        ranges = [found for found in sent if not isinstance(found, BlockEvent)]
        in_order = (
            not shortened
            and all(stop <= start for (_, stop), (start, _) in pairwise(ranges))
            and layout.keeps_echoed_events({block.read.block.name: _ranges(block.outcome.kept) for block in decided})
        )
        pick = (
            partial(_view_at, events) if in_order and isinstance(events, View) else partial(_events_at, layout.events)
        )
        return Outcome(
            prompts=prompts,
            events=pick(ranges) if in_order else _events_of(sent, layout),
            decisions=[
                Verdict(pick(positions), outcome, reason, shortened.get(into) if into is not None else None)
                for (outcome, reason, into), positions in _ranges_by_outcome(decided, layout).items()
            ],
            budget=allocation.budget,
            fixed=allocation.fixed,
            report=_report(allocation, layout) if context.is_enabled else None,
            compactions=[
                Compaction(
                    _events_at(layout.events, _compacted_ranges(block, layout)),
                    shortened.get(block.read.block.name),
                    block.outcome.attempts,
                )
                for block in decided
                if block.outcome.attempts
            ],
            framing=sum([block.outcome.rendered.framing for block in decided]),
            separators=allocation.separators,
            around_in=sum([block.whole.framing + block.whole.separators for block in decided]),
        )


def _view_at(view: View, ranges: Sequence[Range]) -> View:
    """Return the events at these positions, without tool calls or results whose counterpart is not among them."""
    return view.pick(ranges, is_slice=False)


def _events_at(events: Sequence[Any], ranges: Sequence[Range]) -> list[Any]:
    return [event for start, stop in ranges for event in events[start:stop]]


def _report(allocation: Allocation, layout: Layout) -> BudgetReport:
    """Return the report of an allocation for its span, with the events of each block as its items."""
    report = report_of(allocation)
    entries = (
        replace(entry, items=list(map(layout.events.__getitem__, layout.places.get(entry.name, ()))))
        for entry in report.entries
    )
    return replace(report, entries=tuple(entries))


def _sent(
    prompt: OrderedPrompt, layout: Layout, decided: Sequence[DecidedBlock]
) -> tuple[list[Range | BlockEvent], dict[str, BlockEvent]]:
    """Find the events of a prompt's items.

    Returns:
        The ranges of positions in the policy's input, in the order of the prompt, with a new event for each shortened
        text; and these events by the block's name.
    """
    decided_by_name = {block.read.block.name: block for block in decided}
    sent: list[Range | BlockEvent] = []
    shortened: dict[str, BlockEvent] = {}
    for block in prompt:
        read, outcome = decided_by_name[block.name].read, decided_by_name[block.name].outcome
        if block is outcome.result and outcome.made is None:
            sent += layout.ranges(block, _ranges(outcome.kept))
            continue
        positions = layout.places.get(block.name, ())
        places = {id(read.items[index]): positions[index] for index in outcome.kept}
        for item in block.items:
            position = places.get(id(item))
            if position is None:
                sent.append(shortened.setdefault(block.name, BlockEvent(item, facts_in(block, item))))
            else:
                sent.append((position, position + 1))
    return sent, shortened


def _events_of(sent: Sequence[Range | BlockEvent], layout: Layout) -> list[Any]:
    """Return the events that `_sent` found."""
    events: list[Any] = []
    for found in sent:
        events += [found] if isinstance(found, BlockEvent) else layout.events[found[0] : found[1]]
    return events


def _ranges(indexes: Sequence[int]) -> list[Range]:
    if isinstance(indexes, range):
        return [(indexes.start, indexes.stop)] if indexes else []
    return to_ranges(indexes)


def _ranges_by_outcome(
    decided: Sequence[DecidedBlock], layout: Layout
) -> dict[tuple[DecisionOutcome, DecisionReason, str | None], list[Range]]:
    """Group the positions of items by their outcome, their reason, and the block whose shortened text replaces them.

    Items that are kept because they fit are not included.
    """
    by_outcome: dict[tuple[DecisionOutcome, DecisionReason, str | None], list[Range]] = {}
    for decided_block in decided:
        block = decided_block.read.block
        for (outcome, reason), ranges in _block_ranges_by_outcome(decided_block).items():
            into = block.name if outcome is DecisionOutcome.COMPACTED else None
            by_outcome.setdefault((outcome, reason, into), []).extend(layout.ranges(block, ranges))
    in_order = {outcome: merged(ranges) for outcome, ranges in by_outcome.items()}
    return dict(sorted(in_order.items(), key=lambda entry: entry[1][0]))


def _block_ranges_by_outcome(decided: DecidedBlock) -> dict[tuple[DecisionOutcome, DecisionReason], list[Range]]:
    item_outcomes, count = decided.outcome.item_outcomes, len(decided.read.items)
    kept = _ranges(decided.outcome.kept)
    indexes_by_outcome: dict[tuple[DecisionOutcome, DecisionReason], list[int]] = {}
    for index in sorted(item_outcomes):
        indexes_by_outcome.setdefault(item_outcomes[index][:2], []).append(index)
    by_outcome = {outcome: to_ranges(indexes) for outcome, indexes in indexes_by_outcome.items()}
    listed = merged((index, index + 1) for index in item_outcomes)
    parts = [(decided.outcome.rest_outcome(), difference([(0, count)], merged([*kept, *listed])))]
    if decided.kept_reason is not DecisionReason.FITS:
        parts.append(((DecisionOutcome.KEPT, decided.kept_reason), difference(kept, listed)))
    for outcome, ranges in parts:
        if ranges:
            by_outcome[outcome] = [*by_outcome.get(outcome, ()), *ranges]
    return by_outcome


def _compacted_ranges(decided: DecidedBlock, layout: Layout) -> list[Range]:
    """Return the positions of a block's items that a shortened text replaces."""
    block, compacted = decided.read.block, list[Range]()
    for (outcome, _), ranges in _block_ranges_by_outcome(decided).items():
        if outcome is DecisionOutcome.COMPACTED:
            compacted += layout.ranges(block, ranges)
    return merged(compacted)


class ConversationCache:
    """The data of one conversation that is cached from task to task.

    Args:
        step_tokens: The size of a step of stepwise cutting; see `in_steps`.

    Attributes:
        compactions: The shortened texts.
        events: The events of the previous task.
    """

    def __init__(self, step_tokens: int) -> None:
        self.compactions = CompactionResults()
        self.events = PreviousEvents(step_tokens)


class BlockAssembler(Assembler):
    """An `Assembler` whose events are the items of blocks.

    Args:
        step_tokens: The size of a step of stepwise cutting; see `in_steps`.
    """

    def __init__(self, *arguments: Any, step_tokens: int, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._step_tokens = step_tokens
        self._lock = new_lock()
        self._caches: WeakKeyDictionary[Ledger, ConversationCache] = WeakKeyDictionary()

    def cache_of(self, context: Context) -> ConversationCache:
        """Return the cache of a conversation, which exists as long as the conversation's ledger."""
        ledger = self._ledger((), context)
        with self._lock:
            cache = self._caches.get(ledger)
            if cache is None:
                cache = self._caches[ledger] = ConversationCache(self._step_tokens)
            return cache

    async def _arrive(self, view: View, meter: TokenMeter, *, in_place: bool) -> None:
        """Count the tokens of new turns before the policy runs; the allocator itself counts all other content."""
        session = block_session.get()
        turns = session.layout.turns if session is not None else None
        if turns is not None:
            await arrive(turns, meter, in_place=in_place)

    def _is_current(self, record: Record) -> bool:
        session = block_session.get()
        if session is None or session.result is None:
            return True
        decided = session.result[0].decided
        return session.layout.is_current({block.read.block.name: _ranges(block.outcome.kept) for block in decided})

    async def _start_again(
        self, assembly: OpenAssembly, prompts: Sequence[str], events: Sequence[Any], context: Context
    ) -> Assembly:
        session = block_session.get()
        if session is not None:
            session.layout, session.result = session.lay_out(), None
            events = session.layout.events
        return await super()._start_again(assembly, prompts, events, context)

    def record_failures(self, failures: Sequence[SourceFailedError], context: Context) -> None:
        """Record failed sources, with the type of each error."""
        for failure in failures:
            self.recorder.source_failed(failure.role, failure.source, error_type_of(failure), context.agent_name)

    def _new_meter(self, counter: TokenCounter, rules: ClientRules) -> TokenMeter:
        return meter_of_blocks(counter, self.framing.for_client(rules, counter.count))
