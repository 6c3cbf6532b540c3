"""Two processes and one store."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import ExitStack

import pytest

from otel_assembly.knowledge import DiskKnowledgeStore, SqliteKnowledgeStore

WORKER = """
import asyncio, sys
from otel_assembly.knowledge import DiskKnowledgeStore, SqliteKnowledgeStore

async def main(kind, path, name):
    store = (DiskKnowledgeStore if kind == "disk" else SqliteKnowledgeStore)(path)
    print("ready", flush=True)
    sys.stdin.readline()
    for n in range(40):
        offset = await store.append("/shared/log", f"{name}{n:02d}\\n")
        assert await store.read_range("/shared/log", offset, offset + 4) == f"{name}{n:02d}\\n"
        await store.write("/shared/one", name * 50_000)
        assert await store.read("/shared/one") in {"x" * 50_000, "y" * 50_000}
        await store.write(f"/gone/{name}", "text")
        await store.delete(f"/gone/{name}")
    if kind == "sqlite":
        await store.close()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("kind", ["disk", "sqlite"])
def test_two_processes_lose_nothing(tmp_path, kind):
    path = str(tmp_path / "store")
    command = [sys.executable, "-c", WORKER, kind, path]
    pipe = subprocess.PIPE
    with ExitStack() as stack:
        workers = [
            stack.enter_context(subprocess.Popen([*command, name], stdin=pipe, stdout=pipe, stderr=pipe))
            for name in "xy"
        ]
        for worker in workers:
            assert worker.stdout.readline() == b"ready\n"
        for worker in workers:
            worker.stdin.write(b"\n")
            worker.stdin.flush()
        ends = [(worker.communicate()[1].decode(), worker.returncode) for worker in workers]
    assert ends == [("", 0), ("", 0)]

    async def check() -> None:
        store = (DiskKnowledgeStore if kind == "disk" else SqliteKnowledgeStore)(path)
        lines = (await store.read("/shared/log") or "").splitlines()
        for name in "xy":
            assert [line for line in lines if line[0] == name] == [f"{name}{n:02d}" for n in range(40)]
        assert await store.read("/shared/one") in {"x" * 50_000, "y" * 50_000}
        assert await store.list() == ["shared/"]
        if isinstance(store, SqliteKnowledgeStore):
            await store.close()

    asyncio.run(check())
