"""Our policies as chat middleware of an agent: within the budget, pairs whole, alerts delivered, halted for good."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest
from agent_framework import Agent, Content, Message, SlidingWindowStrategy
from agent_programs import QUESTIONS, two_rounds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import EXAMPLES
from recount import assert_sendable
from scripted_clients import ScriptedClient, assert_told, calling, read, steps, streamed, weather

from otel_assembly import (
    AlertPolicy,
    Assembler,
    BudgetPolicy,
    ConfigurationError,
    ContextOverflowError,
    ConversationPolicy,
    HaltedError,
    ObserverAlert,
    Severity,
    SlidingWindowPolicy,
)
from otel_assembly.budget import ExtractiveCompactor
from otel_assembly.instrumentation import instrument, uninstrument
from otel_assembly.instrumentation.agent_framework import AssemblyMiddleware

HOWS = pytest.mark.parametrize("how", ["awaited", "streamed"])


def fatal(message="The card was stolen."):
    return ObserverAlert(source="fraud", severity=Severity.FATAL, message=message)


def budget(tokens):
    return AssemblyMiddleware(
        [ConversationPolicy(), BudgetPolicy(window=tokens + 50, output_reserve=50, step_tokens=0)]
    )


def clerk(client, *middleware, **more):
    return Agent(client, "You tell the weather.", name="clerk", tools=[weather], middleware=list(middleware), **more)


async def ask(how, agent, text, **more):
    return await streamed(agent, text, **more) if how == "streamed" else (await agent.run(text, **more)).text


async def talk(how, agent):
    session = agent.create_session(session_id="one")
    return [await ask(how, agent, question, session=session) for question in QUESTIONS]


@HOWS
async def test_what_is_received_is_within_the_budget_with_instructions_and_tools(assembly_telemetry, how):
    client = ScriptedClient(*two_rounds())
    await talk(how, clerk(client, budget(260)))
    assert len(client.received) == 9
    assert max(message.tokens for message in client.received) <= 260
    assert len(client.received[-1].messages) < 17
    for request in client.received:
        sent = list(map(read, request.messages))
        assert_sendable(sent, sent)
    told = assembly_telemetry.spans_named("assemble_context")
    assert [span.attributes["assembly.tokens.out"] for span in told] == [message.tokens for message in client.received]
    assert [span.attributes["assembly.events.in"] for span in told] == [1, 3, 5, 7, 9, 11, 13, 15, 17]
    assert {span.attributes["assembly.budget.limit"] for span in told} == {260}
    assert assembly_telemetry.violations() == []


@HOWS
async def test_inside_an_instrumented_agent_it_is_told_once(told, how):
    client = ScriptedClient(*two_rounds())
    await talk(how, clerk(client, budget(260)))
    assemblies = assert_told(told, client.received)
    assert [span.attributes["assembly.turn"] for span in assemblies] == list(range(9))
    assert {span.attributes["gen_ai.agent.name"] for span in assemblies} == {"clerk"}
    assert {span.attributes["gen_ai.conversation.id"] for span in assemblies} == {"one"}
    assert {tuple(steps(span)) for span in assemblies} == {("conversation", "budget")}


async def test_its_model_call_is_stamped(own_spans):
    client = ScriptedClient(*two_rounds())
    await talk("awaited", clerk(client, budget(260)))
    told = {span.attributes["assembly.id"] for span in own_spans.spans_named("assemble_context")}
    assert {span.attributes["assembly.id"] for span in own_spans.spans if span.name.startswith("chat ")} == told


async def test_what_is_done_behind_it_is_told_too(told):
    client = ScriptedClient(*two_rounds())
    window = SlidingWindowStrategy(keep_last_groups=2)
    await talk("awaited", clerk(client, AssemblyMiddleware([SlidingWindowPolicy(9)]), compaction_strategy=window))
    last = told.spans_named("assemble_context")[-1]
    assert steps(last) == ["sliding_window"]
    assert last.attributes["assembly.events.out"] == len(client.received[-1].messages)
    assert last.attributes["assembly.tokens.out"] == client.received[-1].tokens


@HOWS
async def test_a_session_that_is_halted_calls_no_model_any_more(assembly_telemetry, how):
    plugin, client = AssemblyMiddleware([AlertPolicy()]), ScriptedClient()
    agent = clerk(client, plugin, plugin.tools)
    await plugin.context_of("one").send(fatal())
    for _ in range(2):
        with pytest.raises(HaltedError, match="The card was stolen"):
            await ask(how, agent, "hello", session=agent.create_session(session_id="one"))
    assert client.received == []
    assert await ask(how, agent, "hello", session=agent.create_session(session_id="two"))


class Watches:
    """Raises a fatal alert once a model asks to dial."""

    name = "watches"
    watches = Message

    def __init__(self):
        self.seen = []

    async def process(self, event, context):
        self.seen.append(event)
        if any(content.name == "dial" for content in event.contents if content.type == "function_call"):
            await context.send(fatal("no calls today"))


@HOWS
async def test_a_response_that_halts_starts_no_tool(assembly_telemetry, how):
    started = []

    def dial(number: str) -> str:
        """Dial."""
        started.append(number)
        return "dialled"

    plugin = AssemblyMiddleware([AlertPolicy()], observers=[Watches()])
    client = ScriptedClient(calling("1", "2", name="dial", number="5"), "done")
    agent = Agent(client, name="clerk", tools=[dial], middleware=[plugin, plugin.tools])
    with pytest.raises(HaltedError):
        await ask(how, agent, "dial", session=agent.create_session())
    assert (started, len(client.received)) == ([], 1)


async def test_a_tool_that_is_not_started_yet_is_not_called_after_a_halt(assembly_telemetry):
    plugin, started = AssemblyMiddleware([AlertPolicy()]), []

    async def dial(number: str) -> str:
        """Dial."""
        started.append(number)
        await plugin.context_of("one").send(fatal())
        return "dialled"

    client = ScriptedClient(calling("1", name="dial", number="5"), calling("2", name="dial", number="6"))
    agent = Agent(client, name="clerk", tools=[dial], middleware=[plugin, plugin.tools])
    with pytest.raises(HaltedError):
        await agent.run("dial", session=agent.create_session(session_id="one"))
    assert (started, len(client.received)) == (["5"], 1)


async def test_a_warning_reaches_the_model_once_beside_the_instructions(assembly_telemetry):
    plugin, client = AssemblyMiddleware([AlertPolicy()]), ScriptedClient("one", "two")
    agent = clerk(client, plugin)
    session = agent.create_session(session_id="one")
    warning = ObserverAlert(source="cost", severity=Severity.WARNING, message="Half of the money is spent.")
    await plugin.context_of("one").send(warning)
    await agent.run("hello", session=session)
    await agent.run("and now?", session=session)
    first, second = (request.instructions for request in client.received)
    assert first.startswith("You tell the weather.")
    assert "Half of the money is spent." in first
    assert second == "You tell the weather."


async def test_observers_see_each_message_once(assembly_telemetry):
    watch = Watches()
    plugin = AssemblyMiddleware([ConversationPolicy()], observers=[watch])
    client = ScriptedClient("one", "two")
    agent = clerk(client, plugin)
    session = agent.create_session()
    for question in ("first", "second"):
        await agent.run(question, session=session)
    assert [event.text for event in watch.seen] == ["first", "one", "second", "two"]


async def test_a_budget_that_cannot_hold_is_raised_before_the_model_is_called(assembly_telemetry):
    client = ScriptedClient()
    with pytest.raises(ContextOverflowError):
        await clerk(client, budget(20)).run("hello")
    assert client.received == []


async def test_summaries_are_messages_that_a_client_can_send(assembly_telemetry):
    policy = BudgetPolicy(
        window=350, output_reserve=50, step_tokens=0, compact=ExtractiveCompactor(), summary_tokens=60
    )
    client = ScriptedClient(*two_rounds())
    await talk("awaited", clerk(client, AssemblyMiddleware([policy])))
    assert max(request.tokens for request in client.received) <= 300
    assert any("summarised" in text for request in client.received for text in request.said)


async def test_sessions_at_once_and_runs_without_one_do_not_mix(assembly_telemetry):
    client = ScriptedClient()
    agent = clerk(client, AssemblyMiddleware([SlidingWindowPolicy(2)]))
    sessions = [agent.create_session(session_id=str(number)) for number in range(5)]
    await asyncio.gather(*(agent.run(f"hello {number}", session=session) for number, session in enumerate(sessions)))
    await asyncio.gather(*(agent.run(f"hello {number}") for number in range(5)))
    assert {len(request.messages) for request in client.received} == {1}
    told = assembly_telemetry.spans_named("assemble_context")
    assert len({span.attributes["assembly.ledger.id"] for span in told}) == 10


async def test_instrumenting_does_not_change_what_it_sends(assembly_telemetry):
    def play():
        client = ScriptedClient(*two_rounds())
        return client, talk("awaited", clerk(client, budget(260)))

    alone, talking = play()
    answers = await talking
    with assembly_telemetry.as_default():
        instrument("agent_framework")
        try:
            observed, talking = play()
            assert await talking == answers
        finally:
            uninstrument("agent_framework")
    assert [request.said for request in observed.received] == [request.said for request in alone.received]


def test_an_assembler_brings_its_own_name_and_model():
    with pytest.raises(ConfigurationError):
        AssemblyMiddleware(Assembler([ConversationPolicy()]), name="other")


@st.composite
def conversations(draw):
    """Messages of a conversation that ends with a request: texts, and calls with all their results."""
    found = []
    for turn in range(draw(st.integers(1, 8))):
        found.append(Message("user", [draw(st.sampled_from(["why?", "tell me more " * 9, "é" * 30]))]))
        ids = [f"{turn}-{number}" for number in range(draw(st.integers(0, 3)))]
        if ids:
            found.append(calling(*ids))
            found.append(
                Message("tool", [Content.from_function_result(item_id, result="rain " * 20) for item_id in ids])
            )
        found.append(Message("assistant", [json.dumps({"turn": turn})]))
    return [*found, Message("user", ["and now?"])]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=conversations(), tokens=st.integers(100, 700))
def test_whatever_the_conversation_pairs_are_whole_and_the_budget_holds(messages, tokens):
    client = ScriptedClient("done")
    asyncio.run(clerk(client, budget(tokens)).run(messages))
    (one,) = client.received
    assert one.tokens <= tokens
    assert one.messages[-1].text == "and now?"
    sent = list(map(read, one.messages))
    assert_sendable(sent, sent)
    assert one.instructions == "You tell the weather."


def test_its_example_keeps_the_request():
    program = [sys.executable, EXAMPLES / "agent_framework_budget_policy.py"]
    said = subprocess.run(program, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(said) == 12
    assert all(line.endswith("True") for line in said[:-1])
    assert said[-1].startswith("All ten.")
