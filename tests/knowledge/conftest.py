"""The one list of stores: every test of the shared suite runs on each."""

from __future__ import annotations

import itertools
import uuid
from typing import TYPE_CHECKING

import pytest
from redis_server import RedisServer

from otel_assembly.knowledge import (
    DiskKnowledgeStore,
    KnowledgeStore,
    MemoryKnowledgeStore,
    RedisKnowledgeStore,
    SqliteKnowledgeStore,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A real server."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["memory", "disk", "sqlite", "redis"])
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], KnowledgeStore]:
    """Makes an empty store of the kind under test."""
    numbers = itertools.count()
    url = request.getfixturevalue("redis_server").url if request.param == "redis" else ""

    def make() -> KnowledgeStore:
        if request.param == "redis":
            return RedisKnowledgeStore(url, prefix=f"tests:{uuid.uuid4().hex}")
        if request.param == "memory":
            return MemoryKnowledgeStore()
        if request.param == "disk":
            return DiskKnowledgeStore(tmp_path / f"store-{next(numbers)}")
        return SqliteKnowledgeStore(tmp_path / f"store-{next(numbers)}.db")

    return make


async def closed(store: KnowledgeStore) -> None:
    if isinstance(store, SqliteKnowledgeStore | RedisKnowledgeStore):
        await store.close()


@pytest.fixture
async def store(new_store: Callable[[], KnowledgeStore]) -> AsyncIterator[KnowledgeStore]:
    made = new_store()
    yield made
    await closed(made)
