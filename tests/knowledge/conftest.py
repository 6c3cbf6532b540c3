"""The one list of stores: every test of the shared suite runs on each."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from otel_assembly.knowledge import DiskKnowledgeStore, KnowledgeStore, MemoryKnowledgeStore, SqliteKnowledgeStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


@pytest.fixture(params=["memory", "disk", "sqlite"])
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], KnowledgeStore]:
    """Makes an empty store of the kind under test."""
    numbers = itertools.count()

    def make() -> KnowledgeStore:
        if request.param == "memory":
            return MemoryKnowledgeStore()
        if request.param == "disk":
            return DiskKnowledgeStore(tmp_path / f"store-{next(numbers)}")
        return SqliteKnowledgeStore(tmp_path / f"store-{next(numbers)}.db")

    return make


async def closed(store: KnowledgeStore) -> None:
    if isinstance(store, SqliteKnowledgeStore):
        await store.close()


@pytest.fixture
async def store(new_store: Callable[[], KnowledgeStore]) -> AsyncIterator[KnowledgeStore]:
    made = new_store()
    yield made
    await closed(made)
