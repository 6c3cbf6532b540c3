"""Programs of agents that talk in an AG2 network's channels, as AG2's users write them."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ag2_package import ag2, call, part

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ag2_received import Log

network = part("network")
knowledge = part("knowledge")
transitions = part("network.transitions")


@asynccontextmanager
async def together(*agents: Any) -> AsyncIterator[dict[str, Any]]:
    """These agents in one network, each with a connection of its own: the client of each, by its name."""
    async with asyncio.timeout(500):
        hub = await network.Hub.open(
            knowledge.MemoryKnowledgeStore(), ttl_sweep_interval=0, expectation_sweep_interval=0
        )
        connections = [network.HubClient(network.LocalLink(hub), hub=hub) for _ in agents]
        yield {
            agent.name: await connection.register(agent, network.Passport(name=agent.name), network.Resume())
            for agent, connection in zip(agents, connections, strict=True)
        }
        for connection in connections:
            await connection.close()
        await hub.close()


def listening(client: Any, event_type: str) -> asyncio.Queue:
    """A participant who only hears: the envelopes of this type that reach it."""
    heard: asyncio.Queue = asyncio.Queue()

    async def hear(envelope: Any) -> None:
        if envelope.event_type == network.EV_CHANNEL_INVITE:
            await network.default_handler(envelope, client)
        if envelope.event_type == event_type:
            heard.put_nowait(envelope)

    client.on_envelope(hear)
    return heard


def delegate(target: str, prompt: str) -> Any:
    return call("delegate", json.dumps({"target": target, "prompt": prompt}))


async def consulting(log: Log) -> Any:
    """Somebody asks one agent, in a channel that closes with its answer."""
    invoking_agent = ag2.Agent("asker", config=log.model())
    helper = ag2.Agent("helper", "You know.", config=log.model("It is 42."))
    async with together(invoking_agent, helper) as clients:
        heard = listening(clients["asker"], network.EV_TEXT)
        channel = await clients["asker"].open(type=network.CONSULTING_TYPE, target="helper")
        await channel.send("what is it?")
        return (await heard.get()).event_data["text"]


async def delegation_through_channels(log: Log) -> Any:
    """An agent's run consults one agent, and then another."""
    calls = delegate("second", "is it there?"), delegate("third", "look!")
    first = ag2.Agent("first", config=log.model(*calls, "it is not"))
    second = ag2.Agent("second", config=log.model("ask the third"))
    third = ag2.Agent("third", config=log.model("no"))
    async with together(first, second, third):
        return (await first.ask("is it there?")).body


async def discussion(log: Log) -> Any:
    """Somebody and two agents in turn, twice around."""
    agents = (ag2.Agent(name, config=log.model(f"{name} one", f"{name} two")) for name in ("left", "right"))
    async with together(ag2.Agent("chair", config=log.model()), *agents) as clients:
        heard = listening(clients["chair"], network.EV_TEXT)
        channel = await clients["chair"].open(type=network.DISCUSSION_TYPE, target=["left", "right"])
        said = []
        for topic in ("first topic", "second topic"):
            await channel.send(topic)
            said += [(await heard.get()).event_data["text"] for _ in range(2)]
        return said


async def workflow(log: Log) -> Any:
    """A desk hands over by a tool, and the agent it hands over to goes on to the last."""

    def bill(why: str) -> str:
        """Hand over to billing."""
        return f"over to billing: {why}"

    invoking_agent = ag2.Agent("asker", config=log.model())
    desk = ag2.Agent("desk", config=log.model(call("bill", '{"why": "money"}'), "over to billing"), tools=[bill])
    billing = ag2.Agent("billing", config=log.model("it is paid"))
    manager = ag2.Agent("manager", config=log.model("all is well"))
    async with together(invoking_agent, desk, billing, manager) as clients:
        ids = {name: client.agent_id for name, client in clients.items()}
        graph = transitions.TransitionGraph(
            initial_speaker=ids["asker"],
            transitions=[
                transitions.Transition(when=when, then=transitions.AgentTarget(ids[to]))
                for when, to in (
                    (transitions.FromSpeaker(ids["asker"]), "desk"),
                    (transitions.ToolCalled("bill"), "billing"),
                    (transitions.FromSpeaker(ids["billing"]), "manager"),
                )
            ],
        )
        heard = listening(clients["asker"], network.EV_PACKET)
        channel = await clients["asker"].open(
            type=network.WORKFLOW_TYPE, target=["desk", "billing", "manager"], knobs={"graph": graph.to_dict()}
        )
        await channel.send("is it paid?")
        return [(await heard.get()).event_data["body"] for _ in range(3)]


PROGRAMS = {function.__name__: function for function in (consulting, delegation_through_channels, discussion, workflow)}
