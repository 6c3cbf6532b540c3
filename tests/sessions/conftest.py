"""The one list of logs: every test of the shared suite runs on each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from postgres_server import BIN, MISSING, PostgresServer

from otel_assembly.sessions import MemorySessionLog, PostgresSessionLog, SqliteSessionLog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from otel_assembly.sessions import SessionLog


#: Seconds that a log waits for a machine that is busy with other work; far more than any test needs.
PATIENCE = 500.0


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real server; skipped with the reason where there is none, which fails the run in CI."""
    if BIN is None:
        pytest.skip(MISSING)
    pytest.importorskip("psycopg", reason="not installed: python -m pip install -e '.[postgres]'")
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def log_kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def open_log(
    request: pytest.FixtureRequest, log_kind: str, tmp_path: Path
) -> AsyncIterator[Callable[[], SessionLog]]:
    """Opens the log of the test, once more each time; one in memory is the same for all."""
    opened: list[SessionLog] = []
    dsn = ""
    if log_kind == "postgres":
        server = request.getfixturevalue("postgres")
        dsn = server.dsn(server.new_schema())

    def open_one() -> SessionLog:
        log: SessionLog
        if log_kind == "memory":
            log = opened[0] if opened else MemorySessionLog()
        elif log_kind == "sqlite":
            log = SqliteSessionLog(tmp_path / "sessions.db", patience=PATIENCE, poll_seconds=0.005)
        else:
            log = PostgresSessionLog(dsn, patience=PATIENCE)
        opened.append(log)
        return log

    yield open_one
    for log in opened:
        await log.close()


@pytest.fixture
def log(open_log: Callable[[], SessionLog]) -> SessionLog:
    return open_log()
