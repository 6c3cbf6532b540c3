"""Connections to PostgreSQL for a log: reopened after a loss; servers that do not sync commits are refused."""

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

#: The first half of the keys of a log's advisory locks. The second half is 0 for the tables, or a session's number.
LOCKS: Final = 1_869_898_085

#: Extra seconds for the server to stop a statement after its timeout.
_GRACE: Final = 2.0

#: Keepalive defaults, because a listening connection sends nothing and would not detect a dead network.
_KEEPALIVES: Final = {"keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "3"}

_SETTINGS: Final = """SELECT current_setting('fsync'), current_setting('synchronous_commit'),
    current_setting('server_encoding'),
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false)"""
_TABLES_ARE_THERE: Final = "SELECT to_regclass('otel_assembly_session_work') IS NOT NULL"

#: Source files of PostgreSQL that read a value and allocate its memory.
_READ_VALUES: Final = frozenset({"mcxt.c", "detoast.c", "heaptoast.c", "toast_internals.c"})

#: Connections of the parent process; they are kept open and never used.
_of_parents: list[object] = []


def psycopg(module: str = "") -> Any:
    """Import psycopg lazily, because only logs in PostgreSQL need it."""
    try:
        return import_module(f"psycopg{module}")
    except ImportError as missing:
        raise ConfigurationError(
            "PostgresSessionLog needs the extra postgres; install it: pip install 'otel-assembly[postgres]'"
        ) from missing


def is_damage(error: Any) -> bool:
    """Return True if an error of PostgreSQL means that its files are damaged.

    PostgreSQL has codes for most damage. If the length of a value is damaged, it reports an internal error, which has
    other causes too: then the part of the server that raised it decides.
    """
    codes = psycopg(".errors")
    if isinstance(error, codes.DataCorrupted | codes.IndexCorrupted):
        return True
    return isinstance(error, codes.InternalError_) and error.diag.source_file in _READ_VALUES


def read_texts_as_they_are(connection: Any) -> None:
    """Let a connection return invalid UTF-8 from a damaged disk, so that checksums detect it."""

    class Text(psycopg(".adapt").Loader):  # type: ignore[misc]
        def load(self, data: Any) -> str:
            return text_of(bytes(data))

    connection.adapters.register_loader("text", Text)


class Connections:
    """The connections of one log; their number is limited.

    Args:
        dsn: The server's connection string.
        patience: Seconds until a server that does not answer is given up.
        most: The number of statements that can run concurrently.
    """

    def __init__(self, dsn: str, patience: float, most: int) -> None:
        self._raises = psycopg().Error
        given = read_dsn(dsn)
        self._arguments: dict[str, Any] = {**_KEEPALIVES, **given, "client_encoding": "utf8", "autocommit": True}
        self._arguments.setdefault("application_name", "otel-assembly")
        self.patience = patience
        self._most = most
        self.closed = False
        self._begin()
        after_fork_in_child(self._leave)

    def _begin(self) -> None:
        self._idle: list[Connection] = []
        self._free = asyncio.Semaphore(self._most)
        self._making = asyncio.Lock()
        self._made = False

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Connection]:
        """Yield a connection for the length of the block.

        Raises:
            LogUnavailableError: No connection is free in time, or the server cannot be reached.
        """
        try:
            async with asyncio.timeout(self.patience):
                await self._free.acquire()
        except TimeoutError:
            raise LogUnavailableError(f"all {self._most} connections were busy for {self.patience} s") from None
        try:
            connection = self._idle_one() or await self.opened()
            try:
                yield connection
            finally:
                await self._put_back(connection)
        finally:
            self._free.release()

    async def opened(self) -> Connection:
        """Return a new connection; the caller closes it.

        Raises:
            LogUnavailableError: The server cannot be reached in time, or does not sync its commits.
        """
        until = time.monotonic() + self.patience
        pause = 0.02
        while True:
            self.check_open()
            left = max(until - time.monotonic(), 0.1)
            try:
                async with asyncio.timeout(left):
                    return await self._connected()
            except TimeoutError as error:
                raise LogUnavailableError(f"PostgreSQL has not answered for {self.patience} s") from error
            except self._raises as error:
                if time.monotonic() + pause > until:
                    raise LogUnavailableError(f"PostgreSQL cannot be used for {self.patience} s: {error}") from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.5)

    def check_open(self) -> None:
        """Raise if the log is closed.

        Raises:
            LogUnavailableError: The log is closed.
        """
        if self.closed:
            raise LogUnavailableError("the log is closed")

    async def close(self) -> None:
        """Close idle connections now, and the others when they are returned."""
        self.closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()

    def _idle_one(self) -> Connection | None:
        """Return an idle connection that the server has not closed, so that no statement is lost."""
        self.check_open()
        while self._idle:
            connection = self._idle.pop()
            try:
                connection.pgconn.consume_input()  # reads why the server closed it
                connection.pgconn.consume_input()  # and that it did
            except self._raises:
                connection.pgconn.finish()
                continue
            return connection
        return None

    async def _put_back(self, connection: Connection) -> None:
        idle = psycopg(".pq").TransactionStatus.IDLE
        if self.closed or connection.closed or connection.info.transaction_status != idle:
            await connection.close()
        else:
            self._idle.append(connection)

    async def _connected(self) -> Connection:
        connection: Connection = await psycopg().AsyncConnection.connect(**self._arguments)
        read_texts_as_they_are(connection)
        try:
            await self._check(connection)
            async with self._making:
                if not self._made:
                    await self._make_tables(connection)
                    self._made = True
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _check(self, connection: Connection) -> None:
        milliseconds = f"{max(int(self.patience * 1000), 1)}"
        cursor = await connection.execute(_SETTINGS, (milliseconds, milliseconds))
        fsync, commit, encoding, *_ = await cursor.fetchone() or ()
        if fsync != "on":
            raise LogUnavailableError("fsync is off on this server, so that nothing it accepts is safe; turn it on")
        if commit == "off":
            raise LogUnavailableError(
                "synchronous_commit is off, so that a server that is killed loses what it accepted; turn it on: "
                "ALTER DATABASE … SET synchronous_commit = on"
            )
        if encoding != "UTF8":
            raise LogUnavailableError(f"the database is encoded as {encoding}; make one with ENCODING 'UTF8'")

    async def _make_tables(self, connection: Connection) -> None:
        """Create missing tables, under a lock: PostgreSQL fails if two clients create a table concurrently."""
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(%s, 0)", (LOCKS,))
            cursor = await connection.execute(_TABLES_ARE_THERE)
            if await cursor.fetchone() == (True,):
                return
            for table in (*TABLES, *TURN_TABLES):
                statement: Any = table.format(number="BIGINT GENERATED ALWAYS AS IDENTITY")
                await connection.execute(statement)

    def _leave(self) -> None:
        """Keep the parent's connections alive: closing them in the child would end them for the parent."""
        _of_parents.append(self._idle)
        self._begin()


def statement_seconds(patience: float) -> float:
    """Return the client's timeout for a statement that the server cancels after `patience`."""
    return patience + _GRACE


def read_dsn(dsn: object) -> dict[str, Any]:
    """Parse a DSN.

    Raises:
        ConfigurationError: The DSN is invalid, or psycopg is not installed.
    """
    if not isinstance(dsn, str):
        raise ConfigurationError(f"dsn is a text, not {type(dsn).__name__}")
    try:
        found: dict[str, Any] = psycopg(".conninfo").conninfo_to_dict(dsn)
    except psycopg().ProgrammingError:
        # The message does not quote the DSN, because it may contain a password.
        raise ConfigurationError(
            "the DSN of PostgreSQL cannot be read; write it as postgresql://user:password@host:5432/database, or as "
            "'host=… dbname=…', with '/', '@' and ':' of the password in a URL as %2F, %40 and %3A"
        ) from None
    return found
