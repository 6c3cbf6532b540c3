"""Sessions between agents: a log that loses nothing, and views of it that are assemblies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly._internal.faces import face, homes

if TYPE_CHECKING:
    from otel_assembly.sessions.envelope import Envelope
    from otel_assembly.sessions.log import Cursor, LogPosition, LogRow, SessionLog, Snapshot
    from otel_assembly.sessions.memory_log import MemorySessionLog
    from otel_assembly.sessions.postgres_log import PostgresSessionLog
    from otel_assembly.sessions.sqlite_log import SqliteSessionLog

__getattr__, __dir__ = face(
    __name__,
    homes(
        {
            "envelope": "Envelope",
            "log": "Cursor LogPosition LogRow SessionLog Snapshot",
            "memory_log": "MemorySessionLog",
            "postgres_log": "PostgresSessionLog",
            "sqlite_log": "SqliteSessionLog",
        }
    ),
)

__all__ = [
    "Cursor",
    "Envelope",
    "LogPosition",
    "LogRow",
    "MemorySessionLog",
    "PostgresSessionLog",
    "SessionLog",
    "Snapshot",
    "SqliteSessionLog",
]
