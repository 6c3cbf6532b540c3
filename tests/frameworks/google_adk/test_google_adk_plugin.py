"""Our policies as a plugin of an ADK app."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from google.adk.agents import Agent, ParallelAgent, SequentialAgent
from google.adk.events.event import Event
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.plugins.context_filter_plugin import ContextFilterPlugin
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.genai import types
from google_adk_models import ScriptedLlm, Stage, Talk, words

from otel_assembly import (
    AlertPolicy,
    BudgetPolicy,
    HaltedError,
    ObserverAlert,
    Severity,
    SlidingWindowPolicy,
)
from otel_assembly.instrumentation.google_adk import AssemblyPlugin
from otel_assembly.runtime import TokenMonitor

LOOKS = [*(["call:look", "call:look"] for _ in range(6)), "Done."]


def look() -> str:
    """Look something up."""
    return f"found {words(20)}"


def fatal(message: str = "The card was stolen.") -> ObserverAlert:
    return ObserverAlert(source="fraud", severity=Severity.FATAL, message=message)


def talk(stage: Stage, *plugins: Any, lines: Any = LOOKS, tools: Any = (look,), **more: Any) -> Talk:
    model = ScriptedLlm(stage, *lines)
    bob = Agent(name="bob", model=model, tools=list(tools), instruction="You look.", **more)
    return Talk(bob, plugins=list(plugins))


def budget(window: int = 400, **more: Any) -> AssemblyPlugin:
    return AssemblyPlugin([BudgetPolicy(window=window, output_reserve=50, step_tokens=0, **more)])


async def test_contents_come_out_as_the_very_objects():
    seen = []

    class Notes(BasePlugin):
        async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
            seen.append(list(llm_request.contents))

    stage = Stage()
    await talk(stage, Notes("first"), AssemblyPlugin([SlidingWindowPolicy(3)]), Notes("last")).say("Find all")
    pairs = list(zip(seen[::2], seen[1::2], strict=True))
    assert len(pairs) == 7
    assert all({*map(id, after)} <= {*map(id, before)} for before, after in pairs)
    assert [len(after) for _, after in pairs] == [1, 3, 3, 3, 3, 3, 3]


async def test_what_other_plugins_and_callbacks_do_is_told_beside_it(told):
    def reminds(callback_context: Any, llm_request: Any) -> None:
        llm_request.contents.append(types.Content(role="user", parts=[types.Part(text="Remember.")]))

    stage = Stage()
    conversation = talk(
        stage, ContextFilterPlugin(num_invocations_to_keep=1), AssemblyPlugin([SlidingWindowPolicy(3)], name="window"),
        before_model_callback=reminds, lines=["call:look", "Done.", "call:look", "Done."],
    )  # fmt: skip
    await conversation.say("One")
    await conversation.say("Two")
    spans = told.spans_named("assemble_context")
    steps = {child.name.partition(" ")[2] for span in spans for child in span.children}
    assert steps == {"context_filter", "sliding_window", "reminds"}
    sent = [span for span in spans if any(child.name.endswith("reminds") for child in span.children)]
    assert [span.attributes["assembly.tokens.out"] for span in sent] == [request.tokens for request in stage.received]


async def test_tools_of_an_answer_that_came_before_the_halt_are_not_called_any_more():
    called = []
    plugin = AssemblyPlugin([AlertPolicy()])

    class Halts(BasePlugin):
        async def before_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any) -> None:
            await plugin.context_of(tool_context.session).send(fatal())

    def note() -> str:
        """Note something."""
        called.append(1)
        return "noted"

    stage = Stage()
    conversation = talk(stage, Halts("halts"), plugin, lines=["call:note"], tools=[note])
    with pytest.raises(HaltedError):
        await conversation.say("Go")
    assert (len(stage.received), called) == (1, [])
    assert "Not called" in str(await conversation.events())


async def test_each_agent_of_an_app_is_held():
    stage = Stage()
    agents = [Agent(name=name, model=ScriptedLlm(stage, *LOOKS), tools=[look]) for name in ("first", "second")]
    await Talk(SequentialAgent(name="both", sub_agents=agents), plugins=[budget(600)]).say("Find all")
    assert len(stage.received) == 14
    assert max(received.tokens for received in stage.received) <= 550


async def test_agents_that_ask_at_once_keep_their_own_tools_and_names():
    seen = []

    class Looks:
        name = "looks"

        async def apply(self, prompts: Any, events: Any, context: Any) -> Any:
            await asyncio.sleep(0)
            seen.append((context.agent_name, len(context.tools)))
            return prompts, events

    async def variables(_: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {}

    stage = Stage()
    agents = [
        Agent(name=f"a{at}", model=ScriptedLlm(stage, "Done."), tools=[look] if at % 2 else []) for at in range(4)
    ]
    both = ParallelAgent(name="all", sub_agents=agents)
    await Talk(both, plugins=[AssemblyPlugin([Looks()], variables=variables)]).say("Go")
    assert sorted(seen) == [("a0", 0), ("a1", 1), ("a2", 0), ("a3", 1)]


async def test_users_of_one_session_id_are_two_conversations():
    plugin = AssemblyPlugin([AlertPolicy()])
    service = InMemorySessionService()
    one, other = [await service.create_session(app_name="talk", user_id=user, session_id="1") for user in ("a", "b")]
    await plugin.context_of(one).send(fatal())
    assert plugin.context_of(one).guard.halt is not None
    assert plugin.context_of(other).guard.halt is None


@pytest.mark.parametrize("observers", [[], [TokenMonitor(10**8, 10**9)]], ids=["no observer", "an observer"])
async def test_a_model_call_reads_only_the_new_events_of_a_session(observers, monkeypatch):
    reads = [0]
    inherited = Event.__getattribute__

    def counted(event: Event, name: str) -> Any:
        reads[0] += sys._getframe(1).f_globals["__name__"].startswith("otel_assembly.")
        return inherited(event, name)

    monkeypatch.setattr(Event, "__getattribute__", counted)
    plugin = AssemblyPlugin([SlidingWindowPolicy(3)], observers=observers)
    conversation = talk(Stage(), plugin, lines=["Done."] * 30)
    of_turns = []
    for _ in range(30):
        before = reads[0]
        await conversation.say("Go on")
        of_turns.append(reads[0] - before)
    assert of_turns[29] == of_turns[9]
