"""`HubSession`: a hub's in-memory copy of one session, and how the hub updates it from the log."""

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

#: The number of rows that are read from the log at a time.
_PAGE: Final = 200


def envelope_of(row: LogRow) -> Envelope:
    """Decode the envelope in a row of a log.

    Raises:
        LogDamagedError: The row contains no envelope, or its columns do not match the envelope.
    """
    place = f"session {row.session_id!r}, row {row.seq}"
    try:
        envelope = Envelope.from_json(row.body)
    except ProtocolError as error:
        raise LogDamagedError(f"{place}: {error}") from error
    if (envelope.session_id, envelope.seq, envelope.envelope_id) != (row.session_id, row.seq, row.envelope_id):
        raise LogDamagedError(
            f"{place}: its envelope is not the one that its columns name; restore the log from a backup"
        )
    if (envelope.sender_id, envelope.idempotency_key) != (row.sender_id, row.key):
        raise LogDamagedError(
            f"{place}: its sender or key is not the one that its columns name; restore the log from a backup"
        )
    return envelope


class HubSession:
    """A hub's in-memory copy of one session. Other hubs may have appended rows that it does not include yet.

    Attributes:
        metadata: The session's metadata, fixed at its creation.
        adapter: The adapter of the session's protocol.
        folded: The session's state after the newest row that this hub has read.
        cursors: Each participant's confirmed position, as last read from the log. Positions only increase, so an
            outdated one can delay a post but never lets an inbox exceed its limit.
        lock: Must be held while a post of this hub reads the log, checks the envelope and appends it.
        inbox_starts: For each participant, a position up to which the log contains no unconfirmed envelope for it.
        snapshot_seq: The row of the newest snapshot that this hub has read or saved.
    """

    __slots__ = (
        "_log",
        "_regression",
        "adapter",
        "cursors",
        "folded",
        "inbox_starts",
        "lock",
        "metadata",
        "snapshot_seq",
    )

    def __init__(self, metadata: SessionMetadata, adapter: SessionAdapter, log: SessionLog) -> None:
        self.metadata = metadata
        self.adapter = adapter
        self.folded = FoldedSession.fresh(metadata, adapter)
        self.cursors: Mapping[str, Cursor] = {}
        self.lock = asyncio.Lock()
        self.inbox_starts: dict[str, Cursor] = {}
        self.snapshot_seq = 0
        self._log = log
        self._regression: NetworkError | None = None

    @property
    def position(self) -> LogPosition:
        """The newest row that this hub has read; the next append must follow it."""
        return LogPosition(self.folded.seq, self.folded.envelope_id)

    def next(self, envelope: Envelope) -> FoldedSession:
        """Return the session's state after one more envelope, without changing `folded`."""
        return self.folded.after(envelope, self.metadata, self.adapter)

    async def hydrate(self) -> int:
        """Compute the session's state from its newest snapshot and the rows after it; call this method once.

        If there is no readable snapshot, all rows are read.

        Returns:
            The number of envelopes that were read.

        Raises:
            NetworkError: As in `refresh`.
        """
        name = self.metadata.session_id
        if snapshot := await self._log.snapshot(name, adapter_key(self.adapter)):
            try:
                folded = load_snapshot(snapshot, self.folded, self.adapter)
            except Exception as error:  # noqa: BLE001 - the log is complete without the snapshot
                _log.warning(
                    "session %r: its snapshot cannot be read (%s); reading its log from the start", name, error
                )
                folded = None
            if folded is not None and folded.seq == snapshot.seq:
                self.folded, self.snapshot_seq = folded, snapshot.seq
        return await self.refresh()

    async def refresh(self) -> int:
        """Read the rows that were appended since the last call, and update `folded`. The caller must hold `lock`.

        Returns:
            The number of envelopes that were read.

        Raises:
            LogRegressed: The newest row that this hub has read is gone or differs. Later calls raise the same error.
            LogDamagedError: A row is missing, or its columns do not match its envelope.
            AdapterError: The adapter's ``fold`` raised an error.
        """
        if self._regression is not None:
            raise self._regression
        first_seq = self.folded.seq
        while True:
            rows = await self._log.rows_from(self.metadata.session_id, max(self.folded.seq, 1), _PAGE)
            self._check_newest(rows)
            for row in rows:
                self._fold(row)
            if len(rows) < _PAGE:
                return self.folded.seq - first_seq
            # A long session must not block the other tasks of the event loop.
            await asyncio.sleep(0)

    def _fold(self, row: LogRow) -> None:
        """Update `folded` for the next row; skip a row that it already includes."""
        if row.seq <= self.folded.seq:
            return
        if row.seq != self.folded.seq + 1:
            missing = f"session {self.metadata.session_id!r}: row {self.folded.seq + 1} is missing"
            raise LogDamagedError(f"{missing}, but row {row.seq} exists; restore the log from a backup")
        self.folded = self.next(envelope_of(row))

    def _check_newest(self, rows: Sequence[LogRow]) -> None:
        """Raise `LogRegressed` if `rows` does not begin with the newest row that this hub has read."""
        seq = self.folded.seq
        if seq == 0 or (rows and (rows[0].seq, rows[0].envelope_id) == (seq, self.folded.envelope_id)):
            return
        change = "contains a different envelope" if rows else "no longer exists"
        self._regression = LogRegressed(
            f"session {self.metadata.session_id!r}: row {seq}, which this hub has read, {change}: the log lost rows, "
            "for example in a failover to a lagging replica; check what was lost, then open a new hub"
        )
        raise self._regression

    async def save_snapshot(self) -> None:
        """Save a snapshot of `folded`, so that other hubs need not read the older rows; log a failure as a warning."""
        snapshot = dump_snapshot(self.folded, self.adapter)
        if snapshot is None:
            return
        try:
            await self._log.save_snapshot(self.metadata.session_id, adapter_key(self.adapter), snapshot)
        except NetworkError as error:
            _log.warning("session %r: its snapshot was not saved: %s", self.metadata.session_id, error)
        else:
            self.snapshot_seq = snapshot.seq
