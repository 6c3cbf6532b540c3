"""The allocator as the policy of an ordinary assembly, whose events are the items of blocks, each at its place.

So there is one ledger, one set of spans and one way to explain: what holds of events holds of what blocks hold.
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
from otel_assembly.context_assembler.compaction_cache import KeptCompactions, answered_keeping
from otel_assembly.context_assembler.gather import error_type_of
from otel_assembly.context_assembler.layout import KnownEvents, Layout
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
    """What an assembly goes by and comes to, beside what its record says.

    Attributes:
        layout: The blocks, and where their items stand among the events.
        kept: What compaction made on the turns before.
        result: What the allocation came to; None until it has.
    """

    layout: Layout
    kept: KeptCompactions
    result: tuple[Allocation, OrderedPrompt] | None = None


#: Where the allocation of the assembly that runs in this task is put for whoever started it.
block_session: ContextVar[BlockSession | None] = ContextVar("otel_assembly_block_session", default=None)


class AllocatorPolicy(DecidingPolicy):
    """Allocates the blocks that its events are items of, and puts what is left in order.

    Args:
        window: The model's window, in tokens.
        output_reserve: Tokens kept free for the reply.
        compactors: What makes a text shorter.
        order: Whom the order of the prompt serves.
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
        """Return what fits, in the order in which it is sent, and why the rest does not.

        Raises:
            ContextOverflowError: What may not be cut does not fit.
        """
        session = block_session.get()
        if session is None:
            raise AssertionError("an allocator decides on what a ContextAssembler has laid out")
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
        answer = answered_keeping(self._compactors, lambda block: context.watch(block.kind.value), session.kept)
        allocation = await run_plan_async(steps, answer)
        prompt = order_for_attention_and_cache(allocation, order=self._order)
        session.result = allocation, prompt
        decided = allocation.decided
        sent, indexes, made = _sent(prompt, layout, decided)
        kept = {one.read.block.name: to_runs(one.outcome.kept) for one in decided}
        in_order = not made and all(map(lt, indexes, indexes[1:])) and layout.echoes_stand(kept)
        pick = partial(_part_of, events) if in_order and isinstance(events, View) else partial(_listed, layout.events)
        return Outcome(
            prompts=prompts,
            events=pick(to_runs(indexes)) if in_order else sent,
            decisions=[
                Verdict(pick(runs), outcome, reason, made.get(into) if into is not None else None)
                for (outcome, reason, into), runs in _fates(decided, layout).items()
            ],
            budget=allocation.budget,
            fixed=allocation.fixed,
            report=_report(allocation, layout) if context.listening else None,
            compactions=[
                Compaction(
                    _listed(layout.events, _compacted(one, layout)), made.get(one.read.block.name), one.outcome.attempts
                )
                for one in decided
                if one.outcome.attempts
            ],
            framing=sum([one.outcome.rendered.framing for one in decided]),
            separators=allocation.separators,
            around_in=sum([one.whole.framing + one.whole.separators for one in decided]),
        )


def _part_of(view: View, runs: Sequence[Run]) -> View:
    """A part of what went in, in which whatever was parted has left."""
    return view.pick(runs).mended()


def _listed(events: Sequence[Any], runs: Sequence[Run]) -> list[Any]:
    return [event for start, stop in runs for event in events[start:stop]]


def _report(allocation: Allocation, layout: Layout) -> BudgetReport:
    """The allocation in numbers, with the events that each block's items are."""
    report = report_of(allocation)
    entries = (
        replace(entry, items=list(map(layout.events.__getitem__, layout.places.get(entry.name, ()))))
        for entry in report.entries
    )
    return replace(report, entries=tuple(entries))


def _sent(
    prompt: OrderedPrompt, layout: Layout, decided: Sequence[DecidedBlock]
) -> tuple[list[Any], list[int], dict[str, BlockEvent]]:
    """The items of a prompt in its order, where they stand among the events, and what compaction made, by block."""
    places: dict[int, int] = {}
    for one in decided:
        held = layout.places.get(one.read.block.name, ())
        places.update((id(one.read.items[index]), held[index]) for index in one.outcome.kept)
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


def _fates(
    decided: Sequence[DecidedBlock], layout: Layout
) -> dict[tuple[DecisionOutcome, DecisionReason, str | None], list[Run]]:
    """What became of the items, and which: those of which somebody says anything but that they fit."""
    fates: dict[tuple[DecisionOutcome, DecisionReason, str | None], list[Run]] = {}
    for one in decided:
        for (outcome, reason), runs in _fates_in(one).items():
            into = one.read.block.name if outcome is DecisionOutcome.COMPACTED else None
            fates.setdefault((outcome, reason, into), []).extend(layout.runs(one.read.block, runs))
    merged_fates = {fate: merged(runs) for fate, runs in fates.items()}
    return dict(sorted(merged_fates.items(), key=lambda fate: fate[1][0]))


def _fates_in(one: DecidedBlock) -> dict[tuple[DecisionOutcome, DecisionReason], list[Run]]:
    said, count = one.outcome.item_outcomes, len(one.read.items)
    stays = to_runs(one.outcome.kept)
    by_fate: dict[tuple[DecisionOutcome, DecisionReason], list[int]] = {}
    for index in sorted(said):
        by_fate.setdefault(said[index][:2], []).append(index)
    fates = {fate: to_runs(indexes) for fate, indexes in by_fate.items()}
    spoken = merged((index, index + 1) for index in said)
    parts = [(one.outcome.rest_outcome(), complement(count, merged([*stays, *spoken])))]
    if one.kept_reason is not DecisionReason.FITS:  # what nobody says anything else of
        parts.append(((DecisionOutcome.KEPT, one.kept_reason), difference(stays, spoken)))
    for fate, runs in parts:
        if runs:
            fates[fate] = [*fates.get(fate, ()), *runs]
    return fates


def _compacted(one: DecidedBlock, layout: Layout) -> list[Run]:
    """The events for which what compaction made of a block stands."""
    compacted = [runs for (outcome, _), runs in _fates_in(one).items() if outcome is DecisionOutcome.COMPACTED]
    return merged(run for runs in compacted for run in layout.runs(one.read.block, runs))


class Kept:
    """What is kept of one conversation from question to question.

    Args:
        step_tokens: Tokens of a step of turns.

    Attributes:
        compactions: What compaction made.
        events: The events of the last question.
    """

    def __init__(self, step_tokens: int) -> None:
        self.compactions = KeptCompactions()
        self.events = KnownEvents(step_tokens)


class BlockAssembler(Assembler):
    """Assembles blocks that are laid out as events.

    Args:
        step_tokens: Tokens of a step of turns.
    """

    def __init__(self, *given: Any, step_tokens: int, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self._step_tokens = step_tokens
        self._lock = new_lock()
        self._kept: WeakKeyDictionary[Ledger, Kept] = WeakKeyDictionary()

    def kept(self, context: Context) -> Kept:
        """What is kept of a conversation; it goes with the conversation's ledger."""
        ledger = self._ledger((), context)
        with self._lock:
            kept = self._kept.get(ledger)
            if kept is None:
                kept = self._kept[ledger] = Kept(self._step_tokens)
            return kept

    async def _arrive(self, view: View, meter: TokenMeter) -> None:
        """Count the turns that are new; the allocator counts whatever else it decides on."""
        session = block_session.get()
        turns = session.layout.turns if session is not None else None
        if turns is not None:
            await arrive(turns, meter)

    def tell_failures(self, failures: Sequence[SourceFailedError], context: Context) -> None:
        """Let whoever watches know of the sources that failed."""
        for one in failures:
            self._recorded_by().source_failed(one.role, one.source, error_type_of(one), context.agent_name)

    def _new_meter(self, counter: TokenCounter, client: ClientRules) -> TokenMeter:
        return meter_of_blocks(counter, self.framing.for_client(client, counter.count))
