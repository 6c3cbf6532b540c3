"""`HubSession`: a hub's in-memory state of one session, and how the hub updates it from the log."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from otel_assembly.errors import LogDamagedError, LogRegressed, NetworkError, ProtocolError
from otel_assembly.sessions.envelope import Envelope
from otel_assembly.sessions.folded_session import FoldedSession
from otel_assembly.sessions.log import LogPosition
from otel_assembly.sessions.snapshots import adapter_key, dump_snapshot, load_snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.sessions.adapter import SessionAdapter
    from otel_assembly.sessions.log import Cursor, LogRow, SessionLog
    from otel_assembly.sessions.metadata import SessionMetadata

_log = logging.getLogger(__name__)

#: The number of rows that are read and folded at a time.
_PAGE: Final = 200


def envelope_of(row: LogRow) -> Envelope:
    """Decode the envelope of a log's row.

    Raises:
        LogDamagedError: The row contains no envelope, or its columns do not match its envelope.
    """
    where = f"session {row.session_id!r}, row {row.seq}"
    try:
        envelope = Envelope.from_json(row.body)
    except ProtocolError as error:
        raise LogDamagedError(f"{where}: {error}") from error
    if (envelope.session_id, envelope.seq, envelope.envelope_id) != (row.session_id, row.seq, row.envelope_id):
        raise LogDamagedError(f"{where}: it holds another envelope than its columns say; restore the log from a copy")
    if (envelope.sender_id, envelope.idempotency_key) != (row.sender_id, row.key):
        raise LogDamagedError(f"{where}: its sender or its key is not the one in its columns; restore the log")
    return envelope


class HubSession:
    """A hub's in-memory state of one session. Other hubs may have appended rows that it does not include yet.

    Attributes:
        metadata: The session's metadata, fixed at its creation.
        adapter: The adapter of the session's protocol.
        folded: The session after the newest row that this hub has read.
        cursors: Each participant's confirmed position at the last query. Positions only increase, so an outdated one
            can delay a post but never lets an inbox exceed its limit.
        lock: Held while a post of this hub reads the log, checks the envelope and appends it.
        snapshot_seq: The row of the newest snapshot that this hub has read or saved.
    """

    __slots__ = ("_log", "_stopped", "adapter", "cursors", "folded", "lock", "metadata", "searched", "snapshot_seq")

    def __init__(self, metadata: SessionMetadata, adapter: SessionAdapter, log: SessionLog) -> None:
        self.metadata = metadata
        self.adapter = adapter
        self.folded = FoldedSession.fresh(metadata, adapter)
        self.cursors: Mapping[str, Cursor] = {}
        self.lock = asyncio.Lock()
        self.searched: dict[str, Cursor] = {}
        self.snapshot_seq = 0
        self._log = log
        self._stopped: NetworkError | None = None

    @property
    def position(self) -> LogPosition:
        """The row that the next append must follow."""
        return LogPosition(self.folded.seq, self.folded.envelope_id)

    def next(self, envelope: Envelope) -> FoldedSession:
        """Return the session after one more envelope, accepted or not; `folded` does not change."""
        return self.folded.after(envelope, self.metadata, self.adapter)

    async def hydrate(self) -> int:
        """Load the newest snapshot if it is readable, and fold the rows after it.

        Returns:
            The number of folded envelopes.

        Raises:
            NetworkError: As in `refresh`.
        """
        name = self.metadata.session_id
        if snapshot := await self._log.snapshot(name, adapter_key(self.adapter)):
            try:
                found = load_snapshot(snapshot, self.folded, self.adapter)
            except Exception as error:  # noqa: BLE001 - the log is complete without the snapshot
                _log.warning(
                    "session %r: its snapshot cannot be read (%s); folding its log from the start", name, error
                )
                found = None
            if found is not None and found.seq == snapshot.seq:
                self.folded, self.snapshot_seq = found, snapshot.seq
        return await self.refresh()

    async def refresh(self) -> int:
        """Fold the rows that were appended since the last call. The caller must hold `lock`.

        Returns:
            The number of folded envelopes.

        Raises:
            LogRegressed: A row that this hub has read is gone or differs. Later calls raise the same error.
            LogDamagedError: A row is missing, or its columns do not match its envelope.
            AdapterError: The adapter's ``fold`` raised.
        """
        if self._stopped is not None:
            raise self._stopped
        before = self.folded.seq
        while True:
            rows = await self._log.tail(self.metadata.session_id, max(self.folded.seq, 1), _PAGE)
            self._still_there(rows)
            for row in rows:
                self._fold(row)
            if len(rows) < _PAGE:
                return self.folded.seq - before
            # A long session must not block the other tasks of the event loop.
            await asyncio.sleep(0)

    def _fold(self, row: LogRow) -> None:
        """Fold the next row; a row that is already folded is skipped."""
        if row.seq <= self.folded.seq:
            return
        if row.seq != self.folded.seq + 1:
            missing = f"session {self.metadata.session_id!r}: row {self.folded.seq + 1} is missing"
            raise LogDamagedError(f"{missing}, row {row.seq} is there; restore the log from a copy")
        self.folded = self.next(envelope_of(row))

    def _still_there(self, rows: Sequence[LogRow]) -> None:
        """Raise `LogRegressed` if the log no longer contains the newest row that this hub has read."""
        seq = self.folded.seq
        if seq == 0 or (rows and (rows[0].seq, rows[0].envelope_id) == (seq, self.folded.envelope_id)):
            return
        has = "a different envelope there" if rows else "no such row any more"
        self._stopped = LogRegressed(
            f"session {self.metadata.session_id!r}: row {seq} was read, and the log has {has}: the log lost rows, "
            "for example in a failover to a lagging replica; check what was lost, then open a new hub"
        )
        raise self._stopped

    async def save_snapshot(self) -> None:
        """Save the folded state, which lets other hubs skip older rows; a failure is logged as a warning."""
        snapshot = dump_snapshot(self.folded, self.adapter)
        if snapshot is None:
            return
        try:
            await self._log.save_snapshot(self.metadata.session_id, adapter_key(self.adapter), snapshot)
        except NetworkError as error:
            _log.warning("session %r: its snapshot was not saved: %s", self.metadata.session_id, error)
        else:
            self.snapshot_seq = snapshot.seq
