"""Record ``project_view`` spans. A view is the part of the messages of several agents that one of them receives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry import context as otel_context

from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.emitter import set_status
from otel_assembly.telemetry.run import RUN

if TYPE_CHECKING:
    from otel_assembly.recorder import Projection
    from otel_assembly.telemetry.emitter import Emitter


def put_projection(emitter: Emitter, projection: Projection) -> None:
    """Record the computation of a view as a span that ends now, without any content of messages."""
    identity, run = projection.identity, RUN.get()
    fallback = run.identity if run is not None else identity
    attributes = {
        names.VIEW_NAME: projection.view,
        names.FRAMEWORK: identity.framework or fallback.framework,
        names.GEN_AI_AGENT_NAME: identity.agent_name or fallback.agent_name,
        names.GEN_AI_CONVERSATION_ID: identity.conversation_id or fallback.conversation_id,
        names.MODEL: projection.model,
        names.ENVELOPES_IN: projection.envelopes_in,
        names.ENVELOPES_OUT: projection.envelopes_out,
    }
    name = f"{names.SPAN_PROJECT_VIEW} {projection.view}"
    span = emitter.start_span(name, otel_context.get_current(), projection.started_ns, attributes)
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
