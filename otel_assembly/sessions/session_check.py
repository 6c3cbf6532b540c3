"""`SessionCheck`: reads a stored session from its start and reports damage and inconsistencies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from otel_assembly.errors import AdapterError, LogDamagedError
from otel_assembly.sessions.folded_session import FoldedSession
from otel_assembly.sessions.hub_session import envelope_of
from otel_assembly.sessions.log import Snapshot, checksum_of
from otel_assembly.sessions.log_rows import read_metadata, read_row
from otel_assembly.sessions.metadata import SessionMetadata
from otel_assembly.sessions.snapshots import adapter_key, load_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from otel_assembly.sessions.adapter import SessionAdapter
    from otel_assembly.sessions.envelope import Envelope
    from otel_assembly.sessions.log_reader import LogReader, StoredSession


@dataclass(frozen=True, slots=True)
class LogProblem:
    """A problem of a stored session: damaged or inconsistent data.

    Attributes:
        row: The number of the row with the problem; None if the problem concerns no single row.
        what: A description that names the session and the row.
    """

    row: int | None
    what: str


def metadata_of(stored: StoredSession) -> SessionMetadata:
    """Return the metadata of a stored session, after a check of its checksum and its session id.

    Raises:
        LogDamagedError: The checksum is wrong, or the metadata belongs to another session.
    """
    try:
        metadata = SessionMetadata.from_json(read_metadata(stored.id, stored.metadata, stored.checksum))
    except LogDamagedError as error:
        raise LogDamagedError(f"session {stored.id!r}: {error}") from error
    if metadata.session_id != stored.id:
        raise LogDamagedError(f"session {stored.id!r}: its metadata belong to session {metadata.session_id!r}")
    return metadata


class SessionCheck:
    """Checks one stored session from its first row to its last; keeps only one page of rows in memory.

    Args:
        reader: The log.
        stored: The session.
        adapters: The code of the available protocols, by type and version.

    Attributes:
        envelopes: The number of rows read.
        metadata: The session's metadata; None if the metadata cannot be read.
        folded: The state computed from the rows up to the first damaged one; None if the protocol is unknown.
    """

    def __init__(
        self, reader: LogReader, stored: StoredSession, adapters: Mapping[tuple[str, int], SessionAdapter]
    ) -> None:
        self._reader = reader
        self._stored = stored
        self._adapters = adapters
        self._seq = 0
        self.envelopes = 0
        self.metadata: SessionMetadata | None = None
        self.folded: FoldedSession | None = None

    @property
    def adapter(self) -> SessionAdapter | None:
        """The code of the session's protocol; None if the protocol is unknown."""
        manifest = self.metadata.manifest if self.metadata is not None else None
        return None if manifest is None else self._adapters.get((manifest.type, manifest.version))

    def problems(self) -> Iterator[LogProblem]:
        """Read the session, and yield its problems in the order of its rows."""
        try:
            self.metadata = metadata_of(self._stored)
        except LogDamagedError as error:
            yield LogProblem(None, str(error))
        try:
            yield from self._rows_and_state()
            for sender_id, key, row in self._reader.posted_twice(self._stored):
                yield LogProblem(row, self._in_session(f"row {row}: {sender_id!r} posted under the key {key!r} before"))
        except LogDamagedError as error:
            # The storage cannot read some data. If the data is a row, it is the row after the last row read.
            yield LogProblem(self._seq + 1, str(error))

    def _rows_and_state(self) -> Iterator[LogProblem]:
        """Yield the problems of the rows, and of the snapshots and confirmed positions that refer to them."""
        # Read the snapshots and cursors before the rows: later ones may refer to rows that this check does not read.
        snapshots = self._reader.snapshots(self._stored)
        cursors = self._reader.cursors(self._stored)
        for adapter, _, state, checksum in snapshots:
            if not isinstance(state, str) or checksum_of(state) != checksum:
                yield LogProblem(None, self._in_session(f"its snapshot for {adapter} is damaged"))
        folding = _Folding(self)
        last: Envelope | None = None
        for stored_row in self._reader.rows(self._stored):
            self.envelopes += 1
            is_intact = True
            for problem in self._missing_rows(stored_row[0]):
                is_intact = False
                yield problem
            try:
                row = read_row(self._stored.id, stored_row)
                envelope = envelope_of(row)
            except LogDamagedError as error:
                yield LogProblem(stored_row[0], str(error))
                folding.stop()
                continue
            for what in _inconsistencies(envelope, last):
                is_intact = False
                yield LogProblem(row.seq, self._in_session(f"row {row.seq}: {what}"))
            last = envelope
            if not is_intact:
                folding.stop()
            yield from folding.take(envelope, snapshots)
        if self.envelopes == 0:
            yield LogProblem(1, self._in_session("row 1 is missing"))
        for adapter, seq, *_ in snapshots:
            if type(seq) is not int or seq > self._seq:
                yield LogProblem(
                    None, self._in_session(f"its snapshot for {adapter} is of row {seq}, which is missing")
                )
        for participant_id, cursor in cursors.items():
            if cursor.seq > self._seq:
                yield LogProblem(
                    None, self._in_session(f"{participant_id!r} confirmed row {cursor.seq}, which is missing")
                )

    def _missing_rows(self, seq: Any) -> Iterator[LogProblem]:
        """Yield a problem if rows are missing before a row; the rows after the gap are still checked."""
        expected, self._seq = self._seq + 1, seq if type(seq) is int else self._seq + 1
        if seq != expected:
            yield LogProblem(expected, self._in_session(f"row {expected} is missing, but row {seq} exists"))

    def _in_session(self, what: str) -> str:
        return f"session {self._stored.id!r}: {what}"


def _inconsistencies(envelope: Envelope, last: Envelope | None) -> Iterator[str]:
    """Yield what is wrong with an envelope's id and time, which must not be before those of the previous envelope."""
    if last is not None and not envelope.envelope_id > last.envelope_id:
        yield f"its id {envelope.envelope_id!r} does not come after {last.envelope_id!r} of row {last.seq}"
    if type(envelope.created_at) not in (int, float):
        yield "the time of its acceptance is not a number"
    elif last is not None and type(last.created_at) in (int, float) and envelope.created_at < last.created_at:
        yield f"it was accepted {last.created_at - envelope.created_at:.6f} s before row {last.seq}"


class _Folding:
    """Computes the state of a session from its rows up to the first damaged one, and checks the snapshots with it."""

    def __init__(self, check: SessionCheck) -> None:
        self._check = check
        self._is_active = check.adapter is not None

    def stop(self) -> None:
        """Stop, because the state after a damaged or missing row is unknown."""
        self._is_active = False

    def take(self, envelope: Envelope | None, snapshots: Sequence[tuple[str, Any, Any, Any]]) -> Iterator[LogProblem]:
        """Apply one more envelope to the state; yield a problem for each snapshot of this row that differs from it."""
        check, adapter, metadata = self._check, self._check.adapter, self._check.metadata
        if not self._is_active or envelope is None or adapter is None or metadata is None:
            return
        try:
            before = check.folded if check.folded is not None else FoldedSession.fresh(metadata, adapter)
            check.folded = before.after(envelope, metadata, adapter)
        except AdapterError as error:
            self.stop()
            yield LogProblem(envelope.seq, str(error))
            return
        for name, seq, state, checksum in snapshots:
            if name == adapter_key(adapter) and seq == envelope.seq and checksum_of(str(state)) == checksum:
                yield from self._compare_snapshot(Snapshot(seq, state), check.folded, adapter, metadata)

    def _compare_snapshot(
        self, snapshot: Snapshot, folded: FoldedSession, adapter: SessionAdapter, metadata: SessionMetadata
    ) -> Iterator[LogProblem]:
        where = f"session {metadata.session_id!r}: its snapshot for {adapter_key(adapter)} of row {snapshot.seq}"
        try:
            from_snapshot = load_snapshot(snapshot, FoldedSession.fresh(metadata, adapter), adapter)
        except Exception as error:  # noqa: BLE001 - an adapter may raise any error for a damaged state
            yield LogProblem(snapshot.seq, f"{where} cannot be read: {type(error).__name__}")
            return
        if from_snapshot is not None and from_snapshot != folded:
            yield LogProblem(snapshot.seq, f"{where} differs from the state folded from the rows")
