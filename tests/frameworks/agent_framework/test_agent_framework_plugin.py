"""Our policies as chat middleware of an agent: within the budget, pairs whole, alerts delivered, halted for good."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from agent_framework import Agent, SlidingWindowStrategy
from agent_programs import QUESTIONS, two_rounds
from programs import EXAMPLES
from scripted_clients import ScriptedClient, steps, weather

from otel_assembly import (
    BudgetPolicy,
    ConversationPolicy,
    SlidingWindowPolicy,
)
from otel_assembly.instrumentation.agent_framework import AssemblyMiddleware


def budget(tokens):
    return AssemblyMiddleware(
        [ConversationPolicy(), BudgetPolicy(window=tokens + 50, output_reserve=50, step_tokens=0)]
    )


def clerk(client, *middleware, **more):
    return Agent(client, "You tell the weather.", name="clerk", tools=[weather], middleware=list(middleware), **more)


async def talk(agent):
    session = agent.create_session(session_id="one")
    for question in QUESTIONS:
        await agent.run(question, session=session)


async def test_its_model_call_is_stamped(own_spans):
    client = ScriptedClient(*two_rounds())
    await talk(clerk(client, budget(260)))
    told = {span.attributes["assembly.id"] for span in own_spans.spans_named("assemble_context")}
    assert {span.attributes["assembly.id"] for span in own_spans.spans if span.name.startswith("chat ")} == told


async def test_it_has_one_assembly_for_each_call_of_an_agent_without_instructions(told):
    client = ScriptedClient(*two_rounds())
    await talk(Agent(client, name="clerk", tools=[weather], middleware=[budget(260)]))
    assemblies = told.spans_named("assemble_context")
    assert len(assemblies) == len(client.received)
    assert {step for assembly in assemblies for step in steps(assembly)} == {"conversation", "budget"}


async def test_what_is_done_behind_it_is_told_too(told):
    client = ScriptedClient(*two_rounds())
    window = SlidingWindowStrategy(keep_last_groups=2)
    await talk(clerk(client, AssemblyMiddleware([SlidingWindowPolicy(9)]), compaction_strategy=window))
    last = told.spans_named("assemble_context")[-1]
    assert steps(last) == ["sliding_window"]
    assert last.attributes["assembly.events.out"] == len(client.received[-1].messages)
    assert last.attributes["assembly.tokens.out"] == client.received[-1].tokens


async def test_sessions_at_once_and_runs_without_one_do_not_mix(assembly_telemetry):
    client = ScriptedClient()
    agent = clerk(client, AssemblyMiddleware([SlidingWindowPolicy(2)]))
    sessions = [agent.create_session(session_id=str(number)) for number in range(5)]
    await asyncio.gather(*(agent.run(f"hello {number}", session=session) for number, session in enumerate(sessions)))
    await asyncio.gather(*(agent.run(f"hello {number}") for number in range(5)))
    assert {len(request.messages) for request in client.received} == {1}
    told = assembly_telemetry.spans_named("assemble_context")
    assert len({span.attributes["assembly.ledger.id"] for span in told}) == 10


def test_its_example_keeps_the_request():
    program = [sys.executable, EXAMPLES / "agent_framework_budget_policy.py"]
    said = subprocess.run(program, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(said) == 12
    assert all(line.endswith("True") for line in said[:-1])
    assert said[-1].startswith("All ten.")
