"""The recorder: one projection of a record into spans, events and metrics, in which nothing can hurt the agent."""

from __future__ import annotations

import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import _logs, metrics, trace
from opentelemetry import context as otel_context
from opentelemetry._logs import NoOpLogger
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.metrics import NoOpMeter
from opentelemetry.trace import INVALID_SPAN, NoOpTracer, SpanKind, Status, StatusCode

from otel_assembly._version import __version__
from otel_assembly.errors import HaltedError
from otel_assembly.recorder import default_recorder
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry import conventions_metrics as catalogue
from otel_assembly.telemetry.allocation import OpenAllocation
from otel_assembly.telemetry.failures import Failures
from otel_assembly.telemetry.metrics import Metrics
from otel_assembly.telemetry.projection import error_type
from otel_assembly.telemetry.recording import OPEN, OpenRecording
from otel_assembly.telemetry.run import HALTED, RUN, Run, mark_halted
from otel_assembly.telemetry.settings import TelemetrySettings
from otel_assembly.telemetry.signals import Signals
from otel_assembly.telemetry.stamp import StampingProcessor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry._logs import Logger, LoggerProvider
    from opentelemetry.context import Context as OtelContext
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import Span, Tracer, TracerProvider

    from otel_assembly.context import Context
    from otel_assembly.events import HaltEvent

_API_MODULES: Final = ("opentelemetry.trace", "opentelemetry.metrics", "opentelemetry._logs")

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


class OpenTelemetryRecorder:
    """Records assemblies through OpenTelemetry.

    Args:
        tracer_provider: Instead of the global one.
        meter_provider: Instead of the global one.
        logger_provider: Instead of the global one.
        settings: What is exported beside numbers; by default as the environment says.
    """

    tracer: Tracer
    metrics: Metrics
    signals: Signals

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
        self._lock = threading.Lock()
        self._ready = False
        self._silent = False
        self._stamped: weakref.WeakKeyDictionary[Any, StampingProcessor] = weakref.WeakKeyDictionary()
        self.failures = Failures(self._count_failure)

    def listening(self) -> bool:
        """Whether anybody has configured a provider; once somebody has, it stays so."""
        if not self._listening and not self._silent:
            try:
                self._listening = not (
                    _is_api_only(trace.get_tracer_provider())
                    and _is_api_only(metrics.get_meter_provider())
                    and _is_api_only(_logs.get_logger_provider())
                )
            except Exception as error:  # noqa: BLE001  # the environment names a provider that cannot be loaded
                self._silent = True
                self.failures.take("provider", error)
        return self._listening

    def measures(self) -> bool:
        """Whether metrics go anywhere."""
        return not _is_api_only(self._providers[1] or metrics.get_meter_provider())

    def _prepared(self) -> bool:
        """Get what records, once; False where none of it does, as under ``OTEL_SDK_DISABLED``."""
        if not self._ready:
            with self._lock:
                if not self._ready:
                    self._prepare()
        return not self._silent

    def _prepare(self) -> None:
        """A provider that raises costs its own signal and no other."""
        tracer_provider, meter_provider, logger_provider = self._providers
        tracer: Tracer = NoOpTracer()
        meter: Meter = NoOpMeter(names.SCOPE)
        logger: Logger = NoOpLogger(names.SCOPE)
        with self.failures.contained("tracer"):
            tracer = trace.get_tracer(names.SCOPE, __version__, tracer_provider)
        with self.failures.contained("logger"):
            logger = _logs.get_logger(names.SCOPE, __version__, logger_provider)
        self.metrics = Metrics(NoOpMeter(names.SCOPE), self.failures)
        with self.failures.contained("meter"):
            meter = metrics.get_meter(names.SCOPE, __version__, meter_provider)
            self.metrics = Metrics(meter, self.failures)
        self.tracer = tracer
        self.signals = Signals(logger, self.settings, self.failures)
        kinds = (type(tracer), type(meter), type(logger))
        self._silent = kinds == (NoOpTracer, NoOpMeter, NoOpLogger)
        self._ready = True

    def _count_failure(self, component: str) -> None:
        if self._ready:
            self.metrics.failed(component)

    def begin(self, name: str | None, model: str | None, context: Context, started_ns: int) -> OpenRecording | None:
        """An assembly begins."""
        with self.failures.contained("begin"):
            if self.listening() and is_instrumentation_enabled() and self._prepared():
                return OpenRecording(self, name, model, context, started_ns)
        return None

    def begin_allocation(self) -> OpenAllocation | None:
        """The allocator begins, outside of any chain."""
        with self.failures.contained("begin"):
            if self.listening() and is_instrumentation_enabled() and self._prepared():
                return OpenAllocation(self)
        return None

    def start_span(self, name: str, parent: OtelContext, start_ns: int, attributes: dict[str, Any], /) -> Span:
        """Start a span of ours; no exception's message ever gets onto one by itself."""
        return self.tracer.start_span(
            name,
            context=parent,
            kind=SpanKind.INTERNAL,
            attributes=attributes,
            start_time=start_ns,
            record_exception=False,
            set_status_on_exception=False,
        )

    def calibrated(self, model: str | None, counted: int, billed: int) -> None:
        """The provider billed `billed` tokens for a prompt that was counted as `counted`."""
        with self.failures.contained("metrics"):
            if billed > 0 and model is not None and self.listening() and self._prepared():
                attributes = {names.MODEL: self.metrics.model_name(model)}
                self.metrics.record(catalogue.TOKENS_CALIBRATION, counted / billed, attributes)

    def source_failed(self, role: str, source: str, error_type: str) -> None:
        """A source failed: as a policy's error, for to who watches over a service it is the same."""
        with self.failures.contained("metrics"):
            if self.listening() and is_instrumentation_enabled() and self._prepared():
                attributes = {
                    names.POLICY_NAME: self.metrics.policy_name(f"{role} {source}"),
                    names.ERROR_TYPE: self.metrics.error_type(error_type),
                }
                self.metrics.add(catalogue.POLICY_ERRORS, 1, attributes)

    def stamping(self) -> StampingProcessor | None:
        """What stamps later model calls of our tracer provider; None where it is no SDK's."""
        provider = self._providers[0] or trace.get_tracer_provider()
        processor = self._stamped.get(provider)
        if processor is None and hasattr(provider, "add_span_processor"):
            with self._lock:
                processor = self._stamped.get(provider)
                if processor is None:
                    processor = self._stamped[provider] = StampingProcessor(self.failures)
                    provider.add_span_processor(processor)
        return processor

    @contextmanager
    def invoke_agent(
        self, agent_name: str, *, framework: str | None = None, conversation_id: str | None = None
    ) -> Iterator[None]:
        """One ask of an agent that would have no span otherwise, so that its run is one trace.

        Where a span is current already, none is added.
        """
        run: Run | None = None
        run_token = otel_token = None
        with self.failures.contained("invoke_agent"):
            if self.listening() and is_instrumentation_enabled() and self._prepared():
                self.metrics.agent(agent_name, framework)
                run = Run(self, trace.get_current_span(), agent_name, framework, conversation_id)
                if not run.span.get_span_context().is_valid:
                    run.span = self._start_agent_span(run)
                    otel_token = otel_context.attach(trace.set_span_in_context(run.span))
                run_token = RUN.set(run)
        span = run.span if run is not None and otel_token is not None else INVALID_SPAN
        try:
            yield
        except BaseException as error:
            if run is None or not run.halted:
                with self.failures.contained("invoke_agent"):
                    span.set_attribute(names.ERROR_TYPE, error_type(error))
                    span.set_status(HALTED if isinstance(error, HaltedError) else Status(StatusCode.ERROR))
            raise
        finally:
            try:
                if run_token is not None:
                    RUN.reset(run_token)
                if otel_token is not None:
                    otel_context.detach(otel_token)
            except ValueError:  # a generator that nobody read to its end is closed in another context
                pass
            with self.failures.contained("invoke_agent"):
                span.end()

    def _start_agent_span(self, run: Run) -> Span:
        attributes = {
            names.GEN_AI_OPERATION_NAME: names.SPAN_INVOKE_AGENT,
            names.GEN_AI_AGENT_NAME: run.agent_name,
            names.FRAMEWORK: run.framework,
            names.GEN_AI_CONVERSATION_ID: run.conversation_id,
        }
        return self.tracer.start_span(
            f"{names.SPAN_INVOKE_AGENT} {run.agent_name}",
            kind=SpanKind.INTERNAL,
            attributes={name: value for name, value in attributes.items() if value is not None},
            record_exception=False,
            set_status_on_exception=False,
        )

    def halted(self, halt: HaltEvent) -> None:
        """A conversation was halted outside of any assembly: the span that is running says so, and the run's."""
        with self.failures.contained("halt"):
            if not (self.listening() and self._prepared()):
                return
            run = RUN.get()
            spans = [trace.get_current_span()]
            if run is not None:
                run.halted = True
                if run.span is not spans[0]:
                    spans.append(run.span)
            agent = (run.agent_name, run.framework) if run is not None else (None, None)
            self.metrics.add(catalogue.HALTS, 1, self.metrics.agent(*agent)[1])
            self.signals.halt(spans, otel_context.get_current(), halt)
            for span in spans:
                mark_halted(span)


def halted(halt: HaltEvent) -> None:
    """A guard closed: tell the open assembly, else the run's recorder, else the default one."""
    recording = OPEN.get()
    if recording is not None and not recording.finished:
        recording.halts.append(halt)
        return
    run = RUN.get()
    recorder = run.recorder if run is not None else default_recorder()
    if isinstance(recorder, OpenTelemetryRecorder):
        recorder.halted(halt)


__all__ = ["OpenTelemetryRecorder", "halted"]
