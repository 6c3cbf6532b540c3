"""The recorder: one projection of a record into spans, events and metrics, in which nothing can hurt the agent."""

from __future__ import annotations

import time
import weakref
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opentelemetry import _logs, metrics, trace
from opentelemetry import context as otel_context
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.trace import INVALID_SPAN, SpanKind, Status, StatusCode

from otel_assembly._version import __version__
from otel_assembly.decision import DecisionOutcome
from otel_assembly.delta import exits_from_the_prompt
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry import conventions_metrics as catalogue
from otel_assembly.telemetry.failures import Failures
from otel_assembly.telemetry.metrics import Metrics
from otel_assembly.telemetry.projection import (
    assembly_arrays,
    assembly_attributes,
    class_name,
    error_attributes,
    error_type,
    instructions_json,
    step_arrays,
    step_attributes,
)
from otel_assembly.telemetry.settings import TelemetrySettings
from otel_assembly.telemetry.signals import Signals
from otel_assembly.telemetry.stamp import Stamp, StampingProcessor, is_model_call
from otel_assembly.totals import prefix_of, totals_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry._logs import LoggerProvider
    from opentelemetry.context import Context as OtelContext
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

    from otel_assembly.context import Context
    from otel_assembly.events import HaltEvent
    from otel_assembly.record import Record, Step
    from otel_assembly.telemetry.arrays import Arrays
    from otel_assembly.totals import Prefix, Totals

_OVERFLOW = Status(StatusCode.ERROR, names.STATUS_CONTEXT_OVERFLOW)
_HALT = Status(StatusCode.ERROR, names.STATUS_ASSEMBLY_HALT)
_FAILED = Status(StatusCode.ERROR, names.STATUS_POLICY_FAILED)


@dataclass(slots=True)
class Run:
    """One ask of an agent, while it runs."""

    recorder: OpenTelemetryRecorder
    span: Span
    agent_name: str | None
    framework: str | None


_RUN: ContextVar[Run | None] = ContextVar("otel_assembly_run", default=None)
_OPEN: ContextVar[OpenRecording | None] = ContextVar("otel_assembly_open", default=None)

_api_only: set[type] = set()


def _is_api_only(provider: object) -> bool:
    """Whether a provider is the API's own, which records nothing; an SDK's, of whatever make, is not."""
    kind = type(provider)
    if kind in _api_only:
        return True
    module = kind.__module__
    api = any(module == part or module.startswith(part + "._internal") for part in _API_MODULES)
    if api:
        _api_only.add(kind)
    return api


_API_MODULES = ("opentelemetry.trace", "opentelemetry.metrics", "opentelemetry._logs")


class OpenTelemetryRecorder:
    """Records assemblies through OpenTelemetry.

    Args:
        tracer_provider: Instead of the global one.
        meter_provider: Instead of the global one.
        logger_provider: Instead of the global one.
        settings: What is exported beside numbers; by default as the environment says.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        logger_provider: LoggerProvider | None = None,
        settings: TelemetrySettings | None = None,
    ) -> None:
        self.settings = settings if settings is not None else TelemetrySettings.from_environment()
        self._providers = (tracer_provider, meter_provider, logger_provider)
        self._listening = any(provider is not None for provider in self._providers)
        self._ready = False
        self._stamped: weakref.WeakKeyDictionary[Any, StampingProcessor] = weakref.WeakKeyDictionary()
        self.failures = Failures(self._count_failure)

    def listening(self) -> bool:
        """Whether anybody has configured a provider; once somebody has, it stays so."""
        if not self._listening:
            self._listening = not (
                _is_api_only(trace.get_tracer_provider())
                and _is_api_only(metrics.get_meter_provider())
                and _is_api_only(_logs.get_logger_provider())
            )
        return self._listening

    def _prepare(self) -> None:
        tracer_provider, meter_provider, logger_provider = self._providers
        self.tracer = trace.get_tracer(names.SCOPE, __version__, tracer_provider)
        self.metrics = Metrics(metrics.get_meter(names.SCOPE, __version__, meter_provider))
        self.signals = Signals(_logs.get_logger(names.SCOPE, __version__, logger_provider), self.settings)
        self._ready = True

    def _count_failure(self, component: str) -> None:
        if self._ready:
            self.metrics.add(catalogue.TELEMETRY_ERRORS, 1, {names.COMPONENT: component})

    def begin(self, name: str | None, model: str | None, context: Context, started_ns: int) -> OpenRecording | None:
        """An assembly begins."""
        if not self.listening():
            return None
        with self.failures.contained("begin"):
            if not is_instrumentation_enabled():
                return None
            if not self._ready:
                self._prepare()
            return OpenRecording(self, name, model, context, started_ns)
        return None

    def calibrated(self, model: str | None, counted: int, billed: int) -> None:
        """The provider billed `billed` tokens for a prompt that was counted as `counted`."""
        if billed <= 0 or model is None or not self.listening():
            return
        with self.failures.contained("metrics"):
            if not self._ready:
                self._prepare()
            attributes = {names.MODEL: self.metrics.model_name(model)}
            self.metrics.record(catalogue.TOKENS_CALIBRATION, counted / billed, attributes)

    def stamping(self) -> StampingProcessor | None:
        """What stamps later model calls of our tracer provider; None where it is no SDK's."""
        provider = self._providers[0] or trace.get_tracer_provider()
        processor = self._stamped.get(provider)
        if processor is None and hasattr(provider, "add_span_processor"):
            processor = self._stamped[provider] = StampingProcessor()
            provider.add_span_processor(processor)
        return processor

    @contextmanager
    def invoke_agent(
        self, agent_name: str, *, framework: str | None = None, conversation_id: str | None = None
    ) -> Iterator[None]:
        """One ask of an agent that would have no span otherwise, so that its run is one trace.

        Where a span is current already, none is added.
        """
        run_token = otel_token = None
        span: Span = INVALID_SPAN
        with self.failures.contained("invoke_agent"):
            if self.listening() and is_instrumentation_enabled():
                if not self._ready:
                    self._prepare()
                current = trace.get_current_span()
                if current.get_span_context().is_valid:
                    span = current
                else:
                    span = self._start_agent_span(agent_name, framework, conversation_id)
                    otel_token = otel_context.attach(trace.set_span_in_context(span))
                run_token = _RUN.set(Run(self, span, agent_name, framework))
        try:
            yield
        except BaseException as error:
            if otel_token is not None:
                with self.failures.contained("invoke_agent"):
                    span.set_attribute(names.ERROR_TYPE, error_type(error))
                    span.set_status(Status(StatusCode.ERROR))
            raise
        finally:
            if run_token is not None:
                _RUN.reset(run_token)
            if otel_token is not None:
                otel_context.detach(otel_token)
                with self.failures.contained("invoke_agent"):
                    span.end()

    def _start_agent_span(self, agent_name: str, framework: str | None, conversation_id: str | None) -> Span:
        attributes = {names.GEN_AI_OPERATION_NAME: names.SPAN_INVOKE_AGENT, names.GEN_AI_AGENT_NAME: agent_name}
        if framework is not None:
            attributes[names.FRAMEWORK] = framework
        if conversation_id is not None:
            attributes[names.GEN_AI_CONVERSATION_ID] = conversation_id
        return self.tracer.start_span(
            f"{names.SPAN_INVOKE_AGENT} {agent_name}",
            kind=SpanKind.INTERNAL,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        )

    def halted(self, halt: HaltEvent) -> None:
        """A conversation was halted outside of any assembly: the span that is running says so, and the run's."""
        if not self.listening():
            return
        with self.failures.contained("halt"):
            if not self._ready:
                self._prepare()
            run = _RUN.get()
            spans = [trace.get_current_span()]
            if run is not None and run.span is not spans[0]:
                spans.append(run.span)
            for span in spans:
                span.set_attribute(names.ERROR_TYPE, names.ERROR_ASSEMBLY_HALT)
                span.set_status(_HALT)
            self.signals.halt(spans, otel_context.get_current(), halt)
            agent = (run.agent_name, run.framework) if run is not None else (None, None)
            self.metrics.add(catalogue.HALTS, 1, self.metrics.agent(*agent)[1])


def halted(halt: HaltEvent) -> None:
    """A guard closed: tell the open assembly, else the run's recorder, else the default one."""
    recording = _OPEN.get()
    if recording is not None:
        recording.halts.append(halt)
        return
    run = _RUN.get()
    recorder = run.recorder if run is not None else _default()
    if isinstance(recorder, OpenTelemetryRecorder):
        recorder.halted(halt)


def _default() -> Any:
    from otel_assembly.recorder import default_recorder

    return default_recorder()


@dataclass(slots=True)
class _PolicyTime:
    span: Span
    context: OtelContext
    seconds: float = 0.0
    ended_ns: int = 0


@dataclass(slots=True)
class OpenRecording:
    """One assembly while it runs."""

    recorder: OpenTelemetryRecorder
    name: str | None
    model: str | None
    run: Context
    started_ns: int
    recorded: bool = False
    halts: list[HaltEvent] = field(default_factory=list)
    _span: Span = INVALID_SPAN
    _caller: Span = INVALID_SPAN
    _context: OtelContext = field(default_factory=otel_context.get_current)
    _policies: dict[int, _PolicyTime] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._caller = trace.get_current_span()
        run = self.run
        attributes = {
            names.NAME: self.name,
            names.MODEL: self.model,
            names.GEN_AI_CONVERSATION_ID: run.conversation_id,
            names.GEN_AI_AGENT_NAME: run.agent_name,
            names.FRAMEWORK: run.framework,
        }
        with self.recorder.failures.contained("span"):
            self._span = self._start(
                names.SPAN_ASSEMBLE_CONTEXT,
                otel_context.get_current(),
                self.started_ns,
                {name: value for name, value in attributes.items() if value is not None},
            )
        self.recorded = self._span.is_recording()
        self._context = trace.set_span_in_context(self._span)

    def _start(self, name: str, parent: OtelContext, start_ns: int, attributes: dict[str, Any]) -> Span:
        return self.recorder.tracer.start_span(
            name,
            context=parent,
            kind=SpanKind.INTERNAL,
            attributes=attributes,
            start_time=start_ns,
            record_exception=False,
            set_status_on_exception=False,
        )

    @contextmanager
    def policy(self, name: str, index: int) -> Iterator[None]:
        """The time in which a policy runs."""
        span: Span = INVALID_SPAN
        context = self._context
        with self.recorder.failures.contained("span"):
            attributes = {names.POLICY_NAME: name, names.POLICY_INDEX: index}
            span = self._start(f"{names.SPAN_APPLY_POLICY} {name}", self._context, time.time_ns(), attributes)
            context = trace.set_span_in_context(span, self._context)
        timing = self._policies[index] = _PolicyTime(span, context)
        open_token = _OPEN.set(self)
        token = otel_context.attach(context)
        started = time.perf_counter_ns()
        try:
            yield
        finally:
            timing.seconds = (time.perf_counter_ns() - started) / 1e9
            timing.ended_ns = time.time_ns()
            otel_context.detach(token)
            _OPEN.reset(open_token)

    def finish(self, record: Record) -> None:
        """The assembly came to its end: everything is told now, and the spans end."""
        ended_ns = time.time_ns()
        contained = self.recorder.failures.contained
        with contained("totals"):
            self._tell(record, totals_of(record), prefix_of(record), ended_ns)
        for timing in self._policies.values():
            with contained("span"):
                timing.span.end(timing.ended_ns)
        with contained("span"):
            self._span.end(ended_ns)

    def _tell(self, record: Record, totals: Totals, prefix: Prefix, ended_ns: int) -> None:
        contained = self.recorder.failures.contained
        with contained("metrics"):
            self._measure(record, totals, prefix, (ended_ns - self.started_ns) / 1e9)
        with contained("events"):
            self._signal(record)
        for step in record.steps:
            with contained("span"):
                self._describe_step(record, step)
        with contained("span"):
            self._describe(record, totals, prefix)
        if record.error is None:
            with contained("stamp"):
                self._stamp(record, reduced=bool(totals.dropped or totals.compacted))

    def _measure(self, record: Record, totals: Totals, prefix: Prefix, seconds: float) -> None:
        metrics_ = self.recorder.metrics
        context = self._context
        agent, both = metrics_.agent(self.run.agent_name, self.run.framework)
        metrics_.record(catalogue.DURATION, seconds, both, context)
        metrics_.record(catalogue.INPUT_TOKENS, totals.tokens_in, both, context)
        if record.error is None:
            metrics_.record(catalogue.OUTPUT_TOKENS, totals.tokens_out, both, context)
            if totals.utilization is not None:
                metrics_.record(catalogue.BUDGET_UTILIZATION, totals.utilization, agent, context)
            if prefix.reuse is not None:
                metrics_.record(catalogue.PREFIX_REUSE, prefix.reuse, agent, context)
            if prefix.cause is not None and prefix.cause != "first":
                metrics_.add(catalogue.PREFIX_BREAKS, 1, {names.PREFIX_BREAK: prefix.cause}, context)
        fixed = self._fixed_share(record, totals)
        if fixed is not None:
            metrics_.record(catalogue.BUDGET_FIXED_UTILIZATION, fixed, agent, context)
        if totals.overflowed:
            metrics_.add(catalogue.BUDGET_OVERFLOWS, 1, both, context)
        if self.halts:
            metrics_.add(catalogue.HALTS, len(self.halts), both, context)
        for step in record.steps:
            self._measure_step(record, step)

    @staticmethod
    def _fixed_share(record: Record, totals: Totals) -> float | None:
        overflow = record.overflow
        if record.error is not None and overflow is not None and overflow.cause.value == "fixed":
            return overflow.needed / overflow.budget
        return totals.fixed / totals.budget if totals.fixed is not None and totals.budget else None

    def _measure_step(self, record: Record, step: Step) -> None:
        metrics_ = self.recorder.metrics
        timing = self._policies.get(step.index)
        context = timing.context if timing is not None else self._context
        policy = {names.POLICY_NAME: metrics_.policy_name(step.policy)}
        if timing is not None:
            metrics_.record(catalogue.POLICY_DURATION, timing.seconds, policy, context)
        if step.error is not None:
            if step.overflow is None:
                attributes = {**policy, names.ERROR_TYPE: metrics_.error_type(class_name(step.error))}
                metrics_.add(catalogue.POLICY_ERRORS, 1, attributes, context)
            return
        if record.error is not None:
            return
        for alert in step.alerts:
            attributes = {
                names.ALERT_SEVERITY: alert.severity,
                names.ALERT_SOURCE: metrics_.alert_source(alert.source),
            }
            metrics_.add(catalogue.ALERTS_DELIVERED, 1, attributes, context)
        for group in exits_from_the_prompt(record, step):
            if group.outcome is DecisionOutcome.DROPPED:
                attributes = {**policy, names.DECISION_REASON: group.reason.value}
                metrics_.add(catalogue.ITEMS_DROPPED, len(group.view), attributes, context)
                metrics_.add(catalogue.TOKENS_DROPPED, record.items_tokens(group.view), attributes, context)

    def _signal(self, record: Record) -> None:
        signals = self.recorder.signals
        for step in record.steps:
            timing = self._policies.get(step.index)
            if timing is None:
                continue
            for alert in step.alerts if record.error is None else ():
                signals.alert(timing.span, timing.context, alert)
            if step.overflow is not None:
                signals.overflow([timing.span, self._span], self._context, step.overflow)
        run = _RUN.get()
        spans = [self._span] if run is None or run.span is self._span else [self._span, run.span]
        for halt in self.halts:
            signals.halt(spans, self._context, halt)
        if self.halts and run is not None:
            run.span.set_attribute(names.ERROR_TYPE, names.ERROR_ASSEMBLY_HALT)
            run.span.set_status(_HALT)

    def _describe_step(self, record: Record, step: Step) -> None:
        timing = self._policies.get(step.index)
        if timing is None or not timing.span.is_recording():
            return
        span = timing.span
        span.set_attributes(step_attributes(record, step))
        self._put(span, timing.context, step_arrays(record, step), timing.ended_ns)
        _set_status(span, step.error, overflowed=step.overflow is not None, halted=bool(step.halts))

    def _describe(self, record: Record, totals: Totals, prefix: Prefix) -> None:
        span = self._span
        if not span.is_recording():
            return
        settings = self.recorder.settings
        content = settings.redacted if settings.content_on_spans else None
        span.set_attributes(assembly_attributes(record, totals, prefix))
        if content is not None and record.prompts_out:
            span.set_attribute(names.GEN_AI_SYSTEM_INSTRUCTIONS, instructions_json(record.prompts_out, content))
        self._put(span, self._context, assembly_arrays(record, content), time.time_ns())
        _set_status(span, record.error, overflowed=record.overflow is not None, halted=bool(self.halts))

    def _put(self, span: Span, context: OtelContext, arrays: Arrays, at_ns: int) -> None:
        for index, attributes in enumerate(arrays.chunks()):
            if index == 0:
                span.set_attributes(attributes)
                continue
            self._start(names.SPAN_LIST_ITEMS, context, at_ns, attributes).end(at_ns)

    def _stamp(self, record: Record, *, reduced: bool) -> None:
        stamp = Stamp(record.assembly_id, self._span.get_span_context(), reduced)
        caller = self._caller
        if caller.is_recording() and is_model_call(caller):
            stamp.put_on(caller)
            return
        parent = caller.get_span_context()
        processor = self.recorder.stamping() if parent.is_valid else None
        if processor is not None:
            processor.await_call(parent, stamp)


def _set_status(span: Span, error: BaseException | None, *, overflowed: bool, halted: bool) -> None:
    if error is not None:
        span.set_attributes(error_attributes(error))
    if halted:
        span.set_attribute(names.ERROR_TYPE, names.ERROR_ASSEMBLY_HALT)
        span.set_status(_HALT)
    elif overflowed:
        span.set_attribute(names.ERROR_TYPE, names.ERROR_CONTEXT_OVERFLOW)
        span.set_status(_OVERFLOW)
    elif error is not None:
        span.set_status(_FAILED if isinstance(error, Exception) else Status(StatusCode.ERROR))
