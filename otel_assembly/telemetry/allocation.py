"""Record the budget allocator as ``allocate_budget`` and ``allocate_block`` spans and metrics.

The allocator divides a token budget among blocks of content. This module records it if a program calls it directly. An
allocator that ranges as a policy in a chain is recorded in `recording`.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Self

from opentelemetry import context as otel_context

from otel_assembly.budget.reports import report_of
from otel_assembly.decision import BudgetReport, DecisionOutcome, Overflow, OverflowCause, PromptPart
from otel_assembly.errors import ContextOverflowError
from otel_assembly.ledger.snapshot import FIRST_MADE, item_text
from otel_assembly.policies.base import USER_FIRST
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry import conventions_metrics as catalogue
from otel_assembly.telemetry.attempts import AttemptSpans
from otel_assembly.telemetry.attributes import (
    BlockItems,
    config_json,
    overflow_attributes,
    put_budget,
    ranges_in_order,
    ranges_of,
)
from otel_assembly.telemetry.emitter import set_status
from otel_assembly.telemetry.run import RUN
from otel_assembly.telemetry.signals import put_overflow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

    from otel_assembly.budget.allocation import Allocation
    from otel_assembly.budget.attempt import Watch
    from otel_assembly.budget.block import Block
    from otel_assembly.telemetry.emitter import Arrays, Emitter

#: The allocator's policy name on metrics.
ALLOCATOR = "allocator"


class _AllocatedItems(BlockItems):
    """The item ids of one allocation, and the arrays that describe its items on spans.

    Items of the input are numbered from 0, in the order in which the allocator decided on their blocks. Summaries that
    the compactor made are numbered ``m0``, ``m1``, ….
    """

    def __init__(self, allocation: Allocation, content: Callable[[str], str] | None) -> None:
        self._decisions = allocation.decisions
        self._reads = [block.read for block in allocation.decided]
        self._first = list(accumulate((len(decision.items) for decision in self._decisions), initial=0))
        summarized = [place for place, decision in enumerate(self._decisions) if decision.made is not None]
        #: By the index of a block: the item id of its summary.
        self._summaries = {place: FIRST_MADE + number for number, place in enumerate(summarized)}
        self._count = allocation.count
        self._content = content

    def put_state(self, arrays: Arrays) -> None:
        """Add the arrays of offered items (the input) and kept items (the prompt), and a description of every item.

        Every item is new, because each allocation outside a chain has a ledger (a numbering of items) of its own.
        """
        kept: list[int] = []
        rows: list[tuple[str, str, int, int, str, int]] = []
        contents: list[str] = []
        content = self._content
        for place, decision in enumerate(self._decisions):
            first = self._first[place]
            for item, calls in zip(decision.items, self._reads[place].calls(), strict=True):
                if item.outcome is DecisionOutcome.KEPT:
                    kept.append(first + item.index)
                atom = str(first + item.atom)
                rows.append((str(first + item.index), item.kind, item.tokens, item.bytes, atom, calls))
                if content is not None:
                    contents.append(content("\n".join(self._reads[place].texts(item.index))))
            if place in self._summaries:
                kept.append(self._summaries[place])
        for place, number in self._summaries.items():
            compaction = self._decisions[place].made
            text = compaction.summary if compaction is not None else ""
            size = len(text.encode("utf-8", "surrogatepass"))
            name = item_text(number)
            rows.append((name, self._decisions[place].block.kind.value, self._count(text), size, name, 0))
            if content is not None:
                contents.append(content(text))
        arrays.add([names.OFFERED_ITEMS], [ranges_in_order(range(self._first[-1]))])
        arrays.add([names.KEPT_ITEMS], [ranges_in_order(kept)])
        columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)] if rows else [[]] * 6
        keys = [
            names.ARRIVED_ITEMS,
            names.ARRIVED_KINDS,
            names.ARRIVED_TOKENS,
            names.ARRIVED_BYTES,
            names.ARRIVED_ATOMS,
            names.ARRIVED_CALLS,
        ]
        sources = {
            item_text(made): ",".join(ranges_of(self._compacted(place))) for place, made in self._summaries.items()
        }
        keys.append(names.ARRIVED_SOURCES)
        columns.append([sources.get(row[0], "") for row in rows])
        if content is not None:
            keys.append(names.ARRIVED_CONTENTS)
            columns.append(contents)
        arrays.add(keys, columns)

    def ids(self, place: int) -> range:
        """Return the item ids of the block at this index."""
        first = self._first[place]
        return range(first, first + len(self._decisions[place].items))

    def put_changes(self, places: Iterable[int], arrays: Arrays) -> None:
        """Add the dropped and compacted items of the blocks at these indexes, and the summaries that replace items."""
        by_reason: dict[str, list[int]] = {}
        compacted: list[int] = []
        injected: list[int] = []
        for place in places:
            first = self._first[place]
            for item in self._decisions[place].items:
                if item.outcome is DecisionOutcome.DROPPED:
                    by_reason.setdefault(item.reason.value, []).append(first + item.index)
                elif item.outcome is DecisionOutcome.COMPACTED:
                    compacted.append(first + item.index)
            if place in self._summaries:
                injected.append(self._summaries[place])
        dropped: list[str] = []
        reasons: list[str] = []
        for reason, items in by_reason.items():
            ranges = ranges_of(items)
            dropped += ranges
            reasons += [reason] * len(ranges)
        arrays.add([names.DROPPED_ITEMS, names.DROPPED_REASONS], [dropped, reasons])
        arrays.add([names.COMPACTED_ITEMS], [ranges_of(compacted)])
        arrays.add([names.INJECTED_ITEMS], [ranges_of(injected)])

    def explain(self, attempts: AttemptSpans) -> None:
        """Set each summary's id and source items on the ``compact_block`` span of the attempt that made it."""
        for place, summary in self._summaries.items():
            attempts.explain(self._decisions[place].attempts, ranges_of(self._compacted(place)), item_text(summary))

    def _compacted(self, place: int) -> list[int]:
        """Return the ids of the items that a summary replaced in the block at this index."""
        first, items = self._first[place], self._decisions[place].items
        return [first + item.index for item in items if item.outcome is DecisionOutcome.COMPACTED]


class OpenAllocation:
    """Records one run of the allocator that a program calls directly; a context manager around the run."""

    __slots__ = (
        "_agent",
        "_attempts",
        "_context",
        "_done",
        "_emitter",
        "_span",
        "_started_ns",
        "_token",
        "_unallocated",
    )

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._started_ns = time.time_ns()
        self._attempts = AttemptSpans(emitter)
        self._token: Any = None
        self._done = False
        self._unallocated = BudgetReport(0, 0, 0, 0, ())
        run = RUN.get()
        self._agent = (run.identity.agent_name, run.identity.framework) if run is not None else (None, None)
        around = otel_context.get_current()
        self._span, self._context = emitter.open_span(names.SPAN_ALLOCATE_BUDGET, around, self._started_ns, {})

    def __enter__(self) -> Self:
        self._token = otel_context.attach(self._context)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        ended_ns = time.time_ns()
        suppress_errors = self._emitter.suppress_errors
        # A coroutine that is closed before its end raises GeneratorExit, often in another context.
        if kind is not GeneratorExit:
            otel_context.detach(self._token)
        if error is not None and not self._done:
            with suppress_errors("metrics"):
                self._measure_failure(error)
            with suppress_errors("span"):
                self._failed(error, ended_ns)
        with suppress_errors("span"):
            self._attempts.end()
        with suppress_errors("span"):
            self._span.end(ended_ns)

    def set_limits(self, window: int, output_reserve: int) -> None:
        """Set the limits that the span records if the allocator fails before it made a report.

        Args:
            window: The model window, in tokens.
            output_reserve: The tokens of the window that are reserved for the model's output.
        """
        self._unallocated = BudgetReport(window, output_reserve, 0, 0, ())

    def watch(self, block: Block) -> Watch:
        """Return a function that records an attempt to compact the block: a context manager around the attempt."""
        return self._attempts.watch(block.kind.value)

    def finish(self, allocation: Allocation) -> None:
        """Record the result of a successful allocation."""
        self._done = True
        suppress_errors = self._emitter.suppress_errors
        with suppress_errors("metrics"):
            self._measure(allocation)
        if self._span.is_recording():
            with suppress_errors("span"):
                self._describe(allocation)

    def _describe(self, allocation: Allocation) -> None:
        items = _AllocatedItems(allocation, self._emitter.content)
        items.explain(self._attempts)
        self._span.set_attributes(
            {
                names.FORMAT_VERSION: names.READ_FORMAT,
                names.LEDGER_ID: uuid.uuid4().hex,
                names.TURN: 0,
                names.TOKENS_METHOD: allocation.method,
                names.TOKENS_ENCODING: allocation.encoding,
                **({names.POLICY_CONFIG: config_json({USER_FIRST: True})} if allocation.user_first else {}),
                **_kinds(allocation),
            }
        )
        put_budget(self._emitter, self._span, self._context, report_of(allocation), items, self._started_ns)

    def _failed(self, error: BaseException, at_ns: int) -> None:
        overflow = None
        if isinstance(error, ContextOverflowError):
            overflow = Overflow(error.budget, error.needed, OverflowCause(error.cause))
            put_overflow(self._emitter, [self._span], self._context, overflow, at_ns)
        report = getattr(error, "report", None) or self._unallocated
        put_budget(self._emitter, self._span, self._context, report, BlockItems(), self._started_ns)
        self._span.set_attributes(overflow_attributes(overflow))
        set_status(self._span, error, overflow=overflow, halted=False)

    def _measure_failure(self, error: BaseException) -> None:
        metrics = self._emitter.metrics
        agent, framed = metrics.agent(*self._agent)
        if isinstance(error, ContextOverflowError):
            metrics.record(catalogue.BUDGET_OVERFLOWS, 1, framed, self._context)
            if error.budget:
                metrics.record(catalogue.BUDGET_UTILIZATION, error.needed / error.budget, agent, self._context)
                if error.fixed is not None:
                    share = error.fixed / error.budget
                    metrics.record(catalogue.BUDGET_FIXED_UTILIZATION, share, agent, self._context)

    def _measure(self, allocation: Allocation) -> None:
        metrics = self._emitter.metrics
        agent, _ = metrics.agent(*self._agent)
        metrics.record(catalogue.BUDGET_UTILIZATION, allocation.utilization, agent, self._context)
        if allocation.budget:
            share = allocation.fixed / allocation.budget
            metrics.record(catalogue.BUDGET_FIXED_UTILIZATION, share, agent, self._context)
        if not self._emitter.providers.measure():
            return
        counted: Counter[str] = Counter()
        tokens: Counter[str] = Counter()
        for item in allocation.dropped:
            counted[item.reason.value] += 1
            tokens[item.reason.value] += item.tokens
        for reason, count in counted.items():
            attributes = {**agent, names.POLICY_NAME: metrics.policy_name(ALLOCATOR), names.DECISION_REASON: reason}
            metrics.record(catalogue.ITEMS_DROPPED, count, attributes, self._context)
            metrics.record(catalogue.TOKENS_DROPPED, tokens[reason], attributes, self._context)


def _kinds(allocation: Allocation) -> Mapping[str, list[Any]]:
    """Return the span attributes that list the prompt's tokens by kind of content.

    Tokens that belong to no item have the kinds ``framing`` (around the items) and ``separators`` (between blocks).
    """
    sums: Counter[str] = Counter()
    for decision in allocation.decisions:
        items = sum(item.tokens for item in decision.items if item.outcome is DecisionOutcome.KEPT)
        for item in decision.items:
            if item.outcome is DecisionOutcome.KEPT:
                sums[item.kind] += item.tokens
        if decision.made is not None:
            summary_tokens = allocation.count(decision.made.summary)
            sums[decision.block.kind.value] += summary_tokens
            items += summary_tokens
        sums[PromptPart.FRAMING.value] += decision.tokens_out - items
    sums[PromptPart.FRAMING.value] += allocation.framing
    sums[PromptPart.SEPARATORS.value] += allocation.separators
    filled = {kind: tokens for kind, tokens in sums.items() if tokens}
    return {names.KIND_NAMES: list(filled), names.KIND_TOKENS: list(filled.values())} if filled else {}
