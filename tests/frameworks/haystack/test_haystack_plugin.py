"""Our policies as a hook of a Haystack agent, and as a generator."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from haystack import Pipeline, component
from haystack.components.agents import Agent
from haystack.components.agents.state import State, replace_values
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.core.errors import PipelineRuntimeError
from haystack.dataclasses import ChatMessage
from haystack.hooks import hook
from haystack.tools import Tool, create_tool_from_function
from haystack.utils import Secret
from haystack_models import AwaitedGenerator, ScriptedGenerator, Stage, assert_told, history, words
from hypothesis import given, settings
from hypothesis import strategies as st

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
from otel_assembly.instrumentation.haystack import AssemblyChatGenerator, AssemblyHook
from otel_assembly.testing import RecordedTelemetry

LOOKS = [*(["call:look", "call:look"] for _ in range(6)), "Done."]
asked = ChatMessage.from_user


def look() -> str:
    """Look something up."""
    return f"found {words(20)}"


LOOK: Tool = create_tool_from_function(look)


def fatal(message: str = "The card was stolen.") -> ObserverAlert:
    return ObserverAlert(source="fraud", severity=Severity.FATAL, message=message)


def agent(stage: Stage, plugin: Any, *before: Any, lines: Any = LOOKS, made: Any = ScriptedGenerator) -> Agent:
    hooks: Any = {"before_llm": [*before, plugin], "before_tool": [plugin.tools]}
    return Agent(chat_generator=made(stage, *lines), tools=[LOOK], system_prompt="You look.", hooks=hooks)


def in_front(stage: Stage, policies: Any, lines: Any = LOOKS, **settings: Any) -> Agent:
    generator = AssemblyChatGenerator(ScriptedGenerator(stage, *lines), policies, **settings)
    return Agent(chat_generator=generator, tools=[LOOK], system_prompt="You look.")


def whole_pairs(messages: list[Any]) -> bool:
    """Whether each result stands behind its call, and each call in front of its result."""
    open_calls: list[Any] = []
    for message in messages:
        open_calls += [call.id for call in message.tool_calls]
        for result in message.tool_call_results:
            open_calls.remove(result.origin.id)
    return not open_calls


def policies(window: int = 400, **more: Any) -> list[Any]:
    return [BudgetPolicy(window=window, output_reserve=50, step_tokens=0, **more)]


def budget(window: int = 400, **more: Any) -> AssemblyHook:
    return AssemblyHook(policies(window, **more))


BOTH = pytest.mark.parametrize(
    "made", [lambda stage: agent(stage, budget()), lambda stage: in_front(stage, policies())], ids=["hook", "generator"]
)


@BOTH
def test_no_call_is_over_the_budget_and_the_history_stays_whole(made, assembly_telemetry):
    stage = Stage()
    given_messages = [*history(4), asked("Find all")]
    result = made(stage).run(given_messages)
    assert [received.tokens <= 350 for received in stage.received] == [True] * 7
    assert all(whole_pairs(received.messages) for received in stage.received)
    assert all(received.prompts == ["You look."] for received in stage.received)
    assert all("Find all" in str(received.messages) for received in stage.received)
    messages = result["messages"]
    assert len(messages) == 1 + 9 + 6 * 3 + 1
    assert [message is other for message, other in zip(messages[1:10], given_messages, strict=True)] == [True] * 9
    assert type(messages) is list
    assert whole_pairs(messages)
    spans = assembly_telemetry.spans_named("assemble_context")
    assert {span.attributes["assembly.budget.limit"] for span in spans} == {350}
    assert {span.attributes["assembly.framework"] for span in spans} == {"haystack"}
    assert assembly_telemetry.violations() == []


@BOTH
def test_inside_an_instrumented_agent_it_is_told_once(made, told):
    stage = Stage()
    made(stage).run([*history(4), asked("Find all")])
    spans = told.spans_named("assemble_context")
    assert [span.attributes["assembly.turn"] for span in spans] == [*range(7)]
    assert {child.name for span in spans for child in span.children} == {"apply_policy budget"}
    assert {span.parent.name for span in spans} == {"invoke_agent Agent"}
    assert {span.attributes["gen_ai.agent.name"] for span in spans} == {"Agent"}
    assert [span.attributes["assembly.tokens.out"] for span in spans] == [request.tokens for request in stage.received]


async def test_awaited_runs_are_held_as_well():
    stage = Stage()
    result = await agent(stage, budget(), made=AwaitedGenerator).run_async([*history(4), asked("Find all")])
    assert max(received.tokens for received in stage.received) <= 350
    assert len(result["messages"]) == 1 + 9 + 6 * 3 + 1
    generator = AssemblyChatGenerator(AwaitedGenerator(stage, "Done."), policies())
    answer = await generator.run_async([*history(9), asked("Find all")])
    assert answer["replies"][0].text == "Done."
    assert stage.received[-1].tokens <= 350


async def test_a_sync_run_inside_a_running_loop_is_held():
    stage = Stage()
    agent(stage, budget()).run([*history(4), asked("Find all")])
    assert max(received.tokens for received in stage.received) <= 350


def test_messages_go_in_and_come_out_as_the_very_objects():
    seen: list[Any] = []
    stage = Stage()
    generator = ScriptedGenerator(stage, lambda messages: seen.extend(messages) or "Done.")
    given_messages = [ChatMessage.from_system("Be kind."), *history(4), asked("Find all")]
    AssemblyChatGenerator(generator, policies(120)).run(given_messages)
    known = {id(message) for message in given_messages}
    assert len(seen) < len(given_messages)
    assert {id(message) for message in seen} <= known
    assert seen[0] is given_messages[0]
    assert seen[-1] is given_messages[-1]


def test_it_has_the_last_word_behind_other_hooks(told):
    @hook
    def verbose(state: State) -> None:
        state.set("messages", [*state.data["messages"], *history(9)], handler_override=replace_values)

    stage = Stage()
    plugin = AssemblyHook([SlidingWindowPolicy(3)], name="window")
    agent(stage, plugin, verbose, lines=["Done."]).run([asked("Find all")])
    spans = told.spans_named("assemble_context")
    [sent] = [span for span in spans if span.attributes.get("assembly.name") == "window"]
    assert sent.attributes["assembly.tokens.out"] == stage.received[0].tokens
    [before] = [span for span in spans if span is not sent]
    assert [child.name for child in before.children] == ["apply_policy verbose"]


def test_an_alert_is_told_the_model_once():
    stage = Stage()
    plugin = AssemblyHook([AlertPolicy()])
    warning = ObserverAlert(source="disk", severity=Severity.WARNING, message="Nearly full.")

    @hook
    def warns(state: State) -> None:
        if state.data["step_count"] == 0:
            asyncio.run(plugin.context_of("one").send(warning))

    agent(stage, plugin, warns).run([asked("Find all")], hook_context={"conversation_id": "one"})
    assert ["Nearly full." in str(received.prompts) for received in stage.received] == [True, *[False] * 6]
    assert [received.prompts[0].splitlines()[0] for received in stage.received] == ["You look."] * 7


@pytest.mark.parametrize("on_halt", ["raise", "return"])
async def test_a_fatal_alert_from_outside_ends_the_run_before_the_model(told, on_halt):
    stage = Stage()
    plugin = AssemblyHook(Assembler([AlertPolicy()], on_halt=on_halt))
    await plugin.context_of("one").send(fatal())
    for _ in range(2):
        with pytest.raises(HaltedError, match="stolen"):
            agent(stage, plugin).run([asked("Find all")], hook_context={"conversation_id": "one"})
    assert stage.received == []
    top = told.spans_named("invoke_agent Agent")[0]
    assert (top.status, top.attributes["error.type"]) == ("ERROR", "assembly_halt")
    result = agent(stage, plugin).run([asked("Find all")], hook_context={"conversation_id": "two"})
    assert result["last_message"].text == "Done."


@pytest.mark.parametrize("known", ["hook_context", "state"])
def test_a_fatal_alert_in_a_tool_ends_the_run_before_the_next_model_call(known):
    plugin = AssemblyHook([AlertPolicy()])

    def stop() -> str:
        """Stop."""
        asyncio.run(plugin.context_of("one").send(fatal()))
        return "stopped"

    stage = Stage()
    talker = Agent(
        chat_generator=ScriptedGenerator(stage, "call:stop", "call:stop"), tools=[create_tool_from_function(stop)],
        hooks={"before_llm": [plugin], "before_tool": [plugin.tools]},
        state_schema={"conversation_id": {"type": str}} if known == "state" else None,
    )  # fmt: skip
    said = {"conversation_id": "one"}
    with pytest.raises(HaltedError, match="stolen"):
        talker.run([asked("Go")], **(said if known == "state" else {"hook_context": said}))
    assert len(stage.received) == 1


class Stops:
    """An observer that halts upon an answer that asks for tools."""

    name = "stops"
    watches = (ChatMessage,)

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def process(self, event: Any, context: Any) -> None:
        self.seen.append(event)
        if event.tool_calls:
            await context.send(fatal())


@pytest.mark.parametrize("how", ["hook", "generator"])
def test_no_tool_is_called_of_an_answer_upon_which_an_observer_halts(how):
    called = []

    def note() -> str:
        """Note something."""
        called.append(1)
        return "noted"

    stage, tools = Stage(), [create_tool_from_function(note)]
    generator: Any = ScriptedGenerator(stage, ["call:note", "call:note"])
    hooks: Any = {}
    if how == "hook":
        plugin = AssemblyHook([AlertPolicy()], observers=[Stops()])
        hooks = {"before_llm": [plugin], "before_tool": [plugin.tools]}
    else:
        generator = AssemblyChatGenerator(generator, [AlertPolicy()], observers=[Stops()])
    with pytest.raises(HaltedError):
        Agent(chat_generator=generator, tools=tools, hooks=hooks).run([asked("Go")])
    assert (len(stage.received), called) == (1, [])


@BOTH
def test_a_budget_that_cannot_hold_raises_and_nothing_is_sent(made):
    stage = Stage()
    with pytest.raises(ContextOverflowError):
        made(stage).run([asked(f"Find all: {words(400)}")])
    assert stage.received == []


def test_policies_are_given_what_the_run_has():
    seen = []

    class Order:
        number = 4711

    class Looks:
        name = "looks"

        async def apply(self, prompts: Any, events: Any, context: Any) -> Any:
            seen.append((context.dependencies[Order].number, context.variables["step"], context.model))
            return [*prompts, "Remember the order."], events

    stage = Stage()
    plugin = AssemblyHook(
        [Looks()],
        model="gpt-4o",
        dependencies=lambda state: {Order: state.data["hook_context"]["order"]},
        variables=lambda state: {"step": state.data["step_count"]},
    )
    agent(stage, plugin, lines=["Done."]).run([asked("Go")], hook_context={"order": Order()})
    assert [message[:2] for message in seen] == [(4711, 0)]
    assert stage.received[0].prompts == ["You look.\n\nRemember the order."]


def test_a_summary_is_a_request_that_any_model_can_be_sent(assembly_telemetry):
    stage = Stage()
    agent(stage, budget(500, compact=ExtractiveCompactor(), summary_tokens=60)).run([*history(40), asked("Find all")])
    assert max(received.tokens for received in stage.received) <= 450
    texts = [text for event in stage.received[0].events for text in event.texts]
    assert sum(text.startswith("[Earlier messages, summarised") for text in texts) == 1
    block = assembly_telemetry.spans_named("compact_block older")[0]
    assert block.attributes["assembly.compaction.outcome"] == "compacted"


@pytest.mark.parametrize("how", ["hook", "generator"])
def test_observers_are_shown_every_message_once(how):
    class Notes(Stops):
        async def process(self, event: Any, context: Any) -> None:
            self.seen.append(event)

    notes = Notes()
    stage, lines = Stage(), ["call:look", "Done."]
    if how == "hook":
        talker = agent(stage, AssemblyHook([SlidingWindowPolicy(4)], observers=[notes]), lines=lines)
    else:
        talker = in_front(stage, [SlidingWindowPolicy(4)], lines, observers=[notes])
    first = talker.run([asked("One")])
    talker.run([*first["messages"][1:], asked("Two")])
    kinds = [describe(message).kind for message in notes.seen if not message.is_from("system")]
    # Nobody hooks the end of a run: what it came to is shown with the next one.
    assert kinds == ["request", "response", "tool_result", "response", "request", *(["response"] * (how != "hook"))]


@pytest.mark.parametrize("more", [{"name": "x"}, {"model": "gpt-4o"}])
def test_a_name_or_model_beside_an_assembler_is_refused(more):
    with pytest.raises(ConfigurationError, match="takes its name and model from the Assembler"):
        AssemblyHook(Assembler([]), **more)
    with pytest.raises(ConfigurationError, match="takes its name and model from the Assembler"):
        AssemblyChatGenerator(ScriptedGenerator(Stage(), "Done."), Assembler([]), **more)


async def test_in_a_pipeline_its_budget_holds_and_errors_are_the_causes_of_the_pipelines(told):
    stage = Stage()
    pipeline = Pipeline()
    plugin = AssemblyChatGenerator(AwaitedGenerator(stage, "Done."), [*policies(), AlertPolicy()])
    pipeline.add_component("llm", plugin)
    data: Any = {"llm": {"messages": [*history(20), asked("Find all")], "conversation_id": "one"}}
    assert pipeline.run(data)["llm"]["replies"][0].text == "Done."
    assert (await pipeline.run_async(data))["llm"]["replies"][0].text == "Done."
    assert max(received.tokens for received in stage.received) <= 350
    assert_told(told, stage.received)
    spans = told.spans_named("assemble_context")
    assert {span.attributes["gen_ai.conversation.id"] for span in spans} == {"one"}
    assert {span.parent.name for span in spans} == {"invoke_agent Pipeline"}
    await plugin.context_of("one").send(fatal())
    with pytest.raises(PipelineRuntimeError) as raised:
        pipeline.run(data)
    assert isinstance(raised.value.__cause__, HaltedError)


def test_it_is_written_down_and_read_again():
    class Own:
        name = "own"

        async def apply(self, prompts: Any, events: Any, context: Any) -> Any:
            return prompts, events

    plugin = AssemblyHook([SlidingWindowPolicy(3)], name="window")
    for message in (plugin, plugin.tools):
        read = type(message).from_dict(message.to_dict())
        assert type(read) is type(message)
    read = AssemblyHook.from_dict(plugin.to_dict())
    assert read.assembler.to_config() == plugin.assembler.to_config()
    with pytest.raises(ConfigurationError):
        AssemblyHook([Own()]).to_dict()
    with pytest.raises(ConfigurationError, match="observers"):
        AssemblyHook([SlidingWindowPolicy(3)], observers=[Stops()]).to_dict()


def test_a_pipeline_with_it_is_written_down_and_read_again():
    from haystack.components.generators.chat import MockChatGenerator

    pipeline = Pipeline()
    pipeline.add_component("llm", AssemblyChatGenerator(MockChatGenerator("Yes."), policies(), name="held"))
    allowed: Any = {"allowed_modules": ["otel_assembly.*"]}
    try:
        read = Pipeline.loads(pipeline.dumps(), **allowed)
    except TypeError:  # earlier releases read whatever is imported
        read = Pipeline.loads(pipeline.dumps())
    made = read.get_component("llm")
    assert isinstance(made, AssemblyChatGenerator)
    assert made.assembler.name == "held"
    assert read.run({"llm": {"messages": [asked("Go")]}})["llm"]["replies"][0].text == "Yes."


def test_what_the_generator_holds_is_warmed_up_and_released():
    done = []

    class Holds(ScriptedGenerator):
        def warm_up(self) -> None:
            done.append("warm_up")

        def close(self) -> None:
            done.append("close")

    made = AssemblyChatGenerator(Holds(Stage(), "Done."), policies())
    made.warm_up()
    made.close()
    assert done == ["warm_up", "close"]


@BOTH
def test_with_and_without_instrumentation_the_same_is_sent(made):
    sent = []
    for on in (False, True):
        stage = Stage()
        telemetry = RecordedTelemetry()
        with telemetry.as_default():
            if on:
                instrument("haystack")
            made(stage).run([*history(4), asked("Find all")])
            uninstrument("haystack")
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
def test_whatever_a_run_does_its_calls_hold_the_budget_and_whole_pairs(turns, calls, window, step):
    stage = Stage()
    plugin = AssemblyHook([BudgetPolicy(window=window, output_reserve=50, step_tokens=step)])
    lines = [*(["call:look"] * count for count in calls), "Done."]
    result = agent(stage, plugin, lines=lines).run([*history(turns), asked("Find all")])
    assert result["last_message"].text == "Done."
    for received in stage.received:
        assert received.tokens <= window - 50
        assert whole_pairs(received.messages)
    assert sum(len(message.tool_call_results) for message in result["messages"]) == sum(calls)


@component
class AnthropicChatGenerator(ScriptedGenerator):
    """A generator whose class states its provider, as Haystack's own does; the model's name does not."""


def test_the_class_of_the_generator_states_which_role_comes_first():
    for made, first in ((ScriptedGenerator, "assistant"), (AnthropicChatGenerator, "user")):
        stage = Stage()
        AssemblyChatGenerator(made(stage, "Done."), [SlidingWindowPolicy(4)]).run([*history(4), asked("Find all")])
        assert stage.received[0].messages[0].role.value == first


def test_the_model_of_an_agents_hook_states_which_role_comes_first():
    for model, first in ((None, "assistant"), ("claude-sonnet-4-5", "user")):
        stage = Stage()
        talker = agent(stage, AssemblyHook([SlidingWindowPolicy(4)], model=model), lines=["Done."])
        talker.run([*history(4), asked("Find all")])
        assert stage.received[0].messages[1].role.value == first


@pytest.mark.parametrize("messages", [5, [{"role": "user", "content": "Hi"}], None])
async def test_an_input_that_the_generator_rejects_is_rejected(messages):
    generator = OpenAIChatGenerator(Secret.from_token("x"), api_base_url="http://127.0.0.1:1", max_retries=0)
    rejected = AssemblyChatGenerator(generator, [])
    with pytest.raises(Exception) as alone:  # whatever the generator raises
        generator.run(messages=messages)
    with pytest.raises(alone.type):
        rejected.run(messages=messages)
    with pytest.raises(alone.type):
        await rejected.run_async(messages=messages)
