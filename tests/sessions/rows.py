"""Rows to append."""

from __future__ import annotations

from otel_assembly.sessions import Envelope, LogPosition, LogRow


def row(session_id, seq, *, sender="ann", key=None, text="said", envelope_id=None):
    """One row, as a hub makes it."""
    envelope_id = envelope_id or f"{seq:016x}"
    return LogRow.of(
        Envelope(session_id, sender, "ag2.msg.text", {"text": text}, None, envelope_id, seq, 1.0, None, key)
    )


def on(row):
    """The position that the next row goes on top of."""
    return LogPosition(row.seq, row.envelope_id)


async def said(log, session_id):
    """What a session's log says, in order."""
    return [f"{envelope.seq} {envelope.envelope_id}" for envelope in await log.rows_from(session_id, 1)]


async def created(log, session_id="s", metadata="{}"):
    """A session with its first row."""
    first = row(session_id, 1)
    await log.create(session_id, metadata, first)
    return first


async def appended(log, count, session_id="s", **said):
    """A session of this many rows, its last one."""
    last = await created(log, session_id)
    for seq in range(2, count + 1):
        after = row(session_id, seq, **said)
        await log.append([after], on(last))
        last = after
    return last
