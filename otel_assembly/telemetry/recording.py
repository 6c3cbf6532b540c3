"""One assembly while it runs, and what is emitted at its end."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import INVALID_SPAN

from otel_assembly.context import Context
from otel_assembly.decision import DecisionOutcome
from otel_assembly.errors import HaltedError, error_type, is_failure
from otel_assembly.ledger.record import exits_from_the_prompt, prefix_of, totals_of
from otel_assembly.ledger.snapshot import item_text, run_text
from otel_assembly.recorder import Whose
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry import conventions_metrics as catalogue
from otel_assembly.telemetry.attempts import AttemptSpans
from otel_assembly.telemetry.attributes import (
    StepItems,
    assembly_arrays,
    assembly_attributes,
    instructions_json,
    put_budget,
    step_arrays,
    step_attributes,
)
from otel_assembly.telemetry.emitter import set_status
from otel_assembly.telemetry.run import RUN
from otel_assembly.telemetry.signals import Trail, mark_overflow, put_alert, put_halts, put_overflow, severity_of
from otel_assembly.telemetry.stamp import Stamp, is_model_call, is_under
from otel_assembly.tokens import Cost, input_price

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextvars import Token
    from types import TracebackType

    from opentelemetry.context import Context as OtelContext
    from opentelemetry.trace import Span

    from otel_assembly._internal.slices import Slices
    from otel_assembly.budget.attempt import Watch
    from otel_assembly.conversation import AlertFacts
    from otel_assembly.decision import Overflow
    from otel_assembly.events import HaltEvent
    from otel_assembly.ledger.figures import Prefix, Totals
    from otel_assembly.ledger.record import Record
    from otel_assembly.ledger.snapshot import Step
    from otel_assembly.telemetry.emitter import Attributes, Emitter

#: The assembly in whose policy, or in whose observers, this code runs.
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
    """One assembly while it runs.

    Args:
        emitter: What it is recorded with.
        own: The same where it is not that of the default recorder, which may be another when a halt comes later.
        name: The assembler's name.
        model: The model whose prompt is assembled.
        context: Whose assembly it is.
        started_ns: When it began.
    """

    __slots__ = (
        "_attempts",
        "_caller",
        "_context",
        "_emitter",
        "_inside",
        "_model",
        "_policies",
        "_run",
        "_span",
        "_started_ns",
        "finished",
        "halts",
        "measured",
        "recorded",
        "trail",
        "whose",
    )

    def __init__(
        self,
        emitter: Emitter,
        own: Emitter | None,
        name: str | None,
        model: str | None,
        context: Context | Whose,
        started_ns: int,
    ) -> None:
        self._emitter = emitter
        self._model = model
        self._started_ns = started_ns
        self._run = run = RUN.get()
        self.whose = whose = Whose(context.agent_name, context.framework, context.conversation_id)
        if run is not None:
            whose.agent_name = whose.agent_name or run.whose.agent_name
            whose.framework = whose.framework or run.whose.framework
            whose.conversation_id = whose.conversation_id or run.whose.conversation_id
        #: What halted while it was open, and when.
        self.halts: list[tuple[HaltEvent, int]] = []
        self.finished = False
        self._policies: dict[int, _PolicyTime] = {}
        self._attempts: AttemptSpans | None = None
        self._context = around = otel_context.get_current()
        self._span: Span = INVALID_SPAN
        attributes = {
            names.NAME: name,
            names.MODEL: model,
            names.GEN_AI_CONVERSATION_ID: whose.conversation_id,
            names.GEN_AI_AGENT_NAME: whose.agent_name,
            names.FRAMEWORK: whose.framework,
        }
        try:
            self._span = emitter.start_span(names.SPAN_ASSEMBLE_CONTEXT, around, started_ns, attributes)
        except Exception as error:  # noqa: BLE001  # nothing of ours reaches the agent
            emitter.failed("span", error)
        #: What is remembered of it for a halt that comes when it has ended.
        self.trail = Trail(own, self._span.get_span_context(), whose)
        if isinstance(context, Context):
            context.guard.last = self.trail
        #: Whether a reader of the traces will know of this assembly.
        self.recorded = self._span.is_recording()
        self.measured = self.recorded or emitter.measures()
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
            self._attempts = AttemptSpans(self._emitter)
        return self._attempts.watch(kind)

    def policy(self, name: str, index: int, started_ns: int | None = None) -> _PolicyTime:
        """The time in which a policy runs."""
        span: Span = INVALID_SPAN
        ago = 0 if started_ns is None else max(0, time.time_ns() - started_ns)
        self._enter()
        context = self._context
        try:
            attributes = {names.POLICY_NAME: name, names.POLICY_INDEX: index}
            verb = f"{names.SPAN_APPLY_POLICY} {name}"
            span = self._emitter.start_span(verb, self._context, started_ns or time.time_ns(), attributes)
            context = trace.set_span_in_context(span, self._context)
        except Exception as error:  # noqa: BLE001
            self._emitter.failed("span", error)
        timing = self._policies[index] = _PolicyTime(self, span, context, ago)
        return timing

    @contextmanager
    def observers(self) -> Iterator[None]:
        """The time in which observers look at it; a halt that they bring about stands on it."""
        self._enter()
        open_token, token = OPEN.set(self), otel_context.attach(self._context)
        try:
            yield
        finally:
            with suppress(ValueError):  # a coroutine that nobody awaited to its end is closed in another context
                OPEN.reset(open_token)
                otel_context.detach(token)

    def finish(self, record: Record) -> Slices[None]:
        """The assembly came to its end: its events, metrics and attributes are emitted, and its spans end."""
        ended_ns = record.ended_ns or time.time_ns()
        self.finished = True
        try:
            self._signal(record, ended_ns)
        except Exception as error:  # noqa: BLE001
            self._emitter.failed("events", error)
        self._put_halts(ended_ns)
        if self.measured:
            try:
                totals, prefix = totals_of(record), prefix_of(record)
            except Exception as error:  # noqa: BLE001
                self._emitter.failed("totals", error)
            else:
                for component, emit in (("metrics", self._measure), ("span", self._describe), ("stamp", self._stamp)):
                    try:
                        yield from emit(record, totals, prefix, ended_ns) or ()
                    except Exception as error:  # noqa: BLE001  # what fails in one costs nothing of the others
                        self._emitter.failed(component, error)
        self._end(ended_ns)

    def signal(self, alerts: Sequence[AlertFacts], overflow: Overflow | None) -> None:
        """Alerts were delivered or a limit could not hold, in an assembly of which nothing else is emitted."""
        self._enter()
        now_ns = time.time_ns()
        for alert in alerts:
            put_alert(self._emitter, self._span, self._context, alert, now_ns)
        if overflow is not None:
            put_overflow(self._emitter, [self._span], self._context, overflow, now_ns)

    def abandon(self) -> None:
        """Nothing will be known of this assembly: its spans end as they are."""
        self.finished = True
        now_ns = time.time_ns()
        self._put_halts(now_ns)
        self._end(now_ns)

    def _end(self, at_ns: int) -> None:
        """End the spans, the inner ones first."""
        if self._attempts is not None:
            self._attempts.end()
        for span, ended_ns in (*((one.span, one.ended_ns) for one in self._policies.values()), (self._span, 0)):
            try:
                span.end(ended_ns or at_ns)
            except Exception as error:  # noqa: BLE001
                self._emitter.failed("span", error)

    def _measure(self, record: Record, totals: Totals, prefix: Prefix, ended_ns: int) -> None:
        instruments = self._emitter.metrics
        context = self._context
        agent, both = instruments.agent(self.whose.agent_name, self.whose.framework)
        instruments.record(catalogue.DURATION, max(0, ended_ns - self._started_ns) / 1e9, both, context)
        if not record.unknown:
            instruments.record(catalogue.INPUT_TOKENS, totals.tokens_in, both, context)
        if record.error is None:
            instruments.record(catalogue.OUTPUT_TOKENS, totals.tokens_out, both, context)
            if totals.utilization is not None:
                instruments.record(catalogue.BUDGET_UTILIZATION, totals.utilization, agent, context)
            if prefix.reuse is not None:
                instruments.record(catalogue.PREFIX_REUSE, prefix.reuse, agent, context)
            if prefix.cause is not None and prefix.cause != "first":
                instruments.add(catalogue.PREFIX_BREAKS, 1, {**agent, names.PREFIX_BREAK: prefix.cause}, context)
        fixed = _fixed_share(record, totals)
        if fixed is not None:
            instruments.record(catalogue.BUDGET_FIXED_UTILIZATION, fixed, agent, context)
        if totals.overflowed:
            instruments.add(catalogue.BUDGET_OVERFLOWS, 1, both, context)
        for step in record.steps:
            timing = self._policies.get(step.index)
            if timing is not None:
                self._measure_step(record, step, timing, agent)
        if self._model is not None and record.called and record.error is record.spared is None:
            self._measure_cost(self._model, record, totals, prefix, agent)

    def _measure_cost(self, model: str, record: Record, totals: Totals, prefix: Prefix, agent: Attributes) -> None:
        """What the prompt costs, and what it would have cost more with what left it: where its price is known."""
        price = input_price(model)
        if price is None:
            return
        instruments, context = self._emitter.metrics, self._context
        whose = {**agent, names.MODEL: instruments.model_name(model)}
        for part, dollars in zip(Cost._fields, price.of_prompt(totals.tokens_out, prefix.tokens), strict=True):
            if dollars:
                instruments.add(catalogue.COST, dollars, {**whose, names.COST_PART: part}, context)
        left = sum(
            [record.items_tokens(group.view) for step in record.steps for group in exits_from_the_prompt(record, step)]
        )
        if left:
            instruments.add(catalogue.COST_AVOIDED, price.of_left_out(left, totals.tokens_out), whose, context)

    def _measure_step(self, record: Record, step: Step, timing: _PolicyTime, agent: Attributes) -> None:
        instruments = self._emitter.metrics
        context = timing.context
        policy = {names.POLICY_NAME: instruments.policy_name(step.policy)}
        instruments.record(catalogue.POLICY_DURATION, timing.seconds, policy, context)
        if step.error is not None:
            if step.overflow is None and not isinstance(step.error, HaltedError) and is_failure(step.error):
                attributes = {**agent, **policy, names.ERROR_TYPE: instruments.error_type(error_type(step.error))}
                instruments.add(catalogue.POLICY_ERRORS, 1, attributes, context)
            return
        if record.error is not None:
            return
        for alert in step.alerts:
            attributes = {
                **agent,
                names.ALERT_SEVERITY: severity_of(alert),
                names.ALERT_SOURCE: instruments.alert_source(alert.source),
            }
            instruments.add(catalogue.ALERTS_DELIVERED, 1, attributes, context)
        for group in exits_from_the_prompt(record, step) if step.exits else ():
            if group.outcome is DecisionOutcome.DROPPED:
                attributes = {**agent, **policy, names.DECISION_REASON: group.reason.value}
                instruments.add(catalogue.ITEMS_DROPPED, len(group.view), attributes, context)
                instruments.add(catalogue.TOKENS_DROPPED, record.items_tokens(group.view), attributes, context)

    def _put_halts(self, ended_ns: int) -> None:
        """Put what halted on the assembly and on the run."""
        if not self.halts:
            return
        self._enter()
        run, spans = self._run, [self._span]
        if run is not None:
            run.halted = True
            spans.append(run.span)
        halts = [(halt, min(at_ns, ended_ns)) for halt, at_ns in self.halts]
        put_halts(self._emitter, halts, spans, self._context, self.whose)

    def _signal(self, record: Record, ended_ns: int) -> None:
        self._enter()
        for step in record.steps:
            timing = self._policies.get(step.index)
            if timing is None:
                continue
            for alert in step.alerts if record.error is None else ():
                put_alert(self._emitter, timing.span, timing.context, alert, timing.ended_ns or ended_ns)
            if step.overflow is not None:
                at_ns = min(timing.ended_ns or ended_ns, ended_ns)
                put_overflow(self._emitter, [timing.span, self._span], self._context, step.overflow, at_ns)

    def _describe(self, record: Record, totals: Totals, prefix: Prefix, ended_ns: int) -> Slices[None]:
        """Set the attributes and arrays of the assembly's span, and of those of its steps."""
        if not self.recorded:
            return
        # What does not get onto the span arrives with the next assembly of the ledger.
        self.recorded = False
        halts = max(totals.halts_emitted, len(self.halts))
        content = self._emitter.content
        arrays = yield from assembly_arrays(record, content)
        attributes = assembly_attributes(record, totals, prefix, halts)
        if content is not None and record.prompts_out:
            attributes[names.GEN_AI_SYSTEM_INSTRUCTIONS] = instructions_json(record.prompts_out, content)
        set_status(self._span, record.error or record.spared, overflow=record.overflow, halted=bool(halts))
        yield from self._emitter.putting(self._span, self._context, attributes, arrays, ended_ns)
        self.recorded = True
        for step in record.steps:
            timing = self._policies.get(step.index)
            if timing is None or not timing.span.is_recording():
                continue
            try:
                self._describe_step(record, step, timing)
            except Exception as error:  # noqa: BLE001  # what fails in one step costs nothing of the others
                self._emitter.failed("span", error)

    def _describe_step(self, record: Record, step: Step, timing: _PolicyTime) -> None:
        halts = max(step.halts, timing.halts)
        attributes = step_attributes(record, step, halts)
        self._emitter.put(timing.span, timing.context, attributes, step_arrays(record, step), timing.ended_ns)
        for compaction in step.compactions if record.error is None else ():
            provenance = [run_text(*run) for run in compaction.provenance]
            if self._attempts is not None:
                self._attempts.explain(compaction.attempts, provenance, item_text(compaction.result))
        report = step.report
        if report is not None:
            started_ns = timing.ended_ns - int(timing.seconds * 1e9)
            span = self._emitter.start_span(names.SPAN_ALLOCATE_BUDGET, timing.context, started_ns, {})
            context = trace.set_span_in_context(span, timing.context)
            put_budget(self._emitter, span, context, report, StepItems(step, report), started_ns)
            if report.overflow is not None:
                mark_overflow(self._emitter, span, report.overflow, timing.ended_ns)
            set_status(span, step.error, overflow=report.overflow, halted=False)
            span.end(timing.ended_ns)
        set_status(timing.span, step.error, overflow=step.overflow, halted=bool(halts))

    def _stamp(self, record: Record, totals: Totals, prefix: Prefix, ended_ns: int) -> None:
        """Stamp the model call that this prompt is for, or wait for it."""
        if record.error is not None or not record.called:
            return
        reduced = bool(totals.dropped or totals.compacted)
        stamp = Stamp(record.assembly_id, self._span.get_span_context(), reduced)
        caller = self._caller
        running = trace.get_current_span()  # the call's own may have opened while it was prepared
        for span in (caller, running):
            if span.is_recording() and is_model_call(span) and (span is caller or is_under(span, caller)):
                stamp.put_on(span)
                return
        processor = self._emitter.stamping() if caller.get_span_context().is_valid else None
        if processor is not None:
            processor.await_call(caller, running, stamp)


def _fixed_share(record: Record, totals: Totals) -> float | None:
    overflow = record.overflow
    if record.error is not None and overflow is not None and overflow.cause.value == "fixed":
        return overflow.needed / overflow.budget if overflow.budget > 0 else None
    return totals.fixed / totals.budget if totals.fixed is not None and totals.budget else None
