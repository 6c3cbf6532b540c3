"""Stores that keep a file as an item of another store: what all of them do alike."""

from __future__ import annotations

import pytest

from otel_assembly import ConfigurationError
from otel_assembly.errors import KnowledgePathError, KnowledgeStoreError
from otel_assembly.knowledge import KnowledgeStore, StoreOfItems


class Items(StoreOfItems):
    """In a dict, by place and key."""

    _identity = "a dict"

    def __init__(self, *namespace):
        super().__init__(namespace)
        self.items = {}

    async def _get(self, place, key):
        return self.items.get((place, key))

    async def _put(self, place, key, text):
        self.items[place, key] = text

    async def _remove(self, place, key):
        del self.items[place, key]

    async def _search(self, place):
        for labels, key in list(self.items):
            if labels[: len(place)] == place:
                yield labels, key


async def test_a_path_is_an_item_in_a_place_without_dots():
    store = Items("knowledge")
    assert isinstance(store, KnowledgeStore)
    await store.write("/v1.2/100%/a.md", "text")
    assert store.items == {(("knowledge", "v1%2E2", "100%25"), "a.md"): "text"}
    assert await store.read("/v1.2/100%/a.md") == "text"
    assert await store.list("/v1.2") == ["100%/"]
    assert await store.read_range("/v1.2/100%/a.md", 1, 3) == "ex"
    await store.delete("/v1.2")
    assert store.items == {}


async def test_a_path_is_a_file_or_a_directory():
    store = Items("knowledge")
    await store.write("/m/a.md", "one")
    with pytest.raises(KnowledgePathError, match="is a directory"):
        await store.write("/m", "two")
    with pytest.raises(KnowledgePathError, match="which is a file"):
        await store.write("/m/a.md/b.md", "two")
    assert [await store.exists(path) for path in ("/", "/m", "/m/a.md", "/n")] == [True, True, True, False]


async def test_it_refuses_what_it_cannot_do_well():
    with pytest.raises(KnowledgeStoreError, match="a dict has no way"):
        await Items("knowledge").append("/a", "more")
    for wrong in ((), ("a.b",), ("",), (1,)):
        with pytest.raises(ConfigurationError, match="namespace"):
            Items(*wrong)
