"""The recorder: one projection of a record into spans, events and metrics, in which nothing can hurt the agent."""

from __future__ import annotations

import os
import time
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import _logs, metrics, trace
from opentelemetry import context as otel_context
from opentelemetry._logs import NoOpLogger
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.metrics import NoOpMeter
from opentelemetry.trace import NoOpTracer, SpanKind

from otel_assembly._internal.forks import new_lock
from otel_assembly._version import __version__
from otel_assembly.recorder import Whose, default_recorder
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry import conventions_metrics as catalogue
from otel_assembly.telemetry.allocation import OpenAllocation
from otel_assembly.telemetry.failures import Failures
from otel_assembly.telemetry.halts import Trail, tell_halts
from otel_assembly.telemetry.metrics import Metrics
from otel_assembly.telemetry.recording import OPEN, OpenRecording
from otel_assembly.telemetry.run import RUN, OpenRun, Run
from otel_assembly.telemetry.settings import TelemetrySettings
from otel_assembly.telemetry.signals import Signals
from otel_assembly.telemetry.stamp import StampingProcessor
from otel_assembly.telemetry.utf8 import sendable, sendable_values
from otel_assembly.telemetry.views import put_projection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry._logs import Logger, LoggerProvider
    from opentelemetry.context import Context as OtelContext
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import Span, SpanContext, Tracer, TracerProvider

    from otel_assembly.context import Context
    from otel_assembly.conversation import HaltGuard
    from otel_assembly.events import HaltEvent
    from otel_assembly.recorder import Projection

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


#: By these variables, the API makes a provider that nobody has set.
_NAMED: Final = ("OTEL_PYTHON_TRACER_PROVIDER", "OTEL_PYTHON_METER_PROVIDER", "OTEL_PYTHON_LOGGER_PROVIDER")
#: Where the API keeps the global providers. Asking its functions instead reads the environment each time, which costs
#: more than all that a program should pay that has not configured any.
_ASKED: Final = (trace.get_tracer_provider, metrics.get_meter_provider, _logs.get_logger_provider)
_TRACERS, _METERS, _LOGGERS = (getattr(ask, "__globals__", {}) for ask in _ASKED)


def _is_unset() -> bool:
    """Whether nobody has set any global provider; False also where this API keeps them elsewhere."""
    return (
        _TRACERS.get("_TRACER_PROVIDER", _TRACERS) is None
        and _METERS.get("_METER_PROVIDER", _METERS) is None
        and _LOGGERS.get("_LOGGER_PROVIDER", _LOGGERS) is None
        and (trace.get_tracer_provider, metrics.get_meter_provider, _logs.get_logger_provider) == _ASKED
    )


def _is_unset_meter() -> bool:
    return _METERS.get("_METER_PROVIDER", _METERS) is None and metrics.get_meter_provider is _ASKED[1]


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
        self._named = any(name in os.environ for name in _NAMED)
        self._measures = False
        self._lock = new_lock()
        self._ready = False
        self._silent = False
        self._stamped: weakref.WeakKeyDictionary[Any, StampingProcessor] = weakref.WeakKeyDictionary()
        self.failures = Failures(self._count_failure)

    def listening(self) -> bool:
        """Whether anybody has configured a provider; once somebody has, it stays so."""
        if not self._listening and not self._silent and (self._named or not _is_unset()):
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
        """Whether metrics go anywhere; once they do, it stays so."""
        if not self._measures:
            provider = self._providers[1]
            if provider is None and not self._named and _is_unset_meter():
                return False
            self._measures = not _is_api_only(provider or metrics.get_meter_provider())
        return self._measures

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

    def begin(
        self, name: str | None, model: str | None, context: Context | Whose, started_ns: int
    ) -> OpenRecording | None:
        """An assembly begins."""
        try:
            if (
                self.listening()
                and is_instrumentation_enabled()
                and (self._ready or self._prepared())
                and not self._silent
            ):
                return OpenRecording(self, name, model, context, started_ns)
        except Exception as error:  # noqa: BLE001  # nothing of ours reaches the agent
            self.failures.take("begin", error)
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
            sendable(name),
            context=parent,
            kind=SpanKind.INTERNAL,
            attributes=sendable_values(attributes),
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

    def declined(self, policy: str, agent_name: str | None, framework: str | None) -> None:
        """A reducer looked whether there was anything to do, and there was not: a count, and no span."""
        with self.failures.contained("metrics"):
            if self.listening() and is_instrumentation_enabled() and self._prepared():
                _, both = self.metrics.agent(agent_name, framework)
                attributes = {**both, names.POLICY_NAME: self.metrics.policy_name(policy)}
                self.metrics.add(catalogue.POLICY_DECLINED, 1, attributes)

    def projected(self, projection: Projection) -> None:
        """What one agent sees of what a network of agents has said was worked out."""
        with self.failures.contained("span"):
            if self.listening() and is_instrumentation_enabled() and self._prepared():
                put_projection(self.start_span, projection)

    def failed(self, component: str, error: BaseException) -> None:
        """Something of ours that only looks on went wrong: a warning, a count, and the agent goes on."""
        self.failures.take(component, error)

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

    def begin_run(
        self, agent_name: str, *, framework: str | None = None, conversation_id: str | None = None
    ) -> OpenRun | None:
        """One ask of an agent begins; a span is opened only where none is current. None where nobody listens."""
        with self.failures.contained("invoke_agent"):
            if self.listening() and is_instrumentation_enabled() and self._prepared():
                self.metrics.agent(agent_name, framework)
                run = Run(self, trace.get_current_span(), agent_name, framework, conversation_id)
                if run.span.get_span_context().is_valid:
                    return OpenRun(run, None)
                run.span = self._start_agent_span(run)
                return OpenRun(run, trace.set_span_in_context(run.span))
        return None

    @contextmanager
    def invoke_agent(
        self, agent_name: str, *, framework: str | None = None, conversation_id: str | None = None
    ) -> Iterator[None]:
        """One ask of an agent that would have no span otherwise, so that its run is one trace.

        Where a span is current already, none is added.
        """
        opened = self.begin_run(agent_name, framework=framework, conversation_id=conversation_id)
        if opened is None:
            yield
            return
        try:
            with opened.current():
                yield
        except BaseException as error:
            opened.end(error)
            raise
        opened.end()

    def _start_agent_span(self, run: Run) -> Span:
        attributes = {
            names.GEN_AI_OPERATION_NAME: names.SPAN_INVOKE_AGENT,
            names.GEN_AI_AGENT_NAME: run.agent_name,
            names.FRAMEWORK: run.framework,
            names.GEN_AI_CONVERSATION_ID: run.conversation_id,
        }
        return self.tracer.start_span(
            sendable(f"{names.SPAN_INVOKE_AGENT} {run.agent_name}"),
            kind=SpanKind.INTERNAL,
            attributes=sendable_values({name: value for name, value in attributes.items() if value is not None}),
            record_exception=False,
            set_status_on_exception=False,
        )

    def halted(self, halt: HaltEvent, whose: Whose, last: SpanContext | None = None) -> None:
        """A conversation was halted outside of any assembly: the span that is running says so, and the run's.

        Args:
            halt: What halted it.
            whose: The agent, as far as it is known.
            last: The span of the conversation's last assembly.
        """
        with self.failures.contained("halt"):
            if not (self.listening() and self._prepared()):
                return
            at_ns, run = time.time_ns(), RUN.get()
            spans = [trace.get_current_span()]
            if run is not None:
                run.halted = True
                if run.span is not spans[0]:
                    spans.append(run.span)
            tell_halts(self, [(halt, at_ns)], spans, otel_context.get_current(), whose, last)


def halted(halt: HaltEvent, guard: HaltGuard, by: Whose | None = None) -> None:
    """A guard closed; `by` is on whose behalf somebody closed it, where that is known."""
    tell_halt(halt, guard.last, by, guard.whose)


def tell_halt(
    halt: HaltEvent, last: object, *known: Whose | None, recorder: OpenTelemetryRecorder | None = None
) -> None:
    """Tell of a halt to the open assembly; else to the run's recorder, else to that of the last assembly.

    Args:
        halt: What halted a conversation.
        last: The `Trail` of the conversation's last assembly, if there is one.
        known: Whose conversation it is, by those who may know; the first one who knows before the run, the others
            after it.
        recorder: Where it is told if there is neither a run nor a last assembly.
    """
    recording = OPEN.get()
    if recording is not None and not recording.finished:
        recording.halts.append((halt, time.time_ns()))
        return
    run, trail = RUN.get(), last if isinstance(last, Trail) else None
    told_by = run.recorder if run is not None else trail.recorder if trail is not None else None
    told_by = told_by or recorder
    if told_by is None:
        default = default_recorder()
        told_by = default if isinstance(default, OpenTelemetryRecorder) else None
    if told_by is None:
        return
    sayings = [one for one in (*known[:1], run, trail, *known[1:]) if one is not None]
    whose = Whose(
        next((one.agent_name for one in sayings if one.agent_name is not None), None),
        next((one.framework for one in sayings if one.framework is not None), None),
        next((one.conversation_id for one in sayings if one.conversation_id is not None), None),
    )
    told_by.halted(halt, whose, trail.span if trail is not None else None)


__all__ = ["OpenTelemetryRecorder", "halted", "tell_halt"]
