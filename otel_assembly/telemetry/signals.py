"""Alerts, overflows and halts: events on spans, log records, or both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry._logs import SeverityNumber

from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.projection import overflow_event
from otel_assembly.telemetry.settings import AlertSignal

if TYPE_CHECKING:
    from opentelemetry._logs import Logger
    from opentelemetry.context import Context as OtelContext
    from opentelemetry.trace import Span

    from otel_assembly.conversation import AlertFacts
    from otel_assembly.decision import Overflow
    from otel_assembly.events import HaltEvent
    from otel_assembly.telemetry.settings import TelemetrySettings

_SEVERITIES = {
    "info": SeverityNumber.INFO,
    "warning": SeverityNumber.WARN,
    "critical": SeverityNumber.ERROR,
    "fatal": SeverityNumber.FATAL,
}


class Signals:
    """The one emitter of our events."""

    def __init__(self, logger: Logger, settings: TelemetrySettings) -> None:
        self._logger = logger
        self._settings = settings

    def alert(self, span: Span, context: OtelContext, alert: AlertFacts) -> None:
        """An alert was delivered to the model."""
        attributes = {
            names.ALERT_SOURCE: alert.source,
            names.ALERT_SEVERITY: alert.severity,
            names.ALERT_FINGERPRINT: alert.fingerprint,
        }
        if self._settings.capture_alert_message:
            attributes[names.ALERT_MESSAGE] = self._operator_text(alert.message)
        severity = _SEVERITIES.get(alert.severity, SeverityNumber.WARN)
        self._emit(span, context, names.EVENT_ALERT, attributes, severity)

    def overflow(self, spans: list[Span], context: OtelContext, overflow: Overflow) -> None:
        """A limit could not hold."""
        attributes = overflow_event(overflow)
        self._span_events(spans, names.EVENT_OVERFLOW, attributes)
        self._log(context, names.EVENT_OVERFLOW, attributes, SeverityNumber.ERROR)

    def halt(self, spans: list[Span], context: OtelContext, halt: HaltEvent) -> None:
        """The conversation was halted."""
        attributes: dict[str, Any] = {names.HALT_SOURCE: halt.source}
        if self._settings.capture_alert_message:
            attributes[names.HALT_REASON] = self._operator_text(halt.reason)
        self._span_events(spans, names.EVENT_HALT, attributes)
        self._log(context, names.EVENT_HALT, attributes, SeverityNumber.FATAL)

    def _operator_text(self, text: str) -> str:
        return self._settings.redacted(text)[: names.MAX_ALERT_MESSAGE]

    def _emit(
        self, span: Span, context: OtelContext, name: str, attributes: dict[str, Any], severity: SeverityNumber
    ) -> None:
        self._span_events([span], name, attributes)
        self._log(context, name, attributes, severity)

    def _span_events(self, spans: list[Span], name: str, attributes: dict[str, Any]) -> None:
        if self._settings.alert_signal is AlertSignal.LOG_EVENT:
            return
        for span in spans:
            span.add_event(name, attributes)

    def _log(self, context: OtelContext, name: str, attributes: dict[str, Any], severity: SeverityNumber) -> None:
        if self._settings.alert_signal is AlertSignal.SPAN_EVENT:
            return
        self._logger.emit(event_name=name, context=context, attributes=attributes, severity_number=severity)
