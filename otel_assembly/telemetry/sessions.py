"""Sessions between agents: spans of what is posted and read, and their metrics; nothing in it can hurt a hub."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import INVALID_SPAN, Status, StatusCode

from otel_assembly.errors import AdapterError, LogUnsureError, NetworkError, error_type, is_failure
from otel_assembly.sessions.recording import PostOutcome
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry import conventions_metrics as catalogue
from otel_assembly.telemetry.emitter import error_attributes

if TYPE_CHECKING:
    from contextvars import Token
    from types import TracebackType

    from opentelemetry.context import Context as OtelContext
    from opentelemetry.trace import Span

    from otel_assembly.sessions.envelope import Envelope
    from otel_assembly.sessions.metadata import ExpectationKind, SessionMetadata
    from otel_assembly.sessions.recording import Tries
    from otel_assembly.telemetry.emitter import Attributes, Emitter


class SessionTelemetry:
    """Records sessions with what one recorder emits with."""

    __slots__ = ("_emitter",)

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter

    def post(self, envelope: Envelope) -> OpenPost:
        """An envelope is to be posted."""
        return OpenPost(self._emitter, envelope)

    def hydrate(self, metadata: SessionMetadata) -> OpenHydration:
        """A session is to be read for the first time."""
        return OpenHydration(self._emitter, metadata)

    def waiting(self, metadata: SessionMetadata, envelopes: int) -> None:
        """A participant's inbox was looked at, and so many envelopes were not confirmed."""
        with self._emitter.contained("metrics"):
            session = _measured(self._emitter, metadata)
            self._emitter.metrics.record(catalogue.SESSION_INBOX_WAITING, envelopes, session)

    def violated(self, metadata: SessionMetadata, kind: ExpectationKind) -> None:
        """An expectation was not met, which this hub has put into the log."""
        with self._emitter.contained("metrics"):
            session = _measured(self._emitter, metadata)
            self._emitter.metrics.add(catalogue.SESSION_VIOLATIONS, 1, {**session, names.VIOLATION_KIND: kind})


def _measured(emitter: Emitter, metadata: SessionMetadata) -> Attributes:
    """What metrics say of a session."""
    manifest = metadata.manifest
    return emitter.metrics.session(manifest.type, [one.kind for one in manifest.expectations])


class _OpenSpan:
    """A span of a session's that is current while something is done; it is told when that is done.

    Args:
        emitter: What it is emitted with.
        name: The span's name.
        attributes: What is known of it from the start.
        around: The context that it stands in; None for the current one.
    """

    __slots__ = ("_around", "_attributes", "_began", "_context", "_emitter", "_name", "_span", "_token")

    def __init__(
        self, emitter: Emitter, name: str, attributes: Attributes, around: OtelContext | None = None
    ) -> None:
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
        with emitter.contained("span"):
            around = self._around if self._around is not None else otel_context.get_current()
            self._span, self._context = emitter.open_span(self._name, around, time.time_ns(), self._attributes)
            self._token = otel_context.attach(self._context)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        emitter, seconds = self._emitter, time.perf_counter() - self._began
        if self._token is not None:
            with emitter.contained("span"):
                otel_context.detach(self._token)
        with emitter.contained("span"):
            if self._span.is_recording():
                self._told(error)
        with emitter.contained("metrics"):
            self._measured(error, seconds)
        with emitter.contained("span"):
            self._span.end()

    def _told(self, error: BaseException | None) -> None:
        """Set what the span says at its end."""
        raise NotImplementedError

    def _measured(self, error: BaseException | None, seconds: float) -> None:
        """Add to the metrics."""


def _of_session(metadata: SessionMetadata) -> Attributes:
    """What a span says of its session."""
    return {names.SESSION_TYPE: metadata.manifest.type, names.GEN_AI_CONVERSATION_ID: metadata.session_id}


def _failed(span: Span, error: BaseException, phrase: str) -> None:
    """Set why it failed: never the error's message, and the stack only where code that is not ours raised."""
    known = isinstance(error, NetworkError) and not isinstance(error, AdapterError)
    raised = error.__cause__ if isinstance(error, AdapterError) and error.__cause__ is not None else error
    said = {} if known or not is_failure(error) else error_attributes(raised)
    span.set_attributes({**said, names.ERROR_TYPE: error_type(error)})
    span.set_status(Status(StatusCode.ERROR, phrase if is_failure(error) else None))


class OpenPost(_OpenSpan):
    """One post while it is tried: the span `post_envelope`."""

    __slots__ = ("_accepted", "_metadata", "_posted", "_tries")

    def __init__(self, emitter: Emitter, envelope: Envelope) -> None:
        self._posted = envelope
        self._metadata: SessionMetadata | None = None
        self._tries: Tries | None = None
        self._accepted: int | None = None
        given: Any = envelope.event_type
        kind = emitter.metrics.envelope_type(given) if isinstance(given, str) and given else names.OTHER
        super().__init__(emitter, f"{names.SPAN_POST_ENVELOPE} {kind}", {names.ENVELOPE_TYPE: kind})

    def known(self, metadata: SessionMetadata) -> None:
        """The session was found."""
        self._metadata = metadata

    def carried(self, envelope: Envelope) -> Envelope:
        """The envelope with the trace that it is posted in, where there is one."""
        return envelope

    def watch(self, tries: Tries) -> None:
        """This is what knows of the tries."""
        self._tries = tries

    def accepted(self, envelope: Envelope) -> None:
        """It stands in the log, in this place."""
        self._accepted = envelope.seq

    def _outcome(self, error: BaseException | None) -> PostOutcome:
        if self._accepted is not None:
            repeated = self._tries is not None and self._tries.repeated
            return PostOutcome.REPEATED if repeated else PostOutcome.ACCEPTED
        known = isinstance(error, NetworkError) and not isinstance(error, LogUnsureError)
        return PostOutcome.REFUSED if known else PostOutcome.UNSURE

    def _told(self, error: BaseException | None) -> None:
        metadata, outcome = self._metadata, self._outcome(error)
        said: Attributes = {names.POST_OUTCOME: outcome.value}
        if metadata is not None:
            said |= _of_session(metadata)
            if self._posted.sender_id in metadata.participants:
                said[names.GEN_AI_AGENT_NAME] = self._posted.sender_id
        if self._accepted is not None:
            said[names.SESSION_SEQUENCE] = self._accepted
        if self._tries is not None:
            said[names.POST_CONFLICTS] = self._tries.conflicts
        self._span.set_attributes(said)
        if error is not None:
            unsure = outcome is PostOutcome.UNSURE
            _failed(self._span, error, names.STATUS_POST_UNSURE if unsure else names.STATUS_POST_REFUSED)

    def _measured(self, error: BaseException | None, seconds: float) -> None:
        instruments = self._emitter.metrics
        said = _measured(self._emitter, self._metadata) if self._metadata is not None else {}
        said = {**said, names.POST_OUTCOME: self._outcome(error).value}
        instruments.add(catalogue.SESSION_POSTS, 1, said, self._context)
        instruments.record(catalogue.SESSION_POST_DURATION, seconds, said, self._context)


class OpenHydration(_OpenSpan):
    """One session while it is read for the first time: the span `hydrate`."""

    __slots__ = ("_metadata",)

    def __init__(self, emitter: Emitter, metadata: SessionMetadata) -> None:
        self._metadata = metadata
        super().__init__(emitter, names.SPAN_HYDRATE, _of_session(metadata))

    def folded(self, envelopes: int, seq: int, *, from_snapshot: bool) -> None:
        """So many envelopes were folded, up to this row."""
        with self._emitter.contained("span"):
            self._span.set_attributes(
                {
                    names.HYDRATE_FOLDED: envelopes,
                    names.HYDRATE_SNAPSHOT: from_snapshot,
                    names.SESSION_SEQUENCE: seq,
                }
            )

    def _told(self, error: BaseException | None) -> None:
        if error is not None:
            _failed(self._span, error, names.STATUS_HYDRATE_FAILED)

    def _measured(self, error: BaseException | None, seconds: float) -> None:
        # What is watched over starts at 0 when a session is first seen.
        _measured(self._emitter, self._metadata)
