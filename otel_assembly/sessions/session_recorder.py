"""`SessionRecorder`: the interface through which sessions emit telemetry, without importing OpenTelemetry.

A session consists of envelopes (messages) in a log; a hub posts them. Without telemetry, the functions here do nothing.
Errors in telemetry are logged and never reach the hub.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from otel_assembly._internal.current_recorder import DEFAULT

if TYPE_CHECKING:
    from types import TracebackType

    from otel_assembly.sessions.envelope import Envelope
    from otel_assembly.sessions.metadata import ExpectationKind, SessionMetadata


class PostOutcome(StrEnum):
    """The outcome of a post: of the attempt to append an envelope to a session's log."""

    ACCEPTED = "accepted"
    """The envelope was appended to the log."""
    REPEATED = "repeated"
    """The log already contained the envelope, under the same idempotency key."""
    REFUSED = "refused"
    """The envelope was not appended to the log."""
    UNSURE = "unsure"
    """Unknown: the log's answer was lost, or the post was cancelled."""


class Tries(Protocol):
    """The counters of a post's attempts.

    Attributes:
        conflicts: The number of attempts that lost against a concurrent append.
        repeated: True if the envelope was already accepted.
    """

    conflicts: int
    repeated: bool


class PostRecording(Protocol):
    """Records one post of an envelope; a context manager around its attempts. No method raises."""

    def __enter__(self) -> Self:
        """Begin the recording."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """End the recording; an error means that the post was refused."""
        ...

    def known(self, metadata: SessionMetadata) -> None:
        """Record the session's metadata."""
        ...

    def carried(self, envelope: Envelope) -> Envelope:
        """Return the envelope with the current trace context; unchanged if there is none."""
        ...

    def watch(self, tries: Tries) -> None:
        """Set the object from which the number of conflicts is read at the end."""
        ...

    def accepted(self, envelope: Envelope) -> None:
        """Record the accepted envelope, with its row number."""
        ...


class HydrationRecording(Protocol):
    """Records a hub's first read of a session from the log; a context manager around the read. No method raises."""

    def __enter__(self) -> Self:
        """Begin the recording."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """End the recording; an error means that the read failed."""
        ...

    def folded(self, envelopes: int, seq: int, *, from_snapshot: bool) -> None:
        """Record the result of the read.

        Args:
            envelopes: The number of envelopes from which the state was computed.
            seq: The number of the last row.
            from_snapshot: True if the computation began with a stored snapshot.
        """
        ...


class TurnRecording(Protocol):
    """Records one turn of a participant. No method raises."""

    def unanswered(self, error: BaseException) -> None:
        """Record that the turn ends without an answer because of an error that the caller has handled."""
        ...


class SessionRecorder(Protocol):
    """Records posts, reads and turns of sessions as telemetry. No method raises."""

    def post(self, envelope: Envelope) -> PostRecording:
        """Return a recording of one post; spans started in the block become its children."""
        ...

    def hydrate(self, metadata: SessionMetadata) -> HydrationRecording:
        """Return a recording of a hub's first read of a session."""
        ...

    def waiting(self, metadata: SessionMetadata, envelopes: int) -> None:
        """Record the number of unconfirmed envelopes in a participant's inbox."""
        ...

    def violated(self, metadata: SessionMetadata, kind: ExpectationKind) -> None:
        """Record a violated expectation that this hub has appended to the log."""
        ...

    def detached(self) -> AbstractContextManager[Any]:
        """Return a context manager for a block that is not part of the caller's trace."""
        ...

    def caused(self, envelope: Envelope) -> AbstractContextManager[Any]:
        """Return a context manager; posts in its block get a span link to the post of this envelope."""
        ...

    def turn(
        self, metadata: SessionMetadata, participant_id: str, envelope: Envelope
    ) -> AbstractContextManager[TurnRecording]:
        """Return a recording of the turn in which a participant answers the envelope.

        The turn is a new trace, with a span link to the post of the envelope.
        """
        ...


class _NullRecording(nullcontext[Any]):
    def __enter__(self) -> Self:
        return self

    def carried(self, envelope: Envelope) -> Envelope:
        return envelope

    def known(self, *_: Any, **__: Any) -> None:
        return None

    watch = accepted = folded = unanswered = known


_NULL: Final = _NullRecording()


def _recorder() -> SessionRecorder | None:
    """Return the recorder that telemetry provides; None without telemetry."""
    sessions = getattr(DEFAULT.recorder, "sessions", None)
    recorder: SessionRecorder | None = sessions() if sessions is not None else None
    return recorder


def recorded_post(envelope: Envelope) -> PostRecording:
    """Return the recording of a post."""
    recorder = _recorder()
    return _NULL if recorder is None else recorder.post(envelope)


def recorded_hydration(metadata: SessionMetadata) -> HydrationRecording:
    """Return the recording of a hub's first read of a session."""
    recorder = _recorder()
    return _NULL if recorder is None else recorder.hydrate(metadata)


def record_unconfirmed(metadata: SessionMetadata, envelopes: int) -> None:
    """Record the number of unconfirmed envelopes in a participant's inbox."""
    recorder = _recorder()
    if recorder is not None:
        recorder.waiting(metadata, envelopes)


def record_violated(metadata: SessionMetadata, kind: ExpectationKind) -> None:
    """Record a violated expectation that this hub has appended to the log."""
    recorder = _recorder()
    if recorder is not None:
        recorder.violated(metadata, kind)


def detached() -> AbstractContextManager[Any]:
    """Return a context manager for a block that is not part of the caller's trace."""
    recorder = _recorder()
    return _NULL if recorder is None else recorder.detached()


def caused(envelope: Envelope) -> AbstractContextManager[Any]:
    """Return a context manager; posts in its block get a span link to the post of this envelope."""
    recorder = _recorder()
    return _NULL if recorder is None else recorder.caused(envelope)


def recorded_turn(
    metadata: SessionMetadata, participant_id: str, envelope: Envelope
) -> AbstractContextManager[TurnRecording]:
    """Return the recording of the turn in which a participant answers an envelope."""
    recorder = _recorder()
    return _NULL if recorder is None else recorder.turn(metadata, participant_id, envelope)
