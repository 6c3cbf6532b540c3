"""The allocator as the policy of an ordinary assembly, whose events are the items of blocks, each at its place.

So there is one ledger, one set of spans and one way to explain: what holds of events holds of what blocks hold.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from otel_assembly._internal.forks import new_lock
from otel_assembly.assembler import Assembler
from otel_assembly.budget.allocator import finished_async
from otel_assembly.budget.measure import Measure, meter_of_blocks
from otel_assembly.budget.ordering import OrderedPrompt, order_for_attention_and_cache, parts_in_order
from otel_assembly.budget.plan import plan
from otel_assembly.budget.reports import report_of
from otel_assembly.budget.sections import is_text, item_text
from otel_assembly.context_assembler.compaction_cache import KeptCompactions, answered_keeping
from otel_assembly.context_assembler.gather import error_type_of
from otel_assembly.decision import Compaction, DecisionOutcome, DecisionReason, Outcome, Verdict
from otel_assembly.history.history import text_digest
from otel_assembly.messages.describe import EventFacts, describe
from otel_assembly.policies.base import REDUCTION, DecidingPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.budget.allocation import Allocation, BlockDecision
    from otel_assembly.budget.block import Block, BlockItem
    from otel_assembly.budget.compaction import Compactors
    from otel_assembly.budget.ordering import Order
    from otel_assembly.context import Context
    from otel_assembly.decision import BudgetReport
    from otel_assembly.errors import SourceFailedError
    from otel_assembly.ledger.ledger import Ledger
    from otel_assembly.tokens import TokenCounter, TokenMeter


class BlockEvent:
    """One item of a block, as an event.

    It is described once. Across turns it is the same item where it says the same: a text by its block, source, id and
    version, wherever it stands; an event as it is itself described, also where it goes from one block to another.
    """

    __slots__ = ("block", "facts", "item", "place")

    def __init__(self, block: Block, place: int, item: BlockItem) -> None:
        self.block = block
        self.place = place
        self.item = item
        self.facts = _facts(block, item)

    @property
    def _content(self) -> tuple[Any, ...]:
        facts = self.facts
        name = facts.id if is_text(self.item) else None
        return facts.kind, name, facts.texts, tuple(facts.opens), tuple(facts.closes), facts.media_tokens

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockEvent) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    def __repr__(self) -> str:
        return f"BlockEvent({self.block.name!r}, {self.place})"


def _facts(block: Block, item: BlockItem) -> EventFacts:
    if not is_text(item):
        return describe(item.content)
    text = item_text(item)
    # The ledger's items never change: another text is another item, even if the source calls it by the same id.
    name = f"{block.name}/{item.source or ''}/{item.id or ''}/{item.version or ''}/{text_digest((text,)):016x}"
    return EventFacts(block.kind, text, id=name, framed=False)


@describe.register
def _(event: BlockEvent) -> EventFacts:
    return event.facts


def block_events(blocks: Sequence[Block], order: Order) -> list[BlockEvent]:
    """Every item of these blocks, in the order in which it would be sent if all of it fitted."""
    return [
        BlockEvent(block, place, item)
        for block, section in parts_in_order(blocks, order)
        for place, item in zip(section.items, map(block.items.__getitem__, section.items), strict=True)
    ]


@dataclass(slots=True)
class BlockSession:
    """What an assembly goes by and comes to, beside what its record says.

    Attributes:
        kept: What compaction made on the turns before.
        result: What the allocation came to; None until it has.
    """

    kept: KeptCompactions = field(default_factory=KeptCompactions)
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
        measure = Measure(context.meter, framed=True)
        schemas = context.meter.tools(context.tools)
        measure.priming += schemas
        blocks = {event.block.name: event.block for event in events}
        steps = plan(blocks.values(), self._window, self._output_reserve, measure, schemas=schemas)
        session = block_session.get() or BlockSession()
        answer = answered_keeping(self._compactors, lambda block: context.watch(block.kind.value), session.kept)
        allocation = await finished_async(steps, answer)
        prompt = order_for_attention_and_cache(allocation, order=self._order)
        known = {(event.block.name, event.place): event for event in events}
        sent, made = _sent(prompt, {id(event.item): event for event in events})
        session.result = allocation, prompt
        decisions = allocation.decisions
        alone = sum(measure.item(event.item) for event in sent)
        return Outcome(
            prompts=prompts,
            events=sent,
            decisions=list(_verdicts(decisions, known, made)),
            budget=allocation.budget,
            fixed=allocation.fixed,
            report=_report(allocation, known) if context.listening else None,
            compactions=[
                Compaction(_compacted(decision, known), made.get(decision.block.name), decision.attempts)
                for decision in decisions
                if decision.attempts
            ],
            framing=sum(decision.tokens_out for decision in decisions) - alone,
            separators=allocation.separators,
            around_in=sum(_around(decision) for decision in decisions),
        )


def _report(allocation: Allocation, known: Mapping[tuple[str, int], BlockEvent]) -> BudgetReport:
    """The allocation in numbers, with the events that each block's items are."""
    report = report_of(allocation)
    entries = (replace(entry, items=[known[entry.name, place] for place in entry.items]) for entry in report.entries)
    return replace(report, entries=tuple(entries))


def _sent(prompt: OrderedPrompt, known: Mapping[int, BlockEvent]) -> tuple[list[BlockEvent], dict[str, BlockEvent]]:
    """The items of a prompt in its order, and those among them that compaction made, by block."""
    sent: list[BlockEvent] = []
    made: dict[str, BlockEvent] = {}
    for block in prompt:
        for item in block.items:
            event = known.get(id(item))
            if event is None:
                event = made[block.name] = BlockEvent(block, -1, item)
            sent.append(event)
    return sent, made


def _verdicts(
    decisions: Sequence[BlockDecision], known: Mapping[tuple[str, int], BlockEvent], made: Mapping[str, BlockEvent]
) -> list[Verdict]:
    by_outcome: dict[tuple[DecisionOutcome, DecisionReason, str | None], list[BlockEvent]] = {}
    for decision in decisions:
        for item in decision.items:
            if item.reason is DecisionReason.FITS:  # what nobody says anything else of
                continue
            into = item.block if item.outcome is DecisionOutcome.COMPACTED else None
            by_outcome.setdefault((item.outcome, item.reason, into), []).append(known[item.block, item.index])
    return [
        Verdict(items, outcome, reason, made.get(into) if into is not None else None)
        for (outcome, reason, into), items in by_outcome.items()
    ]


def _compacted(decision: BlockDecision, known: Mapping[tuple[str, int], BlockEvent]) -> list[BlockEvent]:
    return [known[item.block, item.index] for item in decision.items if item.outcome is DecisionOutcome.COMPACTED]


def _around(decision: BlockDecision) -> int:
    """What stands around a block's items when all of it is in the prompt: message marks, separators."""
    return decision.tokens_in + decision.separators_in - sum(item.tokens for item in decision.items)


class BlockAssembler(Assembler):
    """Assembles blocks that are laid out as events."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self._lock = new_lock()
        self._kept: WeakKeyDictionary[Ledger, KeptCompactions] = WeakKeyDictionary()

    def kept(self, context: Context) -> KeptCompactions:
        """What compaction made in a conversation; it goes with the conversation's ledger."""
        ledger = self._ledgers.of((), context)
        with self._lock:
            return self._kept.setdefault(ledger, KeptCompactions())

    def tell_failures(self, failures: Sequence[SourceFailedError]) -> None:
        """Let whoever watches know of the sources that failed."""
        for one in failures:
            self._recorded_by().source_failed(one.role, one.source, error_type_of(one))

    def _new_meter(self, counter: TokenCounter) -> TokenMeter:
        return meter_of_blocks(counter, self.framing)
