"""Updates of one working memory at once: nothing is lost, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
import uuid
from contextlib import ExitStack

import pytest

from otel_assembly import ConfigurationError, ModelRequest
from otel_assembly.errors import KnowledgeConflictError
from otel_assembly.knowledge import (
    WORKING_MEMORY_PATH,
    DiskKnowledgeStore,
    MemoryKnowledgeStore,
    RedisKnowledgeStore,
    SqliteKnowledgeStore,
    WorkingMemoryAggregate,
)

LOCK = f"{WORKING_MEMORY_PATH}.lock"

# Says all that the memory holds and what is new, as a model does that forgets nothing.
PROGRAM = """
import asyncio, sys
from otel_assembly import ModelRequest
from otel_assembly.knowledge import *

async def main(kind, where, name, updates, patience):
    url, _, prefix = where.partition(" ")
    stores = {
        "disk": lambda: DiskKnowledgeStore(where),
        "sqlite": lambda: SqliteKnowledgeStore(where),
        "redis": lambda: RedisKnowledgeStore(url, prefix=prefix),
    }
    store = stores[kind]()

    async def model(prompt):
        before, _, said = prompt.partition("|")
        if int(updates) == 0:
            print("asked", flush=True)
            await asyncio.sleep(600)
        await asyncio.sleep(0.01)
        return before.replace("(empty)", "") + said.removeprefix("user: ") + " "

    aggregate = WorkingMemoryAggregate(model, prompt="{existing}|{events}", patience=float(patience))
    print("ready", flush=True)
    sys.stdin.readline()
    for n in range(int(updates) or 1):
        await aggregate.aggregate([ModelRequest(content=f"{name}{n}")], object(), store)
    if kind != "disk":
        await store.close()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(params=["disk", "sqlite", "redis"])
def shared(request, tmp_path):
    """A kind of store that processes share, and where one is."""
    if request.param == "redis":
        return "redis", f"{request.getfixturevalue('redis_server').url} tests:{uuid.uuid4().hex}"
    return request.param, str(tmp_path / "store")


def opened(kind, where):
    if kind == "redis":
        url, prefix = where.split()
        return RedisKnowledgeStore(url, prefix=prefix)
    return (DiskKnowledgeStore if kind == "disk" else SqliteKnowledgeStore)(where)


def program(shared, name, updates, patience):
    pipe = subprocess.PIPE
    command = [sys.executable, "-W", "error", "-c", PROGRAM, *shared, name, str(updates), str(patience)]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)


def begin(*programs):
    for process in programs:
        assert process.stdout.readline() == b"ready\n", process.stderr.read()
    for process in programs:
        process.stdin.write(b"\n")
        process.stdin.flush()


async def held(kind, where, *paths):
    store = opened(kind, where)
    try:
        return [await store.read(path) for path in paths]
    finally:
        if kind != "disk":
            await store.close()


def test_processes_that_update_one_memory_at_once_lose_nothing(shared):
    with ExitStack() as stack:
        programs = [stack.enter_context(program(shared, name, 12, 30)) for name in "xyz"]
        begin(*programs)
        ends = [(program.communicate()[1].decode(), program.returncode) for program in programs]
    assert ends == [("", 0)] * 3
    memory, lock = asyncio.run(held(*shared, WORKING_MEMORY_PATH, LOCK))
    assert sorted(memory.split()) == sorted(f"{name}{n}" for name in "xyz" for n in range(12))
    for name in "xyz":
        assert [said for said in memory.split() if said[0] == name] == [f"{name}{n}" for n in range(12)]
    assert lock is None


def test_one_that_dies_in_its_turn_is_overtaken(shared):
    with program(shared, "dead", 0, 30) as dying:
        begin(dying)
        assert dying.stdout.readline() == b"asked\n"
        dying.kill()
        dying.wait()
        dying.communicate()
    assert asyncio.run(held(*shared, LOCK)) != [None]
    with ExitStack() as stack:
        programs = [stack.enter_context(program(shared, name, 3, 1)) for name in "xy"]
        begin(*programs)
        ends = [(program.communicate()[1].decode(), program.returncode) for program in programs]
    assert [code for _, code in ends] == [0, 0]
    # Once for the dead one; and where this machine is slow, for one that lives, which loses nothing by it.
    assert any("did not end within 1 s" in said for said, _ in ends)
    memory, lock = asyncio.run(held(*shared, WORKING_MEMORY_PATH, LOCK))
    assert sorted(memory.split()) == sorted(f"{name}{n}" for name in "xy" for n in range(3))
    assert lock is None


def merging():
    async def model(prompt):
        await asyncio.sleep(0)
        memory, _, said = prompt.partition("|")
        return memory.replace("(empty)", "") + said.removeprefix("user: ")

    return model


def aggregate_of(model, **settings):
    return WorkingMemoryAggregate(model, prompt="{existing}|{events}", **settings)


def said(text):
    return [ModelRequest(content=text)]


async def test_aggregates_of_one_store_wait_for_each_other(store):
    aggregates = [aggregate_of(merging()) for _ in "abcdef"]
    await asyncio.gather(
        *(aggregate.aggregate(said(c), None, store) for aggregate, c in zip(aggregates, "abcdef", strict=True))
    )
    assert sorted(await store.read(WORKING_MEMORY_PATH)) == list("abcdef")
    assert await store.list("/memory") == ["working.md"]


def test_threads_with_loops_of_their_own_lose_nothing(new_store):
    store, aggregate = new_store(), aggregate_of(merging())
    threads = [
        threading.Thread(target=lambda c=c: asyncio.run(aggregate.aggregate(said(c), None, store))) for c in "abcdef"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(asyncio.run(store.read(WORKING_MEMORY_PATH))) == list("abcdef")
    if hasattr(store, "close"):
        asyncio.run(store.close())


async def test_one_that_is_slow_and_overtaken_loses_nothing_either(store):
    """It writes after its turn was taken from it, or finds the memory changed and asks again."""
    asked, gate = asyncio.Event(), asyncio.Event()

    async def model(prompt):
        asked.set()
        await gate.wait()
        return await merging()(prompt)

    running = asyncio.create_task(aggregate_of(model).aggregate(said("a"), None, store))
    await asked.wait()
    await aggregate_of(merging(), patience=0.1).aggregate(said("b"), None, store)
    assert not running.done()
    gate.set()
    await running
    assert await store.read(WORKING_MEMORY_PATH) == "ba"
    assert not await store.exists(LOCK)


async def test_what_a_person_writes_while_the_model_thinks_is_not_lost(store):
    edits = iter(["edited ", "edited twice "])

    async def model(prompt):
        for edit in edits:
            await store.write(WORKING_MEMORY_PATH, edit)
            break
        return await merging()(prompt)

    await aggregate_of(model).aggregate(said("a"), None, store)
    assert await store.read(WORKING_MEMORY_PATH) == "edited twice a"


async def test_a_memory_that_others_never_leave_alone_is_an_error_and_theirs(store):
    asked = 0

    async def model(prompt):
        nonlocal asked
        asked += 1
        await store.write(WORKING_MEMORY_PATH, str(asked))
        return "mine"

    with pytest.raises(KnowledgeConflictError, match="changed by others each of the 5 times"):
        await aggregate_of(model).aggregate(said("a"), None, store)
    assert await store.read(WORKING_MEMORY_PATH) == "5"
    assert not await store.exists(LOCK)


async def test_turns_that_others_have_without_end_are_waited_for_only_so_long():
    holders = itertools.count()

    class Contended(MemoryKnowledgeStore):
        """Another process holds the lock at each look, and never the same one twice."""

        async def read(self, path):
            if path == LOCK:
                await self.write(LOCK, str(next(holders)))
            return await super().read(path)

    store = Contended()
    await store.write(LOCK, "first")
    with pytest.raises(KnowledgeConflictError, match=r"was not available within 1 s"):
        await aggregate_of(merging(), patience=0.1).aggregate(said("a"), None, store)
    assert not await store.exists(WORKING_MEMORY_PATH)
    assert await store.exists(LOCK)


async def test_one_that_is_cancelled_gives_its_turn_back(store):
    asked = asyncio.Event()

    async def model(prompt):
        asked.set()
        await asyncio.Event().wait()

    stuck = asyncio.create_task(aggregate_of(model).aggregate(said("a"), None, store))
    await asked.wait()
    stuck.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stuck
    assert not await store.exists(LOCK)
    await aggregate_of(merging()).aggregate(said("b"), None, store)


async def test_stores_do_not_wait_for_each_other(new_store):
    one, two = new_store(), new_store()
    gate = asyncio.Event()

    async def model(prompt):
        if prompt.endswith("first"):
            await gate.wait()
        return "done"

    aggregate = aggregate_of(model)
    first = asyncio.create_task(aggregate.aggregate(said("first"), None, one))
    await asyncio.sleep(0)
    await aggregate.aggregate(said("second"), None, two)
    assert not first.done()
    gate.set()
    await first
    for store in (one, two):
        if hasattr(store, "close"):
            await store.close()


class Plain:
    """A store of a user's, from before there was `replace`."""

    def __init__(self):
        self._store = MemoryKnowledgeStore()
        for name in ("read", "write", "list", "delete", "exists", "append", "read_range"):
            setattr(self, name, getattr(self._store, name))


async def test_a_store_that_cannot_compare_is_written_to_as_ever():
    store, aggregate = Plain(), aggregate_of(merging())
    await asyncio.gather(*(aggregate.aggregate(said(c), None, store) for c in "abc"))
    assert sorted(await store.read(WORKING_MEMORY_PATH)) == list("abc")
    assert await store.list("/memory") == ["working.md"]


@pytest.mark.parametrize("patience", [0, -1, float("nan")])
def test_a_patience_that_is_none_is_refused(patience):
    with pytest.raises(ConfigurationError, match="patience"):
        aggregate_of(merging(), patience=patience)
