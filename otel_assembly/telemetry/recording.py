"""An assembly's spans, from where it begins to its end, with its metrics and its events; its own failures stay here.

What happens beside an assembly (runs of agents, views, sources, halts that come when none is open) is in `recorder`.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.instrumentation.utils import is_instrumentation_enabled

from otel_assembly._internal.activity import ACTIVITY
from otel_assembly._internal.current_recorder import DEFAULT
from otel_assembly.context import Context
from otel_assembly.decision import DecisionOutcome, PrefixBreak
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
    put_budget,
    step_arrays,
    step_attributes,
)
from otel_assembly.telemetry.emitter import Emitter, set_status
from otel_assembly.telemetry.providers import Providers
from otel_assembly.telemetry.run import RUN
from otel_assembly.telemetry.settings import TelemetrySettings
from otel_assembly.telemetry.signals import Trail, mark_overflow, put_alert, put_halts, put_overflow, severity_of
from otel_assembly.telemetry.stamp import Stamp, is_model_call, is_opened_since
from otel_assembly.tokens import input_price

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextvars import Token
    from types import TracebackType

    from opentelemetry._logs import LoggerProvider
    from opentelemetry.context import Context as OtelContext
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

    from otel_assembly._internal.slices import Slices
    from otel_assembly.budget.attempt import Watch
    from otel_assembly.conversation_state import AlertFacts
    from otel_assembly.decision import Overflow
    from otel_assembly.events import HaltEvent
    from otel_assembly.ledger.figures import Prefix, Totals
    from otel_assembly.ledger.record import Record
    from otel_assembly.ledger.snapshot import Step
    from otel_assembly.telemetry.emitter import Attributes

#: Causes of a prefix that is not compared with the previous prompt, because it is unknown or there is none.
_NO_BREAK: Final = frozenset({PrefixBreak.FIRST, PrefixBreak.RESUMED})

#: The assembly in whose policy, or in whose observers, this code runs.
OPEN: Final[ContextVar[OpenRecording | None]] = ContextVar("otel_assembly_open", default=None)


class AssemblyRecorder:
    """Records assemblies through OpenTelemetry: the part of `OpenTelemetryRecorder` that every turn goes through."""

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        logger_provider: LoggerProvider | None = None,
        settings: TelemetrySettings | None = None,
    ) -> None:
        self.settings = settings if settings is not None else TelemetrySettings.from_environment()
        #: What leaves, leaves through this.
        self.emitter = Emitter(Providers(tracer_provider, meter_provider, logger_provider), self.settings)

    def listening(self) -> bool:
        """Whether anybody has configured a provider; once somebody has, it stays so."""
        providers = self.emitter.providers
        return providers.configured or providers.are_configured(self.emitter.failed)

    def begin(
        self, name: str | None, model: str | None, context: Context | Whose, started_ns: int
    ) -> OpenRecording | None:
        """An assembly begins; None where nothing is recorded."""
        emitter, providers = self.emitter, self.emitter.providers
        try:
            if (
                (providers.configured or providers.are_configured(emitter.failed))
                and is_instrumentation_enabled()
                and (emitter.ready or emitter.prepare())
            ):
                ACTIVITY.has_assembly = True
                # The default recorder may be another one when a halt comes later.
                own = None if vars(DEFAULT).get("recorder") is self else emitter
                return OpenRecording(emitter, own, name, model, context, started_ns)
        except Exception as error:  # noqa: BLE001  # nothing of ours reaches the agent
            emitter.failed("begin", error)
        return None

    def failed(self, component: str, error: BaseException) -> None:
        """Something of ours that only looks on went wrong: a warning, a count, and the agent goes on."""
        self.emitter.failed(component, error)


@dataclass(slots=True, eq=False)
class _TimeInside:
    """The time in which a policy runs, or observers look on; what they do inside belongs to its span.

    Attributes:
        recording: The assembly that it is part of.
        span: The policy's own; the assembly's for observers.
        context: The context in which that is current.
        ago_ns: How long ago it began, when the block is entered.
        seconds: How long it took.
        ended_ns: When it ended; 0 where that is not known.
        halts: How many halts were emitted in it.
    """

    recording: OpenRecording
    span: Span
    context: OtelContext
    ago_ns: int = 0
    seconds: float = 0.0
    ended_ns: int = 0
    halts: int = 0
    _started: int | None = None
    _tokens: tuple[Token[OpenRecording | None], Token[OtelContext]] | None = None

    def __enter__(self) -> None:
        self.halts = len(self.recording.halts)
        self._tokens = OPEN.set(self.recording), otel_context.attach(self.context)
        self._started = time.perf_counter_ns() - self.ago_ns

    def stop(self) -> None:
        """It has done its work: what is done in the block from here on is not its time."""
        if self._started is not None:
            self.seconds = (time.perf_counter_ns() - self._started) / 1e9
            self.ended_ns = time.time_ns()
            self._started = None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()
        self.halts = len(self.recording.halts) - self.halts
        if self._tokens is not None:
            open_token, token = self._tokens
            try:
                OPEN.reset(open_token)
            except ValueError:  # a coroutine that nobody awaited to its end is closed in another context
                return
            otel_context.detach(token)


class OpenRecording:
    """One assembly while it runs, and what is emitted at its end.

    Args:
        emitter: What it is recorded with.
        own: The same, where it is not that of the default recorder.
        name: The assembler's name.
        model: The model whose prompt is assembled.
        context: Whose assembly it is.
        started_ns: When it began.

    Attributes:
        whose: Whose it is, so far as the context or the run says.
        halts: What halted while it was open, and when.
        finished: Whether it has come to its end.
        trail: What is remembered of it for a halt that comes when it has ended.
        recorded: Whether a reader of the traces will know of this assembly.
        measured: Whether numbers go anywhere, onto a span or into a metric.
    """

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
        self.halts: list[tuple[HaltEvent, int]] = []
        self.finished = False
        self._policies: list[_TimeInside] = []
        self._attempts: AttemptSpans | None = None
        around = otel_context.get_current()
        self._caller = trace.get_current_span(around)
        attributes = {
            names.NAME: name,
            names.MODEL: model,
            names.GEN_AI_CONVERSATION_ID: whose.conversation_id,
            names.GEN_AI_AGENT_NAME: whose.agent_name,
            names.FRAMEWORK: whose.framework,
        }
        self._span, self._context = emitter.open_span(names.SPAN_ASSEMBLE_CONTEXT, around, started_ns, attributes)
        self.trail = Trail(own, self._span.get_span_context(), whose)
        if isinstance(context, Context):
            context.guard.last = self.trail
        self.recorded = self._span.is_recording()
        self.measured = self.recorded or emitter.providers.measure()

    def policy(self, name: str, index: int, started_ns: int | None = None) -> _TimeInside:
        """The time in which a policy runs; they are asked for in the order of the steps."""
        now_ns = time.time_ns()
        began_ns, attributes = started_ns or now_ns, {names.POLICY_NAME: name, names.POLICY_INDEX: index}
        verb = f"{names.SPAN_APPLY_POLICY} {name}"
        span, context = self._emitter.open_span(verb, self._context, began_ns, attributes)
        timing = _TimeInside(self, span, context, max(0, now_ns - began_ns))
        self._policies.append(timing)
        return timing

    def watch(self, kind: str) -> Watch:
        """What stands around attempts to compact something of this kind, inside a policy."""
        if self._attempts is None:
            self._attempts = AttemptSpans(self._emitter)
        return self._attempts.watch(kind)

    def observers(self) -> _TimeInside:
        """The time in which observers look at it; a halt that they bring about stands on it."""
        return _TimeInside(self, self._span, self._context)

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
                if totals.overflow is not None and record.overflow is None:  # of the model's window
                    put_overflow(self._emitter, [self._span], self._context, totals.overflow, ended_ns)
                for component, emit in (("metrics", self._measure), ("span", self._describe), ("stamp", self._stamp)):
                    try:
                        yield from emit(record, totals, prefix, ended_ns) or ()
                    except Exception as error:  # noqa: BLE001  # what fails in one costs nothing of the others
                        self._emitter.failed(component, error)
        self._end(ended_ns)

    def signal(self, alerts: Sequence[AlertFacts], overflow: Overflow | None) -> None:
        """Alerts were delivered or a limit could not hold, in an assembly of which nothing else is emitted."""
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
        for span, ended_ns in [*[(one.span, one.ended_ns) for one in self._policies], (self._span, 0)]:
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
            if (reuse := prefix.reuse) is not None:
                instruments.record(catalogue.PREFIX_REUSE, reuse, agent, context)
            if prefix.cause is not None and prefix.cause not in _NO_BREAK:
                instruments.add(catalogue.PREFIX_BREAKS, 1, {**agent, names.PREFIX_BREAK: prefix.cause}, context)
        if totals.utilization is not None:
            instruments.record(catalogue.BUDGET_UTILIZATION, totals.utilization, agent, context)
        if totals.fixed is not None and totals.budget is not None and totals.budget > 0:
            instruments.record(catalogue.BUDGET_FIXED_UTILIZATION, totals.fixed / totals.budget, agent, context)
        if totals.overflow is not None:
            instruments.add(catalogue.BUDGET_OVERFLOWS, 1, both, context)
        for step, timing in zip(record.steps, self._policies, strict=False):
            self._measure_step(record, step, timing, agent)
        if self._model is not None and record.called and record.error is record.spared is None:
            self._measure_cost(self._model, record, totals, prefix, agent)

    def _measure_cost(self, model: str, record: Record, totals: Totals, prefix: Prefix, agent: Attributes) -> None:
        """What the prompt costs, at the rates of its length, and what it would have cost more with what left it."""
        price = input_price(model)
        if price is None:
            return
        instruments, context, prompt = self._emitter.metrics, self._context, totals.tokens_out
        whose = {**agent, names.MODEL: instruments.model_name(model)}
        cost = price.of_prompt(prompt, prefix.tokens)
        for part, dollars in zip(cost._fields, cost, strict=True):
            if dollars:
                instruments.add(catalogue.COST, dollars, {**whose, names.COST_PART: part}, context)
        left = sum(
            [record.items_tokens(group.view) for step in record.steps for group in exits_from_the_prompt(record, step)]
        )
        if left:
            instruments.add(catalogue.COST_AVOIDED, price.of_left_out(left, prompt), whose, context)

    def _measure_step(self, record: Record, step: Step, timing: _TimeInside, agent: Attributes) -> None:
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
        if self.halts:
            halts = [(halt, min(at_ns, ended_ns)) for halt, at_ns in self.halts]
            put_halts(self._emitter, halts, self._span, self._run, self._context, self.whose)

    def _signal(self, record: Record, ended_ns: int) -> None:
        """Emit the alerts that were delivered, and the limits that could not hold."""
        for step, timing in zip(record.steps, self._policies, strict=False):
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
        attributes = assembly_attributes(record, totals, prefix, halts, content)
        set_status(self._span, record.error or record.spared, overflow=totals.overflow, halted=bool(halts))
        yield from self._emitter.putting(self._span, self._context, attributes, arrays, ended_ns)
        self.recorded = True
        for step, timing in zip(record.steps, self._policies, strict=False):
            if timing.span.is_recording():
                try:
                    self._describe_step(record, step, timing)
                except Exception as error:  # noqa: BLE001  # what fails in one step costs nothing of the others
                    self._emitter.failed("span", error)

    def _describe_step(self, record: Record, step: Step, timing: _TimeInside) -> None:
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
            span, context = self._emitter.open_span(names.SPAN_ALLOCATE_BUDGET, timing.context, started_ns, {})
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
        stamp = Stamp(record.assembly_id, self._span.get_span_context(), bool(totals.dropped or totals.compacted))
        caller, running = self._caller, trace.get_current_span()
        # The call's own may have opened while its prompt was prepared, under whatever else has opened since.
        opened = running if running is not caller and is_opened_since(running, self._span) else None
        for span in (caller, opened):
            if span is not None and span.is_recording() and is_model_call(span):
                stamp.put_on(span)
                return
        processor = self._emitter.stamping()
        if processor is None:
            return
        if caller.get_span_context().is_valid:
            processor.await_call(caller, opened, stamp)
        elif stamp.span.is_valid:
            processor.await_root_call(stamp)
