"""Programs of teams of agents, as AutoGen's users write them."""

from __future__ import annotations

import json

from autogen_agentchat.agents import AssistantAgent, SocietyOfMindAgent
from autogen_agentchat.base import Handoff
from autogen_agentchat.conditions import MaxMessageTermination, TextMentionTermination
from autogen_agentchat.messages import MultiModalMessage
from autogen_agentchat.teams import (
    DiGraphBuilder,
    GraphFlow,
    MagenticOneGroupChat,
    RoundRobinGroupChat,
    SelectorGroupChat,
    Swarm,
)
from autogen_calls import Scripted, wants
from autogen_core.model_context import BufferedChatCompletionContext
from autogen_parts import BONN, picture, said, weather


async def a_round_robin(log):
    ann = AssistantAgent("ann", Scripted(log, "ann", *"abcd"), model_context=BufferedChatCompletionContext(2))
    bob = AssistantAgent("bob", Scripted(log, "bob", *"efgh"), model_client_stream=True)
    team = RoundRobinGroupChat([ann, bob], termination_condition=MaxMessageTermination(5))
    return said(await team.run(task="talk"))


def _selector(name, *picks, stream=False, **more):
    async def program(log):
        ann = AssistantAgent("ann", Scripted(log, "ann", *"abcd"), description="asks questions")
        bob = AssistantAgent("bob", Scripted(log, "bob", *"efgh"), description="answers them")
        team = SelectorGroupChat(
            [ann, bob],
            Scripted(log, "selector", *picks, **more),
            termination_condition=MaxMessageTermination(4),
            allow_repeated_speaker=True,
            model_context=BufferedChatCompletionContext(2),
            model_client_streaming=stream,
        )
        return said(await team.run(task="talk about the sea"))

    program.__name__ = name
    return program


async def a_swarm(log):
    triage = AssistantAgent(
        "triage",
        Scripted(log, "triage", wants(("transfer_to_booking", "{}")), "TERMINATE"),
        handoffs=["booking", Handoff(target="nobody")],
        model_context=BufferedChatCompletionContext(3),
    )
    booking = AssistantAgent(
        "booking",
        Scripted(log, "booking", wants(BONN, ("transfer_to_triage", "{}"))),
        tools=[weather],
        handoffs=["triage"],
    )
    team = Swarm(
        [triage, booking], termination_condition=TextMentionTermination("TERMINATE") | MaxMessageTermination(9)
    )
    return said(await team.run(task="book a table"))


def society(log, name="society", **more):
    ann = AssistantAgent("ann", Scripted(log, "ann", *"abcdxyz"))
    bob = AssistantAgent("bob", Scripted(log, "bob", *"efghuvw"))
    inner = RoundRobinGroupChat([ann, bob], termination_condition=MaxMessageTermination(4))
    return SocietyOfMindAgent(name, inner, Scripted(log, name, "so be it", "and so on", "the end", "truly"), **more)


async def a_society_of_mind(log):
    group = society(log)
    return [message for task in ("think", "again", "once more") for message in said(await group.run(task=task))]


async def a_society_that_may_say_system(log):
    group = society(log, model_context=BufferedChatCompletionContext(1))
    group._model_client.info["multiple_system_messages"] = True
    return [message for task in ("think", "again") for message in said(await group.run(task=task))]


async def a_team_in_a_team(log):
    dora = AssistantAgent("dora", Scripted(log, "dora", *"abcd"))
    inner = RoundRobinGroupChat([society(log), dora], termination_condition=MaxMessageTermination(6), name="inner")
    carl = AssistantAgent("carl", Scripted(log, "carl", *"ijkl"))
    team = RoundRobinGroupChat([inner, carl], termination_condition=MaxMessageTermination(9))
    return said(await team.run(task="talk"))


def ledger_entry(done, speaker="ann", progress=True):
    def answer(value):
        return {"reason": "so it is", "answer": value}

    return json.dumps(
        {
            "is_request_satisfied": answer(done),
            "is_in_loop": answer(False),
            "is_progress_being_made": answer(progress),
            "next_speaker": answer(speaker),
            "instruction_or_question": answer("go on"),
        }
    )


async def magentic_one(log):
    ann = AssistantAgent("ann", Scripted(log, "ann", *"abcd"), description="knows all")
    bob = AssistantAgent("bob", Scripted(log, "bob", *"efgh"), description="knows more")
    orchestrator = Scripted(
        log,
        "orchestrator",
        "the facts",
        "the plan",
        "no ledger at all",
        ledger_entry(False),
        ledger_entry(False, "bob", progress=False),
        "more facts",
        "another plan",
        ledger_entry(False, "bob"),
        ledger_entry(True),
        "it is done",
    )
    team = MagenticOneGroupChat([ann, bob], orchestrator, max_stalls=1)
    return said(await team.run(task=[MultiModalMessage(content=["find", picture(), "out"], source="user")]))


async def a_graph(log):
    agents = [AssistantAgent(name, Scripted(log, name, "x", "y")) for name in ("ann", "bob", "carl")]
    ann, bob, carl = agents
    builder = DiGraphBuilder().add_node(ann).add_node(bob).add_node(carl)
    builder.add_edge(ann, bob).add_edge(ann, carl)
    team = GraphFlow(agents, graph=builder.build())
    return sorted(said(await team.run(task="both")))


#: Of each program, how many runs it makes.
TEAMS = {
    a_round_robin: 1,
    _selector("a_selector", "ann", "bob", "ann"): 1,
    _selector("a_selector_of_openais", "ann", "bob", "ann", family="gpt-4o"): 1,
    _selector("a_selector_that_has_to_be_asked_again", "nobody", "ann and bob", "ann", "bob", "x", "ann"): 1,
    _selector("a_selector_that_streams", "nobody", "ann", "bob", "the ann", stream=True): 1,
    a_swarm: 1,
    a_society_of_mind: 3,
    a_society_that_may_say_system: 2,
    a_team_in_a_team: 1,
    magentic_one: 1,
    a_graph: 1,
}
