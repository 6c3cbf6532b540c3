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

from otel_assembly import (
    AlertPolicy,
    Assembler,
    BudgetPolicy,
    ConfigurationError,
    HaltedError,
    ObserverAlert,
    Severity,
    SlidingWindowPolicy,
    describe,
)
from otel_assembly.instrumentation.haystack import AssemblyChatGenerator, AssemblyHook

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


def policies(window: int = 400, **more: Any) -> list[Any]:
    return [BudgetPolicy(window=window, output_reserve=50, step_tokens=0, **more)]


def budget(window: int = 400, **more: Any) -> AssemblyHook:
    return AssemblyHook(policies(window, **more))


async def test_an_awaited_call_of_the_generator_meets_the_budget():
    stage = Stage()
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


def test_the_conversations_id_can_be_in_the_agents_state():
    plugin = AssemblyHook([AlertPolicy()])

    def stop() -> str:
        """Stop."""
        asyncio.run(plugin.context_of("one").send(fatal()))
        return "stopped"

    stage = Stage()
    talker = Agent(
        chat_generator=ScriptedGenerator(stage, "call:stop", "call:stop"), tools=[create_tool_from_function(stop)],
        hooks={"before_llm": [plugin], "before_tool": [plugin.tools]},
        state_schema={"conversation_id": {"type": str}},
    )  # fmt: skip
    with pytest.raises(HaltedError, match="stolen"):
        talker.run([asked("Go")], conversation_id="one")
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


def test_the_generator_calls_no_tool_if_an_observer_halts_because_of_the_request():
    called = []

    def note() -> str:
        """Note something."""
        called.append(1)
        return "noted"

    stage = Stage()
    generator: Any = ScriptedGenerator(stage, ["call:note", "call:note"])
    generator = AssemblyChatGenerator(generator, [AlertPolicy()], observers=[Stops()])
    with pytest.raises(HaltedError):
        Agent(chat_generator=generator, tools=[create_tool_from_function(note)]).run([asked("Go")])
    assert (len(stage.received), called) == (1, [])


def test_the_generator_shows_observers_each_message_once():
    class Notes(Stops):
        async def process(self, event: Any, context: Any) -> None:
            self.seen.append(event)

    notes = Notes()
    generator = ScriptedGenerator(Stage(), "call:look", "Done.")
    plugin = AssemblyChatGenerator(generator, [SlidingWindowPolicy(4)], observers=[notes])
    talker = Agent(chat_generator=plugin, tools=[LOOK])
    first = talker.run([asked("One")])
    talker.run([*first["messages"], asked("Two")])
    kinds = [describe(message).kind for message in notes.seen]
    assert kinds == ["request", "response", "tool_result", "response", "request", "response"]


@pytest.mark.parametrize("more", [{"name": "x"}, {"model": "gpt-4o"}])
def test_the_generator_refuses_a_name_or_a_model_if_an_assembler_is_given(more):
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
