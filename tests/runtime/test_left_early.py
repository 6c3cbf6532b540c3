"""Whoever leaves an agent's events early ends what was being done for them at once."""

from __future__ import annotations

import gc
from contextlib import aclosing

import pytest

from otel_assembly import Agent, MiddlewareBase
from otel_assembly.testing import ScriptedModel


class Passing(MiddlewareBase):
    """Hands everything on, as AgentScope's page shows it: the loop over what comes is not closed."""

    async def on_reply(self, agent, input_kwargs, next_handler):
        async for event in next_handler(**input_kwargs):
            yield event

    async def on_reasoning(self, agent, input_kwargs, next_handler):
        async for event in next_handler():
            yield event


class Slow:
    """A client whose stream says when it was closed."""

    model = "slow"

    def __init__(self, closed):
        self._closed = closed

    async def __call__(self, prompts, events, *, tools=(), tool_choice=None):
        whole = await ScriptedModel(["one ", "two"])(prompts, events)

        async def stream():
            try:
                async for part in whole:
                    yield part
            finally:
                self._closed.append("stream")

        return stream()


@pytest.mark.parametrize("layers", [0, 1, 3])
async def test_the_models_stream_is_closed_when_its_reader_has_left(layers):
    closed = []
    agent = Agent("a", "", Slow(closed), middlewares=[Passing() for _ in range(layers)])
    gc.disable()
    try:
        async with aclosing(agent.stream("?")) as events:
            async for _ in events:
                break
        assert closed == ["stream"]
    finally:
        gc.enable()
    # The session is free for the next ask.
    assert not agent.session.asking.locked()
