"""A plug-in's conversation has one turn at a time: while its policies work, the context says whose that is."""

from __future__ import annotations

import asyncio

import pytest

from otel_assembly.instrumentation.plugin import Plugin, PluginConversation, TurnInput

TOOLS = {name: [{"type": "function", "function": {"name": name}}] for name in ("look", "book", "ask")}


class Slow:
    """Notes whose turn it is, and whose it is once others could have had theirs."""

    name = "slow"

    def __init__(self, asks=None):
        self.seen, self.asks = [], asks

    async def apply(self, prompts, events, context):
        before = context.agent_name, context.model, context.tools[0]["function"]["name"]
        if self.asks is not None:
            asks, self.asks = self.asks, None
            await asks()
        await asyncio.sleep(0.001)
        self.seen.append((before, (context.agent_name, context.model, context.tools[0]["function"]["name"])))
        return prompts, events


async def turn(conversation, who):
    messages = [{"role": "user", "content": who}]
    turn_input = TurnInput(
        framework_object=None,
        prompts=[],
        messages=messages,
        agent_name=who,
        model=f"model of {who}",
        tools=TOOLS[who],
    )
    async with conversation.turn(turn_input):
        assembly = await conversation.assemble(turn_input)
    return assembly.totals.tokens_out


def of(who):
    return who, f"model of {who}", who


async def test_who_asks_at_once_in_a_conversation_is_assembled_for_as_who_it_is():
    slow = Slow()
    conversation = PluginConversation(Plugin([slow]), "pretend", None)
    await asyncio.gather(*(turn(conversation, who) for who in TOOLS))
    assert slow.seen == [(of(who), of(who)) for who in TOOLS]


async def test_conversations_do_not_wait_for_one_another():
    both = asyncio.Barrier(2)

    class Meets(Slow):
        async def apply(self, prompts, events, context):
            await both.wait()
            return prompts, events

    plugin = Plugin([Meets()])
    await asyncio.gather(*(turn(PluginConversation(plugin, "pretend", who), who) for who in ("look", "book")))


async def test_what_a_policy_asks_in_its_turn_is_a_part_of_it():
    slow = Slow(asks=lambda: asyncio.gather(turn(conversation, "ask")))
    conversation = PluginConversation(Plugin([slow]), "pretend", None)
    await turn(conversation, "look")
    assert slow.seen == [(of("ask"), of("ask")), (of("look"), of("look"))]


def test_a_conversation_goes_on_in_another_event_loop():
    conversation = PluginConversation(Plugin([Slow()]), "pretend", None)

    async def turns():
        await asyncio.gather(*(turn(conversation, who) for who in TOOLS))

    asyncio.run(turns())
    asyncio.run(turns())


async def test_a_turn_that_fails_or_is_cancelled_is_over():
    conversation = PluginConversation(Plugin([Slow()]), "pretend", None)
    with pytest.raises(ZeroDivisionError):
        async with conversation.turn(TurnInput(framework_object=None, prompts=[], messages=[], agent_name="look")):
            raise ZeroDivisionError
    cancelled = asyncio.ensure_future(turn(conversation, "look"))
    await asyncio.sleep(0)
    cancelled.cancel()
    await turn(conversation, "book")
