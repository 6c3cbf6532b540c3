"""Connections to PostgreSQL for a log: made anew after they are lost, and only where what is accepted is synced."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from otel_assembly._internal.forks import in_child
from otel_assembly.errors import ConfigurationError, LogUnavailableError
from otel_assembly.sessions.log_rows import text_of
from otel_assembly.sessions.log_sql import TABLES, TURN_TABLES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from psycopg import AsyncConnection

    Connection: TypeAlias = AsyncConnection[tuple[Any, ...]]

#: The first half of the keys of all advisory locks of a log; the second is 0 for the tables, or says the session.
LOCKS: Final = 1_869_898_085

#: Seconds that a server may take longer to stop a statement than it was told.
_GRACE: Final = 2.0

#: What a dead network is found out by, where the DSN says nothing of it: a connection that listens sends nothing.
_KEEPALIVES: Final = {"keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "3"}

_SETTINGS: Final = """SELECT current_setting('fsync'), current_setting('synchronous_commit'),
    current_setting('server_encoding'),
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false)"""
_TABLES_ARE_THERE: Final = "SELECT to_regclass('otel_assembly_session_work') IS NOT NULL"

#: Source files of PostgreSQL that read a value and allocate its memory.
_READ_VALUES: Final = frozenset({"mcxt.c", "detoast.c", "heaptoast.c", "toast_internals.c"})

#: Connections of the process that forked this one; nothing is done with them.
_of_parents: list[object] = []


def psycopg(module: str = "") -> Any:
    """The client, which nobody needs who keeps no log in PostgreSQL."""
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
    """Let a connection return texts that are not UTF-8, which a damaged disk leaves, so that checksums find them."""

    class Text(psycopg(".adapt").Loader):  # type: ignore[misc]
        def load(self, data: Any) -> str:
            return text_of(bytes(data))

    connection.adapters.register_loader("text", Text)


class Connections:
    """The connections of one log, of which there are at most so many.

    Args:
        dsn: Where the server is.
        patience: Seconds until a server that does not answer is given up.
        most: How many statements may run at once.
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
        in_child(self._leave)

    def _begin(self) -> None:
        self._idle: list[Connection] = []
        self._free = asyncio.Semaphore(self._most)
        self._making = asyncio.Lock()
        self._made = False

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Connection]:
        """A connection for one statement, or for as long as it is held.

        Raises:
            LogUnavailableError: None is free, or the server cannot be reached, in time.
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
        """A new connection, which whoever asked for it closes.

        Raises:
            LogUnavailableError: The server cannot be reached in time, or would not sync what it accepts.
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
        """Refuse whoever comes after the end.

        Raises:
            LogUnavailableError: The log is closed.
        """
        if self.closed:
            raise LogUnavailableError("the log is closed")

    async def close(self) -> None:
        """Close those that nobody holds; the others as they are given back."""
        self.closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()

    def _idle_one(self) -> Connection | None:
        """One that the server has not closed meanwhile: nothing is sent that would be lost, and nobody left unsure."""
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
        """Make what is missing; under a lock, for two who make a table at once fail in PostgreSQL."""
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(%s, 0)", (LOCKS,))
            cursor = await connection.execute(_TABLES_ARE_THERE)
            if await cursor.fetchone() == (True,):
                return
            for table in (*TABLES, *TURN_TABLES):
                statement: Any = table.format(number="BIGINT GENERATED ALWAYS AS IDENTITY")
                await connection.execute(statement)

    def _leave(self) -> None:
        """A child would end its parent's connections, were it to let go of them."""
        _of_parents.append(self._idle)
        self._begin()


def statement_seconds(patience: float) -> float:
    """How long a client waits for a statement that the server ends, or refuses, after `patience`."""
    return patience + _GRACE


def read_dsn(dsn: object) -> dict[str, Any]:
    """What a DSN says.

    Raises:
        ConfigurationError: It cannot be read, or the client is not installed.
    """
    if not isinstance(dsn, str):
        raise ConfigurationError(f"dsn is a text, not {type(dsn).__name__}")
    try:
        found: dict[str, Any] = psycopg(".conninfo").conninfo_to_dict(dsn)
    except psycopg().ProgrammingError:
        # Nothing of it is said again: it may hold a password.
        raise ConfigurationError(
            "the DSN of PostgreSQL cannot be read; write it as postgresql://user:password@host:5432/database, or as "
            "'host=… dbname=…', with '/', '@' and ':' of the password in a URL as %2F, %40 and %3A"
        ) from None
    return found
