"""`KnownSession`: one session as a hub knows it, and how it reads on in the session's log."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from otel_assembly.errors import LogDamagedError, LogRegressed, NetworkError, ProtocolError
from otel_assembly.sessions.envelope import Envelope
from otel_assembly.sessions.folded import FoldedSession
from otel_assembly.sessions.log import LogPosition
from otel_assembly.sessions.snapshots import adapter_key, dump_snapshot, load_snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.sessions.adapter import SessionAdapter
    from otel_assembly.sessions.log import Cursor, LogRow, SessionLog
    from otel_assembly.sessions.metadata import SessionMetadata

_log = logging.getLogger(__name__)

#: How many rows of a log are read and folded at a time.
_PAGE: Final = 200


def envelope_of(row: LogRow) -> Envelope:
    """The envelope that a log kept.

    Raises:
        LogDamagedError: The row is not what was written.
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


class KnownSession:
    """One session as a hub knows it: what was folded of its log so far. Others may have appended since.

    Attributes:
        metadata: What was settled when it was created.
        adapter: Its protocol's code.
        folded: The session up to the last row that was read.
        cursors: How far the participants had confirmed when it was last asked. They only grow, so that an old answer
            holds back too much and never too little.
        lock: Held while one post of this hub reads, decides and appends.
        snapshot_seq: The row of the newest snapshot that is known.
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
        """The row that the next append goes on top of."""
        return LogPosition(self.folded.seq, self.folded.envelope_id)

    def next(self, envelope: Envelope) -> FoldedSession:
        """The session after one more envelope, which need not be accepted yet."""
        return self.folded.after(envelope, self.metadata, self.adapter)

    async def hydrate(self) -> int:
        """Begin from the newest snapshot that can be read, and read on from there.

        Returns:
            How many envelopes were folded.

        Raises:
            NetworkError: As `refresh`.
        """
        name = self.metadata.session_id
        if snapshot := await self._log.snapshot(name, adapter_key(self.adapter)):
            try:
                found = load_snapshot(snapshot, self.folded, self.adapter)
            except Exception as error:  # noqa: BLE001 - a snapshot only saves time: whatever is wrong with it, the log is right
                _log.warning("session %r: its snapshot cannot be read (%s): folding from the start", name, error)
                found = None
            if found is not None and found.seq == snapshot.seq:
                self.folded, self.snapshot_seq = found, snapshot.seq
        return await self.refresh()

    async def refresh(self) -> int:
        """Fold what was appended since; whoever calls it holds the `lock`.

        Returns:
            How many envelopes were folded.

        Raises:
            LogRegressed: What was read before is not there any more: the session stops in this hub.
            LogDamagedError: A row is missing, or is not what was written.
            AdapterError: The adapter could not fold a row.
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
            # A long session is folded in pieces, so that the others of this event loop are not kept waiting.
            await asyncio.sleep(0)

    def _fold(self, row: LogRow) -> None:
        """Fold the next row; one that was folded before is left."""
        if row.seq <= self.folded.seq:
            return
        if row.seq != self.folded.seq + 1:
            missing = f"session {self.metadata.session_id!r}: row {self.folded.seq + 1} is missing"
            raise LogDamagedError(f"{missing}, row {row.seq} is there; restore the log from a copy")
        self.folded = self.next(envelope_of(row))

    def _still_there(self, rows: Sequence[LogRow]) -> None:
        """Stop where the newest row that was read is not the one that the log has."""
        seq = self.folded.seq
        if seq == 0 or (rows and (rows[0].seq, rows[0].envelope_id) == (seq, self.folded.envelope_id)):
            return
        has = "another envelope there" if rows else "no such row any more"
        self._stopped = LogRegressed(
            f"session {self.metadata.session_id!r}: row {seq} was read, and the log has {has}: it went back, as after "
            "a failover to a copy that lagged; look at what was lost, then open a new hub"
        )
        raise self._stopped

    async def save_snapshot(self) -> None:
        """Keep the folded state, so that another hub need not read from the start; a failure is a logged warning."""
        snapshot = dump_snapshot(self.folded, self.adapter)
        if snapshot is None:
            return
        try:
            await self._log.save_snapshot(self.metadata.session_id, adapter_key(self.adapter), snapshot)
        except NetworkError as error:
            _log.warning("session %r: no snapshot was saved: %s", self.metadata.session_id, error)
        else:
            self.snapshot_seq = snapshot.seq
