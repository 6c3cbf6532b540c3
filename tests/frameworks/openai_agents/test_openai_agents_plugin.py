"""Our policies as the model input filter of a run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from agents import Agent, RunConfig, RunHooks, Runner, SQLiteSession, function_tool, trace
from hypothesis import given, settings
from hypothesis import strategies as st
from openai_agents_models import ScriptedModel, Stage, history, words

from otel_assembly import (
    AlertPolicy,
    Assembler,
    BudgetPolicy,
    ConfigurationError,
    ContextOverflowError,
    HaltedError,
    ObserverAlert,
    Severity,
    SlidingWindowPolicy,
    describe,
)
from otel_assembly.budget import ExtractiveCompactor
from otel_assembly.instrumentation import instrument, uninstrument
from otel_assembly.instrumentation.openai_agents import AssemblyInputFilter
from otel_assembly.testing import RecordedTelemetry

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


async def run_streamed(plugin: AssemblyInputFilter, asked: Agent[Any], given: Any, **more: Any) -> Any:
    config = RunConfig(call_model_input_filter=plugin)
    result = Runner.run_streamed(asked, given, hooks=plugin, run_config=config, **more)
    async for _ in result.stream_events():
        pass
    return result


def asks(text: str, turns: int = 0) -> list[Any]:
    return [*history(turns), {"role": "user", "content": text}]


def whole_pairs(items: list[Any]) -> bool:
    """Whether each result stands behind its call, and each call in front of its result."""
    asked: list[str] = []
    for item in items:
        if item.get("type") == "function_call":
            asked.append(item["call_id"])
        elif item.get("type") == "function_call_output":
            asked.remove(item["call_id"])
    return not asked


def budget(window: int = 400, **more: Any) -> AssemblyInputFilter:
    return AssemblyInputFilter([BudgetPolicy(window=window, output_reserve=50, step_tokens=0, **more)])


async def test_no_call_is_over_the_budget_and_the_run_s_result_is_left_alone(assembly_telemetry):
    stage = Stage()
    result = await run(budget(), agent(stage), asks("Find all", 4))
    assert [received.tokens <= 350 for received in stage.received] == [True] * 7
    assert all(whole_pairs(received.items) for received in stage.received)
    assert all(received.prompts == ["You look."] for received in stage.received)
    assert all("Find all" in str(received.items) for received in stage.received)
    assert len(result.to_input_list()) == 9 + 6 * 4 + 1
    spans = assembly_telemetry.spans_named("assemble_context")
    assert {span.attributes["assembly.budget.limit"] for span in spans} == {350}
    assert {span.attributes["assembly.framework"] for span in spans} == {"openai_agents"}
    assert [span.attributes["assembly.tokens.out"] for span in spans] == [request.tokens for request in stage.received]
    assert assembly_telemetry.violations() == []


async def test_a_session_stays_whole_and_a_stream_is_held_as_well():
    stage = Stage()
    session, plugin = SQLiteSession("whole"), budget()
    for turn in range(3):
        await run_streamed(plugin, agent(stage), f"Find {turn}", session=session)
    assert len(await session.get_items()) == 3 * (1 + 6 * 4 + 1)
    assert max(received.tokens for received in stage.received) <= 350
    assert all(whole_pairs(received.items) for received in stage.received)


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


async def test_inside_an_instrumented_run_it_is_told_once(told):
    stage = Stage()
    window = AssemblyInputFilter([SlidingWindowPolicy(3)], name="window", conversation="one")
    await run(window, agent(stage), "Find all", session=SQLiteSession("one"))
    spans = told.spans_named("assemble_context")
    assert [span.attributes["assembly.turn"] for span in spans] == [*range(7)]
    assert {span.attributes["assembly.name"] for span in spans} == {"window"}
    assert {span.attributes["gen_ai.agent.name"] for span in spans} == {"bob"}
    assert {span.attributes["gen_ai.conversation.id"] for span in spans} == {"one"}
    assert {child.name for span in spans for child in span.children} == {"apply_policy sliding_window"}
    assert {span.parent.name for span in spans} == {"invoke_agent bob"}
    assert [span.attributes["assembly.tokens.out"] for span in spans] == [request.tokens for request in stage.received]


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


async def test_an_alert_is_told_the_model_once():
    stage = Stage()
    plugin = AssemblyInputFilter([AlertPolicy()], conversation="one")
    await plugin.context_of("one").send(ObserverAlert(source="disk", severity=Severity.WARNING, message="Nearly full."))
    await run(plugin, agent(stage), "Find all")
    assert ["Nearly full." in str(received.prompts) for received in stage.received] == [True, *[False] * 6]
    assert [received.prompts[0].startswith("You look.") for received in stage.received] == [True] * 7


@pytest.mark.parametrize("on_halt", ["raise", "return"])
async def test_a_fatal_alert_from_outside_ends_the_run_before_the_model(told, on_halt):
    stage = Stage()
    plugin = AssemblyInputFilter(Assembler([AlertPolicy()], on_halt=on_halt), conversation=lambda context: context)
    await plugin.context_of("one").send(fatal())
    for _ in range(2):
        with pytest.raises(HaltedError, match="stolen"):
            await run(plugin, agent(stage), "Find all", context="one")
    assert stage.received == []
    assert (await run(plugin, agent(stage), "Find all", context="two")).final_output == "Done."


async def test_a_fatal_alert_in_the_middle_of_a_run_ends_it_and_no_tool_is_called():
    called = []
    plugin = AssemblyInputFilter([AlertPolicy()], conversation="one")

    @function_tool
    async def stop() -> str:
        """Stop."""
        await plugin.context_of("one").send(fatal())
        return "stopped"

    @function_tool
    def note() -> str:
        """Note something."""
        called.append(1)
        return "noted"

    stage = Stage()
    talker = agent(stage, ["call:stop", "call:note"], tools=[stop, note])
    with pytest.raises(HaltedError, match="stolen"):
        await run(plugin, talker, "Go")
    assert (len(stage.received), called) == (1, [])
    with pytest.raises(HaltedError, match="stolen"):
        await run(plugin, talker, "Go")
    assert len(stage.received) == 1


class Halts:
    """Halts upon whatever a model says."""

    name = "halts"
    watches = (dict,)

    async def process(self, event: Any, context: Any) -> None:
        if describe(event).kind in {"response", "tool_call"}:
            await context.send(fatal())


@pytest.mark.parametrize("streams", [False, True])
async def test_no_tool_is_called_of_an_answer_upon_which_an_observer_halts(streams):
    called = []

    @function_tool
    def note() -> str:
        """Note something."""
        called.append(1)
        return "noted"

    stage = Stage()
    plugin = AssemblyInputFilter([AlertPolicy()], observers=[Halts()])
    talker = agent(stage, [["call:note", "call:note"]], tools=[note])
    with pytest.raises(HaltedError):
        await (run_streamed if streams else run)(plugin, talker, "Go")
    assert (len(stage.received), called) == (1, [])


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


async def test_a_budget_that_cannot_hold_raises_and_nothing_is_sent():
    stage = Stage()
    with pytest.raises(ContextOverflowError):
        await run(budget(60), agent(stage), f"Find all: {words(100)}")
    assert stage.received == []


async def test_policies_are_given_what_the_run_has():
    seen = []

    @dataclass
    class Order:
        number: int

    class Looks:
        name = "looks"

        async def apply(self, prompts: Any, events: Any, context: Any) -> Any:
            seen.append((context.dependencies[Order].number, context.variables["city"], context.agent_name))
            return [*prompts, "Remember the order."], events

    stage = Stage()
    plugin = AssemblyInputFilter([Looks()], variables=lambda call: {"city": call.context.number + 1})
    await run(plugin, agent(stage, ["Done."]), "Go", context=Order(4711))
    assert seen == [(4711, 4712, "bob")]
    assert stage.received[0].prompts == ["You look.\n\nRemember the order."]


async def test_a_summary_stands_among_the_items(assembly_telemetry):
    stage = Stage()
    plugin = budget(500, compact=ExtractiveCompactor(), summary_tokens=60)
    await run(plugin, agent(stage), asks("Find all", 40))
    assert max(received.tokens for received in stage.received) <= 450
    texts = [text for event in stage.received[0].events for text in event.texts]
    assert sum(text.startswith("[Earlier messages, summarised") for text in texts) == 1
    block = assembly_telemetry.spans_named("compact_block older")[0]
    assert block.attributes["assembly.compaction.outcome"] == "compacted"


class Notes:
    name = "notes"
    watches = (dict,)

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def process(self, event: Any, context: Any) -> None:
        self.seen.append(event)


async def test_observers_are_shown_every_item_once():
    notes, stage = Notes(), Stage()
    plugin = AssemblyInputFilter([SlidingWindowPolicy(4)], observers=[notes])
    talker = agent(stage, ["call:look", "Done.", "Done."])
    with trace("one"):
        first = await run(plugin, talker, "Yes")
        await run(plugin, talker, [*first.to_input_list(), {"role": "user", "content": "Yes"}])
    assert [describe(message).kind for message in notes.seen] == [
        "request", "tool_call", "tool_result", "response", "request", "response"
    ]  # fmt: skip


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


@pytest.mark.parametrize("more", [{"name": "x"}, {"model": "gpt-4o"}])
def test_a_name_or_model_beside_an_assembler_is_refused(more):
    with pytest.raises(ConfigurationError, match="takes its name and model from the Assembler"):
        AssemblyInputFilter(Assembler([]), **more)


async def test_with_and_without_instrumentation_the_same_is_sent():
    sent = []
    for on in (False, True):
        stage = Stage()
        telemetry = RecordedTelemetry()
        with telemetry.as_default():
            if on:
                instrument("openai_agents")
            await run(budget(), agent(stage), asks("Find all", 4))
            uninstrument("openai_agents")
        sent.append([received.said for received in stage.received])
        telemetry.shutdown()
    assert sent[0] == sent[1]


@settings(max_examples=25, deadline=None)
@given(
    turns=st.integers(0, 8),
    calls=st.lists(st.integers(1, 3), max_size=5),
    window=st.integers(300, 900),
    step=st.sampled_from([0, 200]),
)
async def test_whatever_a_run_does_its_calls_hold_the_budget_and_whole_pairs(turns, calls, window, step):
    stage = Stage()
    plugin = AssemblyInputFilter([BudgetPolicy(window=window, output_reserve=50, step_tokens=step)])
    lines = [*(["call:look"] * count for count in calls), "Done."]
    result = await run(plugin, agent(stage, lines), asks("Find all", turns))
    assert result.final_output == "Done."
    for received in stage.received:
        assert received.tokens <= window - 50
        assert whole_pairs(received.items)
        assert "Find all" in str(received.items)
    assert sum(message.get("type") == "function_call_output" for message in result.to_input_list()) == sum(calls)


class AnthropicModel(ScriptedModel):
    """A model whose class states its provider; the model's name does not."""


async def test_the_class_of_the_model_states_which_role_comes_first():
    for made, first in ((ScriptedModel, "assistant"), (AnthropicModel, "user")):
        stage = Stage()
        plugin = AssemblyInputFilter([SlidingWindowPolicy(4)])
        await run(plugin, Agent("bob", model=made(stage, "Done.", name="large")), asks("Find all", 4))
        assert stage.received[0].items[0]["role"] == first
