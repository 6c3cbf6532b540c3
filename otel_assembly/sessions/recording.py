"""What sessions tell telemetry: the one small interface by which they reach it; sessions know of no OpenTelemetry.

Where nobody listens, a null object stands in, and nothing is worked out. What fails in telemetry is logged there and
goes no further: a hub goes on.
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
    """What became of a post."""

    ACCEPTED = "accepted"
    """It stands in the log now."""
    REPEATED = "repeated"
    """It had been accepted before, under the same idempotency key."""
    REFUSED = "refused"
    """It does not stand in the log."""
    UNSURE = "unsure"
    """Whether it stands in the log is not known: its answer was lost, or it was cancelled."""


class Tries(Protocol):
    """What a post says of its tries.

    Attributes:
        conflicts: How often somebody else was first.
        repeated: Whether it had been accepted before.
    """

    conflicts: int
    repeated: bool


class PostRecording(Protocol):
    """One post while it is tried, as a context manager. No method raises."""

    def __enter__(self) -> Self:
        """It begins."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """It was accepted, or refused with this error."""
        ...

    def known(self, metadata: SessionMetadata) -> None:
        """The session was found."""
        ...

    def carried(self, envelope: Envelope) -> Envelope:
        """The envelope with the trace that it is posted in, where there is one."""
        ...

    def watch(self, tries: Tries) -> None:
        """This is what knows of the tries."""
        ...

    def accepted(self, envelope: Envelope) -> None:
        """It stands in the log, in this place."""
        ...


class HydrationRecording(Protocol):
    """One session while it is read for the first time, as a context manager. No method raises."""

    def __enter__(self) -> Self:
        """It begins."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """It was read, or could not be."""
        ...

    def folded(self, envelopes: int, seq: int, *, from_snapshot: bool) -> None:
        """So many envelopes were folded, up to this row."""
        ...


class TurnRecording(Protocol):
    """One turn of a participant's. No method raises."""

    def unanswered(self, error: BaseException) -> None:
        """It came to no answer."""
        ...


class SessionRecorder(Protocol):
    """Turns what happens in sessions into telemetry. No method raises."""

    def post(self, envelope: Envelope) -> PostRecording:
        """An envelope is to be posted; what is done in the block belongs to it."""
        ...

    def hydrate(self, metadata: SessionMetadata) -> HydrationRecording:
        """A session is to be read for the first time."""
        ...

    def waiting(self, metadata: SessionMetadata, envelopes: int) -> None:
        """A participant's inbox was looked at, and so many envelopes were not confirmed."""
        ...

    def violated(self, metadata: SessionMetadata, kind: ExpectationKind) -> None:
        """An expectation was not met, which this hub has put into the log."""
        ...

    def apart(self) -> AbstractContextManager[Any]:
        """What is started in this block belongs to no trace of whoever starts it."""
        ...

    def caused(self, envelope: Envelope) -> AbstractContextManager[Any]:
        """What is posted in this block follows from an envelope, and is linked to its post."""
        ...

    def turn(
        self, metadata: SessionMetadata, participant_id: str, envelope: Envelope
    ) -> AbstractContextManager[TurnRecording]:
        """A participant answers an envelope, in a trace of its own that is linked to the envelope's post."""
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
    """What records sessions; None where nobody listens."""
    sessions = getattr(DEFAULT.recorder, "sessions", None)
    found: SessionRecorder | None = sessions() if sessions is not None else None
    return found


def recorded_post(envelope: Envelope) -> PostRecording:
    """What stands around the post of an envelope."""
    recorder = _recorder()
    return _NULL if recorder is None else recorder.post(envelope)


def recorded_hydration(metadata: SessionMetadata) -> HydrationRecording:
    """What stands around the first reading of a session."""
    recorder = _recorder()
    return _NULL if recorder is None else recorder.hydrate(metadata)


def tell_waiting(metadata: SessionMetadata, envelopes: int) -> None:
    """A participant's inbox was looked at, and so many envelopes were not confirmed."""
    recorder = _recorder()
    if recorder is not None:
        recorder.waiting(metadata, envelopes)


def tell_violated(metadata: SessionMetadata, kind: ExpectationKind) -> None:
    """An expectation was not met, which this hub has put into the log."""
    recorder = _recorder()
    if recorder is not None:
        recorder.violated(metadata, kind)


def apart() -> AbstractContextManager[Any]:
    """What is started in this block belongs to no trace of whoever starts it."""
    recorder = _recorder()
    return _NULL if recorder is None else recorder.apart()


def caused(envelope: Envelope) -> AbstractContextManager[Any]:
    """What is posted in this block follows from an envelope, and is linked to its post."""
    recorder = _recorder()
    return _NULL if recorder is None else recorder.caused(envelope)


def recorded_turn(
    metadata: SessionMetadata, participant_id: str, envelope: Envelope
) -> AbstractContextManager[TurnRecording]:
    """What stands around the turn in which a participant answers an envelope."""
    recorder = _recorder()
    return _NULL if recorder is None else recorder.turn(metadata, participant_id, envelope)
