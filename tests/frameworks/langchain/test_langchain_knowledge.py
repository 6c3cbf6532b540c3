"""A store of LangGraph's as the store that memory policies read."""

from __future__ import annotations

import asyncio

import pytest
from langgraph.store.memory import InMemoryStore

from otel_assembly import ConfigurationError
from otel_assembly.errors import KnowledgePathError, KnowledgeStoreError
from otel_assembly.instrumentation.langchain import GraphKnowledgeStore
from otel_assembly.knowledge import KnowledgeStore


@pytest.fixture
def store():
    return GraphKnowledgeStore(InMemoryStore(), ("users", "ada"))


async def test_it_is_a_knowledge_store_whose_files_are_items(store):
    assert isinstance(store, KnowledgeStore)
    await store.write("/memory/working.md", "She likes tea.")
    assert store.store.get(("users", "ada", "memory"), "working.md").value == {"content": "She likes tea."}
    assert await store.read("/memory/working.md") == "She likes tea."
    assert await store.read("/memory/other.md") is None
    assert await store.read("/memory") is None


async def test_what_the_application_has_written_itself_is_read(store):
    store.store.put(("users", "ada", "memory"), "working.md", {"content": "By the application."})
    store.store.put(("users", "ada", "memory"), "profile", {"name": "Ada"})
    assert await store.read("/memory/working.md") == "By the application."
    assert await store.list("/memory/") == ["working.md"]


async def test_listings_ranges_and_deletions_are_those_of_every_store(store):
    for name in ("b.md", "a.md", "c.d/é.md", "c.d/deep/f.md", "c%2Ed/g.md"):
        await store.write(f"/m/{name}", f"text of {name}")
    assert await store.list("/m") == ["a.md", "b.md", "c%2Ed/", "c.d/"]
    assert await store.list("/m/c.d/") == ["deep/", "é.md"]
    assert await store.list() == ["m/"]
    assert await store.list("/nowhere") == []
    assert await store.read_range("/m/c.d/é.md", 8, 10) == "c."
    assert await store.exists("/m/c.d/deep")
    await store.delete("/m/c.d")
    assert not await store.exists("/m/c.d")
    await store.delete("/m/a.md")
    assert await store.list("/m") == ["b.md", "c%2Ed/"]
    await store.delete("/")
    assert await store.list() == []
    assert await store.exists("/")


async def test_a_path_is_a_file_or_a_directory(store):
    await store.write("/m/a.md", "one")
    with pytest.raises(KnowledgePathError, match="is a directory"):
        await store.write("/m", "two")
    with pytest.raises(KnowledgePathError, match="which is a file"):
        await store.write("/m/a.md/b.md", "two")
    with pytest.raises(KnowledgePathError, match="not absolute"):
        await store.read("m/a.md")


async def test_more_files_than_a_page_are_all_listed(store):
    for number in range(250):
        await store.write(f"/m/{number:03}.md", "text")
    assert len(await store.list("/m")) == 250


async def test_users_never_see_each_others_files(store):
    await store.write("/memory/working.md", "She likes tea.")
    other = GraphKnowledgeStore(store.store, ("users", "bob"))
    assert await other.read("/memory/working.md") is None
    assert await other.list() == []


async def test_what_it_cannot_do_well_it_refuses(store):
    with pytest.raises(KnowledgeStoreError, match="cannot append"):
        await store.append("/m/a.md", "more")


async def test_what_the_store_raises_is_the_cause():
    class Down(InMemoryStore):
        async def abatch(self, ops):
            raise ConnectionError("down")

    with pytest.raises(KnowledgeStoreError, match="ConnectionError") as raised:
        await GraphKnowledgeStore(Down()).read("/memory/working.md")
    assert isinstance(raised.value.__cause__, ConnectionError)


@pytest.mark.parametrize("namespace", [(), ("a.b",), ("",), "users", (1,)])
def test_a_namespace_that_langgraph_would_not_take_is_refused(namespace):
    with pytest.raises(ConfigurationError, match="namespace"):
        GraphKnowledgeStore(InMemoryStore(), namespace)


async def test_aggregates_write_what_policies_read(store):
    from otel_assembly import Context, ModelRequest, ModelResponse, WorkingMemoryPolicy
    from otel_assembly.knowledge import WorkingMemoryAggregate

    async def model(prompt):
        await asyncio.sleep(0)
        return "Ada wants a window seat."

    talk = [ModelRequest(content="A window seat, please."), ModelResponse(content="Of course.")]
    context = Context(dependencies={KnowledgeStore: store})
    await WorkingMemoryAggregate(model).aggregate(talk, context, store)
    prompts, _ = await WorkingMemoryPolicy().apply([], talk, context)
    assert prompts == ["## Working Memory\n\nAda wants a window seat."]
