"""The tables of a log, and the SQL statements that SQLite and PostgreSQL share; ``?`` is an argument."""

from __future__ import annotations

from typing import Final

# The other tables contain a session's number and not its id, because an entry of a PostgreSQL index is limited to 2,704
# bytes. An id can have 1,024 bytes (256 characters of 4 bytes), so an index over three ids could exceed the limit. The
# number also gives the order of creation.
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

# SQLite files of earlier versions lack these tables; they are created when such a file is opened. Both tables stay
# small: one row for each participant of a session, and the steps of its unfinished turn.
TURN_TABLES: Final = (
    """CREATE TABLE IF NOT EXISTS otel_assembly_session_turns (
        session BIGINT NOT NULL,
        participant_id TEXT NOT NULL,
        seq BIGINT NOT NULL,
        continues BIGINT NOT NULL,
        token TEXT NOT NULL,
        version BIGINT NOT NULL,
        seconds DOUBLE PRECISION NOT NULL,
        expires_at DOUBLE PRECISION NOT NULL,
        entries BIGINT NOT NULL,
        answered BIGINT NOT NULL,
        continued BIGINT NOT NULL,
        PRIMARY KEY (session, participant_id))""",
    """CREATE TABLE IF NOT EXISTS otel_assembly_session_work (
        session BIGINT NOT NULL,
        participant_id TEXT NOT NULL,
        number BIGINT NOT NULL,
        seq BIGINT NOT NULL,
        body TEXT NOT NULL,
        checksum BIGINT NOT NULL,
        PRIMARY KEY (session, participant_id, number))""",
)

_OF_SESSION: Final = "session = (SELECT number FROM otel_assembly_sessions WHERE id = ?)"
_ROWS: Final = (
    "SELECT seq, envelope_id, sender_id, key, body, checksum"  # noqa: S608  # of constants
    f" FROM otel_assembly_session_rows WHERE {_OF_SESSION}"
)

METADATA: Final = "SELECT metadata, checksum FROM otel_assembly_sessions WHERE id = ?"
SESSION_IDS: Final = "SELECT id FROM otel_assembly_sessions ORDER BY number"
ROWS_FROM: Final = f"{_ROWS} AND seq >= ? ORDER BY seq LIMIT ?"
BY_ID: Final = f"{_ROWS} AND envelope_id = ?"
BY_KEY: Final = f"{_ROWS} AND sender_id = ? AND key = ?"
CURSORS: Final = f"SELECT participant_id, seq, count FROM otel_assembly_session_cursors WHERE {_OF_SESSION}"  # noqa: S608
SNAPSHOT: Final = (
    "SELECT seq, state, checksum"  # noqa: S608
    f" FROM otel_assembly_session_snapshots WHERE {_OF_SESSION} AND adapter = ?"
)
MOVE_CURSOR: Final = """INSERT INTO otel_assembly_session_cursors AS stored (session, participant_id, seq, count)
    SELECT number, CAST(? AS TEXT), CAST(? AS BIGINT), CAST(? AS BIGINT) FROM otel_assembly_sessions WHERE id = ?
    ON CONFLICT (session, participant_id) DO UPDATE SET seq = excluded.seq, count = excluded.count
    WHERE excluded.seq > stored.seq"""
SAVE_SNAPSHOT: Final = """INSERT INTO otel_assembly_session_snapshots AS stored (session, adapter, seq, state, checksum)
    SELECT number, CAST(? AS TEXT), CAST(? AS BIGINT), CAST(? AS TEXT), CAST(? AS BIGINT)
    FROM otel_assembly_sessions WHERE id = ?
    ON CONFLICT (session, adapter)
    DO UPDATE SET seq = excluded.seq, state = excluded.state, checksum = excluded.checksum
    WHERE excluded.seq > stored.seq"""

# Statements about turns. Their arguments are named because some are used twice.
#: The caller's time. The log on PostgreSQL replaces this expression with the server's time.
NOW: Final = "CAST(:now AS DOUBLE PRECISION)"
_SECONDS: Final = "CAST(:seconds AS DOUBLE PRECISION)"
_EXPIRY: Final = f"{NOW} + {_SECONDS}"
_TURN_OF: Final = (
    "session = (SELECT number FROM otel_assembly_sessions WHERE id = :id) AND participant_id = :participant"
)
_CLAIMED_TURN: Final = f"{_TURN_OF} AND token = :token"
TURN: Final = f"""SELECT seq, continues, token, version, seconds, expires_at - {NOW}, entries, answered, continued
    FROM otel_assembly_session_turns WHERE {_TURN_OF}"""  # noqa: S608  # of constants
FIRST_CLAIM: Final = f"""INSERT INTO otel_assembly_session_turns
    (session, participant_id, seq, continues, token, version, seconds, expires_at, entries, answered, continued)
    SELECT number, CAST(:participant AS TEXT), CAST(:seq AS BIGINT), CAST(:continues AS BIGINT), CAST(:token AS TEXT),
        1, {_SECONDS}, {_EXPIRY}, 0, 0, 0 FROM otel_assembly_sessions WHERE id = :id
    ON CONFLICT (session, participant_id) DO NOTHING RETURNING 1"""  # noqa: S608
CLAIM: Final = f"""UPDATE otel_assembly_session_turns SET seq = CAST(:seq AS BIGINT), token = CAST(:token AS TEXT),
    continues = CAST(:continues AS BIGINT), version = version + 1, seconds = {_SECONDS}, expires_at = {_EXPIRY}
    WHERE {_TURN_OF} AND version = :version RETURNING 1"""  # noqa: S608
RENEW: Final = f"""UPDATE otel_assembly_session_turns SET version = version + 1, expires_at = {_EXPIRY}
    WHERE {_CLAIMED_TURN} RETURNING 1"""  # noqa: S608
RELEASE: Final = f"""UPDATE otel_assembly_session_turns SET version = version + 1, token = '', expires_at = 0
    WHERE {_CLAIMED_TURN} RETURNING 1"""  # noqa: S608
#: Marks a turn as finished; each statement that finishes a turn appends its own condition.
FINISHED: Final = """UPDATE otel_assembly_session_turns AS turn SET version = version + 1, token = '', expires_at = 0,
    entries = 0, answered = CASE WHEN continues = 0 THEN turn.seq ELSE answered END,
    continued = CASE WHEN continues = 0 THEN continued ELSE turn.seq END"""
FINISH: Final = f"{FINISHED} WHERE {_CLAIMED_TURN} RETURNING session"
DELETE_WORK: Final = f"DELETE FROM otel_assembly_session_work WHERE {_TURN_OF}"  # noqa: S608
COUNT_WORK: Final = f"""UPDATE otel_assembly_session_turns SET version = version + 1, entries = entries + 1
    WHERE {_CLAIMED_TURN} AND entries = CAST(:number AS BIGINT) - 1 RETURNING session, seq"""  # noqa: S608
ADD_WORK: Final = """INSERT INTO otel_assembly_session_work (session, participant_id, number, seq, body, checksum)
    SELECT session, CAST(:participant AS TEXT), CAST(:number AS BIGINT), seq, CAST(:body AS TEXT),
        CAST(:checksum AS BIGINT) FROM """
WORK: Final = f"""SELECT number, seq, body, checksum FROM otel_assembly_session_work
    WHERE {_TURN_OF} ORDER BY number"""  # noqa: S608

# Statements that read a whole log. They select a page by number, so that no statement blocks writers for long.
PAGE_OF_SESSIONS: Final = (
    "SELECT number, id, metadata, checksum FROM otel_assembly_sessions WHERE number > ? ORDER BY number LIMIT ?"
)
SESSION_OF_ID: Final = "SELECT number, id, metadata, checksum FROM otel_assembly_sessions WHERE id = ?"
PAGE_OF_ROWS: Final = """SELECT seq, envelope_id, sender_id, key, body, checksum FROM otel_assembly_session_rows
    WHERE session = ? AND seq >= ? ORDER BY seq LIMIT ?"""
SNAPSHOTS: Final = "SELECT adapter, seq, state, checksum FROM otel_assembly_session_snapshots WHERE session = ?"
CURSORS_OF: Final = "SELECT participant_id, seq, count FROM otel_assembly_session_cursors WHERE session = ?"
REPEATED_KEYS: Final = """SELECT sender_id, key, max(seq) FROM otel_assembly_session_rows
    WHERE session = ? AND key IS NOT NULL GROUP BY sender_id, key HAVING count(*) > 1 ORDER BY 3"""
ROWS_WITHOUT_SESSION: Final = """SELECT session, count(*) FROM otel_assembly_session_rows
    WHERE session NOT IN (SELECT number FROM otel_assembly_sessions) GROUP BY session ORDER BY session"""

#: The row limit for `SessionLog.rows_from` without `limit`.
WITHOUT_LIMIT: Final = 1 << 62
