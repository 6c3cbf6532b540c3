"""Record sessions between agents: spans and metrics of posts, hydration and turns.

A session is a log of messages (envelopes) that several agents share, and a hub writes it. Hydration is a hub's first
read of a session. A failure in this module never reaches the hub.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context as OtelContext
from opentelemetry.trace import INVALID_SPAN, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otel_assembly.errors import AdapterError, HaltedError, LogUnsureError, NetworkError, error_type, is_failure
from otel_assembly.messages.event_facts import sendable
from otel_assembly.recorder import AgentIdentity
from otel_assembly.sessions.session_recorder import PostOutcome
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry import conventions_metrics as catalogue
from otel_assembly.telemetry.emitter import HALTED, error_attributes, sendable_values
from otel_assembly.telemetry.run import RUN, Run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextvars import Token
    from types import TracebackType

    from opentelemetry.trace import Span, SpanContext

    from otel_assembly.sessions.envelope import Envelope
    from otel_assembly.sessions.metadata import ExpectationKind, SessionMetadata
    from otel_assembly.sessions.session_recorder import Tries
    from otel_assembly.telemetry.emitter import Attributes, Emitter

#: Envelopes always carry W3C headers, even if the process configures another propagator.
_W3C: Final = TraceContextTextMapPropagator()
_HEADERS: Final = ("traceparent", "tracestate")

#: The session and the span of the post that causes the posts in this context.
_CAUSE: Final[ContextVar[tuple[str, SpanContext] | None]] = ContextVar("otel_assembly_cause", default=None)


class SessionTelemetry:
    """Records sessions through one recorder's emitter."""

    __slots__ = ("_emitter",)

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter

    def post(self, envelope: Envelope) -> OpenPost:
        """Return a context manager that records the post of an envelope to its session's log."""
        return OpenPost(self._emitter, envelope)

    def hydrate(self, metadata: SessionMetadata) -> OpenHydration:
        """Return a context manager that records a hub's first read of a session."""
        return OpenHydration(self._emitter, metadata)

    def waiting(self, metadata: SessionMetadata, envelopes: int) -> None:
        """Record, as a metric, how many envelopes in its inbox a participant has not confirmed."""
        with self._emitter.suppress_errors("metrics"):
            session = _metric_attributes(self._emitter, metadata)
            self._emitter.metrics.record(catalogue.SESSION_INBOX_WAITING, envelopes, session)

    def violated(self, metadata: SessionMetadata, kind: ExpectationKind) -> None:
        """Count a violated expectation (a time limit of the session), which this hub reported in the session's log."""
        with self._emitter.suppress_errors("metrics"):
            session = _metric_attributes(self._emitter, metadata)
            self._emitter.metrics.record(catalogue.SESSION_VIOLATIONS, 1, {**session, names.VIOLATION_KIND: kind})

    @contextmanager
    def detached(self) -> Iterator[None]:
        """Make no span and no run current in this block, so that its spans start new traces."""
        run, token = RUN.set(None), otel_context.attach(_no_trace())
        try:
            yield
        finally:
            otel_context.detach(token)
            RUN.reset(run)

    @contextmanager
    def caused(self, envelope: Envelope) -> Iterator[None]:
        """Link the spans of posts in this block to the span that posted `envelope`, which causes these posts."""
        cause = _CAUSE.set(_cause(self._emitter, envelope))
        try:
            yield
        finally:
            _CAUSE.reset(cause)

    def turn(self, metadata: SessionMetadata, participant_id: str, envelope: Envelope) -> OpenTurn:
        """Return a context manager that records a participant's turn; the new trace links to the envelope's post."""
        return OpenTurn(self._emitter, metadata, participant_id, envelope)


def _no_trace() -> OtelContext:
    """Return the current context without a span."""
    return trace.set_span_in_context(INVALID_SPAN)


def _context_of(envelope: Envelope, around: OtelContext) -> OtelContext:
    """Return `around` with the span in an envelope's trace headers; `around` itself if there are no headers."""
    carrier: Any = envelope.trace
    headers = {name: carrier.get(name) for name in _HEADERS} if hasattr(carrier, "get") else {}
    return _W3C.extract({name: value for name, value in headers.items() if isinstance(value, str)}, around)


def _cause(emitter: Emitter, envelope: Envelope) -> tuple[str, SpanContext] | None:
    """Return the session of an envelope and the span that posted it; None if that span was not sampled."""
    with emitter.suppress_errors("link"):
        posted = trace.get_current_span(_context_of(envelope, OtelContext())).get_span_context()
        if posted.is_valid and posted.trace_flags.sampled:
            return envelope.session_id, posted
    return None


def _envelope_type(emitter: Emitter, envelope: Envelope) -> str:
    event_type: Any = envelope.event_type
    return emitter.metrics.envelope_type(event_type) if isinstance(event_type, str) and event_type else names.OTHER


def _metric_attributes(emitter: Emitter, metadata: SessionMetadata) -> Attributes:
    """Return the metric attributes of a session."""
    manifest = metadata.manifest
    return emitter.metrics.session(manifest.type, [expectation.kind for expectation in manifest.expectations])


class _OpenSpan:
    """Records one operation on a session; a context manager whose span is current in the block.

    Args:
        emitter: Starts the span and records the metrics.
        name: The span's name.
        attributes: Attributes that are known at the start.
        around: The parent context; None for the current one.
    """

    __slots__ = ("_around", "_attributes", "_began", "_context", "_emitter", "_name", "_span", "_token")

    def __init__(self, emitter: Emitter, name: str, attributes: Attributes, around: OtelContext | None = None) -> None:
        self._emitter = emitter
        self._name = name
        self._attributes = attributes
        self._around = around
        self._span: Span = INVALID_SPAN
        self._context: OtelContext | None = None
        self._token: Token[OtelContext] | None = None
        self._began = 0.0

    def __enter__(self) -> Self:
        emitter = self._emitter
        self._began = time.perf_counter()
        with emitter.suppress_errors("span"):
            around = self._around if self._around is not None else otel_context.get_current()
            name, attributes = sendable(self._name), sendable_values(self._attributes)
            self._span, self._context = emitter.open_span(name, around, time.time_ns(), attributes)
            self._token = otel_context.attach(self._context)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        emitter, seconds = self._emitter, time.perf_counter() - self._began
        if self._token is not None:
            with emitter.suppress_errors("span"):
                otel_context.detach(self._token)
        with emitter.suppress_errors("span"):
            if self._span.is_recording():
                self._describe(error)
        with emitter.suppress_errors("metrics"):
            self._record_metrics(error, seconds)
        with emitter.suppress_errors("span"):
            self._span.end()

    def _describe(self, error: BaseException | None) -> None:
        """Set the attributes and the status that are known at the end."""
        raise NotImplementedError

    def _record_metrics(self, error: BaseException | None, seconds: float) -> None:
        """Record the operation's metrics."""


def _of_session(metadata: SessionMetadata) -> Attributes:
    """Return the span attributes of a session."""
    return {names.SESSION_TYPE: metadata.manifest.type, names.GEN_AI_CONVERSATION_ID: metadata.session_id}


def _failed(span: Span, error: BaseException, phrase: str) -> None:
    """Set a span's error attributes and status, without the message of the error.

    An error that this library raises on purpose is recorded without a stack trace: its type is sufficient.
    """
    is_expected = isinstance(error, NetworkError) and not isinstance(error, AdapterError)
    raised = error.__cause__ if isinstance(error, AdapterError) and error.__cause__ is not None else error
    attributes = {} if is_expected or not is_failure(error) else error_attributes(raised)
    span.set_attributes({**attributes, names.ERROR_TYPE: error_type(error)})
    span.set_status(Status(StatusCode.ERROR, phrase if is_failure(error) else None))


class OpenPost(_OpenSpan):
    """Records one post with all its tries, as a ``post_envelope`` span and metrics."""

    __slots__ = ("_accepted", "_metadata", "_posted", "_tries")

    def __init__(self, emitter: Emitter, envelope: Envelope) -> None:
        self._posted = envelope
        self._metadata: SessionMetadata | None = None
        self._tries: Tries | None = None
        self._accepted: int | None = None
        kind = _envelope_type(emitter, envelope)
        super().__init__(emitter, f"{names.SPAN_POST_ENVELOPE} {kind}", {names.ENVELOPE_TYPE: kind})
        if not trace.get_current_span().get_span_context().is_valid:
            with emitter.suppress_errors("span"):
                self._around = _context_of(envelope, otel_context.get_current())

    def __enter__(self) -> Self:
        super().__enter__()
        cause = _CAUSE.get()
        if cause is not None and cause[0] == self._posted.session_id:
            with self._emitter.suppress_errors("link"):
                self._span.add_link(cause[1])
        return self

    def known(self, metadata: SessionMetadata) -> None:
        """Set the session of the envelope, which is only known after the log was read."""
        self._metadata = metadata

    def carried(self, envelope: Envelope) -> Envelope:
        """Return the envelope with the trace headers of this post's span, if there are any."""
        with self._emitter.suppress_errors("trace"):
            headers: dict[str, str] = {}
            _W3C.inject(headers, self._context)
            if headers:
                return replace(envelope, trace=headers)
        return envelope

    def watch(self, tries: Tries) -> None:
        """Set the object that counts the attempts of this post to append to the log."""
        self._tries = tries

    def accepted(self, envelope: Envelope) -> None:
        """Set the envelope as it was written to the log, with its sequence number."""
        self._accepted = envelope.seq

    def _outcome(self, error: BaseException | None) -> PostOutcome:
        if self._accepted is not None:
            repeated = self._tries is not None and self._tries.repeated
            return PostOutcome.REPEATED if repeated else PostOutcome.ACCEPTED
        is_refusal = isinstance(error, NetworkError) and not isinstance(error, LogUnsureError)
        return PostOutcome.REFUSED if is_refusal else PostOutcome.UNSURE

    def _describe(self, error: BaseException | None) -> None:
        metadata, outcome = self._metadata, self._outcome(error)
        attributes: Attributes = {names.POST_OUTCOME: outcome.value}
        if metadata is not None:
            attributes |= _of_session(metadata)
            if self._posted.sender_id in metadata.participants:
                attributes[names.GEN_AI_AGENT_NAME] = self._posted.sender_id
        if self._accepted is not None:
            attributes[names.SESSION_SEQUENCE] = self._accepted
        if self._tries is not None:
            attributes[names.POST_CONFLICTS] = self._tries.conflicts
        self._span.set_attributes(attributes)
        if error is not None:
            unsure = outcome is PostOutcome.UNSURE
            _failed(self._span, error, names.STATUS_POST_UNSURE if unsure else names.STATUS_POST_REFUSED)

    def _record_metrics(self, error: BaseException | None, seconds: float) -> None:
        instruments = self._emitter.metrics
        attributes = _metric_attributes(self._emitter, self._metadata) if self._metadata is not None else {}
        attributes = {**attributes, names.POST_OUTCOME: self._outcome(error).value}
        instruments.record(catalogue.SESSION_POSTS, 1, attributes, self._context)
        instruments.record(catalogue.SESSION_POST_DURATION, seconds, attributes, self._context)


class OpenHydration(_OpenSpan):
    """Records a hub's first read of one session, as a ``hydrate`` span."""

    __slots__ = ("_metadata",)

    def __init__(self, emitter: Emitter, metadata: SessionMetadata) -> None:
        self._metadata = metadata
        super().__init__(emitter, names.SPAN_HYDRATE, _of_session(metadata))

    def folded(self, envelopes: int, seq: int, *, from_snapshot: bool) -> None:
        """Set how many envelopes were read, and the sequence number of the last one."""
        with self._emitter.suppress_errors("span"):
            self._span.set_attributes(
                {
                    names.HYDRATE_ENVELOPE_COUNT: envelopes,
                    names.HYDRATE_FROM_SNAPSHOT: from_snapshot,
                    names.SESSION_SEQUENCE: seq,
                }
            )

    def _describe(self, error: BaseException | None) -> None:
        if error is not None:
            _failed(self._span, error, names.STATUS_HYDRATE_FAILED)

    def _record_metrics(self, error: BaseException | None, seconds: float) -> None:
        # This starts the counter of the session's violations at 0.
        _metric_attributes(self._emitter, self._metadata)


class OpenTurn(_OpenSpan):
    """Records one turn of a participant, as a ``serve_turn`` span that is the root of a trace."""

    __slots__ = ("_cause", "_cause_token", "_error", "_identity", "_run_token")

    def __init__(self, emitter: Emitter, metadata: SessionMetadata, participant_id: str, envelope: Envelope) -> None:
        self._identity = AgentIdentity(participant_id, None, metadata.session_id)
        self._cause = _cause(emitter, envelope)
        self._cause_token: Token[tuple[str, SpanContext] | None] | None = None
        self._run_token: Token[Run | None] | None = None
        self._error: BaseException | None = None
        attributes = {
            **_of_session(metadata),
            names.GEN_AI_AGENT_NAME: participant_id,
            names.ENVELOPE_TYPE: _envelope_type(emitter, envelope),
            names.SESSION_SEQUENCE: envelope.seq,
        }
        super().__init__(emitter, f"{names.SPAN_SERVE_TURN} {participant_id}", attributes, _no_trace())

    def __enter__(self) -> Self:
        super().__enter__()
        with self._emitter.suppress_errors("link"):
            if self._cause is not None:
                self._span.add_link(self._cause[1])
        self._cause_token = _CAUSE.set(self._cause)
        self._run_token = RUN.set(Run(self._emitter, self._span, self._identity))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if self._cause_token is not None:
            _CAUSE.reset(self._cause_token)
        if self._run_token is not None:
            RUN.reset(self._run_token)
        super().__exit__(kind, error, trace)

    def unanswered(self, error: BaseException) -> None:
        """Record the error because of which the turn has no answer.

        Call this method if the error does not leave the ``with`` block of the turn; an error that does is recorded
        without a call.
        """
        self._error = error

    def _describe(self, error: BaseException | None) -> None:
        failed = error if error is not None else self._error
        if isinstance(failed, HaltedError):
            self._span.set_attribute(names.ERROR_TYPE, error_type(failed))
            self._span.set_status(HALTED)
        elif failed is not None:
            _failed(self._span, failed, names.STATUS_TURN_FAILED)
