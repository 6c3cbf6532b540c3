"""The tables of a log, and the statements that SQLite and PostgreSQL have in common; ``?`` is an argument."""

from __future__ import annotations

from typing import Final

# A session has a number, so that no index holds its id with another one: an entry of PostgreSQL's indexes takes 2,704
# bytes at most, and an id may be 256 characters of four bytes. The number also tells the order of creation.
TABLES: Final = (
    """CREATE TABLE IF NOT EXISTS otel_assembly_sessions (
        number {number} PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        metadata TEXT NOT NULL,
        checksum BIGINT NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS otel_assembly_session_rows (
        session BIGINT NOT NULL,
        seq BIGINT NOT NULL,
        envelope_id TEXT NOT NULL,
        sender_id TEXT NOT NULL,
        key TEXT,
        body TEXT NOT NULL,
        checksum BIGINT NOT NULL,
        PRIMARY KEY (session, seq),
        UNIQUE (session, envelope_id),
        UNIQUE (session, sender_id, key))""",
    """CREATE TABLE IF NOT EXISTS otel_assembly_session_cursors (
        session BIGINT NOT NULL,
        participant_id TEXT NOT NULL,
        seq BIGINT NOT NULL,
        count BIGINT NOT NULL,
        PRIMARY KEY (session, participant_id))""",
    """CREATE TABLE IF NOT EXISTS otel_assembly_session_snapshots (
        session BIGINT NOT NULL,
        adapter TEXT NOT NULL,
        seq BIGINT NOT NULL,
        state TEXT NOT NULL,
        checksum BIGINT NOT NULL,
        PRIMARY KEY (session, adapter))""",
)

_OF_SESSION: Final = "session = (SELECT number FROM otel_assembly_sessions WHERE id = ?)"
_ROWS: Final = (
    "SELECT seq, envelope_id, sender_id, key, body, checksum"  # noqa: S608  # of constants
    f" FROM otel_assembly_session_rows WHERE {_OF_SESSION}"
)

METADATA: Final = "SELECT metadata, checksum FROM otel_assembly_sessions WHERE id = ?"
SESSION_IDS: Final = "SELECT id FROM otel_assembly_sessions ORDER BY number"
TAIL: Final = f"{_ROWS} AND seq >= ? ORDER BY seq LIMIT ?"
BY_ID: Final = f"{_ROWS} AND envelope_id = ?"
BY_KEY: Final = f"{_ROWS} AND sender_id = ? AND key = ?"
CURSORS: Final = f"SELECT participant_id, seq, count FROM otel_assembly_session_cursors WHERE {_OF_SESSION}"  # noqa: S608
SNAPSHOT: Final = (
    "SELECT seq, state, checksum"  # noqa: S608
    f" FROM otel_assembly_session_snapshots WHERE {_OF_SESSION} AND adapter = ?"
)
MOVE_CURSOR: Final = """INSERT INTO otel_assembly_session_cursors AS held (session, participant_id, seq, count)
    SELECT number, CAST(? AS TEXT), CAST(? AS BIGINT), CAST(? AS BIGINT) FROM otel_assembly_sessions WHERE id = ?
    ON CONFLICT (session, participant_id) DO UPDATE SET seq = excluded.seq, count = excluded.count
    WHERE excluded.seq > held.seq"""
SAVE_SNAPSHOT: Final = """INSERT INTO otel_assembly_session_snapshots AS held (session, adapter, seq, state, checksum)
    SELECT number, CAST(? AS TEXT), CAST(? AS BIGINT), CAST(? AS TEXT), CAST(? AS BIGINT)
    FROM otel_assembly_sessions WHERE id = ?
    ON CONFLICT (session, adapter)
    DO UPDATE SET seq = excluded.seq, state = excluded.state, checksum = excluded.checksum
    WHERE excluded.seq > held.seq"""

# What reads a whole log: a page at a time, by numbers, so that no statement runs for long beside those who write.
PAGE_OF_SESSIONS: Final = (
    "SELECT number, id, metadata, checksum FROM otel_assembly_sessions WHERE number > ? ORDER BY number LIMIT ?"
)
SESSION_OF_ID: Final = "SELECT number, id, metadata, checksum FROM otel_assembly_sessions WHERE id = ?"
PAGE_OF_ROWS: Final = """SELECT seq, envelope_id, sender_id, key, body, checksum FROM otel_assembly_session_rows
    WHERE session = ? AND seq >= ? ORDER BY seq LIMIT ?"""
SNAPSHOTS: Final = "SELECT adapter, seq, state, checksum FROM otel_assembly_session_snapshots WHERE session = ?"
CURSORS_OF: Final = "SELECT participant_id, seq, count FROM otel_assembly_session_cursors WHERE session = ?"
TWICE: Final = """SELECT sender_id, key, max(seq) FROM otel_assembly_session_rows
    WHERE session = ? AND key IS NOT NULL GROUP BY sender_id, key HAVING count(*) > 1 ORDER BY 3"""
STRAYS: Final = """SELECT session, count(*) FROM otel_assembly_session_rows
    WHERE session NOT IN (SELECT number FROM otel_assembly_sessions) GROUP BY session ORDER BY session"""

#: The limit of a tail that has none.
WITHOUT_LIMIT: Final = 1 << 62
