"""From an allocation to its spans: ``allocate_budget``, and an ``allocate_block`` for each block that deserves one."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import INVALID_SPAN

from otel_assembly.budget.allocation import calls_of, texts_of
from otel_assembly.budget.reports import report_of
from otel_assembly.decision import BudgetReport, DecisionOutcome, Overflow, OverflowCause, PromptPart
from otel_assembly.errors import ContextOverflowError
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry import conventions_metrics as catalogue
from otel_assembly.telemetry.arrays import Arrays, run_text, runs_of
from otel_assembly.telemetry.attempts import AttemptSpans
from otel_assembly.telemetry.projection import overflow_attributes
from otel_assembly.telemetry.run import RUN
from otel_assembly.telemetry.statuses import set_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from opentelemetry.context import Context as OtelContext
    from opentelemetry.trace import Span

    from otel_assembly.budget.allocation import Allocation
    from otel_assembly.budget.block import Block
    from otel_assembly.budget.compaction import Watch
    from otel_assembly.decision import BudgetEntry
    from otel_assembly.telemetry.attempts import StartSpan
    from otel_assembly.telemetry.recorder import OpenTelemetryRecorder

Attributes = dict[str, Any]
Ordinals: TypeAlias = "Callable[[int], Sequence[int]]"
#: How the allocator is called where metrics name a policy.
ALLOCATOR = "allocator"


def put_report(
    start: StartSpan,
    span: Span,
    context: OtelContext,
    report: BudgetReport,
    started_ns: int,
    ledger: _Ledger | None,
    ordinals: Ordinals | None,
) -> None:
    """Write a report on its span, and the spans of its blocks under it.

    Args:
        start: How a span is started.
        span: The ``allocate_budget`` span.
        context: The context in which it is current.
        report: What was decided.
        started_ns: When the allocator began.
        ledger: What happened to each item, where no assembly tells it.
        ordinals: The ordinals of a block's items, in their order there, by the block's place in the report.
    """
    if not span.is_recording():
        return
    entries = list(report.entries)
    # What was simply kept comes last: it has the least to say.
    whole = [entry.outcome is DecisionOutcome.KEPT and entry.items_in == entry.items_out for entry in entries]
    shown = set(sorted(range(len(entries)), key=lambda at: (whole[at], at))[: names.MAX_BLOCK_SPANS])
    rest = [entry for at, entry in enumerate(entries) if at not in shown]
    arrays = Arrays()
    if ledger is not None:
        ledger.state(arrays)
    arrays.add(
        [names.BLOCKS_NAMES, names.BLOCKS_OUTCOMES, names.BLOCKS_REASONS, names.BLOCKS_TOKENS],
        [
            [entry.name for entry in rest],
            [entry.outcome.value for entry in rest],
            [entry.reason.value for entry in rest],
            [entry.tokens_out for entry in rest],
        ],
    )
    put_arrays(start, span, context, report_attributes(report), arrays, started_ns)
    if ledger is not None:
        # Their blocks have no span to say it.
        unsaid = Arrays()
        ledger.changes([at for at in range(len(entries)) if at not in shown], unsaid)
        put_lists(start, context, unsaid, started_ns)
    places = {entry.name: at for at, entry in enumerate(entries)}
    for number, at in enumerate(sorted(shown)):
        # Apart by enough that their order survives a backend that keeps microseconds.
        at_ns = started_ns + number * names.APART_NS
        block = start(f"{names.SPAN_ALLOCATE_BLOCK} {entries[at].kind}", context, at_ns, {})
        changes = Arrays()
        if ordinals is not None and (items := ordinals(at)):
            changes.add([names.BLOCK_ITEMS], [runs_of(items)])
            survivors = [str(items[place]) for place in entries[at].order]
            changes.add([names.BLOCK_ORDER, names.BLOCK_CHARGES], [survivors, list(entries[at].charges)])
            if any(size > 1 for size in entries[at].atoms):
                changes.add([names.BLOCK_ATOMS], [list(entries[at].atoms)])
            losers = [str(items[place]) for place, _ in entries[at].winners]
            winners = [str(ordinals(places[block])[place]) for _, (block, place) in entries[at].winners]
            changes.add([names.BLOCK_LOSERS, names.BLOCK_WINNERS], [losers, winners])
        if ledger is not None:
            ledger.changes([at], changes)
        put_arrays(
            start, block, trace.set_span_in_context(block, context), entry_attributes(entries[at]), changes, at_ns
        )
        block.end(at_ns)


def put_arrays(
    start: StartSpan, span: Span, context: OtelContext, attributes: Attributes, arrays: Arrays, at_ns: int
) -> None:
    """Attributes and arrays on a span; what of the arrays does not fit, on `list_items` spans under it."""
    for index, chunk in enumerate(arrays.chunks()):
        if index == 0:
            span.set_attributes({**attributes, **chunk})
            continue
        start_ns = at_ns + index * names.APART_NS
        start(names.SPAN_LIST_ITEMS, context, start_ns, chunk).end(start_ns)


def put_lists(start: StartSpan, context: OtelContext, arrays: Arrays, at_ns: int) -> None:
    """Arrays on `list_items` spans alone."""
    if arrays:
        for index, chunk in enumerate(arrays.chunks()):
            start_ns = at_ns + index * names.APART_NS
            start(names.SPAN_LIST_ITEMS, context, start_ns, chunk).end(start_ns)


def report_attributes(report: BudgetReport) -> Attributes:
    """What stands on ``allocate_budget`` beside arrays."""
    outcomes = Counter(entry.outcome for entry in report.entries)
    budget = report.window - report.output_reserve
    return {
        names.BUDGET_WINDOW: report.window,
        names.BUDGET_OUTPUT_RESERVE: report.output_reserve,
        names.BUDGET_TOKENS: budget,
        names.BUDGET_FIXED: report.fixed,
        names.BUDGET_USED: report.used,
        names.BUDGET_REMAINING: budget - report.used,
        names.BUDGET_UTILIZATION: report.used / budget if budget else 0.0,
        names.BLOCKS_KEPT: outcomes[DecisionOutcome.KEPT],
        names.BLOCKS_COMPACTED: outcomes[DecisionOutcome.COMPACTED],
        names.BLOCKS_DROPPED: outcomes[DecisionOutcome.DROPPED],
        **overflow_attributes(report.overflow),
    }


def entry_attributes(entry: BudgetEntry) -> Attributes:
    """What stands on ``allocate_block`` beside arrays."""
    return {
        names.BLOCK_NAME: entry.name,
        names.BLOCK_KIND: entry.kind,
        names.BLOCK_PRIORITY: entry.priority,
        names.BLOCK_CUTTABLE: entry.cuttable,
        **({names.BLOCK_CUT: entry.cut} if entry.cut else {}),
        names.BLOCK_MIN_TOKENS: entry.min_tokens,
        **({names.BLOCK_COST: entry.cost} if entry.cost not in {None, entry.tokens_in} else {}),
        **({names.BLOCK_ENOUGH: entry.enough} if entry.enough else {}),
        **({names.BLOCK_EVENTS: entry.events} if entry.events else {}),
        names.TOKENS_IN: entry.tokens_in,
        names.TOKENS_OUT: entry.tokens_out,
        names.DECISION_OUTCOME: entry.outcome.value,
        names.DECISION_REASON: entry.reason.value,
        names.BUDGET_REMAINING: entry.room,
        names.ITEMS_IN: entry.items_in,
        names.ITEMS_OUT: entry.items_out,
        names.ITEMS_INJECTED: entry.items_injected,
    }


class _Ledger:
    """The ledger of an allocation that stands alone: its items are numbered in decision order, then what was made."""

    def __init__(self, allocation: Allocation, content: Callable[[str], str] | None) -> None:
        self._decisions = allocation.decisions
        self._first = list(accumulate((len(decision.items) for decision in self._decisions), initial=0))
        made = [at for at, decision in enumerate(self._decisions) if decision.made is not None]
        self._made = {at: self._first[-1] + number for number, at in enumerate(made)}
        self._text = allocation.count
        self._content = content

    def state(self, arrays: Arrays) -> None:
        """What stands in the prompt, and everything that was seen: which is all of it, for the first time."""
        kept: list[int] = []
        rows: list[tuple[str, str, int, int, str, int]] = []
        contents: list[str] = []
        content = self._content
        for at, decision in enumerate(self._decisions):
            first = self._first[at]
            calls = calls_of(decision.block.items)
            for item, asked in zip(decision.items, calls, strict=True):
                if item.outcome is DecisionOutcome.KEPT:
                    kept.append(first + item.index)
                atom = str(first + item.atom)
                rows.append((str(first + item.index), item.kind, item.tokens, item.bytes, atom, asked))
                if content is not None:
                    contents.append(content("\n".join(texts_of(item.item))))
            if at in self._made:
                kept.append(self._made[at])
        for at, ordinal in self._made.items():
            made = self._decisions[at].made
            text = made.summary if made is not None else ""
            size = len(text.encode("utf-8", "surrogatepass"))
            rows.append((str(ordinal), self._decisions[at].block.kind.value, self._text(text), size, str(ordinal), 0))
            if content is not None:
                contents.append(content(text))
        arrays.add([names.KEPT_ITEMS], [_ascending(kept)])
        columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)] if rows else [[]] * 6
        arrived = [
            names.ARRIVED_ITEMS,
            names.ARRIVED_KINDS,
            names.ARRIVED_TOKENS,
            names.ARRIVED_BYTES,
            names.ARRIVED_ATOMS,
            names.ARRIVED_CALLS,
        ]
        if content is not None:
            arrived.append(names.ARRIVED_CONTENTS)
            columns.append(contents)
        arrays.add(arrived, columns)

    def ordinals(self, at: int) -> range:
        """The ordinals of one block's items."""
        first = self._first[at]
        return range(first, first + len(self._decisions[at].items))

    def changes(self, places: Iterable[int], arrays: Arrays) -> None:
        """What the rule took of these blocks, and what was made of it."""
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
        for reason, ordinals in by_reason.items():
            runs = runs_of(ordinals)
            dropped += runs
            reasons += [reason] * len(runs)
        arrays.add([names.DROPPED_ITEMS, names.DROPPED_REASONS], [dropped, reasons])
        arrays.add([names.COMPACTED_ITEMS], [runs_of(compacted)])
        arrays.add([names.INJECTED_ITEMS], [runs_of(injected)])

    def compactions(self, attempts: AttemptSpans) -> None:
        """What each compaction stands for."""
        for at, ordinal in self._made.items():
            decision, first = self._decisions[at], self._first[at]
            of = [first + item.index for item in decision.items if item.outcome is DecisionOutcome.COMPACTED]
            attempts.tell(decision.attempts, runs_of(of), str(ordinal))


def _ascending(ordinals: Sequence[int]) -> list[str]:
    """Runs of ordinals in their order."""
    runs: list[list[int]] = []
    for ordinal in ordinals:
        if runs and runs[-1][1] + 1 == ordinal:
            runs[-1][1] = ordinal
        else:
            runs.append([ordinal, ordinal])
    return [run_text(first, last) for first, last in runs]


class OpenAllocation:
    """One run of the allocator outside of any chain, while it runs."""

    __slots__ = ("_agent", "_asked", "_attempts", "_context", "_done", "_recorder", "_span", "_started_ns", "_token")

    def __init__(self, recorder: OpenTelemetryRecorder) -> None:
        self._recorder = recorder
        self._started_ns = time.time_ns()
        self._context = otel_context.get_current()
        self._span: Span = INVALID_SPAN
        self._attempts = AttemptSpans(recorder.start_span, recorder.failures)
        self._token: Any = None
        self._done = False
        self._asked = BudgetReport(0, 0, 0, 0, ())
        run = RUN.get()
        self._agent = (run.agent_name, run.framework) if run is not None else (None, None)
        with recorder.failures.contained("span"):
            self._span = recorder.start_span(names.SPAN_ALLOCATE_BUDGET, self._context, self._started_ns, {})
            self._context = trace.set_span_in_context(self._span, self._context)

    def __enter__(self) -> Self:
        self._token = otel_context.attach(self._context)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        ended_ns = time.time_ns()
        contained = self._recorder.failures.contained
        if kind is not GeneratorExit:  # a coroutine that nobody awaited to its end is closed in another context
            otel_context.detach(self._token)
        if error is not None and not self._done:
            with contained("metrics"):
                self._measure_failure(error)
            with contained("span"):
                self._failed(error, ended_ns)
        with contained("span"):
            self._attempts.end()
        with contained("span"):
            self._span.end(ended_ns)

    def asks(self, window: int, output_reserve: int) -> None:
        """What is to be given out."""
        self._asked = BudgetReport(window, output_reserve, 0, 0, ())

    def watch(self, block: Block) -> Watch:
        """What stands around each attempt to compact a block."""
        return self._attempts.watch(block.kind.value)

    def finish(self, allocation: Allocation) -> None:
        """The allocator came to its end."""
        self._done = True
        contained = self._recorder.failures.contained
        with contained("metrics"):
            self._measure(allocation)
        if self._span.is_recording():
            with contained("span"):
                self._describe(allocation)

    def _describe(self, allocation: Allocation) -> None:
        recorder = self._recorder
        ledger = _Ledger(allocation, self._redacted if recorder.settings.content_on_spans else None)
        ledger.compactions(self._attempts)
        self._span.set_attributes(
            {
                names.LEDGER_ID: uuid.uuid4().hex,
                names.TURN: 0,
                names.TOKENS_METHOD: allocation.method,
                names.TOKENS_ENCODING: allocation.encoding,
                **_kinds(allocation),
            }
        )
        put_report(
            recorder.start_span,
            self._span,
            self._context,
            report_of(allocation),
            self._started_ns,
            ledger,
            ledger.ordinals,
        )

    def _redacted(self, text: str) -> str:
        return self._recorder.failures.redacted(self._recorder.settings.redact, text)

    def _failed(self, error: BaseException, at_ns: int) -> None:
        overflow = None
        if isinstance(error, ContextOverflowError):
            overflow = Overflow(error.budget, error.needed, OverflowCause(error.cause))
            self._recorder.signals.overflow([self._span], self._context, overflow, at_ns)
        report = getattr(error, "report", None) or self._asked
        put_report(self._recorder.start_span, self._span, self._context, report, self._started_ns, None, None)
        self._span.set_attributes(overflow_attributes(overflow))
        set_status(self._span, error, overflow=overflow, halted=False)

    def _measure_failure(self, error: BaseException) -> None:
        metrics = self._recorder.metrics
        agent, framed = metrics.agent(*self._agent)
        if isinstance(error, ContextOverflowError):
            metrics.add(catalogue.BUDGET_OVERFLOWS, 1, framed, self._context)
            if error.budget:
                share = error.needed / error.budget
                metrics.record(catalogue.BUDGET_FIXED_UTILIZATION, share, agent, self._context)

    def _measure(self, allocation: Allocation) -> None:
        metrics = self._recorder.metrics
        agent, _ = metrics.agent(*self._agent)
        metrics.record(catalogue.BUDGET_UTILIZATION, allocation.utilization, agent, self._context)
        if allocation.budget:
            share = allocation.fixed / allocation.budget
            metrics.record(catalogue.BUDGET_FIXED_UTILIZATION, share, agent, self._context)
        if not self._recorder.measures():
            return
        counted: Counter[str] = Counter()
        tokens: Counter[str] = Counter()
        for item in allocation.dropped:
            counted[item.reason.value] += 1
            tokens[item.reason.value] += item.tokens
        for reason, count in counted.items():
            attributes = {names.POLICY_NAME: metrics.policy_name(ALLOCATOR), names.DECISION_REASON: reason}
            metrics.add(catalogue.ITEMS_DROPPED, count, attributes, self._context)
            metrics.add(catalogue.TOKENS_DROPPED, tokens[reason], attributes, self._context)


def _kinds(allocation: Allocation) -> Mapping[str, list[Any]]:
    """What fills the prompt, by kind: items alone, then what is around them."""
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
