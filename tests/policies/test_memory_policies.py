from __future__ import annotations

import pytest

from otel_assembly import (
    Assembler,
    ConfigurationError,
    Context,
    EpisodicMemoryPolicy,
    ModelRequest,
    WorkingMemoryPolicy,
)
from otel_assembly.errors import KnowledgeStoreError, PolicyFailedError
from otel_assembly.knowledge import CONVERSATIONS_PREFIX, WORKING_MEMORY_PATH, KnowledgeStore, MemoryKnowledgeStore


async def store_of(**episodes):
    store = MemoryKnowledgeStore()
    for name, text in episodes.items():
        await store.write(f"{CONVERSATIONS_PREFIX}{name}.md", text)
    return store


def context(store):
    return Context(dependencies={KnowledgeStore: store})


async def test_working_memory_is_appended_as_it_is_written():
    store = MemoryKnowledgeStore()
    await store.write(WORKING_MEMORY_PATH, "The user flies to Seoul.\n")
    prompts, events = await WorkingMemoryPolicy().apply(["be brief"], [ModelRequest(content="hi")], context(store))
    assert prompts == ["be brief", "## Working Memory\n\nThe user flies to Seoul.\n"]
    assert len(events) == 1


@pytest.mark.parametrize("content", [None, "", "  \n"])
async def test_no_working_memory_adds_nothing(content):
    store = MemoryKnowledgeStore()
    if content is not None:
        await store.write(WORKING_MEMORY_PATH, content)
    assert await WorkingMemoryPolicy().apply(["be brief"], [], context(store)) == (["be brief"], [])


@pytest.mark.parametrize("policy", [WorkingMemoryPolicy(), EpisodicMemoryPolicy()])
async def test_without_a_store_nothing_is_added(policy):
    assert await policy.apply(["be brief"], [], Context()) == (["be brief"], [])


@pytest.mark.parametrize("kind", [WorkingMemoryPolicy, EpisodicMemoryPolicy])
async def test_a_policy_without_a_store_says_so_once_and_how_to_mend_it(caplog, kind):
    policy = kind()
    assembler = Assembler([policy])
    for _ in range(3):
        await assembler.assemble(["be brief"], [ModelRequest(content="hi")], Context())
    (said,) = [record.getMessage() for record in caplog.records if record.name == "otel_assembly"]
    assert repr(policy.name) in said
    assert "dependencies={KnowledgeStore: store}" in said


async def test_a_store_with_nothing_in_it_is_no_reason_to_warn(caplog):
    for policy in (WorkingMemoryPolicy(), EpisodicMemoryPolicy()):
        await policy.apply([], [], context(MemoryKnowledgeStore()))
    assert caplog.records == []


async def test_episodes_are_joined_oldest_first_and_counted():
    store = await store_of(t1="one", t2="two", t3="three")
    prompts, _ = await EpisodicMemoryPolicy().apply(["be brief"], [], context(store))
    assert prompts == [
        "be brief",
        "## Past Conversations\n\none\n\n---\n\ntwo\n\n---\n\nthree",
        "[episodic_memory] Injected 3 past conversation summaries.",
    ]


async def test_only_the_newest_episodes_are_injected():
    store = await store_of(**{f"2026-01-{day:02}": f"day {day}" for day in range(1, 9)})
    prompts, _ = await EpisodicMemoryPolicy(max_episodes=2).apply([], [], context(store))
    assert prompts == [
        "## Past Conversations\n\nday 7\n\n---\n\nday 8",
        "[episodic_memory] Injected 2 past conversation summaries.",
    ]


async def test_one_episode_is_the_newest_one():
    store = await store_of(a="old", b="new")
    prompts, _ = await EpisodicMemoryPolicy(max_episodes=1, transparent=False).apply([], [], context(store))
    assert prompts == ["## Past Conversations\n\nnew"]


async def test_empty_episodes_are_skipped_and_not_counted():
    store = await store_of(a="one", b=" \n", c="three")
    prompts, _ = await EpisodicMemoryPolicy().apply([], [], context(store))
    assert prompts[-1] == "[episodic_memory] Injected 2 past conversation summaries."


async def test_no_episodes_add_no_note():
    assert await EpisodicMemoryPolicy().apply([], [], context(await store_of())) == ([], [])


async def test_folders_below_are_no_episodes():
    store = await store_of(a="one")
    await store.write(f"{CONVERSATIONS_PREFIX}zz/inner.md", "not a summary")
    prompts, _ = await EpisodicMemoryPolicy(transparent=False).apply([], [], context(store))
    assert prompts == ["## Past Conversations\n\none"]


@pytest.mark.parametrize("wrong", [0, -1, True, 2.0, "5", None])
def test_a_number_of_episodes_that_is_no_whole_number_from_1_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="max_episodes"):
        EpisodicMemoryPolicy(max_episodes=wrong)


class BrokenStore(MemoryKnowledgeStore):
    async def read(self, path):
        raise KnowledgeStoreError("the disk is gone")


@pytest.mark.parametrize("policy", [WorkingMemoryPolicy(), EpisodicMemoryPolicy()])
async def test_a_store_that_cannot_be_read_fails_the_turn_unless_policies_may_be_skipped(policy):
    store = BrokenStore()
    await store.write(f"{CONVERSATIONS_PREFIX}a.md", "one")
    with pytest.raises(PolicyFailedError, match=policy.name) as failed:
        await Assembler([policy]).assemble([], [], context(store))
    assert isinstance(failed.value.__cause__, KnowledgeStoreError)
    assembly = await Assembler([policy], on_policy_error="skip").assemble(["be brief"], [], context(store))
    assert assembly.prompts == ["be brief"]
