"""Alerts, overflows and halts: events on spans, log records, or both."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry._logs import SeverityNumber
from opentelemetry.trace import Status, StatusCode

from otel_assembly.decision import OverflowCause
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry import conventions_metrics as catalogue
from otel_assembly.telemetry.attributes import overflow_event
from otel_assembly.telemetry.emitter import HALTED, sendable_values
from otel_assembly.telemetry.settings import AlertSignal
from otel_assembly.telemetry.stamp import is_model_call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.context import Context as OtelContext
    from opentelemetry.trace import Span, SpanContext

    from otel_assembly.conversation_state import AlertFacts
    from otel_assembly.decision import Overflow
    from otel_assembly.events import ConversationResumed, HaltEvent
    from otel_assembly.recorder import Whose
    from otel_assembly.telemetry.emitter import Attributes, Emitter
    from otel_assembly.telemetry.run import Run

_SEVERITIES = {
    "info": SeverityNumber.INFO,
    "warning": SeverityNumber.WARN,
    "critical": SeverityNumber.ERROR,
    "fatal": SeverityNumber.FATAL,
}


@dataclass(frozen=True, slots=True)
class Trail:
    """What is remembered of a conversation's last assembly, for a halt that comes when none is open.

    `emitter` is what it was recorded with; None: with what the default recorder has, which may be another by then.
    """

    emitter: Emitter | None
    span: SpanContext
    whose: Whose


def severity_of(alert: AlertFacts) -> str:
    """One of the closed set; a severity that no framework's alerts have is a warning."""
    return alert.severity if alert.severity in _SEVERITIES else "warning"


def put_alert(emitter: Emitter, span: Span, context: OtelContext, alert: AlertFacts, at_ns: int) -> None:
    """Emit that an alert was delivered to the model."""
    severity = severity_of(alert)
    attributes = {
        names.ALERT_SOURCE: alert.source,
        names.ALERT_SEVERITY: severity,
        names.ALERT_FINGERPRINT: alert.fingerprint,
    }
    if emitter.settings.capture_alert_message:
        attributes[names.ALERT_MESSAGE] = emitter.redacted(alert.message)[: names.MAX_ALERT_MESSAGE]
    _emit(emitter, [span], context, names.EVENT_ALERT, attributes, _SEVERITIES[severity], at_ns)


def put_overflow(emitter: Emitter, spans: Sequence[Span], context: OtelContext, overflow: Overflow, at_ns: int) -> None:
    """Emit that a limit could not hold."""
    _emit(emitter, spans, context, names.EVENT_OVERFLOW, overflow_event(overflow), SeverityNumber.ERROR, at_ns)


def mark_overflow(emitter: Emitter, span: Span, overflow: Overflow, at_ns: int) -> None:
    """Put an overflow that was emitted already on one more span."""
    if emitter.settings.alert_signal is not AlertSignal.LOG_EVENT:
        with emitter.contained("events"):
            span.add_event(names.EVENT_OVERFLOW, overflow_event(overflow), _since_start(span, at_ns))


def put_refusal(
    emitter: Emitter, span: Span, context: OtelContext, whose: Whose, window: int | None, tokens: int | None
) -> None:
    """Count that a provider refused a prompt, and say so on the model call's span where it records; in a record else.

    Args:
        emitter: What it is emitted with.
        span: The current span.
        context: In which it came about.
        whose: The agent whose prompt it is.
        window: The tokens that the model takes, where the provider said so.
        tokens: Those of the prompt.
    """
    with emitter.contained("metrics"):
        _, both = emitter.metrics.agent(whose.agent_name, whose.framework)
        emitter.metrics.add(catalogue.BUDGET_OVERFLOWS, 1, both, context)
    attributes: Attributes = {names.OVERFLOW_CAUSE: OverflowCause.PROVIDER.value}
    numbers = ""
    if window is not None and tokens is not None and tokens > window:
        attributes[names.OVERFLOW_TOKENS] = tokens - window
        numbers = f": {tokens - window:,} tokens over {window:,}"
    if span.is_recording() and is_model_call(span):
        _emit(emitter, [span], context, names.EVENT_OVERFLOW, attributes, SeverityNumber.ERROR, time.time_ns())
        with emitter.contained("span"):
            span.set_attributes({names.OVERFLOWED: True, **attributes, names.ERROR_TYPE: names.ERROR_CONTEXT_OVERFLOW})
            span.set_status(Status(StatusCode.ERROR, f"{names.STATUS_PROVIDER_OVERFLOW}{numbers}"))
    else:
        _log(emitter, context, names.EVENT_OVERFLOW, attributes, SeverityNumber.ERROR)


def put_halts(
    emitter: Emitter,
    halts: Sequence[tuple[HaltEvent, int]],
    span: Span,
    run: Run | None,
    context: OtelContext,
    whose: Whose,
    last: SpanContext | None = None,
) -> None:
    """Count halts, and put them on a span and on its run's where they are open; on a short one of their own else.

    Args:
        emitter: What they are emitted with.
        halts: The halts, each with its time.
        span: Where they should stand.
        run: The run that is halted by them.
        context: In which they came about.
        whose: The agent that is halted.
        last: The span of the conversation's last assembly.
    """
    contained = emitter.contained
    with contained("metrics"):
        _, both = emitter.metrics.agent(whose.agent_name, whose.framework)
        emitter.metrics.add(catalogue.HALTS, len(halts), both, context)
    stands = [span] if span.is_recording() else []
    if run is not None:
        run.halted = True
        if run.span is not span and run.span.is_recording():
            stands.append(run.span)
    own: Span | None = None
    if not stands:
        with contained("span"):
            own = _start_halt_span(emitter, halts[0][1], context, whose, last)
            context = trace.set_span_in_context(own, context)
            stands.append(own)
    for halt, at_ns in halts:
        with contained("events"):
            attributes = {names.HALT_SOURCE: halt.source}
            if emitter.settings.capture_alert_message:
                attributes[names.HALT_REASON] = emitter.redacted(halt.reason)[: names.MAX_ALERT_MESSAGE]
            _emit(emitter, stands, context, names.EVENT_HALT, attributes, SeverityNumber.FATAL, at_ns)
    for one in stands:
        with contained("halt"):
            _mark_halted(one, len(halts))
    if own is not None:
        with contained("span"):
            own.end(max(time.time_ns(), *(at_ns for _, at_ns in halts)))


def put_resumed(emitter: Emitter, resumed: ConversationResumed, halt: HaltEvent | None) -> None:
    """Emit that a halted conversation goes on, on the span that is running."""
    attributes: Attributes = {names.HALT_SOURCE: halt.source} if halt is not None else {}
    if resumed.reason and emitter.settings.capture_alert_message:
        attributes[names.RESUME_REASON] = emitter.redacted(resumed.reason)[: names.MAX_ALERT_MESSAGE]
    spans, context = [trace.get_current_span()], otel_context.get_current()
    _emit(emitter, spans, context, names.EVENT_RESUMED, attributes, SeverityNumber.INFO, time.time_ns())


def _start_halt_span(
    emitter: Emitter, at_ns: int, context: OtelContext, whose: Whose, last: SpanContext | None
) -> Span:
    attributes = {
        names.GEN_AI_AGENT_NAME: whose.agent_name,
        names.FRAMEWORK: whose.framework,
        names.GEN_AI_CONVERSATION_ID: whose.conversation_id,
    }
    span = emitter.start_span(names.SPAN_HALT, context, at_ns, attributes)
    if last is not None and last.is_valid and last.trace_flags.sampled:
        span.add_link(last)
    return span


def _mark_halted(span: Span, halts: int) -> None:
    """Add to a span how many halts stand on it, and set its status; a span that has ended stays as it is."""
    if span.is_recording():
        before = (getattr(span, "attributes", None) or {}).get(names.HALTS_EMITTED)
        span.set_attribute(names.HALTS_EMITTED, halts + (before if isinstance(before, int) else 0))
        span.set_attribute(names.ERROR_TYPE, names.ERROR_ASSEMBLY_HALT)
        span.set_status(HALTED)


def _emit(
    emitter: Emitter,
    spans: Sequence[Span],
    context: OtelContext,
    name: str,
    attributes: Attributes,
    severity: SeverityNumber,
    at_ns: int,
) -> None:
    """Put an event where it belongs, with the time at which it came about; an event that fails costs no other."""
    attributes = sendable_values(attributes)
    carrier = emitter.settings.alert_signal
    for span in spans if carrier is not AlertSignal.LOG_EVENT else ():
        with emitter.contained("events"):
            if span.is_recording():
                span.add_event(name, attributes, _since_start(span, at_ns))
    if carrier is not AlertSignal.SPAN_EVENT:
        _log(emitter, context, name, attributes, severity)


def _log(emitter: Emitter, context: OtelContext, name: str, attributes: Attributes, severity: SeverityNumber) -> None:
    with emitter.contained("events"):
        emitter.logger.emit(event_name=name, context=context, attributes=attributes, severity_number=severity)


def _since_start(span: Span, at_ns: int) -> int:
    """A time that is not before the span's start: clocks are set back."""
    started: int | None = getattr(span, "start_time", None)
    return at_ns if started is None else max(at_ns, started)
