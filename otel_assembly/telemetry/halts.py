"""Halts on spans: on those that are open, else on a short span of its own, so that each one can be found."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opentelemetry import trace

from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry import conventions_metrics as catalogue
from otel_assembly.telemetry.run import mark_halted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.context import Context as OtelContext
    from opentelemetry.trace import Span, SpanContext

    from otel_assembly.events import HaltEvent
    from otel_assembly.recorder import Whose
    from otel_assembly.telemetry.recorder import OpenTelemetryRecorder


@dataclass(frozen=True, slots=True)
class Trail:
    """What is remembered of a conversation's last assembly, for a halt that comes when none is open.

    `recorder` is where it was told; None: where everything is told, which may be elsewhere by then.
    """

    recorder: OpenTelemetryRecorder | None
    span: SpanContext
    agent_name: str | None
    framework: str | None
    conversation_id: str | None


def tell_halts(
    recorder: OpenTelemetryRecorder,
    halts: Sequence[tuple[HaltEvent, int]],
    spans: Sequence[Span],
    context: OtelContext,
    whose: Whose,
    last: SpanContext | None = None,
) -> None:
    """Count halts, and put them on those of these spans that are open; on one of their own where none is.

    Args:
        recorder: Whose metrics and events.
        halts: The halts, each with its time.
        spans: Where they should stand.
        context: In which they came about.
        whose: The agent that is halted.
        last: The span of the conversation's last assembly.
    """
    contained = recorder.failures.contained
    with contained("metrics"):
        _, both = recorder.metrics.agent(whose.agent_name, whose.framework)
        recorder.metrics.add(catalogue.HALTS, len(halts), both, context)
    stands = [span for span in spans if span.is_recording()]
    own: Span | None = None
    if not stands:
        with contained("span"):
            own = _start(recorder, halts[0][1], context, whose, last)
            context = trace.set_span_in_context(own, context)
            stands.append(own)
    for halt, at_ns in halts:
        with contained("events"):
            recorder.signals.halt(stands, context, halt, at_ns)
    for span in stands:
        with contained("halt"):
            mark_halted(span, len(halts))
    if own is not None:
        with contained("span"):
            own.end(max(time.time_ns(), *(at_ns for _, at_ns in halts)))


def _start(
    recorder: OpenTelemetryRecorder, at_ns: int, context: OtelContext, whose: Whose, last: SpanContext | None
) -> Span:
    attributes: dict[str, Any] = {
        names.GEN_AI_AGENT_NAME: whose.agent_name,
        names.FRAMEWORK: whose.framework,
        names.GEN_AI_CONVERSATION_ID: whose.conversation_id,
    }
    given = {name: value for name, value in attributes.items() if value is not None}
    span = recorder.start_span(names.SPAN_HALT, context, at_ns, given)
    if last is not None and last.is_valid and last.trace_flags.sampled:
        span.add_link(last)
    return span
