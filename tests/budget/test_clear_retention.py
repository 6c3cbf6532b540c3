"""What lasts beyond an answer: proposed after it, past a gate, and never at the answer's cost."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from clearing import desk, sent

from otel_assembly import ConfigurationError, Task
from otel_assembly.context_assembler import Candidate, KnowledgeRecall, KnowledgeWriteGate, RetentionOutcome
from otel_assembly.knowledge import MemoryKnowledgeStore

ASKED = "Which plan am I on?"
FACT = Candidate(
    "plan", "Ada is on the pro plan.", "public", source="billing", version=datetime(2026, 3, 1, tzinfo=UTC)
)


class WatchedStore(MemoryKnowledgeStore):
    def __init__(self):
        super().__init__()
        self.touched = []

    async def write(self, path, content):
        self.touched.append(("write", path))
        await super().write(path, content)

    async def read(self, path):
        self.touched.append(("read", path))
        return await super().read(path)

    async def list(self, path="/"):
        self.touched.append(("list", path))
        return await super().list(path)


def always(proposal):
    return True


async def test_nothing_is_written_before_the_answer_and_what_is_accepted_after_it():
    store = WatchedStore()
    context = await desk(gate=KnowledgeWriteGate(store, accept=always)).assemble(Task(ASKED), user="ada")
    assert store.touched == []
    (one,) = await context.retain("You are on pro.", candidates=[FACT])
    assert one.outcome is RetentionOutcome.WRITTEN
    ((_, path),) = store.touched
    record = json.loads(await MemoryKnowledgeStore.read(store, path))
    assert (record["content"], record["scope"], record["source"]) == (FACT.content, "public", "billing")
    assert record["assembly"] == context.assembly.id


async def test_the_rule_sees_the_proposal_and_decides():
    seen, handed = [], []

    async def accept(proposal):
        seen.append((proposal.candidate.id, proposal.answer))
        return proposal.candidate.id == "plan"

    gate = KnowledgeWriteGate(accept=accept, write=handed.append)
    context = await desk(gate=gate).assemble(Task(ASKED), user="ada")
    rumour = Candidate("rumour", "Ada may leave.", "public")
    told = await context.retain("You are on pro.", candidates=[rumour, FACT])
    assert [retained.outcome.value for retained in told] == ["rejected", "written"]
    assert seen == [("rumour", "You are on pro."), ("plan", "You are on pro.")]
    assert [(retained.candidate.id, retained.assembly) for retained in handed] == [("plan", context.assembly.id)]


async def test_what_lies_outside_of_the_scopes_never_reaches_the_gate():
    handed = []
    context = await desk(gate=KnowledgeWriteGate(accept=always, write=handed.append)).assemble(Task(ASKED), user="ada")
    (one,) = await context.retain("…", candidates=[Candidate("x", "Secret.", "board")])
    assert one.outcome is RetentionOutcome.FORBIDDEN_SCOPE
    assert handed == []


async def test_a_failure_costs_its_proposal_alone_and_says_nothing_of_it(caplog):
    def accept(proposal):
        if proposal.candidate.id == "bad":
            raise ValueError("canary")
        return True

    class Broken:
        async def offer(self, proposals):
            raise OSError("canary")

    handed = []
    bad = Candidate("bad", "canary", "public")
    gate = KnowledgeWriteGate(accept=accept, write=handed.append)
    context = await desk(gate=gate).assemble(Task(ASKED), user="ada")
    assert [retained.outcome.value for retained in await context.retain("…", [bad, FACT])] == ["failed", "written"]
    context = await desk(gate=Broken()).assemble(Task(ASKED), user="ada")
    assert [retained.outcome.value for retained in await context.retain("…", [bad])] == ["failed"]
    assert "ValueError" in caplog.text
    assert "OSError" in caplog.text
    assert "canary" not in caplog.text


async def test_without_a_gate_retaining_says_what_is_missing():
    context = await desk().assemble(Task(ASKED), user="ada")
    with pytest.raises(ConfigurationError, match="gate=KnowledgeWriteGate"):
        await context.retain("…", candidates=[FACT])


@pytest.mark.parametrize("settings", [{}, {"store": MemoryKnowledgeStore(), "write": print}])
def test_a_gate_writes_to_one_place(settings):
    with pytest.raises(ConfigurationError, match="exactly one of store and write"):
        KnowledgeWriteGate(**settings, accept=always)


# What was written is recalled


async def remembering(*candidates):
    store = WatchedStore()
    scopes = {candidate.scope for candidate in candidates}
    gate = KnowledgeWriteGate(store, accept=always)
    context = await desk(gate=gate, scopes=lambda user, task: scopes).assemble(Task(ASKED), user=None)
    assert {retained.outcome.value for retained in await context.retain("…", candidates)} == {"written"}
    store.touched.clear()
    return store


async def test_what_was_retained_is_recalled_on_a_later_turn():
    store = await remembering(FACT, Candidate("tea", "Likes tea.", "public"))
    context = await desk(recall=KnowledgeRecall(store)).assemble(Task(ASKED), user="ada")
    assert "Ada is on the pro plan." in sent(context)
    assert "tea" not in sent(context)


async def test_the_profile_is_recalled_whatever_is_asked():
    store = await remembering(Candidate("p", "Ist aus Köln.", "public", profile=True))
    context = await desk(recall=KnowledgeRecall(store)).assemble(Task(ASKED), user="ada")
    assert "Ist aus Köln." in sent(context)


async def test_a_newer_version_takes_the_place_of_an_older_one():
    store = await remembering(FACT)
    newer = Candidate("plan", "Ada is on the free plan.", "public", version=datetime(2026, 4, 1, tzinfo=UTC))
    gate = KnowledgeWriteGate(store, accept=always)
    context = await desk(gate=gate).assemble(Task(ASKED), user="ada")
    await context.retain("…", [newer])
    (found,) = await KnowledgeRecall(store).search(ASKED, scopes={"public"}, k=9)
    assert (found.content, found.version) == (newer.content, newer.version)


NAMES = ["a", "a/b", "..", ".", "", "a.b", "A%2FB", "한국", "\ud800", "x" * 400, "x" * 401, "C:", "a\\b", "nul\0"]


@pytest.mark.parametrize("name", NAMES)
async def test_any_scope_and_any_id_is_kept_apart_from_every_other(name):
    everything = [
        Candidate(id_, f"plan {at}", scope) for at, (scope, id_) in enumerate((s, i) for s in NAMES for i in NAMES)
    ]
    everything = [fact for fact in everything if "\ud800" not in fact.id + fact.scope]
    store = await remembering(*everything)
    permitted = {name}
    found = await KnowledgeRecall(store).search("plan", scopes=permitted, k=1_000)
    assert {fact.id for fact in found} == {fact.id for fact in everything if fact.scope == name}
    assert {fact.scope for fact in found} <= permitted
    assert len({path.split("/")[3] for _, path in store.touched}) == 1


async def test_a_memory_that_cannot_be_read_is_passed_over_without_a_word_of_it(caplog):
    store = await remembering(FACT)
    await store.write("/memory/scopes/public/broken.json", "canary {")
    await store.write("/memory/scopes/public/other.json", '{"id": "canary"}')
    await store.write("/memory/scopes/public/moved.json", '{"id": "m", "scope": "canary", "content": "plan canary"}')
    found = await KnowledgeRecall(store).search(ASKED, scopes={"public"}, k=9)
    assert [fact.id for fact in found] == ["plan"]
    assert "canary" not in caplog.text
    assert "is skipped" in caplog.text
