"""The connections of a session log in PostgreSQL.

A lost connection is replaced. A server that does not sync its commits to the disk is refused.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from otel_assembly._internal.fork_safety import after_fork_in_child
from otel_assembly.errors import ConfigurationError, LogUnavailableError
from otel_assembly.sessions.log_rows import text_of
from otel_assembly.sessions.log_sql import TABLES, TURN_TABLES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from psycopg import AsyncConnection

    Connection: TypeAlias = AsyncConnection[tuple[Any, ...]]

#: The first key of a log's advisory locks. The second key is 0 for the creation of the tables, or a hash of a session's
#: id.
LOCKS: Final = 1_869_898_085

#: The seconds that the client waits longer than the server, which cancels a statement after its timeout.
_GRACE: Final = 2.0

#: Defaults for TCP keepalives: a listening connection sends nothing, so it would not detect a dead network.
_KEEPALIVES: Final = {"keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "3"}

_SETTINGS: Final = """SELECT current_setting('fsync'), current_setting('synchronous_commit'),
    current_setting('server_encoding'),
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false)"""
_TABLES_ARE_THERE: Final = "SELECT to_regclass('otel_assembly_session_work') IS NOT NULL"

#: The source files of PostgreSQL that read a value or allocate its memory; see `is_damage`.
_READ_VALUES: Final = frozenset({"mcxt.c", "detoast.c", "heaptoast.c", "toast_internals.c"})

#: Connections of the parent process: a forked child neither uses nor closes them.
_parent_connections: list[object] = []


def psycopg(module: str = "") -> Any:
    """Return psycopg, or one of its submodules such as ``.errors``; only logs in PostgreSQL import it.

    Raises:
        ConfigurationError: psycopg is not installed.
    """
    try:
        return import_module(f"psycopg{module}")
    except ImportError as missing:
        raise ConfigurationError(
            "PostgresSessionLog needs the extra postgres; install it: pip install 'otel-assembly[postgres]'"
        ) from missing


def is_damage(error: Any) -> bool:
    """Return True if an error of PostgreSQL means that its files are damaged.

    PostgreSQL has error codes for most damage. If the stored length of a value is damaged, PostgreSQL reports an
    internal error, which can have other causes too; its source file in the server tells them apart.
    """
    codes = psycopg(".errors")
    if isinstance(error, codes.DataCorrupted | codes.IndexCorrupted):
        return True
    return isinstance(error, codes.InternalError_) and error.diag.source_file in _READ_VALUES


def read_texts_as_they_are(connection: Any) -> None:
    """Let a connection return texts that are not valid UTF-8, so that the rows' checksums detect the damage."""

    class Text(psycopg(".adapt").Loader):  # type: ignore[misc]
        def load(self, data: Any) -> str:
            return text_of(bytes(data))

    connection.adapters.register_loader("text", Text)


class Connections:
    """The connection pool of one log.

    Args:
        dsn: The server's connection string.
        patience: The seconds to wait for a free connection, and for the server's answer.
        most: The most connections in the pool, and so the most concurrent statements.

    Attributes:
        patience: The seconds to wait, as given.
        closed: True after `close`.
    """

    def __init__(self, dsn: str, patience: float, most: int) -> None:
        self._raises = psycopg().Error
        parameters = read_dsn(dsn)
        self._arguments: dict[str, Any] = {**_KEEPALIVES, **parameters, "client_encoding": "utf8", "autocommit": True}
        self._arguments.setdefault("application_name", "otel-assembly")
        self.patience = patience
        self._most = most
        self.closed = False
        self._reset()
        after_fork_in_child(self._reset_in_child)

    def _reset(self) -> None:
        self._idle: list[Connection] = []
        self._free = asyncio.Semaphore(self._most)
        self._tables_lock = asyncio.Lock()
        self._has_tables = False

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Yield a connection of the pool for the length of the block.

        Raises:
            LogUnavailableError: No connection is free in time, or the server cannot be reached.
        """
        try:
            async with asyncio.timeout(self.patience):
                await self._free.acquire()
        except TimeoutError:
            raise LogUnavailableError(f"all {self._most} connections were busy for {self.patience} s") from None
        try:
            connection = self._take_idle() or await self.open_connection()
            try:
                yield connection
            finally:
                await self._return_to_pool(connection)
        finally:
            self._free.release()

    async def open_connection(self) -> Connection:
        """Return a new connection outside of the pool; retry until the server can be reached. The caller closes it.

        Raises:
            LogUnavailableError: The server cannot be reached in time, or does not sync its commits.
        """
        deadline = time.monotonic() + self.patience
        pause = 0.02
        while True:
            self.check_open()
            seconds_left = max(deadline - time.monotonic(), 0.1)
            try:
                async with asyncio.timeout(seconds_left):
                    return await self._connect()
            except TimeoutError as error:
                raise LogUnavailableError(f"PostgreSQL has not answered for {self.patience} s") from error
            except self._raises as error:
                if time.monotonic() + pause > deadline:
                    raise LogUnavailableError(f"PostgreSQL cannot be used for {self.patience} s: {error}") from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.5)

    def check_open(self) -> None:
        """Raise `LogUnavailableError` if the log is closed."""
        if self.closed:
            raise LogUnavailableError("the log is closed")

    async def close(self) -> None:
        """Close the idle connections now, and each other connection at the end of its block."""
        self.closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()

    def _take_idle(self) -> Connection | None:
        """Return an idle connection that the server has not closed; None if there is none.

        A statement on a closed connection would fail with an unknown outcome.
        """
        self.check_open()
        while self._idle:
            connection = self._idle.pop()
            try:
                connection.pgconn.consume_input()  # reads the server's message if it closed the connection
                connection.pgconn.consume_input()  # reads the end of the stream, and raises
            except self._raises:
                connection.pgconn.finish()
                continue
            return connection
        return None

    async def _return_to_pool(self, connection: Connection) -> None:
        """Make a connection idle; close it if it is unusable, for example because a transaction is still open."""
        idle = psycopg(".pq").TransactionStatus.IDLE
        if self.closed or connection.closed or connection.info.transaction_status != idle:
            await connection.close()
        else:
            self._idle.append(connection)

    async def _connect(self) -> Connection:
        connection: Connection = await psycopg().AsyncConnection.connect(**self._arguments)
        read_texts_as_they_are(connection)
        try:
            await self._check(connection)
            async with self._tables_lock:
                if not self._has_tables:
                    await self._make_tables(connection)
                    self._has_tables = True
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _check(self, connection: Connection) -> None:
        """Set the timeouts of a new connection, and refuse a server on which accepted rows could be lost or changed.

        Raises:
            LogUnavailableError: The server does not sync its commits, or the database does not store UTF-8.
        """
        milliseconds = f"{max(int(self.patience * 1000), 1)}"
        cursor = await connection.execute(_SETTINGS, (milliseconds, milliseconds))
        fsync, commit, encoding, *_ = await cursor.fetchone() or ()
        if fsync != "on":
            raise LogUnavailableError("fsync is off on this server, so commits can be lost in a crash; turn it on")
        if commit == "off":
            raise LogUnavailableError(
                "synchronous_commit is off, so the last commits can be lost in a crash; turn it on: "
                "ALTER DATABASE … SET synchronous_commit = on"
            )
        if encoding != "UTF8":
            raise LogUnavailableError(f"the database has the encoding {encoding}; create one with ENCODING 'UTF8'")

    async def _make_tables(self, connection: Connection) -> None:
        """Create missing tables, under an advisory lock, because two concurrent CREATE TABLE can fail in PostgreSQL."""
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(%s, 0)", (LOCKS,))
            cursor = await connection.execute(_TABLES_ARE_THERE)
            if await cursor.fetchone() == (True,):
                return
            for table in (*TABLES, *TURN_TABLES):
                statement: Any = table.format(number="BIGINT GENERATED ALWAYS AS IDENTITY")
                await connection.execute(statement)

    def _reset_in_child(self) -> None:
        """Start with an empty pool in a forked child; keep the parent's connections, because closing would end them."""
        _parent_connections.append(self._idle)
        self._reset()


def statement_seconds(patience: float) -> float:
    """Return the seconds that a client waits for a statement, which the server cancels after `patience` seconds."""
    return patience + _GRACE


def read_dsn(dsn: object) -> dict[str, Any]:
    """Return the parameters of a connection string (DSN) of PostgreSQL.

    Raises:
        ConfigurationError: The DSN is invalid, or psycopg is not installed.
    """
    if not isinstance(dsn, str):
        raise ConfigurationError(f"dsn must be a text, not of type {type(dsn).__name__}")
    try:
        parameters: dict[str, Any] = psycopg(".conninfo").conninfo_to_dict(dsn)
    except psycopg().ProgrammingError:
        # The message does not quote the DSN, because it may contain a password.
        raise ConfigurationError(
            "the DSN of PostgreSQL cannot be read; write it as postgresql://user:password@host:5432/database, or as "
            "'host=… dbname=…', with '/', '@' and ':' of the password in a URL as %2F, %40 and %3A"
        ) from None
    return parameters
