"""`open_log`: the reader of a log, by where the log is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_assembly.sessions.log_reader import LogReader


def open_log(where: str) -> LogReader:
    """A reader of the log in a file of SQLite, or in PostgreSQL where this is a DSN (``postgresql://…``).

    It writes nothing to the log, and hubs may be appending to it meanwhile. What it reads is unchecked.

    Raises:
        ConfigurationError: There is no log, or what is there is none.
        LogDamagedError: The log cannot be read at all.
        LogUnavailableError: The server does not answer.
    """
    if where.startswith(("postgresql://", "postgres://")):
        from otel_assembly.sessions.postgres_reader import PostgresReader

        return PostgresReader(where)
    from otel_assembly.sessions.sqlite_reader import SqliteReader

    return SqliteReader(where)
