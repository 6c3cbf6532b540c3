"""Agents that run in the background of another one's run: their calls are theirs, whenever they come."""

from __future__ import annotations

import asyncio

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_calls import assert_every_call_is_told, client
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import HumanMessage
from langchain_parts import asks, calls, weather

ASIDE = {"messages": [HumanMessage("One."), HumanMessage("Two.")]}


class Starts:
    """Starts an agent, and does not wait for it."""

    def __init__(self, log):
        self.aside = create_agent(client(log, "Noted."), [], name="aside")
        self.done = asyncio.Event()
        self.running = []

    def once(self):
        if not self.running:
            self.running.append(asyncio.create_task(self._later()))

    async def _later(self):
        await self.done.wait()
        await self.aside.ainvoke(ASIDE)


class AsModelIsCalled(Starts, AsyncCallbackHandler):
    async def on_chat_model_start(self, *_, **__):
        self.once()


class AroundTheCall(Starts, AgentMiddleware):
    async def awrap_model_call(self, request, handler):
        self.once()
        return await handler(request)


class BeforeTheCall(Starts, AgentMiddleware):
    async def abefore_model(self, state, runtime):
        self.once()


@pytest.mark.parametrize("where", [AsModelIsCalled, AroundTheCall, BeforeTheCall])
async def test_an_agent_that_was_started_and_not_waited_for_asks_by_itself(where, telemetry):
    log = []
    starts = where(log)
    model = client(log, calls(("weather", {"city": "Rome"})), "Done.")
    watching = {"middleware": [starts]} if isinstance(starts, AgentMiddleware) else {}
    agent = create_agent(model, [weather], name="clerk", **watching)
    given = [starts] if not watching else []
    await agent.ainvoke(asks("Rome?"), {"callbacks": given})
    starts.done.set()
    await starts.running[0]
    told = assert_every_call_is_told(telemetry, log)
    assert [span.attributes["gen_ai.agent.name"] for span in told] == ["clerk", "clerk", "aside"]
