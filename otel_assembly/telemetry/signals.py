"""Alerts, overflows and halts: events on spans, log records, or both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry._logs import SeverityNumber

from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.projection import overflow_event
from otel_assembly.telemetry.settings import AlertSignal
from otel_assembly.telemetry.utf8 import sendable_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry._logs import Logger
    from opentelemetry.context import Context as OtelContext
    from opentelemetry.trace import Span

    from otel_assembly.conversation import AlertFacts
    from otel_assembly.decision import Overflow
    from otel_assembly.events import HaltEvent
    from otel_assembly.telemetry.failures import Failures
    from otel_assembly.telemetry.settings import TelemetrySettings

_SEVERITIES = {
    "info": SeverityNumber.INFO,
    "warning": SeverityNumber.WARN,
    "critical": SeverityNumber.ERROR,
    "fatal": SeverityNumber.FATAL,
}


def severity_of(alert: AlertFacts) -> str:
    """One of the closed set; a severity that no framework's alerts have is a warning."""
    return alert.severity if alert.severity in _SEVERITIES else "warning"


class Signals:
    """The one emitter of our events; what goes wrong with one event costs no other."""

    def __init__(self, logger: Logger, settings: TelemetrySettings, failures: Failures) -> None:
        self._logger = logger
        self._settings = settings
        self._failures = failures
        self._on_spans = settings.alert_signal is not AlertSignal.LOG_EVENT
        self._in_logs = settings.alert_signal is not AlertSignal.SPAN_EVENT

    def alert(self, span: Span, context: OtelContext, alert: AlertFacts, at_ns: int) -> None:
        """An alert was delivered to the model."""
        severity = severity_of(alert)
        attributes = {
            names.ALERT_SOURCE: alert.source,
            names.ALERT_SEVERITY: severity,
            names.ALERT_FINGERPRINT: alert.fingerprint,
        }
        if self._settings.capture_alert_message:
            attributes[names.ALERT_MESSAGE] = self._operator_text(alert.message)
        self._emit([span], context, names.EVENT_ALERT, attributes, _SEVERITIES[severity], at_ns)

    def overflow(self, spans: Sequence[Span], context: OtelContext, overflow: Overflow, at_ns: int) -> None:
        """A limit could not hold."""
        self._emit(spans, context, names.EVENT_OVERFLOW, overflow_event(overflow), SeverityNumber.ERROR, at_ns)

    def mark_overflow(self, span: Span, overflow: Overflow, at_ns: int) -> None:
        """The same on one more span, of what has been told already."""
        if self._on_spans:
            with self._failures.contained("events"):
                span.add_event(names.EVENT_OVERFLOW, overflow_event(overflow), _since_start(span, at_ns))

    def halt(self, spans: Sequence[Span], context: OtelContext, halt: HaltEvent, at_ns: int) -> None:
        """The conversation was halted."""
        attributes: dict[str, Any] = {names.HALT_SOURCE: halt.source}
        if self._settings.capture_alert_message:
            attributes[names.HALT_REASON] = self._operator_text(halt.reason)
        self._emit(spans, context, names.EVENT_HALT, attributes, SeverityNumber.FATAL, at_ns)

    def _operator_text(self, text: str) -> str:
        return self._failures.redacted(self._settings.redact, text)[: names.MAX_ALERT_MESSAGE]

    def _emit(
        self,
        spans: Sequence[Span],
        context: OtelContext,
        name: str,
        attributes: dict[str, Any],
        severity: SeverityNumber,
        at_ns: int,
    ) -> None:
        """Put an event where it belongs, at the time at which it came about: a span may be told of after its end."""
        attributes = sendable_values(attributes)
        for span in spans if self._on_spans else ():
            with self._failures.contained("events"):
                if span.is_recording():
                    span.add_event(name, attributes, _since_start(span, at_ns))
        if self._in_logs:
            with self._failures.contained("events"):
                self._logger.emit(event_name=name, context=context, attributes=attributes, severity_number=severity)


def _since_start(span: Span, at_ns: int) -> int:
    """A time that is not before the span's start: clocks are set back."""
    started: int | None = getattr(span, "start_time", None)
    return at_ns if started is None else max(at_ns, started)
