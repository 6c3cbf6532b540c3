"""What only a store in Redis can get wrong."""

from __future__ import annotations

import asyncio
import gc
import socket
import subprocess
import sys
import uuid

import pytest
from redis_server import RedisServer

from otel_assembly import ConfigurationError
from otel_assembly.errors import KnowledgePathError, KnowledgeStoreError
from otel_assembly.knowledge import RedisKnowledgeStore

redis = pytest.importorskip("redis", reason="not installed: python -m pip install -e '.[redis]'")

SECRET = "4111-1111"


@pytest.fixture
def prefix():
    return f"tests:{uuid.uuid4().hex}"


@pytest.fixture
async def client(redis_server):
    async with redis.asyncio.Redis.from_url(redis_server.url) as client:
        yield client


async def test_stores_of_one_prefix_see_each_other_and_no_other(redis_server, prefix):
    url = redis_server.url
    async with (
        RedisKnowledgeStore(url, prefix=prefix) as one,
        RedisKnowledgeStore(url, prefix=prefix) as two,
        RedisKnowledgeStore(url, prefix=f"{prefix}:file") as other,
    ):
        await asyncio.gather(*(store.append("/log", "x") for store in (one, two) * 20))
        assert await one.read("/log") == await two.read("/log") == "x" * 40
        assert await other.list() == []
        await other.delete("/")
        await one.delete("/")
        assert not await two.exists("/log")


async def test_nothing_is_left_of_what_was_deleted(redis_server, prefix, client):
    async with RedisKnowledgeStore(redis_server.url, prefix=prefix) as store:
        for path in ("/a/b/c/d", "/a/b/e", "/f", "/a/ž:*?[x]"):
            await store.write(path, "x")
            await store.append(path, "y")
        assert len(await client.keys(f"{prefix}*")) == 8
        await store.delete("/a")
        await store.replace("/f", "xy", None)
        assert await client.keys(f"{prefix}*") == []


async def test_a_server_that_is_away_is_an_error_of_the_store_and_comes_back(tmp_path):
    server = RedisServer(tmp_path)
    async with RedisKnowledgeStore(server.url) as store:
        calls = (
            lambda: store.read("/a"),
            lambda: store.write("/a", SECRET),
            lambda: store.append("/a", SECRET),
            lambda: store.replace("/a", None, SECRET),
            lambda: store.list(),
            lambda: store.delete("/a"),
            lambda: store.exists("/a"),
            lambda: store.read_range("/a", 0),
        )
        for _ in range(2):
            for call in calls:
                with pytest.raises(KnowledgeStoreError, match=r"cannot .* '/") as caught:
                    await call()
                assert isinstance(caught.value.__cause__, redis.RedisError)
                assert SECRET not in str(caught.value)
            server.start()
            try:
                # Connections from before it was stopped are known to be dead; nothing was sent on them.
                await store.write("/a", "text")
                assert await store.append("/a", "s") == 4
                assert await store.read("/a") == "texts"
            finally:
                server.stop()


async def test_a_server_that_does_not_answer_is_left_after_the_timeout():
    async def silent(reader, writer):
        await reader.read()
        writer.close()

    listening = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with listening, RedisKnowledgeStore(f"redis://127.0.0.1:{port}", timeout=0.05) as store:
        with pytest.raises(KnowledgeStoreError, match="cannot read '/a'"):
            await store.read("/a")


async def test_an_append_whose_answer_is_lost_is_not_sent_again():
    """It may have been carried out."""
    appends = 0

    async def deaf(reader, writer):
        nonlocal appends
        while data := await reader.read(65_536):
            if b"APPEND" in data:
                appends += 1
                break
            writer.write(b"+OK\r\n" * data.count(b"CLIENT"))
        writer.close()

    listening = await asyncio.start_server(deaf, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    url = f"redis://127.0.0.1:{port}?protocol=2"
    async with listening, RedisKnowledgeStore(url, timeout=60) as store:
        with pytest.raises(KnowledgeStoreError, match="cannot append to '/a'"):
            await store.append("/a", "text")
    assert appends == 1


async def test_a_key_of_another_type_is_an_error_and_stays_what_it_was(redis_server, prefix, client):
    async with RedisKnowledgeStore(redis_server.url, prefix=prefix) as store:
        await client.rpush(f"{prefix}:file:/list", "theirs")
        await client.set(f"{prefix}:dir:/text", "theirs")
        before = await client.keys(f"{prefix}*")
        for call in (
            store.read("/list"),
            store.read_range("/list", 0),
            store.write("/list", "new"),
            store.append("/list", "new"),
            store.replace("/list", "old", "new"),
            store.replace("/list", None, "new"),
            store.list("/text"),
            store.write("/text/deep/er", "new"),
            store.append("/text/deep/er", "new"),
            store.replace("/text/deep/er", None, "new"),
        ):
            with pytest.raises(KnowledgeStoreError, match="WRONGTYPE"):
                await call
        assert sorted(await client.keys(f"{prefix}*")) == sorted(before)


async def test_bytes_that_are_no_text_are_an_error_of_the_store(redis_server, prefix, client):
    async with RedisKnowledgeStore(redis_server.url, prefix=prefix) as store:
        await client.set(f"{prefix}:file:/a", b"\xff\xff")
        await client.sadd(f"{prefix}:dir:", b"\xff")
        for call in (store.read("/a"), store.read_range("/a", 0), store.list()):
            with pytest.raises(KnowledgeStoreError) as caught:
                await call
            assert isinstance(caught.value.__cause__, UnicodeDecodeError)


async def test_a_bad_path_is_refused_before_anything_is_sent():
    with pytest.raises(KnowledgePathError):
        await RedisKnowledgeStore("redis://127.0.0.1:1").write("/a/../b", "text")


@pytest.mark.parametrize(
    ("server", "settings", "problem"),
    [
        (f"http://u:{SECRET}@127.0.0.1", {}, "URL"),
        (f"redis://u:{SECRET}/{SECRET}@127.0.0.1", {}, "%2F"),
        (f"redis://u:{SECRET}@127.0.0.1:port", {}, "URL"),
        (f"redis://u:{SECRET}@127.0.0.1?db=first", {}, "URL"),
        ("redis://127.0.0.1?decode_responses=yes", {}, "decode_responses"),
        ("redis://127.0.0.1", {"prefix": ""}, "prefix"),
        ("redis://127.0.0.1", {"prefix": None}, "prefix"),
        ("redis://127.0.0.1", {"timeout": 0}, "timeout"),
        (redis.asyncio.Redis(decode_responses=True), {}, "decode_responses"),
        (redis.Redis(), {}, "cannot be awaited"),
        (redis.asyncio.Redis, {}, "class Redis"),
        (None, {}, "cannot be awaited"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_server_that_cannot_work_is_refused(server, settings, problem):
    with pytest.raises(ConfigurationError, match=problem) as refused:
        RedisKnowledgeStore(server, **settings)
    assert SECRET not in str(refused.value)
    assert SECRET not in str(refused.value.__cause__)


def test_without_the_package_the_extra_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "redis"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'otel-assembly\[redis\]'"):
        RedisKnowledgeStore("redis://127.0.0.1")


async def test_a_client_of_the_users_stays_open(prefix, client):
    async with RedisKnowledgeStore(client, prefix=prefix) as store:
        await store.write("/a", "text")
        assert await store.read("/a") == "text"
        assert await store.list() == ["a"]
        assert await store.replace("/a", "text", None)
    with pytest.raises(KnowledgeStoreError, match="closed"):
        await store.read("/a")
    assert await client.ping()


async def test_a_call_that_was_cancelled_hurts_no_later_one(redis_server, prefix):
    async with RedisKnowledgeStore(redis_server.url, prefix=prefix) as store:
        await store.write("/a", "a")
        await store.write("/b", "b" * 3_000_000)
        for pause in range(20):
            task = asyncio.create_task(store.read("/b"))
            for _ in range(pause):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert await store.read("/a") == "a"


def connections(server):
    with socket.create_connection(("127.0.0.1", server.port), 5) as one:
        one.sendall(b"CLIENT LIST\r\n")
        return one.recv(65_536).count(b" addr=") - 1


def test_a_loop_that_ends_closes_its_connections(redis_server, prefix):
    before = connections(redis_server)
    store = RedisKnowledgeStore(redis_server.url, prefix=prefix)

    async def work():
        await asyncio.gather(*(store.append("/log", "x") for _ in range(100)))
        # More wait for one than are opened.
        assert connections(redis_server) - before <= 16

    for _ in range(3):
        asyncio.run(work())
    gc.collect()
    assert connections(redis_server) == before
    assert asyncio.run(store.read("/log")) == "x" * 300
    asyncio.run(store.close())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # redis may say that it was not closed
async def test_a_store_that_nobody_holds_closes_its_connections(redis_server, prefix):
    before = connections(redis_server)
    store = RedisKnowledgeStore(redis_server.url, prefix=prefix)
    await store.write("/a", "text")
    del store
    gc.collect()
    while connections(redis_server) != before:
        await asyncio.sleep(0.01)


FORKING = """
import asyncio, os, sys
from otel_assembly.knowledge import RedisKnowledgeStore

async def main(url, prefix):
    store = RedisKnowledgeStore(url, prefix=prefix)
    await store.write("/parent", "before")
    child = os.fork()
    if child == 0:
        # The loop of its parent cannot run here; a child that goes on takes one of its own.
        try:
            asyncio.events._set_running_loop(None)
            asyncio.run(in_child(store))
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    for _ in range(200):
        assert await store.append("/log", "p") >= 0
        assert await store.read("/parent") == "before"
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        await asyncio.sleep(0.01)
    assert status == 0, status
    assert sorted(await store.read("/log")) == ["c"] * 200 + ["p"] * 200
    await store.close()

async def in_child(store):
    for _ in range(200):
        await store.append("/log", "c")
        assert await store.read("/parent") == "before"

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_forked_child_opens_connections_of_its_own(redis_server, prefix):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORKING, redis_server.url, prefix],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
