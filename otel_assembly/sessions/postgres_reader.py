"""`PostgresReader`: reads a session log in PostgreSQL through a read-only connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.errors import ConfigurationError, LogDamagedError, LogUnavailableError
from otel_assembly.sessions.log_reader import LogReader
from otel_assembly.sessions.postgres_connections import is_damage, psycopg, read_dsn, read_texts_as_they_are

if TYPE_CHECKING:
    import psycopg as client

#: The default connection timeout in seconds, if the DSN sets none.
_CONNECT_TIMEOUT: Final = 10
_READ_ONLY: Final = "-c default_transaction_read_only=on"
_HAS_LOG: Final = "SELECT to_regclass('otel_assembly_session_snapshots') IS NOT NULL"


class PostgresReader(LogReader):
    """Reads a session log in PostgreSQL; the server can be a standby.

    Args:
        dsn: The server's connection string.

    Raises:
        ConfigurationError: The connection string is invalid, or the database has no session log.
        LogUnavailableError: The server cannot be reached.
    """

    def __init__(self, dsn: str) -> None:
        parameters = read_dsn(dsn)
        self._errors: Any = psycopg(".errors")
        options = f"{parameters.pop('options', '')} {_READ_ONLY}".strip()
        parameters.setdefault("connect_timeout", _CONNECT_TIMEOUT)
        parameters.setdefault("application_name", "otel-assembly session")
        try:
            self._connection: client.Connection[Any] = psycopg().connect(
                **parameters, options=options, client_encoding="utf8", autocommit=True
            )
        except self._errors.Error as error:
            raise LogUnavailableError(f"PostgreSQL cannot be reached: {error}") from error
        read_texts_as_they_are(self._connection)
        try:
            if self.ask("the log", _HAS_LOG) != [(True,)]:
                raise ConfigurationError(
                    "there is no log of sessions in this database and its search_path; check the DSN"
                )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def ask(self, what: str, statement: str, *arguments: object) -> list[Any]:
        """Return the rows that an SQL statement selects; the arguments are those of `LogReader.ask`."""
        query: Any = statement.replace("?", "%s")
        try:
            return self._connection.execute(query, arguments).fetchall()
        except self._errors.Error as error:
            if is_damage(error):
                raise LogDamagedError(f"{what} cannot be read: {error}; restore the database") from error
            raise LogUnavailableError(f"{what} is not available: {error}") from error
