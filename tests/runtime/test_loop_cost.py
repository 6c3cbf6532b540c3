"""What a turn of an agent's loop takes, counted: generators, tasks and events, and never seconds."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from contextlib import contextmanager

import pytest
from pydantic import BaseModel
from spoken_agents import calls

from otel_assembly import Agent, MiddlewareBase
from otel_assembly.testing import ScriptedModel


async def look(city: str = "Rome") -> str:
    """Look."""
    return f"fine in {city}"


class Around(MiddlewareBase):
    """Stands around each step that yields events."""

    async def on_reply(self, agent, input_kwargs, next_handler):
        async for event in next_handler():
            yield event

    async def on_reasoning(self, agent, input_kwargs, next_handler):
        async for event in next_handler():
            yield event

    async def on_acting(self, agent, input_kwargs, next_handler):
        async for event in next_handler():
            yield event


@contextmanager
def counted(monkeypatch):
    """Async generators that are begun, tasks, time-outs, and models whose fields are checked."""
    found = Counter()
    begun, hooks, loop = sys.get_asyncgen_hooks().firstiter, sys.get_asyncgen_hooks(), asyncio.get_running_loop()
    made, timeout = BaseModel.__init__, asyncio.timeout

    def first(generator):
        found["generators"] += 1
        if begun is not None:
            begun(generator)

    def task(loop, coroutine, **settings):
        found["tasks"] += 1
        return asyncio.Task(coroutine, loop=loop, **settings)

    def checked(self, /, **fields):
        found[type(self).__name__] += 1
        made(self, **fields)

    def timed(seconds):
        found["timeouts"] += 1
        return timeout(seconds)

    with monkeypatch.context() as patch:
        patch.setattr(BaseModel, "__init__", checked)
        patch.setattr(asyncio, "timeout", timed)
        factory = loop.get_task_factory()
        loop.set_task_factory(task)
        sys.set_asyncgen_hooks(firstiter=first)
        try:
            yield found
        finally:
            sys.set_asyncgen_hooks(*hooks)
            loop.set_task_factory(factory)


async def asked(monkeypatch, rounds, called=("look",), middlewares=()):
    answers = [calls(*called) for _ in range(rounds)]
    agent = Agent("a", "", ScriptedModel(*answers, "done"), [look], middlewares=middlewares)
    with counted(monkeypatch) as found:
        await agent.ask("?")
    return found


@pytest.mark.parametrize("rounds", [1, 8])
async def test_a_call_alone_is_awaited_where_it_stands(monkeypatch, rounds):
    found = await asked(monkeypatch, rounds)
    # The ask, its turn and its rounds; what a round does is awaited, however many there are.
    assert found.pop("generators") == 3
    assert found.pop("timeouts") == rounds
    assert found.pop("tasks", 0) == 0
    # The last answer is the scripted model's own.
    assert found == {
        "TurnStarted": 1,
        "ModelRequest": 1,
        "ToolResultEvent": rounds,
        "ModelResponse": 1,
        "TurnCompleted": 1,
    }


async def test_calls_at_once_have_a_task_each(monkeypatch):
    found = await asked(monkeypatch, 1, ("look", "look", "look"))
    assert found["tasks"] == 3
    assert found["ToolErrorEvent"] == 0


async def test_a_hook_adds_its_layers_to_its_own_step_alone(monkeypatch):
    class Acting(MiddlewareBase):
        on_acting = Around.on_acting

    around_a_tool = (await asked(monkeypatch, 1, middlewares=[Acting()]))["generators"]
    more = (await asked(monkeypatch, 2, middlewares=[Acting()]))["generators"] - around_a_tool
    assert around_a_tool == 3 + more  # a second round adds what the first one's tool has, and nothing else
    both = await asked(monkeypatch, 1, middlewares=[Acting(), Acting()])
    assert both["generators"] > around_a_tool


async def test_layers_are_seen_by_what_counts_them(monkeypatch):
    alone = await asked(monkeypatch, 1)
    around = await asked(monkeypatch, 1, middlewares=[Around()])
    assert around["generators"] > alone["generators"] + 6
