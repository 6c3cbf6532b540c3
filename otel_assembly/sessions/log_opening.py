"""`open_log`: opens a stored log of sessions for reading."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_assembly.sessions.log_reader import LogReader


def open_log(where: str) -> LogReader:
    """Open the log in an SQLite file, or in PostgreSQL if `where` is a DSN (``postgresql://…``).

    The returned reader writes nothing and does not verify checksums. Hubs may append to the log at the same time.

    Raises:
        ConfigurationError: There is no log at this place, or it is another kind of file or database.
        LogDamagedError: The log cannot be read at all.
        LogUnavailableError: The database does not answer.
    """
    if where.startswith(("postgresql://", "postgres://")):
        from otel_assembly.sessions.postgres_reader import PostgresReader

        return PostgresReader(where)
    from otel_assembly.sessions.sqlite_reader import SqliteReader

    return SqliteReader(where)
