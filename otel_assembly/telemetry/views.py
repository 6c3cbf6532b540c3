"""Spans of views: what one agent gets to see of what a network of agents has said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context

from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.run import RUN
from otel_assembly.telemetry.statuses import set_status

if TYPE_CHECKING:
    from otel_assembly.recorder import Projection
    from otel_assembly.telemetry.attempts import StartSpan


def put_projection(start: StartSpan, projection: Projection) -> None:
    """Write the span of a view, from when it began until now; nothing of what is in it is told but numbers."""
    whose, run = projection.whose, RUN.get()
    attributes: dict[str, Any] = {
        names.VIEW_NAME: projection.view,
        names.FRAMEWORK: whose.framework or (run.framework if run is not None else None),
        names.GEN_AI_AGENT_NAME: whose.agent_name or (run.agent_name if run is not None else None),
        names.GEN_AI_CONVERSATION_ID: whose.conversation_id or (run.conversation_id if run is not None else None),
        names.MODEL: projection.model,
        names.ENVELOPES_IN: projection.envelopes_in,
        names.ENVELOPES_OUT: projection.envelopes_out,
    }
    span = start(
        f"{names.SPAN_PROJECT_VIEW} {projection.view}",
        otel_context.get_current(),
        projection.started_ns,
        {name: value for name, value in attributes.items() if value is not None},
    )
    try:
        if span.is_recording():
            if projection.error is None:
                events, tokens, method, encoding = projection.measure()
                span.set_attributes(
                    {
                        names.EVENTS_OUT: events,
                        names.TOKENS_OUT: tokens,
                        names.TOKENS_METHOD: method,
                        names.TOKENS_ENCODING: encoding,
                    }
                )
            set_status(span, projection.error, overflow=None, halted=False)
    finally:
        span.end()
