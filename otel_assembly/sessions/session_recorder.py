"""The telemetry interface of sessions, which keeps their code independent of OpenTelemetry.

Without telemetry, a null object does nothing. Errors in telemetry are logged and never reach the hub.
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
    """The outcome of a post."""

    ACCEPTED = "accepted"
    """It stands in the log now."""
    REPEATED = "repeated"
    """It had been accepted before, under the same idempotency key."""
    REFUSED = "refused"
    """It does not stand in the log."""
    UNSURE = "unsure"
    """Whether it stands in the log is not known: its answer was lost, or it was cancelled."""


class Tries(Protocol):
    """The counters of a post's attempts.

    Attributes:
        conflicts: The number of attempts that lost against a concurrent append.
        repeated: True if the envelope was already accepted.
    """

    conflicts: int
    repeated: bool


class PostRecording(Protocol):
    """Records one post; a context manager around its attempts. No method raises."""

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
        """Return the envelope with the current trace context, if there is one."""
        ...

    def watch(self, tries: Tries) -> None:
        """Set the source of the counters."""
        ...

    def accepted(self, envelope: Envelope) -> None:
        """Record the accepted envelope, with its row number."""
        ...


class HydrationRecording(Protocol):
    """Records the first read of a session; a context manager around it. No method raises."""

    def __enter__(self) -> Self:
        """Begin the recording."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """End the recording; an error means that the read failed."""
        ...

    def folded(self, envelopes: int, seq: int, *, from_snapshot: bool) -> None:
        """Record the number of folded envelopes and the last row."""
        ...


class TurnRecording(Protocol):
    """Records one turn of a participant. No method raises."""

    def unanswered(self, error: BaseException) -> None:
        """Record that the turn ended without an answer."""
        ...


class SessionRecorder(Protocol):
    """Turns what happens in sessions into telemetry. No method raises."""

    def post(self, envelope: Envelope) -> PostRecording:
        """Return a recording of one post; spans started in the block become its children."""
        ...

    def hydrate(self, metadata: SessionMetadata) -> HydrationRecording:
        """Return a recording of the first read of a session."""
        ...

    def waiting(self, metadata: SessionMetadata, envelopes: int) -> None:
        """Record the number of unconfirmed envelopes in a participant's inbox."""
        ...

    def violated(self, metadata: SessionMetadata, kind: ExpectationKind) -> None:
        """Record a violated expectation that this hub has appended to the log."""
        ...

    def detached(self) -> AbstractContextManager[Any]:
        """Return a context manager whose block runs outside the caller's trace."""
        ...

    def caused(self, envelope: Envelope) -> AbstractContextManager[Any]:
        """Return a context manager whose posts are linked to the post of the causing envelope."""
        ...

    def turn(
        self, metadata: SessionMetadata, participant_id: str, envelope: Envelope
    ) -> AbstractContextManager[TurnRecording]:
        """Return a recording of a participant's turn, in a new trace linked to the envelope's post."""
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
    """Return the recorder of sessions; None without telemetry."""
    sessions = getattr(DEFAULT.recorder, "sessions", None)
    found: SessionRecorder | None = sessions() if sessions is not None else None
    return found


def recorded_post(envelope: Envelope) -> PostRecording:
    """Return the recording of a post."""
    recorder = _recorder()
    return _NULL if recorder is None else recorder.post(envelope)


def recorded_hydration(metadata: SessionMetadata) -> HydrationRecording:
    """Return the recording of the first read of a session."""
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
    """Return a context manager whose block runs outside the caller's trace."""
    recorder = _recorder()
    return _NULL if recorder is None else recorder.detached()


def caused(envelope: Envelope) -> AbstractContextManager[Any]:
    """Return a context manager whose posts are linked to the post of the causing envelope."""
    recorder = _recorder()
    return _NULL if recorder is None else recorder.caused(envelope)


def recorded_turn(
    metadata: SessionMetadata, participant_id: str, envelope: Envelope
) -> AbstractContextManager[TurnRecording]:
    """Return the recording of the turn in which a participant answers an envelope."""
    recorder = _recorder()
    return _NULL if recorder is None else recorder.turn(metadata, participant_id, envelope)
