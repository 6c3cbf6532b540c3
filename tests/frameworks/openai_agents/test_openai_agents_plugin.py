"""Our policies as the model input filter of a run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from agents import Agent, RunConfig, RunHooks, Runner, SQLiteSession, function_tool, trace
from openai_agents_models import ScriptedModel, Stage, history, words

from otel_assembly import (
    AlertPolicy,
    BudgetPolicy,
    HaltedError,
    ObserverAlert,
    Severity,
    SlidingWindowPolicy,
    describe,
)
from otel_assembly.instrumentation.openai_agents import AssemblyInputFilter

LOOKS = [*(["call:look", "call:look"] for _ in range(6)), "Done."]


@function_tool
def look() -> str:
    """Look something up."""
    return f"found {words(20)}"


def fatal(message: str = "The card was stolen.") -> ObserverAlert:
    return ObserverAlert(source="fraud", severity=Severity.FATAL, message=message)


def agent(stage: Stage, lines: Any = LOOKS, **more: Any) -> Agent[Any]:
    more = {"tools": [look], "instructions": "You look.", **more}
    return Agent("bob", model=ScriptedModel(stage, *lines), **more)


def run(plugin: AssemblyInputFilter, asked: Agent[Any], given: Any, **more: Any) -> Any:
    return Runner.run(asked, given, hooks=plugin, run_config=RunConfig(call_model_input_filter=plugin), **more)


def asks(text: str, turns: int = 0) -> list[Any]:
    return [*history(turns), {"role": "user", "content": text}]


async def test_the_very_objects_go_in_and_come_out():
    seen: list[Any] = []

    class Looks:
        name = "looks"

        async def apply(self, prompts: Any, events: Any, context: Any) -> Any:
            seen.extend(events)
            return prompts, [*events][-2:]

    class Notes(RunHooks[Any]):
        async def on_llm_start(self, context: Any, agent: Any, system_prompt: Any, input_items: Any) -> None:
            assert all(any(message is other for other in seen) for message in input_items)
            assert len(input_items) <= 2

    stage = Stage()
    config = RunConfig(call_model_input_filter=AssemblyInputFilter([Looks()]))
    await Runner.run(agent(stage), asks("Go", 3), hooks=Notes(), run_config=config)
    assert len(stage.received) == 7


async def test_what_was_reasoned_for_stands_and_falls_with_its_reasoning():
    held: list[Any] = []
    for turn in range(6):
        call = {"type": "function_call", "name": "look", "arguments": "{}", "call_id": f"c{turn}", "id": f"fc{turn}"}
        thought = {"type": "reasoning", "id": f"rs{turn}", "summary": [{"type": "summary_text", "text": words(9)}]}
        held += [thought, call, {"type": "function_call_output", "call_id": f"c{turn}", "output": words(20)}]
    for window in range(150, 600, 7):
        stage = Stage()
        plugin = AssemblyInputFilter([BudgetPolicy(window=window, output_reserve=50, step_tokens=0)])
        await run(plugin, agent(stage, ["Done."]), [*held, *asks("And?")])
        (received,) = stage.received
        assert received.tokens <= window - 50
        kinds = [item.get("type") for item in received.items]
        assert kinds == ["reasoning", "function_call", "function_call_output"] * (len(kinds) // 3) + [None]


async def test_what_was_done_before_it_is_told_of_beside_it(told, caplog):
    def newest_three(held: Any, new: Any) -> Any:
        return [*held[-3:], *new]

    stage, session = Stage(), SQLiteSession("before")
    await session.add_items(history(4))
    window = AssemblyInputFilter([SlidingWindowPolicy(3)], name="window")
    config = RunConfig(call_model_input_filter=window, session_input_callback=newest_three)
    await Runner.run(agent(stage), "Find all", session=session, run_config=config)
    assert not caplog.records
    spans = told.spans_named("assemble_context")
    sent = [span for span in spans if span.attributes.get("assembly.name") == "window"]
    assert [span.attributes["assembly.tokens.out"] for span in sent] == [request.tokens for request in stage.received]
    before = [span for span in spans if span not in sent]
    assert {child.name for span in before for child in span.children} == {"apply_policy newest_three"}


async def test_a_tool_is_not_called_that_was_asked_for_before_the_halt():
    called = []
    plugin = AssemblyInputFilter([AlertPolicy()], conversation="one")

    class Hook(AssemblyInputFilter):
        async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
            await plugin.context_of("one").send(fatal())
            await plugin.on_tool_start(context, agent, tool)

    @function_tool
    def note() -> str:
        """Note something."""
        called.append(1)
        return "noted"

    stage = Stage()
    talker = agent(stage, ["call:note", "Done."], tools=[note])
    with pytest.raises(HaltedError, match="stolen"):
        await Runner.run(talker, "Go", hooks=Hook([]), run_config=RunConfig(call_model_input_filter=plugin))
    assert called == []


async def test_the_context_of_the_run_is_a_dependency_of_the_policies():
    seen = []

    @dataclass
    class Order:
        number: int

    class Looks:
        name = "looks"

        async def apply(self, prompts: Any, events: Any, context: Any) -> Any:
            seen.append(context.dependencies[Order].number)
            return prompts, events

    await run(AssemblyInputFilter([Looks()]), agent(Stage(), ["Done."]), "Go", context=Order(4711))
    assert seen == [4711]


class Notes:
    name = "notes"
    watches = (dict,)

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def process(self, event: Any, context: Any) -> None:
        self.seen.append(event)


async def test_observers_see_each_item_once_in_runs_of_one_trace():
    notes, stage = Notes(), Stage()
    plugin = AssemblyInputFilter([SlidingWindowPolicy(4)], observers=[notes])
    talker = agent(stage, ["call:look", "Done.", "Done."])
    with trace("one"):
        first = await run(plugin, talker, "Yes")
        await run(plugin, talker, [*first.to_input_list(), {"role": "user", "content": "Yes"}])
    assert [describe(message).kind for message in notes.seen] == [
        "request", "tool_call", "tool_result", "response", "request", "response"
    ]  # fmt: skip


async def test_no_tool_is_called_if_an_observer_halts_a_conversation_without_an_id():
    called, stage = [], Stage()

    class Halts(Notes):
        async def process(self, event: Any, context: Any) -> None:
            if describe(event).opens:
                await context.send(fatal())

    @function_tool
    def note() -> str:
        """Note something."""
        called.append(1)
        return "noted"

    with pytest.raises(HaltedError):
        await run(AssemblyInputFilter([], observers=[Halts()]), agent(stage, [["call:note"] * 2], tools=[note]), "Go")
    assert (len(stage.received), called) == (1, [])


async def test_what_another_conversation_says_is_shown_though_it_says_the_same():
    notes, stage = Notes(), Stage()
    plugin = AssemblyInputFilter([], observers=[notes])
    for _ in range(2):
        await run(plugin, agent(stage, ["Done."]), "Yes")
    assert len(notes.seen) == 4


async def test_runs_that_are_asked_the_same_at_once_are_conversations_of_their_own(assembly_telemetry):
    class WaitingModel(ScriptedModel):
        async def get_response(self, *arguments: Any, **named: Any) -> Any:
            answer = await super().get_response(*arguments, **named)
            await asyncio.sleep(0.05 if self.calls == 2 else 0)  # the first of its calls, and of that its tool's
            return answer

    plugin, stage = AssemblyInputFilter([SlidingWindowPolicy(20)]), Stage()
    slow = Agent("slow", model=WaitingModel(stage, "call:look", "Done."), tools=[look])
    quick = Agent("quick", model=ScriptedModel(stage, "call:look", "Done."), tools=[look])
    with assembly_telemetry.as_default(), trace("both"):
        await asyncio.gather(*(run(plugin, message, "Yes") for message in (slow, quick)))
    turns: dict[str, list[Any]] = {}
    for span in sorted(assembly_telemetry.spans_named("assemble_context"), key=lambda span: span.start_ns):
        told = turns.setdefault(span.attributes["gen_ai.agent.name"], [])
        told.append((span.attributes["assembly.ledger.id"], span.attributes["assembly.turn"]))
    ledgers = {ledger for ledger, _ in turns["slow"]}, {ledger for ledger, _ in turns["quick"]}
    assert list(map(len, ledgers)) == [1, 1]
    assert ledgers[0] != ledgers[1]
    assert [turn for _, turn in turns["slow"]] == [turn for _, turn in turns["quick"]] == [0, 1]


async def test_agents_that_are_tools_are_held_and_shown_apart():
    notes, stage = Notes(), Stage()
    plugin = AssemblyInputFilter([BudgetPolicy(window=500, output_reserve=50, step_tokens=0)], observers=[notes])
    helper = Agent("helper", model=ScriptedModel(stage, "call:look", "It helps."), tools=[look])
    boss = agent(stage, ['call:ask {"input": "Help"}', "Done."], tools=[helper.as_tool("ask", "Ask.", hooks=plugin)])
    assert (await run(plugin, boss, "Go")).final_output == "Done."
    assert len(notes.seen) == len({str(message) for message in notes.seen}) == 4 + 4
    assert len(stage.received) == 4


class AnthropicModel(ScriptedModel):
    """A model whose class states its provider; the model's name does not."""


async def test_the_class_of_the_model_states_which_role_comes_first():
    for made, first in ((ScriptedModel, "assistant"), (AnthropicModel, "user")):
        stage = Stage()
        plugin = AssemblyInputFilter([SlidingWindowPolicy(4)])
        await run(plugin, Agent("bob", model=made(stage, "Done.", name="large")), asks("Find all", 4))
        assert stage.received[0].items[0]["role"] == first
