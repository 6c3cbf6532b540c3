"""`ObservedAssembly` and `ObservedStep`: one assembly of a framework and its steps, while they run."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

from otel_assembly.budget.attempt import Attempt, CompactionOutcome
from otel_assembly.chain.open_assembly import OpenAssembly
from otel_assembly.chain.step_diff import record_matches
from otel_assembly.decision import DecisionOutcome, DecisionReason, Overflow, OverflowCause
from otel_assembly.errors import error_type, is_failure
from otel_assembly.ledger.snapshot import ItemGroup, StepCompaction, item_id_runs
from otel_assembly.matching.sequence_diff import shared_front
from otel_assembly.messages.content_snapshot import equal
from otel_assembly.messages.event_facts import describe
from otel_assembly.observe.step_report import StepReport
from otel_assembly.recorder import NULL_RECORDING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
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
    Therefore spans, times and attempts to compact are recorded as the steps run, so that the spans of a reducer's calls
    are children of the step's span. The output of a step is only stored. It is read when `ObservedAssembler.open` sets
    the assembly's input.

    If an assembly is neither sampled nor measured by metrics, no event is read or counted. Its steps use
    `NULL_RECORDING`, and only its alerts and overflows are recorded.

    Attributes:
        events: The input of the next step, as the framework's list. Its objects may be copies of the original events.
        model: The model whose tokenizer counts; None if unknown.
        conversation_id: The conversation's real id, if it has one.
        steps: The steps so far.
        done_ns: The end time of the last step, in nanoseconds since the epoch; 0 if no step has ended.
        awaits_input: Whether the assembly's input is not known yet.
        broken: Whether the assembly is not recorded, because recording failed.
    """

    __slots__ = (
        "_failed",
        "_is_open",
        "_meter",
        "_of_steps",
        "awaits_input",
        "broken",
        "conversation_id",
        "done_ns",
        "events",
        "model",
        "steps",
    )

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
        self._of_steps = recording if recording.measured else NULL_RECORDING
        self.model = model
        self._meter = meter
        self._failed = failed
        self.events: list[Any] = []
        self.steps: list[ObservedStep] = []
        self.done_ns = 0
        self.awaits_input = True
        self._is_open = self.broken = False

    @property
    def id(self) -> str:
        """The assembly's id, as on its span; empty while it has no input, and if its events are not recorded."""
        return self.record.assembly_id if self._is_open else ""

    def open(self, record: Record) -> None:
        """Set the assembly's record, which has the input, and read the reports of the steps so far."""
        self.record, self.model, view = record, record.model, record.ledger_input.view
        view.history.table(record.meter).arrive(view.end)
        self.events = record.ledger_input.given
        self._is_open = True
        for step in self.steps:
            step.begin()

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
        is_recorded = self._is_open or self.awaits_input
        time_of = (self._of_steps if is_recorded else NULL_RECORDING).policy(policy, len(self.steps), started_ns)
        step = ObservedStep(self, StepReport(policy, kind=kind, config=config or {}), time_of)
        self.steps.append(step)
        if self._is_open:
            step.begin()
        return step

    def tokens(self) -> int | None:
        """Return the tokens of the last step's output with its prompts; None if tokens are not counted."""
        if not self._is_open:
            return None
        self.record.end_chain()
        return self.record.tokens(self.record.sent.prompts, self.record.sent.view)

    def count(self, text: str) -> int:
        """Return the tokens of a text, by the tokenizer of the assembly's model; 0 if tokens are not counted."""
        return self._meter(self.model).prompt(text) if self.recording.measured else 0

    def watch(self, kind: str, attempt: Attempt) -> AbstractContextManager[Any]:
        """Return a context manager that records an attempt to compact content of a kind, such as ``summary``."""
        return self._of_steps.watch(kind)(attempt)

    def signal(self, alerts: Sequence[AlertFacts], overflow: Overflow | None = None) -> None:
        """Record alerts and an overflow if nothing else of the assembly is recorded."""
        if not self.recording.measured and (alerts or overflow is not None):
            self.recording.signal(alerts, overflow)

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
        if self._is_open and not self.broken:
            self.record.called, self.record.ended_ns = called, ended_ns
            try:
                for step in self.steps:
                    step.check_limit()
                self.record.end_chain()
                if error is None:
                    self.succeeded()
                elif stays:
                    self.failed_maintenance(error)
                else:
                    self.failed(error)
            except Exception as problem:  # noqa: BLE001  # a failed recording must not affect the agent
                self.fail(problem)
            else:
                return
        with suppress(Exception):
            self.recording.abandon()

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


class ObservedStep:
    """One policy or reducer of an observed assembly, while it runs.

    Attributes:
        report: What the policy did; its name, kind and settings until the output is known.
        entered: Whether the step's block was entered.
    """

    __slots__ = ("_assembly", "_attempts", "_error", "_has_output", "_overflow", "_step", "_time", "entered", "report")

    def __init__(self, assembly: ObservedAssembly, report: StepReport, time_of: PolicyTime) -> None:
        self.report = report
        self._assembly = assembly
        self._time = time_of
        self._attempts: list[Attempt] = []
        self.entered = False
        self._error: BaseException | None = None
        self._overflow: Overflow | None = None
        self._step: Step | None = None
        self._has_output = False

    def __enter__(self) -> Self:
        self._time.__enter__()
        self.entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._time.__exit__(kind, error, trace)
        self._error = error
        if self._step is not None:
            self._step.error = error
        self._assembly.done_ns = time.time_ns()

    def begin(self) -> None:
        """Begin the step in the ledger's record: the assembly's input is known now, so the report can be read."""
        report = self.report
        self._step = step = self._assembly.begin_step(report.policy, report.kind, report.config)
        step.error = self._error
        if self._overflow is not None:
            self._set_overflow(step, self._overflow)
        if self._has_output:
            self._write(step)

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

        Tool calls without results and results without calls in the output are recorded as ``assembly.pairs.broken``.
        If there is a limit, the output is counted at the assembly's end. An output of more than twice the limit is
        recorded as an overflow with the cause ``framework``, unless `overflow` was called for this step.

        Args:
            events: The output events; None if they are the input events.
            prompts: The system prompts after the policy; None if it did not change them.
            reason: Why events without a verdict were dropped.
            verdicts: Why events were dropped or compacted. A verdict that contradicts the output is ignored.
            budget: The limit of the output, in tokens.
            fixed: The tokens of the events that could not be dropped.
            alerts: The alerts that were delivered to the model.
            halts: The number of halts that were emitted.
            reported: The number of dropped events that the framework itself states, for example in the output. It is
                recorded in addition to the number that was found.
            stands_in: Whether a new event replaces the dropped ones, which are then compacted and not dropped. None: it
                does, unless the framework states a number of dropped events.
            of_prompt: Whether the limit includes the system prompts and the tools.
        """
        known = self.report
        self.record(
            StepReport(
                known.policy,
                after=events,
                kind=known.kind,
                config=known.config,
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
        """Record a report of the policy, as `out` does, and end the measurement of the policy's time.

        Until the assembly's input is known, a later report replaces an earlier one.
        """
        self._time.stop()
        assembly = self._assembly
        assembly.done_ns = time.time_ns()
        if assembly.awaits_input and report.after is not None:  # the framework may change its list later
            report = replace(report, after=list(report.after))
        self.report, self._has_output = report, True
        if self._step is not None:
            self._write(self._step)
        if report.alerts:
            assembly.signal(report.alerts)

    def amend(self, report: StepReport) -> None:
        """Replace the report of a step whose assembly's input is not known yet."""
        self.report = report

    def _write(self, step: Step) -> None:
        """Write the report to the ledger's record: compare the output with the input, and set the numbers."""
        assembly, report = self._assembly, self.report
        record, events = assembly.record, report.after
        try:
            if events is not None:
                with record.ledger.lock:
                    inputs = assembly.events
                    if len(inputs) > len(step.view_in):  # a concurrent assembly appended to the list
                        inputs = inputs[: len(step.view_in)]
                    outputs = inputs if type(events) is list and _unchanged(inputs, events) else list(events)
                    if report.verdicts or not _is_cut(step, inputs, outputs, report.reason):
                        index = record.ledger_input.numbered.event_index
                        record_matches(
                            step,
                            inputs,
                            outputs,
                            report.verdicts,
                            record.ledger,
                            otherwise=report.reason,
                            rereads=True,
                            stands_in=report.reported is None if report.stands_in is None else report.stands_in,
                            index=index if step.view_in is record.ledger_input.view else None,
                        )
                assembly.events = outputs
            if report.prompts is not None:
                step.set_prompts(tuple(report.prompts))
            step.budget, step.fixed, step.reported = report.budget, report.fixed, report.reported
            step.alerts, step.halts = tuple(report.alerts), report.halts
            if record.unknown:
                step.exits = step.pinned = ()
            if step.created:
                step.compactions = tuple(_compactions(step, self._attempts, record.ledger))
        except Exception as problem:  # noqa: BLE001
            assembly.fail(problem)

    def overflow(
        self, *, budget: int, needed: int, cause: OverflowCause = OverflowCause.FRAMEWORK, unit: str = "tokens"
    ) -> None:
        """Record that `needed` exceeded the limit `budget`, in `unit`, and end the measurement of the policy's time."""
        self._time.stop()
        self._overflow = Overflow(budget, needed, cause, unit)
        if self._step is not None:
            self._set_overflow(self._step, self._overflow)
        self._assembly.signal((), self._overflow)

    def _set_overflow(self, step: Step, overflow: Overflow) -> None:
        step.overflow, record = overflow, self._assembly.record
        record.overflow = record.overflow or overflow

    def check_limit(self) -> None:
        """Record an overflow if the output is far above the step's limit and `overflow` was not called."""
        step, report, record = self._step, self.report, self._assembly.record
        if step is None or report.budget is None:
            return
        view, most = step.view_out, _OVERFLOW_FACTOR * max(0, report.budget)
        if not report.of_prompt:
            step.beside_tokens = sum(record.meter.event(describe(event)) for event in report.beside)
        if self._overflow is None and step.error is None and self._counted(step) > most:
            view.history.table(record.meter).exact(view)  # the first comparison may have used estimates
            if (needed := self._counted(step)) > most:
                self._set_overflow(step, Overflow(report.budget, needed, OverflowCause.FRAMEWORK))

    def _counted(self, step: Step) -> int:
        """Return the tokens that count against the limit of a step."""
        record = self._assembly.record
        used = record.used(step)
        return record.tokens(step.prompts_out, step.view_out) if used is None else used

    def failed(self, error: BaseException | None) -> None:
        """Set the step's error, also after its block; None clears it. The recorded output stays."""
        self._error = error
        if self._step is not None:
            self._step.error = error

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
        attempt = Attempt(
            compactor,
            len(self._attempts) + 1,
            target,
            tokens_in,
            started_ns=started_ns,
            ended_ns=ended_ns,
            model_spans=model_spans,
        )
        self._attempts.append(attempt)
        with self._assembly.watch(kind, attempt), settling(attempt):
            yield attempt

    def record_attempt(self, earlier: SummarizerAttempt) -> None:
        """Record an attempt of a summarizer that ran outside any model call as a ``compact_block`` span of this step.

        Args:
            earlier: The recorded attempt.
        """
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
        if not self._attempts:
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


def _unchanged(inputs: list[Any], events: list[Any]) -> bool:
    """Return True if two lists have equal events, with the same objects at both ends."""
    if len(inputs) != len(events) or not inputs:
        return False
    return inputs[0] is events[0] and inputs[-1] is events[-1] and equal(inputs, events)


def _is_cut(step: Step, inputs: list[Any], events: list[Any], reason: DecisionReason) -> bool:
    """Write the output to the step if it lacks at most one run of the inputs; otherwise return False.

    Trimmed lists are common, and this is faster than `record_matches`. The first and the last event of each part that
    is kept are the same objects as in the input, and those between them are equal.
    """
    view, length, out = step.view_in, len(inputs), len(events)
    if out > length or view.history.echoes:
        return False
    if out and events[-1] is not inputs[-1] and events[-1] is not inputs[out - 1]:
        return False  # the last output is neither the last input nor that of a cut end
    front = out if events is inputs else shared_front(inputs, events)
    back = length - out + front
    ends_are_shared = front == out or (events[front] is inputs[back] and events[-1] is inputs[-1])
    if not (ends_are_shared and equal(inputs[back:], events[front:])):
        return False
    if out < length:
        step.view_out = view.pick([(0, front), (back, length)])
        step.exits = (ItemGroup(view.part(front, back), step.numbered_in, DecisionOutcome.DROPPED, reason),)
    return True


def _compactions(step: Step, attempts: Sequence[Attempt], ledger: Ledger) -> Sequence[StepCompaction]:
    """Return the compaction of a step, and remember its sources: original items, even if compacted before."""
    compacted = [group for group in step.exits if group.outcome is DecisionOutcome.COMPACTED]
    if not compacted or (not attempts and (len(step.created) > 1 or step.created[0][1] in ledger.leaves)):
        return ()
    runs = sorted(run for group in compacted for run in item_id_runs(group.view, group.numbered))
    leaves = tuple(ledger.leaves.of(runs))
    if len(step.created) == 1:
        ledger.leaves.remember(step.created[0][1], leaves)
    return [StepCompaction(leaves, step.created[0][1], tuple(attempts))] if attempts else ()
