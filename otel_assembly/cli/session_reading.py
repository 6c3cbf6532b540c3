"""`Reading`: reads a session from its log row by row, for ``session LOG ID``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.errors import AdapterError, LogDamagedError
from otel_assembly.sessions import EV_EXPECTATION_VIOLATED, FoldedSession, SessionState
from otel_assembly.sessions.folded_session import expected_turn
from otel_assembly.sessions.hub_session import envelope_of
from otel_assembly.sessions.log_rows import read_rows
from otel_assembly.sessions.session_check import metadata_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from otel_assembly.sessions import Envelope, ExpectedTurn, SessionAdapter
    from otel_assembly.sessions.log_reader import LogReader, StoredSession


class Reading:
    """Reads the envelopes of a session one at a time, and computes the session's state from them.

    Each envelope is applied to the state after the previous envelope.

    Args:
        reader: The reader of the log.
        stored: The session to read.
        adapters: The adapters of the protocols, by protocol type and version.

    Raises:
        LogDamagedError: The metadata is damaged.

    Attributes:
        metadata: The session's metadata.
        adapter: The adapter (the code) of the session's protocol; None if `adapters` does not contain it.
        folded: The session's state after the envelopes read so far. If the state of the protocol cannot be computed,
            only the rest, such as who has joined, is up to date.
        violated_rows: The numbers of the first ten rows that record a violated expectation.
        violations: The number of all rows that record a violated expectation.
        damage: The error at which the reading stopped; None if all rows were read.
        fold_problem: Why the state of the protocol cannot be computed; None if it can.
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
        self.violated_rows: list[int] = []
        self.violations = 0
        self.damage: str | None = None
        self.fold_problem: str | None = None
        if self.adapter is None:
            self.fold_problem = f"no adapter for {manifest.type!r} version {manifest.version}; name one with --adapter"
        else:
            self._fold(FoldedSession.fresh, self.metadata, self.adapter)

    def envelopes(self) -> Iterator[Envelope]:
        """Yield the envelopes in order, up to the first that cannot be read."""
        try:
            for stored_row in self._reader.rows(self._stored):
                (row,) = read_rows(self._stored.id, self.folded.seq + 1, [stored_row])
                envelope = envelope_of(row)
                if self.fold_problem is None and self.adapter is not None:
                    self._fold(self.folded.after, envelope, self.metadata, self.adapter)
                if self.folded.seq != envelope.seq:
                    moved_session = self.folded.moved(envelope, self.metadata.participants)
                    self.folded = FoldedSession(
                        None, moved_session.state, moved_session.joined, (), row.seq, row.envelope_id
                    )
                if envelope.event_type == EV_EXPECTATION_VIOLATED:
                    self.violations += 1
                    self.violated_rows = [*self.violated_rows, row.seq][:10]
                yield envelope
        except LogDamagedError as error:
            self.damage = str(error)

    def _fold(self, fold: Any, *arguments: Any) -> None:
        try:
            self.folded = fold(*arguments)
        except AdapterError as error:
            self.fold_problem = str(error)

    def text_of(self, envelope: Envelope) -> str | None:
        """Return the text that the session's adapter renders for a model from an envelope; None if it renders none."""
        if self.adapter is None:
            return None
        try:
            return self.adapter.render_envelope(envelope)
        except Exception:  # noqa: BLE001 - if a custom adapter fails, the raw data is shown
            return None

    def expected(self) -> ExpectedTurn | None:
        """Return the turn that the protocol expects next; None if any participant may post, or if it is unknown."""
        if self.adapter is None or self.fold_problem is not None or self.folded.state is not SessionState.ACTIVE:
            return None
        return expected_turn(self.adapter, self.metadata, self.folded.adapter_state)

    def as_json(self) -> Iterator[Any]:
        """Yield each envelope as a JSON object."""
        for envelope in self.envelopes():
            yield {name: getattr(envelope, name) for name in envelope.__slots__}

    def outcome(self) -> dict[str, Any]:
        """Return the session's state after its last envelope, as a JSON object."""
        turn = self.expected()
        return {
            "state": self.folded.state.value,
            "joined": list(self.folded.joined),
            "expected_next": None if turn is None else turn.participant_id,
            "violations": self.violations,
            "not_folded": self.fold_problem,
            "damage": self.damage,
        }
