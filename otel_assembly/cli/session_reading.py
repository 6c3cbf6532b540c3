"""`Reading`: a session of a log, read from its start for somebody who looks at it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.errors import AdapterError, LogDamagedError
from otel_assembly.sessions import EV_EXPECTATION_VIOLATED, FoldedSession, SessionState
from otel_assembly.sessions.folded import expected_turn
from otel_assembly.sessions.known import envelope_of
from otel_assembly.sessions.log_rows import read_rows
from otel_assembly.sessions.verifying import metadata_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from otel_assembly.sessions import Envelope, ExpectedTurn, SessionAdapter
    from otel_assembly.sessions.log_reader import LogReader, StoredSession


class Reading:
    """A session, folded row by row as it is read; one envelope is held at a time.

    Args:
        reader: The log.
        stored: The session.
        adapters: The protocols that can be folded, by type and version.

    Raises:
        LogDamagedError: Its metadata are not what was written.

    Attributes:
        metadata: What was settled when it was created.
        adapter: The code of its protocol; None where it is not known.
        folded: The session up to the last envelope; its adapter's state is None where that is not known.
        violated: The rows that say that an expectation was not met, the first of them.
        violations: How many such rows there are.
        damage: What ended the reading; None where all could be read.
        unfolded: Why it is not folded; None where it is.
    """

    def __init__(
        self, reader: LogReader, stored: StoredSession, adapters: Mapping[tuple[str, int], SessionAdapter]
    ) -> None:
        self._reader = reader
        self._stored = stored
        self.metadata = metadata_of(stored)
        manifest = self.metadata.manifest
        self.adapter = adapters.get((manifest.type, manifest.version))
        self.folded = FoldedSession(None, SessionState.PENDING, (self.metadata.creator_id,), ())
        self.violated: list[int] = []
        self.violations = 0
        self.damage: str | None = None
        self.unfolded: str | None = None
        if self.adapter is None:
            self.unfolded = f"no adapter for {manifest.type!r} version {manifest.version} is known here; give --adapter"
        else:
            self._fold(FoldedSession.fresh, self.metadata, self.adapter)

    def envelopes(self) -> Iterator[Envelope]:
        """Its envelopes in order, up to the first that cannot be read."""
        try:
            for found in self._reader.rows(self._stored):
                (row,) = read_rows(self._stored.id, self.folded.seq + 1, [found])
                envelope = envelope_of(row)
                if self.unfolded is None and self.adapter is not None:
                    self._fold(self.folded.after, envelope, self.metadata, self.adapter)
                if self.folded.seq != envelope.seq:
                    moved = self.folded.moved(envelope, self.metadata.participants)
                    self.folded = FoldedSession(None, moved.state, moved.joined, (), row.seq, row.envelope_id)
                if envelope.event_type == EV_EXPECTATION_VIOLATED:
                    self.violations += 1
                    self.violated = [*self.violated, row.seq][:10]
                yield envelope
        except LogDamagedError as error:
            self.damage = str(error)

    def _fold(self, fold: Any, *given: Any) -> None:
        try:
            self.folded = fold(*given)
        except AdapterError as error:
            self.unfolded = str(error)

    def text_of(self, envelope: Envelope) -> str | None:
        """What a model sees of an envelope; None where that is nothing, or is not known."""
        if self.adapter is None:
            return None
        try:
            return self.adapter.render_envelope(envelope)
        except Exception:  # noqa: BLE001 - what an adapter of the user's cannot show is shown as it is
            return None

    def expected(self) -> ExpectedTurn | None:
        """Whose turn it is after the last envelope; None where that is nobody in particular, or is not known."""
        if self.adapter is None or self.unfolded is not None or self.folded.state is not SessionState.ACTIVE:
            return None
        return expected_turn(self.adapter, self.metadata, self.folded.adapter_state)

    def as_json(self) -> Iterator[Any]:
        """Its envelopes as the objects that the log holds."""
        for envelope in self.envelopes():
            yield {name: getattr(envelope, name) for name in envelope.__slots__}

    def outcome(self) -> dict[str, Any]:
        """What is known once all is read, for JSON."""
        turn = self.expected()
        return {
            "state": self.folded.state.value,
            "joined": list(self.folded.joined),
            "expected_next": None if turn is None else turn.participant_id,
            "violations": self.violations,
            "not_folded": self.unfolded,
            "damage": self.damage,
        }
