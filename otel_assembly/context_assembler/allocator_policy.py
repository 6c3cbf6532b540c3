"""The allocator as the policy of an ordinary assembly.

The assembly's events are the items of blocks. So the ledger, the spans and `explain` treat a block's items as they
treat any event.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from operator import lt
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from otel_assembly._internal.forks import new_lock
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
from otel_assembly.history.view import Run, View, complement, difference, merged, to_runs
from otel_assembly.messages.provider_rules import rules_for
from otel_assembly.policies.base import REDUCTION, DecidingPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.budget.allocation import Allocation, DecidedBlock
    from otel_assembly.budget.compaction import Compactors
    from otel_assembly.budget.ordering import Order
    from otel_assembly.context import Context
    from otel_assembly.decision import BudgetReport
    from otel_assembly.errors import SourceFailedError
    from otel_assembly.ledger.ledger import Ledger
    from otel_assembly.messages.provider_rules import ClientRules
    from otel_assembly.tokens import TokenCounter, TokenMeter


@dataclass(slots=True)
class BlockSession:
    """The input and the result of one assembly of blocks.

    Attributes:
        layout: The blocks, and the positions of their items among the events.
        cache: The results of earlier compactions.
        result: The allocation and the prompt; None until the policy has run.
    """

    layout: Layout
    cache: CompactionResults
    result: tuple[Allocation, OrderedPrompt] | None = None


#: The session of the assembly in the current task, from which the caller reads the result.
block_session: ContextVar[BlockSession | None] = ContextVar("otel_assembly_block_session", default=None)


class AllocatorPolicy(DecidingPolicy):
    """Allocate the blocks whose items are the events, and order the result.

    Args:
        window: The model's window, in tokens.
        output_reserve: Tokens kept free for the reply.
        compactors: Shorten texts.
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
        """The settings, for the span."""
        return {"window": self._window, "output_reserve": self._output_reserve}

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return the items that fit, in the order of the prompt.

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
        sent, indexes, made = _sent(prompt, layout, decided)
        kept = {block.read.block.name: to_runs(block.outcome.kept) for block in decided}
        in_order = not made and all(map(lt, indexes, indexes[1:])) and layout.keeps_echoed_events(kept)
        pick = partial(_part_of, events) if in_order and isinstance(events, View) else partial(_listed, layout.events)
        return Outcome(
            prompts=prompts,
            events=pick(to_runs(indexes)) if in_order else sent,
            decisions=[
                Verdict(pick(runs), outcome, reason, made.get(into) if into is not None else None)
                for (outcome, reason, into), runs in _runs_by_outcome(decided, layout).items()
            ],
            budget=allocation.budget,
            fixed=allocation.fixed,
            report=_report(allocation, layout) if context.listening else None,
            compactions=[
                Compaction(
                    _listed(layout.events, _compacted(block, layout)),
                    made.get(block.read.block.name),
                    block.outcome.attempts,
                )
                for block in decided
                if block.outcome.attempts
            ],
            framing=sum([block.outcome.rendered.framing for block in decided]),
            separators=allocation.separators,
            around_in=sum([block.whole.framing + block.whole.separators for block in decided]),
        )


def _part_of(view: View, runs: Sequence[Run]) -> View:
    """Return a part of the input without items of separated pairs."""
    return view.pick(runs).mended()


def _listed(events: Sequence[Any], runs: Sequence[Run]) -> list[Any]:
    return [event for start, stop in runs for event in events[start:stop]]


def _report(allocation: Allocation, layout: Layout) -> BudgetReport:
    """Return the allocation in numbers, with the events of each block."""
    report = report_of(allocation)
    entries = (
        replace(entry, items=list(map(layout.events.__getitem__, layout.places.get(entry.name, ()))))
        for entry in report.entries
    )
    return replace(report, entries=tuple(entries))


def _sent(
    prompt: OrderedPrompt, layout: Layout, decided: Sequence[DecidedBlock]
) -> tuple[list[Any], list[int], dict[str, BlockEvent]]:
    """Return the items of a prompt in its order.

    Returns:
        The events, their positions among the input (−1 for a compacted text), and the compacted text of each block.
    """
    places: dict[int, int] = {}
    for decided_block in decided:
        of_block = layout.places.get(decided_block.read.block.name, ())
        kept = decided_block.outcome.kept
        places.update((id(decided_block.read.items[index]), of_block[index]) for index in kept)
    sent: list[Any] = []
    indexes: list[int] = []
    made: dict[str, BlockEvent] = {}
    for block in prompt:
        for item in block.items:
            at = places.get(id(item))
            if at is None:
                made[block.name] = BlockEvent(item, facts_in(block, item))
            sent.append(made[block.name] if at is None else layout.events[at])
            indexes.append(-1 if at is None else at)
    return sent, indexes, made


def _runs_by_outcome(
    decided: Sequence[DecidedBlock], layout: Layout
) -> dict[tuple[DecisionOutcome, DecisionReason, str | None], list[Run]]:
    """Return the positions of items by outcome.

    The key is an outcome, a reason, and the block of a compacted text. Items that are kept because they fit are not
    included.
    """
    by_outcome: dict[tuple[DecisionOutcome, DecisionReason, str | None], list[Run]] = {}
    for decided_block in decided:
        block = decided_block.read.block
        for (outcome, reason), runs in _block_runs_by_outcome(decided_block).items():
            into = block.name if outcome is DecisionOutcome.COMPACTED else None
            by_outcome.setdefault((outcome, reason, into), []).extend(layout.runs(block, runs))
    in_order = {outcome: merged(runs) for outcome, runs in by_outcome.items()}
    return dict(sorted(in_order.items(), key=lambda entry: entry[1][0]))


def _block_runs_by_outcome(decided: DecidedBlock) -> dict[tuple[DecisionOutcome, DecisionReason], list[Run]]:
    item_outcomes, count = decided.outcome.item_outcomes, len(decided.read.items)
    kept = to_runs(decided.outcome.kept)
    indexes_by_outcome: dict[tuple[DecisionOutcome, DecisionReason], list[int]] = {}
    for index in sorted(item_outcomes):
        indexes_by_outcome.setdefault(item_outcomes[index][:2], []).append(index)
    by_outcome = {outcome: to_runs(indexes) for outcome, indexes in indexes_by_outcome.items()}
    listed = merged((index, index + 1) for index in item_outcomes)
    parts = [(decided.outcome.rest_outcome(), complement(count, merged([*kept, *listed])))]
    if decided.kept_reason is not DecisionReason.FITS:
        parts.append(((DecisionOutcome.KEPT, decided.kept_reason), difference(kept, listed)))
    for outcome, runs in parts:
        if runs:
            by_outcome[outcome] = [*by_outcome.get(outcome, ()), *runs]
    return by_outcome


def _compacted(decided: DecidedBlock, layout: Layout) -> list[Run]:
    """Return the positions of a block's items that a compacted text replaces."""
    compacted = [
        runs for (outcome, _), runs in _block_runs_by_outcome(decided).items() if outcome is DecisionOutcome.COMPACTED
    ]
    return merged(run for runs in compacted for run in layout.runs(decided.read.block, runs))


class ConversationCache:
    """The state that one conversation keeps from task to task.

    Args:
        step_tokens: The tokens of a step of turns.

    Attributes:
        compactions: The results of compactions.
        events: The events of the last task.
    """

    def __init__(self, step_tokens: int) -> None:
        self.compactions = CompactionResults()
        self.events = PreviousEvents(step_tokens)


class BlockAssembler(Assembler):
    """Assembles blocks that are laid out as events.

    Args:
        step_tokens: The tokens of a step of turns.
    """

    def __init__(self, *arguments: Any, step_tokens: int, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._step_tokens = step_tokens
        self._lock = new_lock()
        self._caches: WeakKeyDictionary[Ledger, ConversationCache] = WeakKeyDictionary()

    def cache_of(self, context: Context) -> ConversationCache:
        """Return the cache of a conversation; it lives as long as the conversation's ledger."""
        ledger = self._ledger((), context)
        with self._lock:
            cache = self._caches.get(ledger)
            if cache is None:
                cache = self._caches[ledger] = ConversationCache(self._step_tokens)
            return cache

    async def _arrive(self, view: View, meter: TokenMeter) -> None:
        """Count the tokens of new turns; the allocator counts everything else."""
        session = block_session.get()
        turns = session.layout.turns if session is not None else None
        if turns is not None:
            await arrive(turns, meter)

    def record_failures(self, failures: Sequence[SourceFailedError], context: Context) -> None:
        """Report failed sources to the recorder."""
        for failure in failures:
            self._recorded_by().source_failed(failure.role, failure.source, error_type_of(failure), context.agent_name)

    def _new_meter(self, counter: TokenCounter, client: ClientRules) -> TokenMeter:
        return meter_of_blocks(counter, self.framing.for_client(client, counter.count))
