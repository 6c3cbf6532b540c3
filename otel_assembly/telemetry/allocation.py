"""Record a run of the budget allocator outside a chain: ``allocate_budget`` and ``allocate_block`` spans, and metrics.

An allocator that runs as a policy in a chain is recorded in `recording`.
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
    runs_in_order,
    runs_of,
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
    """The items of an allocation outside a chain, numbered in decision order, and the compactor's summaries."""

    def __init__(self, allocation: Allocation, content: Callable[[str], str] | None) -> None:
        self._decisions = allocation.decisions
        self._reads = [decided.read for decided in allocation.decided]
        self._first = list(accumulate((len(decision.items) for decision in self._decisions), initial=0))
        made = [at for at, decision in enumerate(self._decisions) if decision.made is not None]
        self._made = {at: FIRST_MADE + number for number, at in enumerate(made)}
        self._count = allocation.count
        self._content = content

    def put_state(self, arrays: Arrays) -> None:
        """Add the offered and the kept items, and the description of every item.

        No earlier turn has described an item, because each allocation outside a chain has a ledger of its own.
        """
        kept: list[int] = []
        rows: list[tuple[str, str, int, int, str, int]] = []
        contents: list[str] = []
        content = self._content
        for at, decision in enumerate(self._decisions):
            first = self._first[at]
            for item, asked in zip(decision.items, self._reads[at].calls(), strict=True):
                if item.outcome is DecisionOutcome.KEPT:
                    kept.append(first + item.index)
                atom = str(first + item.atom)
                rows.append((str(first + item.index), item.kind, item.tokens, item.bytes, atom, asked))
                if content is not None:
                    contents.append(content("\n".join(self._reads[at].texts(item.index))))
            if at in self._made:
                kept.append(self._made[at])
        for at, number in self._made.items():
            made = self._decisions[at].made
            text = made.summary if made is not None else ""
            size = len(text.encode("utf-8", "surrogatepass"))
            name = item_text(number)
            rows.append((name, self._decisions[at].block.kind.value, self._count(text), size, name, 0))
            if content is not None:
                contents.append(content(text))
        arrays.add([names.OFFERED_ITEMS], [runs_in_order(range(self._first[-1]))])
        arrays.add([names.KEPT_ITEMS], [runs_in_order(kept)])
        columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)] if rows else [[]] * 6
        arrived = [
            names.ARRIVED_ITEMS,
            names.ARRIVED_KINDS,
            names.ARRIVED_TOKENS,
            names.ARRIVED_BYTES,
            names.ARRIVED_ATOMS,
            names.ARRIVED_CALLS,
        ]
        sources = {item_text(made): ",".join(runs_of(self._compacted(at))) for at, made in self._made.items()}
        arrived.append(names.ARRIVED_SOURCES)
        columns.append([sources.get(row[0], "") for row in rows])
        if content is not None:
            arrived.append(names.ARRIVED_CONTENTS)
            columns.append(contents)
        arrays.add(arrived, columns)

    def ids(self, place: int) -> range:
        """Return the item ids of one block."""
        first = self._first[place]
        return range(first, first + len(self._decisions[place].items))

    def put_changes(self, places: Iterable[int], arrays: Arrays) -> None:
        """Add the dropped and compacted items of these blocks, and the compactor's summaries."""
        by_reason: dict[str, list[int]] = {}
        compacted: list[int] = []
        injected: list[int] = []
        for at in places:
            first = self._first[at]
            for item in self._decisions[at].items:
                if item.outcome is DecisionOutcome.DROPPED:
                    by_reason.setdefault(item.reason.value, []).append(first + item.index)
                elif item.outcome is DecisionOutcome.COMPACTED:
                    compacted.append(first + item.index)
            if at in self._made:
                injected.append(self._made[at])
        dropped: list[str] = []
        reasons: list[str] = []
        for reason, items in by_reason.items():
            runs = runs_of(items)
            dropped += runs
            reasons += [reason] * len(runs)
        arrays.add([names.DROPPED_ITEMS, names.DROPPED_REASONS], [dropped, reasons])
        arrays.add([names.COMPACTED_ITEMS], [runs_of(compacted)])
        arrays.add([names.INJECTED_ITEMS], [runs_of(injected)])

    def explain(self, attempts: AttemptSpans) -> None:
        """Set each summary's id and source items on the span of its compaction."""
        for at, made in self._made.items():
            attempts.explain(self._decisions[at].attempts, runs_of(self._compacted(at)), item_text(made))

    def _compacted(self, place: int) -> list[int]:
        """Return the items of one block that were compacted into a summary."""
        first, items = self._first[place], self._decisions[place].items
        return [first + item.index for item in items if item.outcome is DecisionOutcome.COMPACTED]


class OpenAllocation:
    """Records one run of the allocator outside a chain; a context manager around the run."""

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
        """Set the limits that the span reports if the allocator fails.

        Args:
            window: The model window, in tokens.
            output_reserve: The tokens of the window that are reserved for the model's output.
        """
        self._unallocated = BudgetReport(window, output_reserve, 0, 0, ())

    def watch(self, block: Block) -> Watch:
        """Return the context manager that records each attempt to compact a block."""
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
            metrics.add(catalogue.BUDGET_OVERFLOWS, 1, framed, self._context)
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
            metrics.add(catalogue.ITEMS_DROPPED, count, attributes, self._context)
            metrics.add(catalogue.TOKENS_DROPPED, tokens[reason], attributes, self._context)


def _kinds(allocation: Allocation) -> Mapping[str, list[Any]]:
    """Return the prompt's tokens by kind of item; then the tokens of framing and separators."""
    sums: Counter[str] = Counter()
    for decision in allocation.decisions:
        items = sum(item.tokens for item in decision.items if item.outcome is DecisionOutcome.KEPT)
        for item in decision.items:
            if item.outcome is DecisionOutcome.KEPT:
                sums[item.kind] += item.tokens
        if decision.made is not None:
            made = allocation.count(decision.made.summary)
            sums[decision.block.kind.value] += made
            items += made
        sums[PromptPart.FRAMING.value] += decision.tokens_out - items
    sums[PromptPart.FRAMING.value] += allocation.framing
    sums[PromptPart.SEPARATORS.value] += allocation.separators
    filled = {kind: tokens for kind, tokens in sums.items() if tokens}
    return {names.KIND_NAMES: list(filled), names.KIND_TOKENS: list(filled.values())} if filled else {}
