"""One assembly of a framework, while it runs: its steps, one after the other, and its end."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from itertools import compress, count
from operator import is_, is_not
from typing import TYPE_CHECKING, Any, Final, Self

from otel_assembly.budget.attempt import Attempt, CompactionOutcome
from otel_assembly.chain.open_assembly import OpenAssembly
from otel_assembly.chain.step_diff import match
from otel_assembly.decision import DecisionOutcome, DecisionReason, Overflow, OverflowCause
from otel_assembly.errors import error_type, is_failure
from otel_assembly.ledger.snapshot import ItemGroup, StepCompaction, item_id_runs
from otel_assembly.messages.content_snapshot import equal
from otel_assembly.messages.event_facts import describe
from otel_assembly.observe.step_report import StepReport
from otel_assembly.recorder import NULL_RECORDING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from contextvars import Token
    from types import TracebackType

    from otel_assembly.conversation_state import AlertFacts
    from otel_assembly.decision import Verdict
    from otel_assembly.ledger.ledger import Ledger
    from otel_assembly.ledger.record import Record
    from otel_assembly.ledger.snapshot import Step
    from otel_assembly.observe.step_report import SummarizerAttempt
    from otel_assembly.recorder import PolicyTime, ProviderEdit, Recording
    from otel_assembly.tokens import TokenMeter

#: A reducer that lets more than so many times its limit pass did not hold it. Frameworks estimate, and what they keep
#: within a limit so was up to 1.6 times that on recorded conversations (docs/decisions/0033).
LET_PASS: Final = 2

STEP: Final[ContextVar[ObservedStep | None]] = ContextVar("otel_assembly_observed_step", default=None)


def current_step() -> ObservedStep | None:
    """The step that is running here: what it calls, such as a summariser, belongs to it."""
    return STEP.get()


class ObservedAssembly(OpenAssembly):
    """One assembly of a framework, while it runs.

    A framework's reducers may run long before the model call that they work for, and not know whose it will be. Spans,
    times and attempts to compact are recorded as the steps run, so that what they call stands under them; what came out
    of a step is read once it is known what came in, by `ObservedAssembler.open`.

    Of an assembly that is sampled out, and has no metrics either, no event is read or counted: `NULL_RECORDING` stands
    in for the times of its steps, and only its alerts and overflows are reported.

    Attributes:
        events: What the next step takes in: the framework's own list, whose objects need not be those first seen.
        model: The model whose tokenizer counts.
        conversation_id: The conversation's real id, if it has one.
        steps: What ran so far.
        done_ns: When the last of them was done.
        waits: Whether what came in is yet to be known.
        broken: Whether it is left out, because what is known of it is not right.
    """

    __slots__ = (
        "_failed",
        "_is_open",
        "_meter",
        "_of_steps",
        "broken",
        "conversation_id",
        "done_ns",
        "events",
        "model",
        "steps",
        "waits",
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
        self.waits = True
        self._is_open = self.broken = False

    @property
    def id(self) -> str:
        """The assembly's id, as on its span; empty where it has no span that anybody could look for."""
        return self.record.assembly_id if self._is_open else ""

    def open(self, record: Record) -> None:
        """It is known what came in: what the steps said so far is read."""
        self.record, self.model, view = record, record.model, record.ledger_input.view
        record.table(view).arrive(view.end)
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
        """One policy or reducer: a context manager around what it does, which says there what came out.

        Where an exception leaves the block, the step failed; where nothing was said, it changed nothing. It must not
        be held open across the ``yield`` of a generator.

        Args:
            policy: Its name, of low cardinality.
            kind: ``injection`` or ``reduction``, where that is known.
            config: Its settings; numbers, bools and enums of them are reported.
            started_ns: When it began, if that was before the block is entered.
        """
        reports = self._is_open or self.waits
        time_of = (self._of_steps if reports else NULL_RECORDING).policy(policy, len(self.steps), started_ns)
        step = ObservedStep(self, StepReport(policy, kind=kind, config=config or {}), time_of)
        self.steps.append(step)
        if self._is_open:
            step.begin()
        return step

    def tokens(self) -> int | None:
        """Tokens of the prompt as the last step left it; None where no number is reported."""
        if not self._is_open:
            return None
        record = self.record
        return record.tokens(record.prompts_out, record.view_out)

    def count(self, text: str) -> int:
        """Tokens of a text, by what counts for this assembly so far; 0 where no number is reported."""
        return self._meter(self.model).prompt(text) if self.recording.measured else 0

    def watch(self, kind: str, attempt: Attempt) -> AbstractContextManager[Any]:
        """Around an attempt to compact something of this kind."""
        return self._of_steps.watch(kind)(attempt)

    def signal(self, alerts: Sequence[AlertFacts], overflow: Overflow | None = None) -> None:
        """Report alerts and overflows of an assembly of which nothing else is reported."""
        if not self.recording.measured and (alerts or overflow is not None):
            self.recording.signal(alerts, overflow)

    def end(
        self,
        error: BaseException | None = None,
        *,
        stays: bool = False,
        called: bool = True,
        over_ns: int | None = None,
    ) -> None:
        """The assembly came to its end; with an error, nothing was sent.

        Args:
            error: What went wrong.
            stays: Whether what came in stays as the last step left it, whatever went wrong: it was care of a history,
                such as its compaction, and no prompt of a model call that fails with it.
            called: Whether a model is called with it now.
            over_ns: When it was over, if that was earlier.
        """
        if self._is_open and not self.broken:
            self.record.called, self.record.ended_ns = called, over_ns
            try:
                for step in self.steps:
                    step.hold()
                if error is None:
                    self.succeeded()
                elif stays:
                    self.spared(error)
                else:
                    self.failed(error)
            except Exception as problem:  # noqa: BLE001  # an observer must not be felt
                self.fail(problem)
            else:
                return
        with suppress(Exception):
            self.recording.abandon()

    def answered(self, edits: Sequence[ProviderEdit]) -> None:
        """Record the edits that the model's provider made to the request, once the provider has answered."""
        with suppress(Exception):
            self.recording.answered(edits)

    def fail(self, problem: Exception) -> None:
        """What is known of this assembly is not to be reported."""
        self.broken = True
        self._failed(problem)


class ObservedStep:
    """One policy or reducer of an observed assembly, while it runs.

    Attributes:
        report: What the policy did; its name, kind and settings until the output is known.
    """

    __slots__ = ("_assembly", "_attempts", "_current", "_error", "_has_output", "_overflow", "_step", "_time", "report")

    def __init__(self, assembly: ObservedAssembly, report: StepReport, time_of: PolicyTime) -> None:
        self.report = report
        self._assembly = assembly
        self._time = time_of
        self._attempts: list[Attempt] = []
        self._current: Token[ObservedStep | None] | None = None
        self._error: BaseException | None = None
        self._overflow: Overflow | None = None
        self._step: Step | None = None
        self._has_output = False

    def __enter__(self) -> Self:
        self._time.__enter__()
        self._current = STEP.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._current is not None:
            with suppress(ValueError):  # a coroutine that nobody awaited to its end is closed in another context
                STEP.reset(self._current)
        self._time.__exit__(kind, error, trace)
        self.failed(error)
        self._assembly.done_ns = time.time_ns()

    @property
    def entered(self) -> bool:
        """Whether its block was entered."""
        return self._current is not None

    def begin(self) -> None:
        """Begin the step in the ledger's record: the assembly's input is known now, so the report can be read."""
        report = self.report
        self._step = step = self._assembly.begin_step(report.policy, report.kind, report.config)
        step.error = self._error
        if self._overflow is not None:
            self._overflows(step, self._overflow)
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
        """Say what came out; the time that the policy took ends here.

        What is in it that lost the other half of its pair, a tool's result without the call or the other way round, is
        found here, and reported as ``assembly.pairs.broken``.

        Where a limit is said, what came out is counted at the assembly's end: over twice the limit it is an overflow
        with the cause ``framework``, unless `overflow` has said one of this step.

        Args:
            events: The events; None where they are those that came in.
            prompts: The prompts; None where they are those that came in.
            reason: Why an event left of which no verdict speaks.
            verdicts: Why, by event; a verdict on an event that did not leave is not heeded.
            budget: The limit that was to be held, in tokens.
            fixed: Tokens of what could not be dropped.
            alerts: Alerts that were delivered to the model.
            halts: Halts that were emitted.
            reported: How many events the framework itself says that it left out, in the text that it puts in their
                place or elsewhere; reported beside what is really not there.
            stands_in: Whether what is new where something left stands in for it, so that this was compacted into it, or
                only notes that something is missing, so that it was dropped. By default it does, unless the framework
                says how many it left out.
            of_prompt: Whether the limit is one of the whole prompt, with its system-level texts and the tools, and not
                of the events alone.
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
        """Record what the policy did, as `out` does; the time that the policy took ends here.

        Until the assembly's input is known, a later report replaces an earlier one.
        """
        self._time.stop()
        assembly = self._assembly
        assembly.done_ns = time.time_ns()
        if assembly.waits and report.after is not None:  # the framework may change its list until the report is read
            report = replace(report, after=list(report.after))
        self.report, self._has_output = report, True
        if self._step is not None:
            self._write(self._step)
        assembly.signal(report.alerts)

    def amend(self, report: StepReport) -> None:
        """Replace the report of a step whose assembly's input is not known yet."""
        self.report = report

    def _write(self, step: Step) -> None:
        """Find out what was done, from what came out and what came in."""
        assembly, report = self._assembly, self.report
        record, events = assembly.record, report.after
        try:
            if events is not None:
                with record.ledger.lock:
                    inputs = assembly.events
                    if len(inputs) > len(step.view_in):  # another assembly of the conversation put more behind them
                        inputs = inputs[: len(step.view_in)]
                    given = inputs if type(events) is list and _unchanged(inputs, events) else list(events)
                    if report.verdicts or not _is_cut(step, inputs, given, report.reason):
                        places = record.ledger_input.numbered.places
                        match(
                            step,
                            inputs,
                            given,
                            report.verdicts,
                            record.ledger,
                            otherwise=report.reason,
                            rereads=True,
                            stands_in=report.reported is None if report.stands_in is None else report.stands_in,
                            index=places if step.view_in is record.ledger_input.view else None,
                        )
                assembly.events = given
            if report.prompts is not None:
                step.let_out(tuple(report.prompts))
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
        """A limit could not hold; the time that the policy took ends here."""
        self._time.stop()
        self._overflow = Overflow(budget, needed, cause, unit)
        if self._step is not None:
            self._overflows(self._step, self._overflow)
        self._assembly.signal((), self._overflow)

    def _overflows(self, step: Step, overflow: Overflow) -> None:
        step.overflow, record = overflow, self._assembly.record
        record.overflow = record.overflow or overflow

    def hold(self) -> None:
        """Whether its limit held is found out, where nobody has said that it did not."""
        step, report, record = self._step, self.report, self._assembly.record
        if step is None or report.budget is None:
            return
        view, most = step.view_out, LET_PASS * max(0, report.budget)
        if not report.of_prompt:
            step.beside_tokens = sum(record.meter.event(describe(event)) for event in report.beside)
        if self._overflow is None and step.error is None and self._counted(step) > most:
            record.table(view).exact(view)
            if (needed := self._counted(step)) > most:
                self._overflows(step, Overflow(report.budget, needed, OverflowCause.FRAMEWORK))

    def _counted(self, step: Step) -> int:
        """Tokens that count against the limit of a step."""
        record = self._assembly.record
        used = record.used(step)
        return record.tokens(step.prompts_out, step.view_out) if used is None else used

    def failed(self, error: BaseException | None) -> None:
        """It failed, where that is said after the block, beside what it had done by then."""
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
        """Around one attempt to compact, such as a summariser's model call: a ``compact_block`` span.

        What is yielded is the `Attempt`; the block fills in `tokens_out`, and `outcome` where it came to nothing.
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
            earlier: The attempt.
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
        """Tokens of a text, by what counts for this assembly.

        The time that the policy took ends here, but where it compacts: then it goes on with what was made.
        """
        if not self._attempts:
            self._time.stop()
        return self._assembly.count(text)


@contextmanager
def settling(attempt: Attempt) -> Iterator[None]:
    """A block in which something is compacted: how it ends is how the attempt did, unless that says so itself."""
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
    if len(inputs) != len(events) or not inputs:
        return False
    return inputs[0] is events[0] and inputs[-1] is events[-1] and equal(inputs, events)


def _is_cut(step: Step, inputs: list[Any], events: list[Any], reason: DecisionReason) -> bool:
    """Whether a front and a back of what went in came out, the very objects; then it is written down in the step."""
    view, length, out = step.view_in, len(inputs), len(events)
    if out > length or view.history.echoes:
        return False
    if out and events[-1] is not inputs[-1] and events[-1] is not inputs[out - 1]:
        return False  # its end is neither: no need to look at all
    front = out if events is inputs else next(compress(count(), map(is_not, inputs, events)), out)
    back = length - out + front
    if not all(map(is_, inputs[back:], events[front:])):
        return False
    if out < length:
        step.view_out = view.pick([(0, front), (back, length)])
        step.exits = (ItemGroup(view.pick([(front, back)]), step.numbered_in, DecisionOutcome.DROPPED, reason),)
    return True


def _compactions(step: Step, attempts: Sequence[Attempt], ledger: Ledger) -> Sequence[StepCompaction]:
    """The compaction that created an item, and its sources: leaves alone, also where a summary was compacted again."""
    gone = [group for group in step.exits if group.outcome is DecisionOutcome.COMPACTED]
    if not gone or (not attempts and (len(step.created) > 1 or step.created[0][1] in ledger.leaves)):
        return ()
    runs = sorted(run for group in gone for run in item_id_runs(group.view, group.numbered))
    leaves = tuple(ledger.leaves.of(runs))
    if len(step.created) == 1:
        ledger.leaves.remember(step.created[0][1], leaves)
    return [StepCompaction(leaves, step.created[0][1], tuple(attempts))] if attempts else ()
