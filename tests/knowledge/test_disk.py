"""What only a store on disk can get wrong: links, leftovers, files that others put there, a crash."""

from __future__ import annotations

import itertools
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from otel_assembly.errors import KnowledgePathError, KnowledgeStoreError
from otel_assembly.knowledge import DiskKnowledgeStore, _descriptors


@pytest.fixture
def outside(tmp_path):
    directory = tmp_path / "outside"
    directory.mkdir()
    (directory / "secret.md").write_text("secret")
    return directory


@pytest.fixture
def root(tmp_path):
    directory = tmp_path / "root"
    directory.mkdir()
    return directory


def seen(directory):
    """Every file outside the store, with its content."""
    return {str(path): path.read_text() for path in directory.rglob("*") if path.is_file()}


async def every_change(store, path):
    for call in (store.write(path, "x"), store.append(path, "x"), store.read(path), store.read_range(path, 0)):
        with pytest.raises(KnowledgePathError, match="link"):
            await call


async def test_a_link_to_a_file_is_not_followed(root, outside):
    store = DiskKnowledgeStore(root)
    (root / "link.md").symlink_to(outside / "secret.md")
    (root / "dangling.md").symlink_to(outside / "new.md")
    (root / "inside.md").symlink_to(root / "real.md")
    (root / "real.md").write_text("real")
    before = seen(outside)
    for name in ("link", "dangling", "inside"):
        await every_change(store, f"/{name}.md")
        with pytest.raises(KnowledgePathError, match="link"):
            await store.exists(f"/{name}.md")
    assert await store.list() == ["real.md"]
    assert seen(outside) == before


async def test_a_link_to_a_directory_is_not_followed(root, outside):
    store = DiskKnowledgeStore(root)
    (root / "memory").symlink_to(outside)
    (root / "a").mkdir()
    (root / "a" / "b").symlink_to(outside)
    before = seen(outside)
    for parent in ("/memory", "/a/b"):
        await every_change(store, f"{parent}/secret.md")
        await every_change(store, f"{parent}/deeper/new.md")
        for call in (store.list(parent), store.exists(f"{parent}/secret.md"), store.delete(f"{parent}/secret.md")):
            with pytest.raises(KnowledgePathError, match="link"):
                await call
    assert await store.list() == []
    assert seen(outside) == before


async def test_delete_removes_links_and_leaves_what_they_lead_to(root, outside):
    store = DiskKnowledgeStore(root)
    await store.write("/a/file", "text")
    (root / "a" / "dir").symlink_to(outside)
    (root / "a" / "file.link").symlink_to(outside / "secret.md")
    (root / "link").symlink_to(outside)
    before = seen(outside)
    await store.delete("/link")
    await store.delete("/a")
    assert [path.name for path in root.iterdir()] == [_descriptors.LOCK_NAME]
    (root / "link").symlink_to(outside)
    await store.delete("/")
    assert seen(outside) == before


async def test_a_link_put_in_the_way_while_calls_run_is_never_followed(tmp_path, root, outside):
    store = DiskKnowledgeStore(root)
    before = seen(outside)
    stop = threading.Event()

    def swap() -> None:
        for n in itertools.count():
            if stop.is_set():
                return
            with suppress(OSError):
                (root / "dir").rename(tmp_path / f"parked-{n}")
            with suppress(OSError):
                (root / "dir").symlink_to(outside)
            time.sleep(0.0002)
            with suppress(OSError):
                (root / "dir").unlink()
            time.sleep(0.0002)

    outcomes = set()
    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for n in range(5_000):
            if n >= 200 and {"written", KnowledgePathError} <= outcomes:
                break
            for call in (store.write, store.append):
                try:
                    await call("/dir/secret.md", "overwritten")
                    outcomes.add("written")
                except (KnowledgePathError, KnowledgeStoreError) as error:
                    outcomes.add(type(error))
            with suppress(KnowledgePathError, KnowledgeStoreError):
                assert await store.read("/dir/secret.md") != "secret"
    finally:
        stop.set()
        thread.join()
    assert {"written", KnowledgePathError} <= outcomes  # both sides of the race were met
    assert seen(outside) == before


async def test_a_hard_link_is_cut_before_something_is_appended(root, outside):
    store = DiskKnowledgeStore(root)
    os.link(outside / "secret.md", root / "a.md")
    assert await store.append("/a.md", " and more") == 6
    assert await store.read("/a.md") == "secret and more"
    assert (outside / "secret.md").read_text() == "secret"


async def test_a_root_may_be_given_through_a_link(tmp_path, root):
    (tmp_path / "link").symlink_to(root)
    store = DiskKnowledgeStore(tmp_path / "link")
    await store.write("/a", "text")
    assert (root / "a").read_text() == "text"
    assert store.root == str(root)


async def test_what_is_no_file_of_the_store_is_left_alone(root):
    store = DiskKnowledgeStore(root)
    os.mkfifo(root / "pipe")
    (root / "empty" / "dirs").mkdir(parents=True)
    (root / "back\\slash").write_text("x")
    (root / os.fsdecode(b"\xff")).write_text("x")
    assert await store.list() == []
    assert not await store.exists("/pipe")
    assert not await store.exists("/empty")
    assert await store.read("/pipe") is None
    with pytest.raises(KnowledgePathError, match="not a regular file"):
        await store.write("/pipe", "x")
    await store.write("/empty", "a file in the place of empty directories")
    assert await store.list() == ["empty"]


async def test_bytes_that_are_no_text_are_an_error_of_the_store(root):
    store = DiskKnowledgeStore(root)
    (root / "image").write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(KnowledgeStoreError, match="cannot read '/image'") as caught:
        await store.read("/image")
    assert isinstance(caught.value.__cause__, UnicodeDecodeError)


@pytest.mark.parametrize("character", ["é", "€", "🦊"])
async def test_a_character_torn_by_a_crash_is_cut_off(root, character):
    store = DiskKnowledgeStore(root)
    for kept in range(1, len(character.encode())):
        (root / "log").write_bytes(b"whole " + character.encode()[:kept])
        assert await store.read("/log") == "whole "
        assert await store.read_range("/log", 3) == "le "
        assert await store.append("/log", "") == 6
        assert await store.append("/log", character) == 6
        assert await store.append("/log", "!") == 6 + len(character.encode())
        assert await store.read("/log") == f"whole {character}!"


async def test_an_error_of_the_system_is_an_error_of_the_store(tmp_path):
    (tmp_path / "file").write_text("a file where the root should be")
    store = DiskKnowledgeStore(tmp_path / "file")
    with pytest.raises(KnowledgeStoreError, match="cannot write '/a'") as caught:
        await store.write("/a", "x")
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("method", ["write", "append"])
async def test_a_full_disk_costs_nothing(root, monkeypatch, method):
    store = DiskKnowledgeStore(root)
    await store.write("/a", "old content")
    pwrite = os.pwrite
    calls = iter((True, False))

    def full(file, data, offset):
        if next(calls):
            return pwrite(file, bytes(data)[:2], offset)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(KnowledgeStoreError, match="No space left"):
        await getattr(store, method)("/a", "new content")
    monkeypatch.undo()
    assert await store.read("/a") == "old content"
    assert sorted(path.name for path in root.iterdir()) == [_descriptors.LOCK_NAME, "a"]


async def test_leftovers_of_a_crash_are_neither_listed_nor_in_the_way(root):
    store = DiskKnowledgeStore(root)
    for directory in (root, root / "dir"):
        directory.mkdir(exist_ok=True)
        (directory / _descriptors.TEMP_NAME).write_text("half")
    assert await store.list() == []
    assert not await store.exists("/dir")
    await store.write("/a", "whole")
    await store.write("/dir/a", "whole")
    assert await store.list("/dir") == ["a"]
    assert not list(root.rglob(_descriptors.TEMP_NAME))
    (root / "dir" / _descriptors.TEMP_NAME).write_text("half")
    await store.delete("/dir/a")
    assert not (root / "dir").exists()


async def test_a_file_keeps_its_permissions(root):
    store = DiskKnowledgeStore(root)
    await store.write("/a", "one")
    (root / "a").chmod(0o600)
    await store.write("/a", "two")
    assert stat.S_IMODE((root / "a").stat().st_mode) == 0o600


WRITER = """
import asyncio, sys
from otel_assembly.knowledge import DiskKnowledgeStore

async def main():
    store = DiskKnowledgeStore(sys.argv[1])
    while True:
        for letter in "abcd":
            await store.write("/dir/a", letter * 2_000_000)
            print(letter, flush=True)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_writer_that_is_killed_leaves_a_whole_content(root):
    store = DiskKnowledgeStore(root)
    for delay in range(15):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(root)], stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            time.sleep(delay / 2_000)  # so that the kill meets the write at one place or another
            process.send_signal(signal.SIGKILL)
            process.wait()
        content = await store.read("/dir/a")
        assert content in {letter * 2_000_000 for letter in "abcd"}
        assert await store.list("/dir") == ["a"]
    await store.write("/dir/a", "after the crashes")
    assert sorted(path.name for path in (root / "dir").iterdir()) == ["a"]
