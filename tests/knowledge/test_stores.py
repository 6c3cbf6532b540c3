"""What every store does alike."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_assembly import ConfigurationError
from otel_assembly.errors import KnowledgePathError, KnowledgeStoreError
from otel_assembly.knowledge import (
    CONVERSATIONS_PREFIX,
    WORKING_MEMORY_PATH,
    ComparingKnowledgeStore,
    KnowledgeStore,
    RedisKnowledgeStore,
    SqliteKnowledgeStore,
)

if TYPE_CHECKING:
    from collections.abc import Callable

FILE_METHODS = ("read", "write", "append", "read_range", "replace")
METHODS = (*FILE_METHODS, "list", "delete", "exists")


async def call(store: KnowledgeStore, method: str, path: str) -> Any:
    extra = {"write": ("text",), "append": ("text",), "read_range": (0,), "replace": (None, "text")}.get(method, ())
    return await getattr(store, method)(path, *extra)


def test_is_a_knowledge_store(new_store):
    assert isinstance(new_store(), KnowledgeStore)
    assert not isinstance(object(), KnowledgeStore)


async def test_an_empty_store_has_nothing(store):
    assert await store.read(WORKING_MEMORY_PATH) is None
    assert await store.read_range(WORKING_MEMORY_PATH, 0) == ""
    assert await store.list() == []
    assert await store.list(CONVERSATIONS_PREFIX) == []
    assert await store.exists("/")
    assert not await store.exists("/memory")
    await store.delete(WORKING_MEMORY_PATH)
    await store.delete("/")


async def test_what_was_written_is_read_and_replaced_whole(store):
    await store.write(WORKING_MEMORY_PATH, "a long first content")
    await store.write(WORKING_MEMORY_PATH, "short")
    assert await store.read(WORKING_MEMORY_PATH) == "short"
    await store.write(WORKING_MEMORY_PATH, "")
    assert await store.read(WORKING_MEMORY_PATH) == ""
    assert await store.exists(WORKING_MEMORY_PATH)


@pytest.mark.parametrize(
    "content",
    ["", "\n", "a\r\nb\rc\n", "\ufeffbom", "nul \0 inside", "žluťoučký 🦊 é", "{events} %s '; DROP TABLE x; --"],
)
async def test_contents_come_back_byte_by_byte(store, content):
    await store.write("/a.md", content)
    assert await store.read("/a.md") == content
    assert await store.append("/a.md", content) == len(content.encode())
    assert await store.read("/a.md") == content * 2


async def test_a_content_that_is_no_text_is_refused_and_costs_nothing(store):
    await store.write("/a", "old")
    half = "half \ud800"
    for method, texts in (
        ("write", [half]),
        ("append", [half]),
        ("replace", [half, "new"]),
        ("replace", ["old", half]),
    ):
        with pytest.raises(KnowledgeStoreError, match="no Unicode text") as caught:
            await getattr(store, method)("/a", *texts)
        assert isinstance(caught.value.__cause__, UnicodeEncodeError)
    assert await store.read("/a") == "old"


async def test_a_listing_has_the_children_only_sorted_with_directories_marked(store):
    for path in ("/b", "/a/x", "/a/deep/er/y", "/B", "/a.md", "/é", "/ž/🦊"):
        await store.write(path, "text")
    assert await store.list() == await store.list("/") == ["B", "a.md", "a/", "b", "é", "ž/"]
    assert await store.list("/a") == await store.list("/a/") == ["deep/", "x"]
    assert await store.list("/ž") == ["🦊"]
    assert await store.list("/b") == []


async def test_names_are_literal(store):
    """What other layers give a meaning (SQL, globs, format strings) is an ordinary character here."""
    names = ["%", "_", "*", "?", "[a]", "'", '"', ";", "{x}", "a b", "~", "-rf", ".hidden", "...", "C", "ab:c"]
    for name in names:
        await store.write(f"/{name}/{name}", name)
    assert await store.list() == sorted(f"{name}/" for name in names)
    await store.delete("/%")
    await store.delete("/_")
    await store.delete("/*")
    assert await store.list() == sorted(f"{name}/" for name in names[3:])
    for name in names[3:]:
        assert await store.read(f"/{name}/{name}") == name


async def test_delete_is_recursive_and_takes_nothing_beside_it(store):
    for path in ("/a/b/c", "/a/b/d/e", "/ab", "/a.b", "/a/bc"):
        await store.write(path, path)
    await store.delete("/a/b")
    assert await store.list("/a") == ["bc"]
    assert await store.list() == ["a.b", "a/", "ab"]
    await store.delete("/a/b/c/none")
    await store.delete("/ab/none")
    assert await store.read("/ab") == "/ab"
    await store.delete("/")
    assert await store.list() == []
    await store.write("/again", "text")
    assert await store.read("/again") == "text"


async def test_a_directory_goes_with_its_last_file(store):
    await store.write("/a/b/c", "text")
    await store.write("/a/x", "text")
    await store.delete("/a/b/c")
    assert not await store.exists("/a/b")
    assert await store.exists("/a/")
    await store.write("/a/b", "now a file")
    assert await store.list("/a") == ["b", "x"]
    await store.delete("/a/b")
    await store.delete("/a/x")
    assert await store.list() == []
    await store.write("/a", "now a file")
    assert await store.read("/a") == "now a file"


async def test_a_path_is_a_file_or_a_directory(store):
    await store.write("/dir/file", "text")
    for method in ("write", "append", "replace"):
        with pytest.raises(KnowledgePathError, match="is a directory"):
            await call(store, method, "/dir")
        with pytest.raises(KnowledgePathError, match="which is a file"):
            await call(store, method, "/dir/file/below/it")
    assert await store.read("/dir") is None
    assert await store.read_range("/dir", 0) == ""
    assert await store.read("/dir/file/below") is None
    assert not await store.exists("/dir/file/below")
    assert await store.list("/dir/file/below") == []
    assert await store.read("/dir/file") == "text"


BAD_PATHS = {
    "": "not absolute",
    "memory/working.md": "not absolute",
    "../secret": "not absolute",
    "~/secret": "not absolute",
    "C:/secret": "not absolute",
    "\\\\host\\share": "not absolute",
    "/..": "segment",
    "/../secret": "segment",
    "/a/../../secret": "segment",
    "/a/./b": "segment",
    "/.": "segment",
    "//etc/passwd": "empty segment",
    "/a//b": "empty segment",
    "/a\0b": "NUL",
    "/a\\..\\b": "backslash",
    "/C:/secret": "drive letter",
    "/C:": "drive letter",
    "/x/d:file": "drive letter",
    "/.otel-assembly.lock": "the store's own",
    "/a/.otel-assembly.tmp": "the store's own",
    "/\ud800": "Unicode",
    "/" + "x" * 256: "255 bytes",
    "/" + "é" * 128: "255 bytes",
    "/" + "/".join(["x" * 200] * 6): "1024 bytes",
    "/" + "/".join("x" * 40): "40 segments",
}


@pytest.mark.parametrize("method", METHODS)
async def test_a_path_that_is_none_of_the_store_is_refused(store, method):
    for path, problem in BAD_PATHS.items():
        with pytest.raises(KnowledgePathError, match=problem):
            await call(store, method, path)


@pytest.mark.parametrize("method", FILE_METHODS)
@pytest.mark.parametrize("path", ["/", "/a/", "//"])
async def test_a_file_is_not_named_by_a_directory_path(store, method, path):
    with pytest.raises(KnowledgePathError):
        await call(store, method, path)


@pytest.mark.parametrize("path", ["/" + "é" * 127, "/" + "/".join("x" * 32), "/" + "/".join(["x" * 203] * 5)])
async def test_the_longest_paths_are_taken(store, path):
    await store.write(path, "text")
    assert await store.read(path) == "text"
    await store.delete(path)
    assert await store.list() == []


async def test_append_gives_the_offset_in_bytes(store):
    parts = ["first\n", "žluť", "", "🦊🦊", "last"]
    offsets = [await store.append("/log/a.jsonl", part) for part in parts]
    assert offsets == [0, 6, 12, 12, 20]
    for offset, part in zip(offsets, parts, strict=True):
        assert await store.read_range("/log/a.jsonl", offset, offset + len(part.encode())) == part
    assert await store.read("/log/a.jsonl") == "".join(parts)


async def test_append_follows_a_write(store):
    await store.write("/a", "🦊")
    assert await store.append("/a", "x") == 4
    await store.write("/a", "y")
    assert await store.append("/a", "z") == 1
    assert await store.read("/a") == "yz"


async def test_a_range_holds_the_characters_that_begin_in_it(store):
    await store.write("/a", "aé€🦊z")  # the characters begin at 0, 1, 3, 6 and 10
    assert await store.read_range("/a", 0) == "aé€🦊z"
    assert await store.read_range("/a", 1, 2) == "é"
    assert await store.read_range("/a", 2, 3) == ""
    assert await store.read_range("/a", 2, 4) == "€"
    assert await store.read_range("/a", 7, 10) == ""
    assert await store.read_range("/a", 8) == "z"
    assert await store.read_range("/a", 5, 2) == ""
    assert await store.read_range("/a", 11) == await store.read_range("/a", 10**12, 10**30) == ""
    assert await store.read_range("/a", 0, 10**30) == "aé€🦊z"
    for start, end in ((-1, None), (0, -1)):
        with pytest.raises(ConfigurationError):
            await store.read_range("/a", start, end)


async def test_ranges_that_adjoin_give_the_whole_text(store):
    text = "aé€🦊z\n" * 7
    await store.write("/a", text)
    size = len(text.encode())
    for width in range(1, 12):
        parts = [await store.read_range("/a", start, start + width) for start in range(0, size, width)]
        assert "".join(parts) == text


async def test_big_contents(store):
    text = "0123456789abcdé" * 70_000  # 1.1 MB
    size = len(text.encode())
    await store.write("/big", text)
    assert await store.read("/big") == text
    assert await store.append("/big", text) == size
    assert await store.append("/big", "end") == 2 * size
    assert await store.read_range("/big", size, 2 * size) == text
    assert await store.read_range("/big", 2 * size - 2) == "éend"
    assert await store.read("/big") == text + text + "end"
    await store.write("/big", "small")
    assert await store.read("/big") == "small"


async def test_many_appends_of_every_size(store):
    """Sizes around those at which a store may start a new piece."""
    expected = ""
    for size in (1, 60_000, 5_000, 600, 1, 70_000, 65_535, 1, 1, 40_000, 40_000):
        part = chr(97 + size % 26) * size
        assert await store.append("/a", part) == len(expected)
        expected += part
        assert await store.read_range("/a", len(expected) - 1) == part[-1]
    assert await store.read("/a") == expected
    for start in range(0, len(expected), 31_337):
        assert await store.read_range("/a", start, start + 50_000) == expected[start : start + 50_000]


async def test_a_content_is_replaced_only_if_it_is_the_one_that_was_read(store):
    assert isinstance(store, ComparingKnowledgeStore)
    assert not await store.replace("/a/b", "old", "new")
    assert not await store.exists("/a")
    assert await store.replace("/a/b", None, "é1")
    assert not await store.replace("/a/b", None, "again")
    assert not await store.replace("/a/b", "é", "again")
    assert await store.replace("/a/b", "é1", "")
    assert not await store.replace("/a/b", None, "again")
    assert await store.replace("/a/b", "", "last")
    assert await store.read("/a/b") == "last"
    assert not await store.replace("/a/b", "first", None)
    assert await store.replace("/a/b", "last", None)
    assert await store.list() == []


async def test_a_directory_is_no_content_that_could_be_replaced(store):
    await store.write("/dir/file", "text")
    assert not await store.replace("/dir", "text", "new")
    assert await store.replace("/dir", None, None)
    assert await store.replace("/none", None, None)
    with pytest.raises(KnowledgePathError, match="is a directory"):
        await store.replace("/dir", None, "new")
    with pytest.raises(KnowledgePathError, match="which is a file"):
        await store.replace("/dir/file/below", None, "new")
    assert not await store.replace("/dir/file/below", "text", None)
    assert await store.read("/dir/file") == "text"


async def test_of_many_who_replace_one_content_each_sees_what_it_replaced(store):
    async def add_one() -> None:
        while True:
            before = await store.read("/count")
            if await store.replace("/count", before, str(int(before or 0) + 1)):
                return

    await asyncio.gather(*(add_one() for _ in range(20)))
    assert await store.read("/count") == "20"


async def test_appends_of_many_tasks_are_all_kept(store):
    offsets = await asyncio.gather(*(store.append("/log", f"{n:03d}\n") for n in range(60)))
    assert sorted(offsets) == [4 * n for n in range(60)]
    for n, offset in enumerate(offsets):
        assert await store.read_range("/log", offset, offset + 4) == f"{n:03d}\n"


async def test_writers_and_readers_at_once_see_whole_contents(store):
    contents = [letter * 200_000 for letter in "abcdef"]
    await store.write("/a", contents[0])

    async def reads() -> set[str | None]:
        return {await store.read("/a") for _ in range(8)}

    results = await asyncio.gather(*(store.write("/a", content) for content in contents), reads(), reads())
    assert set().union(*results[len(contents) :]) <= set(contents)
    assert await store.read("/a") in contents


async def test_an_append_is_seen_whole_or_not_at_all(store):
    part = "x" * 1_000_000

    async def sizes() -> set[int]:
        return {len(await store.read_range("/a", 0)) for _ in range(25)}

    results = await asyncio.gather(*(store.append("/a", part) for _ in range(6)), sizes(), sizes())
    assert {size % len(part) for size in set().union(*results[6:])} == {0}


async def test_writes_deletes_and_appends_in_one_directory_do_not_hurt_each_other(store):
    async def churn(name: str) -> None:
        for _ in range(8):
            await store.append(f"/dir/sub/{name}", name)
            assert await store.read(f"/dir/sub/{name}") == name
            await store.delete(f"/dir/sub/{name}")

    await asyncio.gather(*(churn(name) for name in "abcdef"))
    assert await store.list() == []


def test_threads_with_loops_of_their_own_share_a_store(new_store):
    store = new_store()
    errors: list[BaseException] = []

    async def work(name: str) -> None:
        for n in range(10):
            await store.append("/log", f"{name}{n}\n")
            await store.write(f"/own/{name}", str(n))

    def run(name: str) -> None:
        try:
            asyncio.run(work(name))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def check() -> None:
        lines = (await store.read("/log") or "").splitlines()
        assert sorted(lines) == sorted(f"{name}{n}" for name in "abcd" for n in range(10))
        assert [line for line in lines if line.startswith("a")] == [f"a{n}" for n in range(10)]
        assert await store.list("/own") == list("abcd")
        if isinstance(store, SqliteKnowledgeStore | RedisKnowledgeStore):
            await store.close()

    asyncio.run(check())
    assert errors == []


NAMES = st.sampled_from(["a", "b", "A", "%", "é", "a.md"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(lambda names: "/" + "/".join(names))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
STEPS = st.one_of(
    st.tuples(st.just("write"), PATHS, TEXTS),
    st.tuples(st.just("append"), PATHS, TEXTS),
    st.tuples(st.just("delete"), PATHS),
    st.tuples(st.just("replace"), PATHS, st.none() | TEXTS, st.none() | TEXTS),
    st.tuples(st.just("read"), PATHS),
    st.tuples(st.just("exists"), PATHS),
    st.tuples(st.just("list"), PATHS | st.just("/")),
    st.tuples(st.just("read_range"), PATHS, st.integers(0, 12), st.none() | st.integers(0, 12)),
)


class Model:
    """The stores' contract, on a dict of path to text."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}

    def apply(self, step: tuple[Any, ...]) -> Any:
        method, path, *rest = step
        return getattr(self, method)(path, *rest)

    def beneath(self, path: str) -> list[str]:
        return [file for file in self.files if file.startswith(path.rstrip("/") + "/")]

    def write(self, path: str, content: str) -> Any:
        if self.beneath(path) or any(path.startswith(f"{file}/") for file in self.files):
            return KnowledgePathError
        self.files[path] = content
        return None

    def replace(self, path: str, old: str | None, new: str | None) -> Any:
        if self.files.get(path) != old:
            return False
        if new is None:
            self.files.pop(path, None)
            return True
        return self.write(path, new) or True

    def append(self, path: str, content: str) -> Any:
        old = self.files.get(path, "")
        return self.write(path, old + content) or len(old.encode())

    def delete(self, path: str) -> None:
        for item in [path, *self.beneath(path)]:
            self.files.pop(item, None)

    def read(self, path: str) -> str | None:
        return self.files.get(path)

    def exists(self, path: str) -> bool:
        return path in self.files or bool(self.beneath(path))

    def list(self, path: str) -> Any:
        prefix = path.rstrip("/") + "/"
        names = (item.removeprefix(prefix).partition("/") for item in self.beneath(path))
        return sorted({name + slash for name, slash, _ in names})

    def read_range(self, path: str, start: int, end: int | None) -> str:
        offset, found = 0, ""
        for character in self.files.get(path, ""):
            found += character if start <= offset and (end is None or offset < end) else ""
            offset += len(character.encode())
        return found


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(steps=st.lists(STEPS, max_size=14))
def test_any_calls_do_what_a_dict_would(new_store: Callable[[], KnowledgeStore], steps: list[tuple[Any, ...]]) -> None:
    async def run() -> None:
        store, model = new_store(), Model()
        try:
            for step in steps:
                method, path, *rest = step
                expected = model.apply(step)
                if expected is KnowledgePathError:
                    with pytest.raises(KnowledgePathError):
                        await getattr(store, method)(path, *rest)
                else:
                    assert await getattr(store, method)(path, *rest) == expected
            for path in model.files:
                assert await store.read(path) == model.files[path]
            assert await store.list() == model.list("/")
        finally:
            if isinstance(store, SqliteKnowledgeStore | RedisKnowledgeStore):
                await store.close()

    asyncio.run(run())
