"""What only a store in SQLite can get wrong."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

from otel_assembly import ConfigurationError
from otel_assembly.errors import KnowledgeStoreError
from otel_assembly.knowledge import SqliteKnowledgeStore


async def test_two_stores_on_one_file_see_each_other(tmp_path):
    path = tmp_path / "deep" / "er" / "k.db"
    async with SqliteKnowledgeStore(path) as one, SqliteKnowledgeStore(str(path)) as two:
        await asyncio.gather(*(store.append("/log", "x") for store in (one, two) * 20))
        assert await one.read("/log") == await two.read("/log") == "x" * 40
        await one.delete("/log")
        assert not await two.exists("/log")


async def test_a_closed_store_says_so_and_its_file_stays(tmp_path):
    store = SqliteKnowledgeStore(tmp_path / "k.db")
    await store.write("/a", "text")
    await store.close()
    await store.close()
    for call in (store.read("/a"), store.write("/a", "x"), store.list()):
        with pytest.raises(KnowledgeStoreError, match="closed"):
            await call
    async with SqliteKnowledgeStore(tmp_path / "k.db") as again:
        assert await again.read("/a") == "text"


async def test_a_store_may_live_in_memory():
    async with SqliteKnowledgeStore(":memory:") as store:
        await store.write("/a", "text")
        assert await store.list() == ["a"]


async def test_a_file_that_is_no_database_is_an_error_of_the_store(tmp_path):
    (tmp_path / "k.db").write_text("not a database, however long one looks at it " * 50)
    store = SqliteKnowledgeStore(tmp_path / "k.db")
    with pytest.raises(KnowledgeStoreError, match="cannot read '/a'") as caught:
        await store.read("/a")
    assert isinstance(caught.value.__cause__, sqlite3.DatabaseError)


async def test_a_file_that_stays_locked_is_an_error_and_then_works_again(tmp_path):
    async with SqliteKnowledgeStore(tmp_path / "k.db", busy_timeout=0) as store:
        await store.write("/a", "old")
        other = sqlite3.connect(tmp_path / "k.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(KnowledgeStoreError, match="locked"):
            await store.write("/a", "new")
        assert await store.read("/a") == "old"
        other.execute("ROLLBACK")
        other.close()
        await store.write("/a", "new")
        assert await store.read("/a") == "new"


async def test_a_file_in_another_journal_mode_is_waited_for(tmp_path):
    """SQLite itself gives up at once when it cannot change the mode."""
    other = sqlite3.connect(tmp_path / "k.db", isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE theirs (x)")
    other.execute("BEGIN IMMEDIATE")
    async with SqliteKnowledgeStore(tmp_path / "k.db") as store:
        write = asyncio.create_task(store.write("/a", "text"))
        await asyncio.sleep(0.05)
        assert not write.done()
        other.execute("COMMIT")
        await write
        assert await store.read("/a") == "text"
    other.close()


def test_a_negative_timeout_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="busy_timeout"):
        SqliteKnowledgeStore(tmp_path / "k.db", busy_timeout=-1)


async def test_nothing_is_left_of_what_was_deleted_or_replaced(tmp_path):
    async with SqliteKnowledgeStore(tmp_path / "k.db") as store:
        for n in range(5):
            await store.write(f"/a/{n}/file", "x" * 3_000_000)
            await store.write(f"/a/{n}/file", "y")
            await store.append(f"/a/{n}/file", "z" * 100_000)
        await store.delete("/a")
    db = sqlite3.connect(tmp_path / "k.db")
    assert db.execute("SELECT count(*) FROM knowledge_pieces").fetchone() == (0,)
    assert db.execute("SELECT count(*) FROM knowledge_entries").fetchone() == (1,)
    db.close()
