"""A gate that queues what is proposed: the answer waits for nothing, and nothing that was queued is lost."""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar

import pytest
from clearing import desk

from otel_assembly import ConfigurationError, Task
from otel_assembly.context_assembler import (
    Candidate,
    KnowledgeRecall,
    KnowledgeWriteGate,
    QueuedWriteGate,
    Retained,
    RetentionOutcome,
)
from otel_assembly.knowledge import MemoryKnowledgeStore

ASKED = "Why was I billed twice?"


def fact(name, scope="public"):
    return Candidate(name, f"canary {name}", scope)


class Gate:
    """Writes once it is let, and notes what it was offered."""

    def __init__(self, *fails):
        self.offered = []
        self.open = asyncio.Event()
        self.fails = list(fails)

    async def offer(self, proposals):
        await self.open.wait()
        if self.fails:
            raise self.fails.pop(0)
        self.offered += [proposal.candidate.id for proposal in proposals]
        return [Retained(proposal, RetentionOutcome.WRITTEN) for proposal in proposals]


async def retained(gate, *names, answer="Because."):
    context = await desk(gate=gate).assemble(Task(ASKED), None)
    return [retained.outcome.value for retained in await context.retain(answer, [fact(name) for name in names])]


async def test_retaining_returns_before_anything_is_written_and_flush_waits_for_all_of_it():
    inner = Gate()
    gate = QueuedWriteGate(inner)
    assert await retained(gate, "a", "b") == ["queued", "queued"]
    assert await retained(gate, "c") == ["queued"]
    assert (gate.queued, inner.offered) == (3, [])
    inner.open.set()
    await gate.flush()
    assert inner.offered == ["a", "b", "c"]
    assert gate.queued == 0
    assert gate.outcomes == {"written": 3}
    await gate.flush()


async def test_what_is_forbidden_is_never_queued():
    gate = QueuedWriteGate(Gate())
    context = await desk(gate=gate).assemble(Task(ASKED), None)
    told = await context.retain("…", [fact("a", "secret")])
    assert [retained.outcome.value for retained in told] == ["forbidden_scope"]
    assert gate.queued == 0


async def test_a_full_queue_refuses_what_is_too_much_and_keeps_what_it_has(caplog):
    inner = Gate()
    gate = QueuedWriteGate(inner, max_queued=3)
    assert await retained(gate, "a", "b") == ["queued", "queued"]
    assert await retained(gate, "c", "d", "e") == ["queued", "refused", "refused"]
    assert gate.outcomes == {"refused": 2}
    assert "2 memories were not queued: the queue is full" in caplog.text
    inner.open.set()
    await gate.flush()
    assert inner.offered == ["a", "b", "c"]
    assert await retained(gate, "d") == ["queued"]
    await gate.aclose()
    assert inner.offered[-1] == "d"


async def test_a_closed_queue_has_written_all_and_takes_no_more(caplog):
    inner = Gate()
    inner.open.set()
    async with QueuedWriteGate(inner) as gate:
        await retained(gate, "a")
    assert inner.offered == ["a"]
    assert await retained(gate, "b") == ["refused"]
    assert "the queue is closed" in caplog.text


@pytest.mark.parametrize("error", [OSError("canary"), asyncio.CancelledError("canary")])
async def test_a_failure_is_logged_and_counted_costs_its_batch_alone_and_nobody_sees_it(error, caplog):
    caplog.set_level(logging.DEBUG, logger="otel_assembly")
    inner = Gate(error)
    inner.open.set()
    gate = QueuedWriteGate(inner)
    assert await retained(gate, "a", "b", answer="canary") == ["queued", "queued"]
    assert await retained(gate, "c") == ["queued"]
    await gate.flush()
    assert gate.outcomes == {"failed": 2, "written": 1}
    assert f"the write gate failed: {type(error).__name__}" in caplog.text
    assert "canary" not in caplog.text


async def test_a_gate_that_forgets_a_proposal_has_failed_it():
    class Forgetful:
        async def offer(self, proposals):
            return [Retained(proposals[0], RetentionOutcome.REJECTED)]

    gate = QueuedWriteGate(Forgetful())
    await retained(gate, "a", "b")
    await gate.flush()
    assert gate.outcomes == {"rejected": 1, "failed": 1}


async def test_what_is_written_later_belongs_to_who_proposed_it():
    asked, seen = ContextVar("asked"), []

    class Watching:
        async def offer(self, proposals):
            seen.append((asked.get(), [proposal.candidate.id for proposal in proposals]))
            return []

    gate = QueuedWriteGate(Watching())

    async def turn(name):
        asked.set(name)
        await retained(gate, name)

    await asyncio.gather(*(turn(name) for name in "abc"))
    await gate.flush()
    assert sorted(seen) == [(name, [name]) for name in "abc"]


async def test_a_cancelled_flush_loses_nothing():
    inner = Gate()
    gate = QueuedWriteGate(inner)
    await retained(gate, "a")
    flushing = asyncio.ensure_future(gate.flush())
    await asyncio.sleep(0)
    flushing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flushing
    inner.open.set()
    await gate.flush()
    assert inner.offered == ["a"]


def test_what_a_loop_left_behind_is_written_by_the_next_one():
    class Slow(Gate):
        def __init__(self):
            super().__init__()
            self.open = None

        async def offer(self, proposals):
            if self.open is None:
                await asyncio.Event().wait()
            self.offered += [proposal.candidate.id for proposal in proposals]
            return [Retained(proposal, RetentionOutcome.WRITTEN) for proposal in proposals]

    inner = Slow()
    gate = QueuedWriteGate(inner)
    asyncio.run(retained(gate, "a"))
    assert (gate.queued, inner.offered) == (1, [])
    inner.open = True
    asyncio.run(gate.flush())
    assert (gate.queued, inner.offered) == (0, ["a"])


async def test_what_was_queued_is_recalled_once_it_is_written():
    store = MemoryKnowledgeStore()
    gate = QueuedWriteGate(KnowledgeWriteGate(store, accept=lambda proposal: True))
    await retained(gate, "billed")
    await gate.aclose()
    (found,) = await KnowledgeRecall(store).search("billed", scopes={"public"}, k=3)
    assert found.id == "billed"


@pytest.mark.parametrize(("gate", "most"), [(object(), 3), (Gate(), 0), (Gate(), True), (Gate(), 1.5)])
def test_a_setting_that_cannot_work_is_an_error(gate, most):
    with pytest.raises(ConfigurationError, match=r"offer|max_queued must be"):
        QueuedWriteGate(gate, max_queued=most)
