"""One assembly while it runs, and what is told of it at its end."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import INVALID_SPAN

from otel_assembly.context import Context
from otel_assembly.decision import DecisionOutcome
from otel_assembly.errors import HaltedError, error_type, is_failure
from otel_assembly.ledger.ledger_diff import exits_from_the_prompt
from otel_assembly.ledger.totals import prefix_of, totals_of
from otel_assembly.recorder import Whose, is_default
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry import conventions_metrics as catalogue
from otel_assembly.telemetry.allocation import put_arrays, put_report
from otel_assembly.telemetry.arrays import run_text
from otel_assembly.telemetry.attempts import AttemptSpans
from otel_assembly.telemetry.halts import Trail, tell_halts
from otel_assembly.telemetry.projection import (
    assembly_arrays,
    assembly_attributes,
    instructions_json,
    step_arrays,
    step_attributes,
)
from otel_assembly.telemetry.run import RUN
from otel_assembly.telemetry.signals import severity_of
from otel_assembly.telemetry.stamp import Stamp, is_model_call, is_under
from otel_assembly.telemetry.statuses import set_status
from otel_assembly.telemetry.sums import Sums

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextvars import Token
    from types import TracebackType

    from opentelemetry.context import Context as OtelContext
    from opentelemetry.trace import Span

    from otel_assembly.budget.compaction import Watch
    from otel_assembly.conversation import AlertFacts
    from otel_assembly.decision import Overflow
    from otel_assembly.events import HaltEvent
    from otel_assembly.ledger.numbers import Prefix, Totals
    from otel_assembly.ledger.record import Record
    from otel_assembly.ledger.step import Step
    from otel_assembly.telemetry.arrays import Arrays
    from otel_assembly.telemetry.recorder import OpenTelemetryRecorder

OPEN: Final[ContextVar[OpenRecording | None]] = ContextVar("otel_assembly_open", default=None)


class _PolicyTime:
    """The time in which a policy runs; what it does inside belongs to its span."""

    __slots__ = (
        "_ago_ns",
        "_open",
        "_recording",
        "_runs",
        "_started",
        "_token",
        "context",
        "ended_ns",
        "halts",
        "seconds",
        "span",
    )

    def __init__(self, recording: OpenRecording, span: Span, context: OtelContext, ago_ns: int) -> None:
        self._recording = recording
        self.span = span
        self.context = context
        self.seconds = 0.0
        self.ended_ns = 0
        self.halts = 0
        self._ago_ns = ago_ns
        self._started = 0
        self._runs = False
        self._open: Token[OpenRecording | None] | None = None
        self._token: Token[OtelContext] | None = None

    def __enter__(self) -> None:
        self.halts = len(self._recording.halts)
        self._open = OPEN.set(self._recording)
        self._token = otel_context.attach(self.context)
        self._runs = True
        self._started = time.perf_counter_ns() - self._ago_ns

    def stop(self) -> None:
        """It has done its work: what is done in the block from here on is not its time."""
        if self._runs:
            self._runs = False
            self.seconds = (time.perf_counter_ns() - self._started) / 1e9
            self.ended_ns = time.time_ns()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()
        self.halts = len(self._recording.halts) - self.halts
        if self._open is not None and self._token is not None:
            try:
                OPEN.reset(self._open)
            except ValueError:  # a coroutine that nobody awaited to its end is closed in another context
                return
            otel_context.detach(self._token)


class OpenRecording:
    """One assembly while it runs."""

    __slots__ = (
        "_attempts",
        "_caller",
        "_context",
        "_inside",
        "_policies",
        "_recorder",
        "_run",
        "_span",
        "_started_ns",
        "agent_name",
        "finished",
        "framework",
        "halts",
        "measured",
        "recorded",
        "trail",
        "whose",
    )

    def __init__(
        self,
        recorder: OpenTelemetryRecorder,
        name: str | None,
        model: str | None,
        context: Context | Whose,
        started_ns: int,
    ) -> None:
        self._recorder = recorder
        self._started_ns = started_ns
        self._run = run = RUN.get()
        self.agent_name, self.framework, conversation_id = (
            context.agent_name,
            context.framework,
            context.conversation_id,
        )
        if run is not None:
            self.agent_name = self.agent_name or run.agent_name
            self.framework = self.framework or run.framework
            conversation_id = conversation_id or run.conversation_id
        #: What halted while it was open, and when.
        self.halts: list[tuple[HaltEvent, int]] = []
        self.finished = False
        self._policies: dict[int, _PolicyTime] = {}
        self._attempts: AttemptSpans | None = None
        self._context = around = otel_context.get_current()
        self._span: Span = INVALID_SPAN
        given: dict[str, Any] = {}
        if name is not None:
            given[names.NAME] = name
        if model is not None:
            given[names.MODEL] = model
        if conversation_id is not None:
            given[names.GEN_AI_CONVERSATION_ID] = conversation_id
        if self.agent_name is not None:
            given[names.GEN_AI_AGENT_NAME] = self.agent_name
        if self.framework is not None:
            given[names.FRAMEWORK] = self.framework
        try:
            self._span = recorder.start_span(names.SPAN_ASSEMBLE_CONTEXT, around, started_ns, given)
        except Exception as error:  # noqa: BLE001  # nothing of ours reaches the agent
            recorder.failures.take("span", error)
        self.whose = Whose(self.agent_name, self.framework, conversation_id)
        #: What is remembered of it for a halt that comes when it has ended.
        own = None if is_default(recorder) else recorder
        self.trail = Trail(own, self._span.get_span_context(), self.agent_name, self.framework, conversation_id)
        if isinstance(context, Context):
            context.guard.last = self.trail
        #: Whether a reader of the traces will know of this assembly.
        self.recorded = self._span.is_recording()
        self.measured = self.recorded or recorder.measures()
        self._inside = False
        if self.measured:
            self._enter()

    def _enter(self) -> None:
        """Make the context the one inside of the span; only who needs it pays for it."""
        if not self._inside:
            self._inside = True
            self._caller = trace.get_current_span(self._context)
            if self._span is not INVALID_SPAN:
                self._context = trace.set_span_in_context(self._span, self._context)

    def watch(self, kind: str) -> Watch:
        """What stands around attempts to compact something of this kind, inside a policy."""
        if self._attempts is None:
            self._attempts = AttemptSpans(self._recorder.start_span, self._recorder.failures)
        return self._attempts.watch(kind)

    def policy(self, name: str, index: int, started_ns: int | None = None) -> _PolicyTime:
        """The time in which a policy runs."""
        span: Span = INVALID_SPAN
        ago = 0 if started_ns is None else max(0, time.time_ns() - started_ns)
        self._enter()
        context = self._context
        with self._recorder.failures.contained("span"):
            attributes = {names.POLICY_NAME: name, names.POLICY_INDEX: index}
            verb = f"{names.SPAN_APPLY_POLICY} {name}"
            span = self._recorder.start_span(verb, self._context, started_ns or time.time_ns(), attributes)
            context = trace.set_span_in_context(span, self._context)
        timing = self._policies[index] = _PolicyTime(self, span, context, ago)
        return timing

    @contextmanager
    def observers(self) -> Iterator[None]:
        """The time in which observers are told of it; a halt that they bring about stands on it."""
        self._enter()
        open_token, token = OPEN.set(self), otel_context.attach(self._context)
        try:
            yield
        finally:
            with suppress(ValueError):  # a coroutine that nobody awaited to its end is closed in another context
                OPEN.reset(open_token)
                otel_context.detach(token)

    def finish(self, record: Record) -> None:
        """The assembly came to its end: everything is told now, and the spans end."""
        ended_ns = record.ended_ns or time.time_ns()
        self.finished = True
        contained = self._recorder.failures.contained
        with contained("events"):
            self._signal(record, ended_ns)
        self._tell_halts(ended_ns)
        if self.measured:
            with contained("totals"):
                self._tell(record, totals_of(record), prefix_of(record), ended_ns)
        if self._attempts is not None:
            with contained("span"):
                self._attempts.end()
        for timing in self._policies.values():
            with contained("span"):
                timing.span.end(timing.ended_ns or ended_ns)
        with contained("span"):
            self._span.end(ended_ns)

    def signal(self, alerts: Sequence[AlertFacts], overflow: Overflow | None) -> None:
        """Alerts were delivered or a limit could not hold, in an assembly of which nothing else is told."""
        self._enter()
        signals, now_ns = self._recorder.signals, time.time_ns()
        for alert in alerts:
            signals.alert(self._span, self._context, alert, now_ns)
        if overflow is not None:
            signals.overflow([self._span], self._context, overflow, now_ns)

    def abandon(self) -> None:
        """Nothing will be known of this assembly: its spans end as they are."""
        self.finished = True
        now_ns = time.time_ns()
        self._tell_halts(now_ns)
        if not self.measured and not self._policies:
            self._span.end()
            return
        for timing in self._policies.values():
            with self._recorder.failures.contained("span"):
                timing.span.end(timing.ended_ns or now_ns)
        with self._recorder.failures.contained("span"):
            if self._attempts is not None:
                self._attempts.end()
            self._span.end(now_ns)

    def _tell(self, record: Record, totals: Totals, prefix: Prefix, ended_ns: int) -> None:
        contained = self._recorder.failures.contained
        with contained("metrics"):
            self._measure(record, totals, prefix, max(0, ended_ns - self._started_ns) / 1e9)
        if self.recorded:
            self.recorded = False
            with contained("span"):
                sums = Sums(record)
                self._describe(record, totals, prefix, sums, ended_ns)
                # What stands on no span is told again by the next assembly of the ledger.
                self.recorded = True
                self._describe_steps(record, sums)
        if record.error is None and record.called:
            with contained("stamp"):
                self._stamp(record, reduced=bool(totals.dropped or totals.compacted))

    def _measure(self, record: Record, totals: Totals, prefix: Prefix, seconds: float) -> None:
        metrics = self._recorder.metrics
        context = self._context
        agent, both = metrics.agent(self.agent_name, self.framework)
        metrics.record(catalogue.DURATION, seconds, both, context)
        if not record.unknown:
            metrics.record(catalogue.INPUT_TOKENS, totals.tokens_in, both, context)
        if record.error is None:
            metrics.record(catalogue.OUTPUT_TOKENS, totals.tokens_out, both, context)
            if totals.utilization is not None:
                metrics.record(catalogue.BUDGET_UTILIZATION, totals.utilization, agent, context)
            if prefix.reuse is not None:
                metrics.record(catalogue.PREFIX_REUSE, prefix.reuse, agent, context)
            if prefix.cause is not None and prefix.cause != "first":
                metrics.add(catalogue.PREFIX_BREAKS, 1, {names.PREFIX_BREAK: prefix.cause}, context)
        fixed = _fixed_share(record, totals)
        if fixed is not None:
            metrics.record(catalogue.BUDGET_FIXED_UTILIZATION, fixed, agent, context)
        if totals.overflowed:
            metrics.add(catalogue.BUDGET_OVERFLOWS, 1, both, context)
        for step in record.steps:
            timing = self._policies.get(step.index)
            if timing is not None:
                self._measure_step(record, step, timing)

    def _measure_step(self, record: Record, step: Step, timing: _PolicyTime) -> None:
        metrics = self._recorder.metrics
        context = timing.context
        policy = {names.POLICY_NAME: metrics.policy_name(step.policy)}
        metrics.record(catalogue.POLICY_DURATION, timing.seconds, policy, context)
        if step.error is not None:
            if step.overflow is None and not isinstance(step.error, HaltedError) and is_failure(step.error):
                attributes = {**policy, names.ERROR_TYPE: metrics.error_type(error_type(step.error))}
                metrics.add(catalogue.POLICY_ERRORS, 1, attributes, context)
            return
        if record.error is not None:
            return
        for alert in step.alerts:
            attributes = {
                names.ALERT_SEVERITY: severity_of(alert),
                names.ALERT_SOURCE: metrics.alert_source(alert.source),
            }
            metrics.add(catalogue.ALERTS_DELIVERED, 1, attributes, context)
        for group in exits_from_the_prompt(record, step) if step.exits else ():
            if group.outcome is DecisionOutcome.DROPPED:
                attributes = {**policy, names.DECISION_REASON: group.reason.value}
                metrics.add(catalogue.ITEMS_DROPPED, len(group.view), attributes, context)
                metrics.add(catalogue.TOKENS_DROPPED, record.items_tokens(group.view), attributes, context)

    def _tell_halts(self, ended_ns: int) -> None:
        """What halted stands on the assembly and on the run."""
        if not self.halts:
            return
        self._enter()
        run, spans = self._run, [self._span]
        if run is not None:
            run.halted = True
            spans.append(run.span)
        halts = [(halt, min(at_ns, ended_ns)) for halt, at_ns in self.halts]
        tell_halts(self._recorder, halts, spans, self._context, self.whose)

    def _signal(self, record: Record, ended_ns: int) -> None:
        self._enter()
        signals = self._recorder.signals
        for step in record.steps:
            timing = self._policies.get(step.index)
            if timing is None:
                continue
            for alert in step.alerts if record.error is None else ():
                signals.alert(timing.span, timing.context, alert, timing.ended_ns or ended_ns)
            if step.overflow is not None:
                at_ns = min(timing.ended_ns or ended_ns, ended_ns)
                signals.overflow([timing.span, self._span], self._context, step.overflow, at_ns)

    def _describe_steps(self, record: Record, sums: Sums) -> None:
        for step in record.steps:
            timing = self._policies.get(step.index)
            if timing is None or not timing.span.is_recording():
                continue
            with self._recorder.failures.contained("span"):
                halts = max(step.halts, timing.halts)
                attributes = step_attributes(record, step, sums, halts)
                self._put(timing.span, timing.context, attributes, step_arrays(record, step), timing.ended_ns)
                self._describe_allocation(record, step, timing)
                set_status(timing.span, step.error, overflow=step.overflow, halted=bool(halts))

    def _describe(self, record: Record, totals: Totals, prefix: Prefix, sums: Sums, ended_ns: int) -> None:
        halts = max(totals.halts_emitted, len(self.halts))
        settings = self._recorder.settings
        content = self._redacted if settings.content_on_spans else None
        arrays = assembly_arrays(record, content)
        attributes = assembly_attributes(record, totals, prefix, sums, halts)
        if content is not None and record.prompts_out:
            attributes[names.GEN_AI_SYSTEM_INSTRUCTIONS] = instructions_json(record.prompts_out, content)
        set_status(self._span, record.error or record.spared, overflow=record.overflow, halted=bool(halts))
        self._put(self._span, self._context, attributes, arrays, ended_ns)

    def _redacted(self, text: str) -> str:
        return self._recorder.failures.redacted(self._recorder.settings.redact, text)

    def _describe_allocation(self, record: Record, step: Step, timing: _PolicyTime) -> None:
        """How an allocator gave its budget out, under the span of its policy."""
        for compaction in step.compactions if record.error is None else ():
            provenance = [run_text(*run) for run in compaction.provenance]
            if self._attempts is not None:
                self._attempts.tell(compaction.attempts, provenance, str(compaction.result))
        if step.report is None:
            return
        start = self._recorder.start_span
        started_ns = timing.ended_ns - int(timing.seconds * 1e9)
        span = start(names.SPAN_ALLOCATE_BUDGET, timing.context, started_ns, {})
        context = trace.set_span_in_context(span, timing.context)
        put_report(start, span, context, step.report, started_ns, None, _ordinals(step))
        if step.report.overflow is not None:
            self._recorder.signals.mark_overflow(span, step.report.overflow, timing.ended_ns)
        set_status(span, step.error, overflow=step.report.overflow, halted=False)
        span.end(timing.ended_ns)

    def _put(self, span: Span, context: OtelContext, attributes: dict[str, Any], arrays: Arrays, at_ns: int) -> None:
        put_arrays(self._recorder.start_span, span, context, attributes, arrays, at_ns)

    def _stamp(self, record: Record, *, reduced: bool) -> None:
        stamp = Stamp(record.assembly_id, self._span.get_span_context(), reduced)
        caller = self._caller
        running = trace.get_current_span()  # the call's own may have opened while it was prepared
        for span in (caller, running):
            if span.is_recording() and is_model_call(span) and (span is caller or is_under(span, caller)):
                stamp.put_on(span)
                return
        processor = self._recorder.stamping() if caller.get_span_context().is_valid else None
        if processor is not None:
            processor.await_call(caller, running, stamp)


def _ordinals(step: Step) -> Callable[[int], list[int]]:
    """The ordinals of the events that a policy's blocks are made of."""
    known: dict[int, int] = {}
    entries = step.report.entries if step.report is not None else ()
    if any(len(entry.items) for entry in entries):
        known = {id(event): item for event, item in zip(step.view_in, step.frame_in.of(step.view_in), strict=True)}
    return lambda at: [known[id(event)] for event in entries[at].items]


def _fixed_share(record: Record, totals: Totals) -> float | None:
    overflow = record.overflow
    if record.error is not None and overflow is not None and overflow.cause.value == "fixed":
        return overflow.needed / overflow.budget if overflow.budget > 0 else None
    return totals.fixed / totals.budget if totals.fixed is not None and totals.budget else None
