"""Emit alerts, overflows and halts as span events, log records, or both."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry._logs import SeverityNumber
from opentelemetry.trace import Status, StatusCode

from otel_assembly.decision import OverflowCause
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry import conventions_metrics as catalogue
from otel_assembly.telemetry.attributes import overflow_event
from otel_assembly.telemetry.emitter import HALTED, sendable_values
from otel_assembly.telemetry.model_span_links import is_model_call
from otel_assembly.telemetry.settings import AlertSignal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.context import Context as OtelContext
    from opentelemetry.trace import Span, SpanContext

    from otel_assembly.conversation_state import AlertFacts
    from otel_assembly.decision import Overflow
    from otel_assembly.events import ConversationResumed, HaltEvent
    from otel_assembly.recorder import AgentIdentity, ProviderEdit
    from otel_assembly.telemetry.emitter import Attributes, Emitter
    from otel_assembly.telemetry.run import Run

_SEVERITIES = {
    "info": SeverityNumber.INFO,
    "warning": SeverityNumber.WARN,
    "critical": SeverityNumber.ERROR,
    "fatal": SeverityNumber.FATAL,
}


class AssemblyReference(NamedTuple):
    """A reference to a conversation's last assembly, to which a later halt is linked.

    Attributes:
        emitter: The emitter that recorded the assembly; None for that of the default recorder at the time of the halt.
        span: The assembly's span.
        identity: The agent, its framework and the conversation.
    """

    emitter: Emitter | None
    span: SpanContext
    identity: AgentIdentity


def severity_of(alert: AlertFacts) -> str:
    """Return an alert's severity; an unknown one is ``warning``."""
    return alert.severity if alert.severity in _SEVERITIES else "warning"


def put_alert(emitter: Emitter, span: Span, context: OtelContext, alert: AlertFacts, at_ns: int) -> None:
    """Emit the ``assembly.alert`` event of an observer's alert that was shown to the model."""
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
    """Emit the ``assembly.overflow`` event on these spans: a limit was exceeded."""
    _emit(emitter, spans, context, names.EVENT_OVERFLOW, overflow_event(overflow), SeverityNumber.ERROR, at_ns)


def mark_overflow(emitter: Emitter, span: Span, overflow: Overflow, at_ns: int) -> None:
    """Add an overflow's event to one more span, after `put_overflow` emitted the event elsewhere."""
    if emitter.settings.alert_signal is not AlertSignal.LOG_EVENT:
        with emitter.suppress_errors("events"):
            span.add_event(names.EVENT_OVERFLOW, overflow_event(overflow), _since_start(span, at_ns))


def put_refusal(
    emitter: Emitter, span: Span, context: OtelContext, identity: AgentIdentity, window: int | None, tokens: int | None
) -> None:
    """Count a prompt that the provider refused as too long, and emit the event.

    The event is on the current span if that is a recording model call, else in a log record.

    Args:
        emitter: Emits the event and the count.
        span: The current span.
        context: The current context.
        identity: The agent that sent the prompt.
        window: The model window in tokens, if the provider reported it.
        tokens: The prompt's tokens, if the provider reported them.
    """
    with emitter.suppress_errors("metrics"):
        _, both = emitter.metrics.agent(identity.agent_name, identity.framework)
        emitter.metrics.record(catalogue.BUDGET_OVERFLOWS, 1, both, context)
    attributes: Attributes = {names.OVERFLOW_CAUSE: OverflowCause.PROVIDER.value}
    numbers = ""
    if window is not None and tokens is not None and tokens > window:
        attributes[names.OVERFLOW_TOKENS] = tokens - window
        numbers = f": {tokens - window:,} tokens over {window:,}"
    if span.is_recording() and is_model_call(span):
        _emit(emitter, [span], context, names.EVENT_OVERFLOW, attributes, SeverityNumber.ERROR, time.time_ns())
        with emitter.suppress_errors("span"):
            span.set_attributes({names.OVERFLOWED: True, **attributes, names.ERROR_TYPE: names.ERROR_CONTEXT_OVERFLOW})
            span.set_status(Status(StatusCode.ERROR, f"{names.STATUS_PROVIDER_OVERFLOW}{numbers}"))
    else:
        _log(emitter, context, names.EVENT_OVERFLOW, attributes, SeverityNumber.ERROR)


def put_provider_edits(
    emitter: Emitter, span: Span, context: OtelContext, edits: Sequence[ProviderEdit], at_ns: int
) -> None:
    """Emit one event per edit that the model's provider made to a request.

    Args:
        emitter: Emits the events.
        span: The assembly's span. If it has ended, the events are on the current span if that is a recording model
            call, else in log records.
        context: The context of the assembly's span.
        edits: The edits.
        at_ns: The time of the events, in nanoseconds since 1970.
    """
    current = trace.get_current_span()
    holder = next((s for s in (span, current if is_model_call(current) else span) if s.is_recording()), None)
    for edit in edits:
        attributes: Attributes = {
            names.PROVIDER_EDIT_TYPE: edit.type,
            names.PROVIDER_EDIT_REASON: edit.reason,
            names.PROVIDER_EDIT_CLEARED_TOKENS: edit.cleared_tokens,
            names.PROVIDER_EDIT_CLEARED_TOOL_USES: edit.cleared_tool_uses,
            names.PROVIDER_EDIT_CLEARED_THINKING_TURNS: edit.cleared_thinking_turns,
            names.PROVIDER_EDIT_CLEARED_BLOCKS: edit.cleared_blocks,
        }
        attributes = {name: value for name, value in attributes.items() if value is not None}
        if holder is not None:
            _emit(emitter, [holder], context, names.EVENT_PROVIDER_EDIT, attributes, SeverityNumber.INFO, at_ns)
        else:
            _log(emitter, context, names.EVENT_PROVIDER_EDIT, sendable_values(attributes), SeverityNumber.INFO)


def put_halts(
    emitter: Emitter,
    halts: Sequence[tuple[HaltEvent, int]],
    span: Span,
    run: Run | None,
    context: OtelContext,
    identity: AgentIdentity,
    last: SpanContext | None = None,
) -> None:
    """Count halts, and emit their events on a span and on the run's span.

    If neither span is recording, the events are on a new ``halt`` span that links to the last assembly.

    Args:
        emitter: Emits the events and the count.
        halts: The halts, each with its time in nanoseconds since 1970.
        span: The span of the assembly, or the current span.
        run: The run that is halted.
        context: The context in which the halts were emitted.
        identity: The halted agent, its framework and its conversation.
        last: The span of the conversation's last assembly.
    """
    suppress_errors = emitter.suppress_errors
    with suppress_errors("metrics"):
        _, both = emitter.metrics.agent(identity.agent_name, identity.framework)
        emitter.metrics.record(catalogue.HALTS, len(halts), both, context)
    spans = [span] if span.is_recording() else []
    if run is not None:
        run.halted = True
        if run.span is not span and run.span.is_recording():
            spans.append(run.span)
    halt_span: Span | None = None
    if not spans:
        with suppress_errors("span"):
            halt_span = _start_halt_span(emitter, halts[0][1], context, identity, last)
            context = trace.set_span_in_context(halt_span, context)
            spans.append(halt_span)
    for halt, at_ns in halts:
        with suppress_errors("events"):
            attributes = {names.HALT_SOURCE: halt.source}
            if emitter.settings.capture_alert_message:
                attributes[names.HALT_REASON] = emitter.redacted(halt.reason)[: names.MAX_ALERT_MESSAGE]
            _emit(emitter, spans, context, names.EVENT_HALT, attributes, SeverityNumber.FATAL, at_ns)
    for halted_span in spans:
        with suppress_errors("halt"):
            _mark_halted(halted_span, len(halts))
    if halt_span is not None:
        with suppress_errors("span"):
            halt_span.end(max(time.time_ns(), *(at_ns for _, at_ns in halts)))


def put_resumed(emitter: Emitter, resumed: ConversationResumed, halt: HaltEvent | None) -> None:
    """Record that a halted conversation resumed: emit the ``assembly.resumed`` event on the current span.

    Args:
        emitter: Emits the event.
        resumed: The event that resumed the conversation.
        halt: The halt that ended, whose source the event records; None if the halt is unknown.
    """
    attributes: Attributes = {names.HALT_SOURCE: halt.source} if halt is not None else {}
    if resumed.reason and emitter.settings.capture_alert_message:
        attributes[names.RESUME_REASON] = emitter.redacted(resumed.reason)[: names.MAX_ALERT_MESSAGE]
    spans, context = [trace.get_current_span()], otel_context.get_current()
    _emit(emitter, spans, context, names.EVENT_RESUMED, attributes, SeverityNumber.INFO, time.time_ns())


def _start_halt_span(
    emitter: Emitter, at_ns: int, context: OtelContext, identity: AgentIdentity, last: SpanContext | None
) -> Span:
    attributes = {
        names.GEN_AI_AGENT_NAME: identity.agent_name,
        names.FRAMEWORK: identity.framework,
        names.GEN_AI_CONVERSATION_ID: identity.conversation_id,
    }
    span = emitter.start_span(names.SPAN_HALT, context, at_ns, attributes)
    if last is not None and last.is_valid and last.trace_flags.sampled:
        span.add_link(last)
    return span


def _mark_halted(span: Span, halts: int) -> None:
    """Increase a span's count of halts, and set its status; an ended span does not change."""
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
    """Emit an event on spans, as a log record, or both, as the settings require.

    Each failure is suppressed separately.

    Args:
        emitter: Emits the log record, and has the settings.
        spans: The spans that get the event.
        context: The context of the log record.
        name: The event's name.
        attributes: The event's attributes.
        severity: The severity of the log record.
        at_ns: The time of the event, in nanoseconds since 1970.
    """
    attributes = sendable_values(attributes)
    signal = emitter.settings.alert_signal
    for span in spans if signal is not AlertSignal.LOG_EVENT else ():
        with emitter.suppress_errors("events"):
            if span.is_recording():
                span.add_event(name, attributes, _since_start(span, at_ns))
    if signal is not AlertSignal.SPAN_EVENT:
        _log(emitter, context, name, attributes, severity)


def _log(emitter: Emitter, context: OtelContext, name: str, attributes: Attributes, severity: SeverityNumber) -> None:
    with emitter.suppress_errors("events"):
        emitter.logger.emit(event_name=name, context=context, attributes=attributes, severity_number=severity)


def _since_start(span: Span, at_ns: int) -> int:
    """Return the time `at_ns`, or the span's start if that is later, because the clock was set back since."""
    started: int | None = getattr(span, "start_time", None)
    return at_ns if started is None else max(at_ns, started)
