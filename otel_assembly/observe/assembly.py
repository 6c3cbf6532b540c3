"""`ObservedAssembly` and `ObservedStep`: one assembly of a framework and its steps, while they run."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Self

from otel_assembly.budget.attempt import Attempt, CompactionOutcome
from otel_assembly.chain.open_assembly import OpenAssembly
from otel_assembly.chain.step_diff import write_difference
from otel_assembly.decision import DecisionOutcome, DecisionReason, Overflow, OverflowCause
from otel_assembly.errors import error_type, is_failure
from otel_assembly.ledger.snapshot import ItemGroup, StepCompaction, item_id_ranges
from otel_assembly.matching.sequence_diff import diff_sequences
from otel_assembly.messages.content_snapshot import equal
from otel_assembly.messages.event_facts import describe
from otel_assembly.observe.step_report import StepReport
from otel_assembly.recorder import NULL_RECORDING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    from otel_assembly.conversation_state import AlertFacts
    from otel_assembly.decision import Verdict
    from otel_assembly.ledger.ledger import Ledger
    from otel_assembly.ledger.record import Record
    from otel_assembly.ledger.snapshot import Step
    from otel_assembly.observe.step_report import SummarizerAttempt
    from otel_assembly.recorder import PolicyTime, ProviderEdit, Recording
    from otel_assembly.tokens import TokenMeter

#: An output of more than this many times its limit is recorded as an overflow. Frameworks estimate tokens: on recorded
#: conversations, outputs within a framework's limit had up to 1.6 times as many (docs/decisions/0033).
_OVERFLOW_FACTOR: Final = 2


class ObservedAssembly(OpenAssembly):
    """One assembly of a framework, while it runs.

    A framework's reducers may run long before the model call, when the agent and the conversation are not known yet.
    Therefore only spans, times and attempts to compact are recorded as the steps run, so that the spans of a reducer's
    calls are children of the step's span. The outputs of the steps are read at the end.

    If an assembly is neither sampled nor measured by metrics, no event is read or counted. Its steps use
    `NULL_RECORDING`, and only its alerts and overflows are recorded.

    Attributes:
        model: The model whose tokenizer counts; None if unknown.
        conversation_id: The conversation's real id, if it has one.
        steps: The steps so far.
        done_ns: The end time of the last step, in nanoseconds since the epoch; 0 if no step has ended.
        broken: Whether the assembly is not recorded, because recording failed.
    """

    __slots__ = ("_failed", "_meter", "broken", "conversation_id", "done_ns", "has_input", "model", "steps")

    def __init__(
        self,
        recording: Recording,
        model: str | None,
        meter: Callable[[str | None], TokenMeter],
        failed: Callable[[Exception], None],
        conversation_id: str | None = None,
    ) -> None:
        self.recording = recording
        self.conversation_id = conversation_id
        self.model = model
        self._meter = meter
        self._failed = failed
        self.steps: list[ObservedStep] = []
        self.done_ns = 0
        self.has_input = self.broken = False

    @property
    def id(self) -> str:
        """The assembly's id, as on its span; empty while it has no input, and if its events are not recorded."""
        return self.record.assembly_id if self.has_input else ""

    @property
    def events(self) -> Sequence[Any]:
        """The input of the next step, as the framework's list. Its objects may be copies of the original events."""
        outputs = (step.report.after for step in reversed(self.steps) if step.report.after is not None)
        return next(outputs, self.record.ledger_input.given if self.has_input else ())

    def open(self, record: Record) -> None:
        """Set the assembly's record, which has the input."""
        self.record, self.model, view = record, record.model, record.ledger_input.view
        view.history.table(record.meter).arrive(view.end)
        self.has_input = True

    def step(
        self,
        policy: str,
        *,
        kind: str | None = None,
        config: Mapping[str, Any] | None = None,
        started_ns: int | None = None,
    ) -> ObservedStep:
        """Return a context manager for one policy or reducer; its block runs the policy and reports the output.

        The step failed if an exception leaves the block, and changed nothing if no output is reported. The block must
        not contain the ``yield`` of a generator, because the step's span is current in it.

        Args:
            policy: The name of the policy or reducer, of low cardinality.
            kind: ``injection`` or ``reduction``; None if unknown.
            config: The settings; numbers, booleans and enums among them are recorded.
            started_ns: The start time, in nanoseconds since the epoch; None: when the block is entered.
        """
        recording = self.recording if self.recording.measured and not self.broken else NULL_RECORDING
        timing = recording.policy(policy, len(self.steps), started_ns)
        step = ObservedStep(StepReport(policy, kind=kind, config=config or {}), self, recording, timing)
        self.steps.append(step)
        return step

    def count(self, text: str) -> int:
        """Return the tokens of a text, by the tokenizer of the assembly's model; 0 if tokens are not counted."""
        return self._meter(self.model).prompt(text) if self.recording.measured else 0

    def end(
        self,
        error: BaseException | None = None,
        *,
        stays: bool = False,
        called: bool = True,
        ended_ns: int | None = None,
    ) -> None:
        """End the assembly and record it.

        Args:
            error: The exception that ended the assembly before a model was called; None if there is none.
            stays: Whether the output is kept in spite of the error, because the assembly maintained a stored history
                (for example compacted it). False: the output was the prompt of a model call, and is discarded.
            called: Whether a model is called with the output now.
            ended_ns: The end time, in nanoseconds since the epoch; None means now.
        """
        if self.has_input and not self.broken:
            try:
                self._read_steps(called=called, ended_ns=ended_ns or time.time_ns())
                self.close(error, stays=stays)
            except Exception as problem:  # noqa: BLE001  # a failed recording must not affect the agent
                self.fail(problem)
            else:
                return
        with suppress(Exception):
            self.recording.abandon()

    def _read_steps(self, *, called: bool, ended_ns: int) -> None:
        """Add the steps to the record: compare each output with its input, and set the reported numbers."""
        record = self.record
        record.called, record.ended_ns = called, ended_ns
        inputs = record.ledger_input.given
        for observed in self.steps:
            report = observed.report
            step = self.begin_step(report.policy, report.kind, report.config)
            step.error, step.overflow = observed.error, observed.reported_overflow
            record.overflow = record.overflow or observed.reported_overflow
            after, size = report.after, len(step.before.view)
            if after is not None and (after is not inputs or report.verdicts):
                before = inputs if len(inputs) == size else inputs[:size]  # a concurrent assembly appended to it
                outputs = before if after is inputs else after if isinstance(after, list) else list(after)
                with record.ledger.lock:
                    self._compare(step, report, before, outputs)
                inputs = outputs
            if report.prompts is not None:
                step.set_prompts(tuple(report.prompts))
            step.budget, step.fixed, step.reported = report.budget, report.fixed, report.reported
            step.alerts, step.halts = tuple(report.alerts), report.halts
            if record.unknown:
                step.exits = step.pinned = ()
            if step.created:
                step.compactions = tuple(_compactions(step, observed.attempts, record.ledger))
        for observed, step in zip(self.steps, record.steps, strict=True):
            if observed.report.budget is not None:
                self._check_limit(step, observed.report, observed.report.budget)
        record.end_chain()

    def _compare(self, step: Step, report: StepReport, inputs: list[Any], events: list[Any]) -> None:
        """Write the difference between the output and the input of a step."""
        view, ledger, source = step.before.view, self.record.ledger, self.record.ledger_input
        index = source.numbered.event_index if view is source.view else None
        diff = diff_sequences(inputs, events, index, read=ledger.facts_of, changed_is_new=True)
        front, back = diff.front, diff.length - diff.back
        if diff.middle or report.verdicts or view.history.echoes:
            stands_in = report.reported is None if report.stands_in is None else report.stands_in
            write_difference(
                step, inputs, events, diff, report.verdicts, ledger, report.reason, stands_in=stands_in, index=index
            )
        elif front < back:  # the usual case: the output lacks one range of the input
            step.set_events(view.pick([(0, front), (back, diff.length)]) if front else view.part(back, diff.length))
            dropped = ItemGroup(view.part(front, back), step.before.numbered, DecisionOutcome.DROPPED, report.reason)
            step.exits = (dropped,)

    def _check_limit(self, step: Step, report: StepReport, budget: int) -> None:
        """Record an overflow if the output is far above the step's limit and the framework reported no overflow."""
        record, view = self.record, step.after.view
        if not report.of_prompt:
            step.beside_tokens = sum(record.meter.event(describe(event)) for event in report.beside)
        if step.overflow is not None or step.error is not None:
            return
        for is_exact in (False, True):
            if is_exact:  # the first comparison may have used estimates
                view.history.table(record.meter).exact(view)
            used = record.used(step)
            needed = record.tokens(step.after.prompts, view) if used is None else used
            if needed <= _OVERFLOW_FACTOR * max(0, budget):
                return
        step.overflow = Overflow(budget, needed, OverflowCause.FRAMEWORK)
        record.overflow = record.overflow or step.overflow

    def provider_answered(self, edits: Sequence[ProviderEdit]) -> None:
        """Record the edits that the model's provider made to the request, and end the assembly's span.

        The span is still open only if the request allowed such edits (``record.allowed_edits``), because the provider
        reports them in its answer. In any other case, `end` has ended the span.
        """
        with suppress(Exception):
            self.recording.answered(edits)

    def fail(self, problem: Exception) -> None:
        """Record the problem, and do not record this assembly."""
        self.broken = True
        self._failed(problem)


@dataclass(slots=True, eq=False)
class ObservedStep:
    """One policy or reducer of an observed assembly, while it runs.

    Attributes:
        report: What the policy did; its name, kind and settings until the output is known.
        attempts: The attempts to compact.
        entered: Whether the step's block was entered.
        error: The exception that left the step's block, or that was set later.
        reported_overflow: The overflow that the framework reported.
    """

    report: StepReport
    _assembly: ObservedAssembly
    _recording: Recording
    _time: PolicyTime
    attempts: list[Attempt] = field(default_factory=list)
    entered: bool = False
    error: BaseException | None = None
    reported_overflow: Overflow | None = None

    def __enter__(self) -> Self:
        self._time.__enter__()
        self.entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._time.__exit__(kind, error, trace)
        self.error = error
        self._assembly.done_ns = time.time_ns()

    def failed(self, error: BaseException | None) -> None:
        """Set the step's error, also after its block; None clears it. The recorded output stays."""
        self.error = error

    def out(
        self,
        events: Sequence[Any] | None = None,
        *,
        prompts: Sequence[str] | None = None,
        reason: DecisionReason = DecisionReason.POLICY,
        verdicts: Sequence[Verdict] = (),
        budget: int | None = None,
        fixed: int | None = None,
        alerts: Sequence[AlertFacts] = (),
        halts: int = 0,
        reported: int | None = None,
        stands_in: bool | None = None,
        of_prompt: bool = False,
    ) -> None:
        """Record the step's output, and end the measurement of the policy's time.

        The arguments are those of `StepReport`; `events` are its messages after the reducer, which are copied. A
        verdict that contradicts the output is ignored. The number `reported` is recorded in addition to the number that
        was found. Tool calls without results and results without calls are recorded as ``assembly.pairs.broken``. If
        there is a limit, the output is counted at the assembly's end. An output of more than twice the limit is
        recorded as an overflow with the cause ``framework``, unless `overflow` was called for this step.
        """
        self.record(
            replace(
                self.report,
                after=events,
                prompts=prompts,
                reason=reason,
                verdicts=verdicts,
                budget=budget,
                fixed=fixed,
                alerts=alerts,
                halts=halts,
                reported=reported,
                stands_in=stands_in,
                of_prompt=of_prompt,
            )
        )

    def record(self, report: StepReport) -> None:
        """Record a report of the policy; a later report replaces an earlier one."""
        self._time.stop()
        after, known = report.after, self._assembly.events
        if after is not None:  # copied, because the framework may change its list before the assembly ends
            has_same_ends = len(after) == len(known) > 0 and after[0] is known[0] and after[-1] is known[-1]
            report = replace(report, after=known if has_same_ends and equal(known, after) else list(after))
        self.report = report
        self._assembly.done_ns = time.time_ns()
        if report.alerts:
            self._signal(report.alerts)

    def overflow(
        self, *, budget: int, needed: int, cause: OverflowCause = OverflowCause.FRAMEWORK, unit: str = "tokens"
    ) -> None:
        """Record that `needed` exceeded the limit `budget`, in `unit`, and end the measurement of the policy's time."""
        self._time.stop()
        self.reported_overflow = Overflow(budget, needed, cause, unit)
        self._signal((), self.reported_overflow)

    def _signal(self, alerts: Sequence[AlertFacts], overflow: Overflow | None = None) -> None:
        """Record alerts and an overflow now if nothing else of the assembly is recorded."""
        recording = self._assembly.recording
        if not recording.measured:
            recording.signal(alerts, overflow)

    @contextmanager
    def compacting(
        self,
        compactor: str,
        *,
        kind: str = "summary",
        target: int = 0,
        tokens_in: int = 0,
        started_ns: int | None = None,
        ended_ns: int | None = None,
        model_spans: Sequence[Any] = (),
    ) -> Iterator[Attempt]:
        """Record the block as one attempt to compact, such as a summarizer's model call: a ``compact_block`` span.

        The block receives the `Attempt`. It sets `tokens_out`, and `outcome` if there is no summary. The arguments are
        those of `Attempt`; without times, the attempt takes as long as the block. `kind` is the kind of the summarized
        content.
        """
        attempt = Attempt(compactor, len(self.attempts) + 1, target, tokens_in, model_spans=model_spans)
        attempt.started_ns, attempt.ended_ns = started_ns, ended_ns
        self.attempts.append(attempt)
        with self._recording.watch(kind)(attempt), settling(attempt):
            yield attempt

    def record_attempt(self, earlier: SummarizerAttempt) -> None:
        """Record an attempt of a summarizer that ran outside any model call as a ``compact_block`` span of the step."""
        outcome, count = earlier.attempt, self._assembly.count
        with self.compacting(
            outcome.compactor,
            tokens_in=earlier.tokens_in(count),
            started_ns=outcome.started_ns,
            ended_ns=outcome.ended_ns,
            model_spans=outcome.model_spans,
        ) as attempt:
            attempt.outcome, attempt.error_type = outcome.outcome, outcome.error_type
            attempt.tokens_out = None if earlier.text is None else count(earlier.text)

    def count(self, text: str) -> int:
        """Return the tokens of a text, by the tokenizer of the assembly's model.

        This ends the measurement of the policy's time, unless the policy compacts: it continues with the summary.
        """
        if not self.attempts:
            self._time.stop()
        return self._assembly.count(text)


@contextmanager
def settling(attempt: Attempt) -> Iterator[None]:
    """Set the outcome of an attempt when the block ends, unless it is set. A cancellation sets only the error type."""
    try:
        yield
    except BaseException as error:
        attempt.error_type = error_type(error)
        if isinstance(error, TimeoutError):
            attempt.outcome = CompactionOutcome.TIMED_OUT
        elif is_failure(error):
            attempt.outcome = CompactionOutcome.RAISED
        raise
    attempt.outcome = attempt.outcome or CompactionOutcome.COMPACTED


def _compactions(step: Step, attempts: Sequence[Attempt], ledger: Ledger) -> Sequence[StepCompaction]:
    """Return the compaction of a step, and remember its sources: original items, even if compacted before."""
    compacted = [group for group in step.exits if group.outcome is DecisionOutcome.COMPACTED]
    first = next(iter(step.created))
    if not compacted or (not attempts and (len(step.created) > 1 or first in ledger.leaves)):
        return ()
    ranges = chain.from_iterable(item_id_ranges(group.view, group.numbered) for group in compacted)
    leaves = tuple(ledger.leaves.of(ranges))
    if len(step.created) == 1:
        ledger.leaves.remember(first, leaves)
    return [StepCompaction(leaves, first, tuple(attempts))] if attempts else ()
