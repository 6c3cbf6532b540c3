"""What is said of each call: who asks, in which conversation, and what made what of its messages."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import haystack_programs as programs
import pytest
from haystack import Pipeline, component, tracing
from haystack.components.agents import Agent
from haystack.components.agents.state import State  # noqa: TC002  # a hook's own signature is read
from haystack.components.generators.chat import FallbackChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.hooks import hook
from haystack.tools import ComponentTool, tool
from haystack.tracing.logging_tracer import LoggingTracer
from haystack_models import AwaitedGenerator, OwnTracer, ScriptedGenerator, Stage, history, words
from openai_server import Responses
from traced_calls import check_summarizers_calls

COMPACTS = pytest.mark.skipif(not programs.COMPACTORS, reason="this release does not compact")
SUMMARISES = pytest.mark.skipif(not programs.SUMMARISES, reason="this release does not summarise")
OFFLOADS = pytest.mark.skipif(not programs.OFFLOADS, reason="this release does not offload as it compacts")
asked = ChatMessage.from_user


def steps(assembly: Any) -> list[str]:
    return [child.attributes["assembly.policy.name"] for child in assembly.children]


def assemblies(telemetry: Any) -> list[Any]:
    return sorted(telemetry.spans_named("assemble_context"), key=lambda span: span.end_ns)


def config(step: Any) -> Any:
    return json.loads(step.attributes["assembly.policy.config"])


def test_one_conversation_is_one_ledger_over_all_its_runs(told):
    agent = Agent(chat_generator=ScriptedGenerator(Stage(), "Done."), system_prompt="Be kind.")
    first = agent.run([asked("One")])
    agent.run([*first["messages"][1:], asked("Two")])
    agent.run([asked("Other")])
    spans = assemblies(told)
    ledgers = [span.attributes["assembly.ledger.id"] for span in spans]
    assert [span.attributes["assembly.turn"] for span in spans] == [0, 1, 0]
    assert ledgers[0] == ledgers[1] != ledgers[2]
    assert spans[1].attributes["assembly.previous.id"] == spans[0].attributes["assembly.id"]
    assert {span.attributes["gen_ai.agent.name"] for span in spans} == {"Agent"}
    assert all("gen_ai.conversation.id" not in span.attributes for span in spans)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kept", ["own", "returned"])
def test_one_conversation_is_one_ledger_over_all_runs_of_a_pipeline(told, nested, kept):
    pipeline = Pipeline()
    pipeline.add_component("clerk", Agent(chat_generator=ScriptedGenerator(Stage(), "Done."), system_prompt="Be kind."))

    def answer(messages):
        return pipeline.run({"clerk": {"messages": messages}} if nested else {"messages": messages})["clerk"]

    one = asked("One")
    returned = answer([one])
    answer([*([one] if kept == "own" else returned["messages"][1:]), asked("Two")])
    answer([asked("One")])
    spans = assemblies(told)
    assert [span.attributes["assembly.turn"] for span in spans] == [0, 1, 0]


@COMPACTS
def test_a_conversation_is_the_same_whatever_compaction_has_put_in_front(told):
    programs.sliding_window(Stage())
    spans = assemblies(told)
    assert [span.attributes["assembly.turn"] for span in spans] == [*range(5)]
    assert len({span.attributes["assembly.ledger.id"] for span in spans}) == 1


def test_a_program_that_keeps_its_messages_has_one_ledger(told):
    programs.chats_by_itself(Stage())
    assert [span.attributes["assembly.turn"] for span in assemblies(told)] == [0, 1]


def test_an_agent_has_the_name_of_its_place(told):
    helper = Agent(chat_generator=ScriptedGenerator(Stage(), "Yes."))

    @tool
    def clerk(q: str = "x") -> str:
        """Ask a clerk."""
        return str(Agent(chat_generator=ScriptedGenerator(Stage(), "No.")).run([asked(q)])["last_message"].text)

    parameters = {"type": "object", "properties": {"messages": {"type": "array", "items": {"type": "object"}}}}
    ask = ComponentTool(helper, name="helper", description="Ask the helper.", parameters=parameters)
    task = '{"messages": [{"role": "user", "content": [{"text": "Help"}]}]}'
    boss = Agent(
        chat_generator=ScriptedGenerator(Stage(), [f"call:helper {task}", "call:clerk"], "Done."), tools=[ask, clerk]
    )
    pipeline = Pipeline(metadata={"name": "office"})
    pipeline.add_component("boss", boss)
    pipeline.run({"boss": {"messages": [asked("Go")]}})
    names = [span.attributes["gen_ai.agent.name"] for span in assemblies(told)]
    assert sorted(names) == ["boss", "boss", "clerk", "helper"]
    assert told.span("invoke_agent office")
    assert len({span.trace_id for span in told.spans}) == 1


def test_a_pipeline_without_a_model_has_no_span(told):
    @component
    class Counts:
        @component.output_types(number=int)
        def run(self, messages: list[ChatMessage]) -> dict[str, int]:
            return {"number": len(messages)}

    @component
    class Notes:
        """It says nothing of what it gives out, which is nothing."""

        def run(self, messages: list[ChatMessage]) -> dict[str, Any]:
            return {}

    pipeline = Pipeline()
    pipeline.add_component("counts", Counts())
    pipeline.add_component("notes", Notes())
    messages = {"messages": [asked("Go")]}
    assert pipeline.run({"counts": messages, "notes": messages})["counts"] == {"number": 1}
    assert not told.spans


def test_a_component_that_asks_a_model_is_a_run_of_its_pipeline(told):
    @component
    class Judge:
        def __init__(self, chat_generator: Any):
            self.chat_generator = chat_generator

        @component.output_types(verdict=str)
        def run(self, text: str) -> dict[str, str]:
            messages = [ChatMessage.from_system("Judge."), asked(text)]
            return {"verdict": self.chat_generator.run(messages=messages)["replies"][0].text}

    pipeline = Pipeline()
    pipeline.add_component("judge", Judge(ScriptedGenerator(Stage(), "Yes.")))
    assert pipeline.run({"judge": {"text": "Right?"}}) == {"judge": {"verdict": "Yes."}}
    [assembly] = assemblies(told)
    assert assembly.parent.name == "invoke_agent Pipeline"
    assert assembly.attributes["assembly.prompts.out"] == 1


def test_text_generators_are_calls_with_one_text(told):
    @component
    class Writes:
        model = "gpt-4o"

        @component.output_types(replies=list[str])
        def run(self, prompt: str, system_prompt: str | None = None) -> dict[str, Any]:
            return {"replies": ["Done."]}

    Writes().run("Write it.", system_prompt="Briefly.")
    Writes().run(prompt="Write it.")
    first, second = assemblies(told)
    assert (first.attributes["assembly.prompts.out"], first.attributes["assembly.events.out"]) == (1, 1)
    assert (second.attributes["assembly.prompts.out"], second.attributes["assembly.events.out"]) == (0, 1)


def test_a_text_in_the_place_of_messages(told):
    @component
    class Takes(ScriptedGenerator):
        @component.output_types(replies=list[ChatMessage])
        def run(self, messages: list[ChatMessage] | str) -> dict[str, Any]:
            return {"replies": [self._answer([asked(messages)] if isinstance(messages, str) else messages, ())]}

    Takes(Stage(), "Done.").run("Hi")
    assert assemblies(told)[0].attributes["assembly.events.out"] == 1


def test_hooks_are_steps_wherever_they_run(told):
    programs.hooks_of_its_own(Stage())
    assert [steps(span) for span in assemblies(told)] == [
        ["greets", "newest", "Briefing"], ["shortens", "newest"], ["shortens", "newest"], ["insists", "newest"],
    ]  # fmt: skip
    first = assemblies(told)[0].children
    assert "assembly.policy.kind" not in first[1].attributes
    assert first[1].attributes["assembly.dropped.items"] == ["0"]
    assert first[2].attributes["assembly.prompts.out"] == 1
    assert [span.attributes["assembly.events.in"] for span in assemblies(told)] == [3, 5, 5, 4]


async def test_hooks_that_are_awaited_or_run_in_a_thread(told):
    await programs.hooks_awaited(Stage())
    assert [steps(span) for span in assemblies(told)] == [["reminds"], ["reminds", "newest"]]


@SUMMARISES  # the release that came with it was the first in which a hook ends a run
def test_a_run_that_a_hook_ends_calls_no_model_and_what_was_done_is_told(told):
    @hook
    def stops(state: State) -> None:
        if state.data["step_count"] == 1:
            state.set("messages", [asked("Never sent.")])
            state.set("stop_run", "enough")

    stage = Stage()
    agent = Agent(
        chat_generator=ScriptedGenerator(stage, "call:look", "No."),
        tools=[programs.look],
        hooks={"before_llm": [stops]},
    )
    assert agent.run([asked("Go")])["exit_reason"] == "enough"
    assert len(stage.received) == 1
    assert [steps(span) for span in assemblies(told)] == [[], ["stops"]]


def test_a_hook_that_raises_is_a_step_with_its_error(told):
    programs.a_hook_raises(Stage())
    first, second = assemblies(told)
    assert steps(first) == []
    assert steps(second) == ["breaks"]
    assert second.attributes["error.type"] == second.children[0].attributes["error.type"] == "RuntimeError"
    assert told.span("invoke_agent Agent").status == "ERROR"


def test_what_offloads_results_is_a_step_of_the_next_call(told):
    programs.offloaded(Stage())
    spans = assemblies(told)
    assert [steps(span) for span in spans] == [[], ["tool_result_offload"], ["tool_result_offload"]]
    step = spans[1].children[0]
    assert step.attributes["assembly.policy.kind"] == "reduction"
    assert config(step) == {"preview_chars": 5}
    assert step.attributes["assembly.compacted.count"] == 2


def test_people_in_the_loop_are_a_step(told):
    programs.asks_first(Stage())
    assert [steps(span) for span in assemblies(told)] == [[], ["confirmation"], ["confirmation"]]


@COMPACTS
def test_a_sliding_window(told):
    programs.sliding_window(Stage())
    spans = assemblies(told)
    assert [steps(span) for span in spans][:4] == [[], [], ["sliding_window"], []]
    step = spans[2].children[0]
    assert step.attributes["assembly.policy.kind"] == "reduction"
    assert config(step) == {"compact_at": 0.7, "compact_to": 0.4, "context_window": 300, "min_keep_steps": 1}
    assert step.attributes["assembly.dropped.items"] == ["0-5", "7-9"]
    assert set(step.attributes["assembly.dropped.reasons"]) == {"over_budget"}
    assert step.attributes["assembly.dropped.reported_count"] == step.attributes["assembly.dropped.count"] == 9
    assert spans[2].attributes["assembly.budget.limit"] == 120
    assert {span.attributes["assembly.model.window"] for span in spans} == {300}


@COMPACTS
def test_results_that_are_pruned(told):
    @tool
    def read(q: str = "x") -> str:
        """Read much."""
        return words(120)

    stage = Stage()
    agent = programs.compacting(
        stage, lambda: programs.ToolResultPruningCompactor(min_tokens=20), ["call:read", "call:read", "Done."],
        context_window=600,
    )  # fmt: skip
    agent.tools = [read]
    agent.run([asked("Find")])
    last = assemblies(told)[-1]
    assert steps(last) == ["tool_result_pruning"]
    assert last.attributes["assembly.compacted.count"] == 1
    assert config(last.children[0])["min_tokens"] == 20


@OFFLOADS
def test_results_that_compaction_offloads(told, tmp_path):
    from haystack.hooks.compaction import ToolResultOffloadCompactor

    @tool
    def read(q: str = "x") -> str:
        """Read much."""
        return words(120)

    agent = programs.compacting(
        Stage(),
        lambda: ToolResultOffloadCompactor(programs.FileSystemToolResultStore(str(tmp_path)), min_tokens=20),
        ["call:read", "call:read", "Done."],
        context_window=600,
    )
    agent.tools = [read]
    agent.run([asked("Find")])
    last = assemblies(told)[-1]
    assert steps(last) == ["tool_result_offload"]
    assert last.attributes["assembly.compacted.count"] == 1


@SUMMARISES
@pytest.mark.parametrize("program", ["summarised", "summarised_awaited"])
async def test_summaries_and_what_each_stands_for(told, program):
    stage = Stage()
    result = getattr(programs, program)(stage)
    if asyncio.iscoroutine(result):
        await result
    compacted = [span for span in assemblies(told) if span.children]
    assert {name for span in compacted for name in steps(span)} == {"summarization"}
    assert compacted[0].attributes["assembly.compacted.count"] == 11
    assert all(span.attributes["assembly.compacted.count"] >= 8 for span in compacted)
    assert all(span.attributes["assembly.dropped.count"] == 0 for span in compacted)
    blocks = compacted[0].children[0].children
    assert [block.name for block in blocks] == ["compact_block summary"] * 2
    assert {block.attributes["assembly.compaction.outcome"] for block in blocks} == {"compacted"}
    assert len(stage.summaries) == len([span for span in told.spans if span.name.startswith("compact_block")])
    assert len(assemblies(told)) == len(stage.received)


@SUMMARISES
def test_a_summariser_that_fails(told):
    programs.summaries_fail(Stage())
    block = told.spans_named("compact_block summary")[0]
    assert block.attributes["error.type"] == "ConnectionError"
    assert all(span.attributes["assembly.compacted.count"] == 0 for span in assemblies(told))


@COMPACTS
def test_a_compactor_of_the_program_s_own(told):
    programs.a_compactor_of_its_own(Stage())
    [assembly] = assemblies(told)
    assert steps(assembly) == ["Halves"]
    assert assembly.children[0].attributes["assembly.policy.kind"] == "reduction"
    assert config(assembly.children[0])["context_window"] == 300


@COMPACTS
def test_compaction_that_finds_nothing_to_do_is_counted(told):
    agent = programs.compacting(Stage(), programs.SlidingWindowCompactor, ["Done."], context_window=90_000)
    agent.run([asked("Go")])
    assert steps(assemblies(told)[0]) == []
    assert told.metric("assembly.policy.declined") == 1


def test_a_generator_that_hands_on_is_a_step_framework(told):
    programs.wraps_a_generator(Stage())
    spans = assemblies(told)
    assert [steps(span) for span in spans] == [["framework"], ["framework"]]
    assert [span.attributes["assembly.events.in"] for span in spans] == [5, 7]
    assert [span.attributes["assembly.events.out"] for span in spans] == [2, 2]


def test_beside_any_agent_too(told):
    @component
    class Newest:
        def __init__(self, generators: Any):
            self.generators = generators

        @component.output_types(replies=list[ChatMessage])
        def run(self, messages: list[ChatMessage]) -> dict[str, Any]:
            return dict(self.generators["one"].run(messages=messages[-1:]))

    Newest({"one": ScriptedGenerator(Stage(), "Done.")}).run([*history(2), asked("Go")])
    [assembly] = assemblies(told)
    assert steps(assembly) == ["framework"]
    assert (assembly.attributes["assembly.events.in"], assembly.attributes["assembly.events.out"]) == (5, 1)


def test_each_generator_that_a_fallback_tries_has_the_same_steps(told):
    stage = Stage()
    down = ScriptedGenerator(stage, ConnectionError("down"))
    fallback = FallbackChatGenerator([down, ScriptedGenerator(stage, "Done.", model="gpt-4o-mini")])
    Agent(chat_generator=fallback, hooks={"before_llm": [programs.newest]}).run([*history(3), asked("Go")])
    spans = assemblies(told)
    assert [steps(span) for span in spans] == [["newest"], ["newest"]]
    assert [span.attributes["assembly.model"] for span in spans] == ["gpt-4o", "gpt-4o-mini"]


def test_a_fallback_hands_on_to_generators_that_do_not_say_what_they_give(told):
    @component
    class Silent(ScriptedGenerator):
        def run(self, messages: list[ChatMessage], tools: Any = None, **_: Any) -> dict[str, Any]:
            return {"replies": [self._answer(messages, tools)]}

    stage = Stage()
    FallbackChatGenerator([Silent(stage, ConnectionError("down")), Silent(stage, "Done.")]).run([asked("Go")])
    assert len(assemblies(told)) == len(stage.received) == 2


def test_a_model_that_a_tool_asks_is_a_call_of_its_own(told):
    programs.asks_a_model_in_a_tool(Stage())
    spans = assemblies(told)
    assert [span.attributes["assembly.events.in"] for span in spans] == [1, 1, 3]
    assert len({span.attributes["assembly.ledger.id"] for span in spans}) == 2
    assert not any(steps(span) for span in spans)


@pytest.mark.parametrize("tracer", [None, LoggingTracer()])
def test_a_run_is_one_trace_where_haystack_opens_no_span(told, tracer):
    if tracer is not None:
        tracing.enable_tracing(tracer)
    try:
        Agent(chat_generator=ScriptedGenerator(Stage(), "call:look", "Done."), tools=[programs.look]).run([asked("Go")])
    finally:
        tracing.disable_tracing()
    assert {span.parent.name for span in assemblies(told)} == {"invoke_agent Agent"}


@SUMMARISES
def test_what_compaction_says_stands_on_haystack_s_own_span(told):
    tracing.enable_tracing(OwnTracer(told))
    try:
        programs.summarised(Stage())
    finally:
        tracing.disable_tracing()
    said = [span for span in told.spans if "haystack.agent.hook.compaction.compacted" in span.attributes]
    assert said
    assert {span.name for span in said} == {"haystack.agent.hook"}
    assert {span.parent.name for span in assemblies(told) if not span.children} == {"haystack.agent.step.llm"}


async def test_concurrent_runs_keep_their_steps_apart(told):
    agent = Agent(chat_generator=AwaitedGenerator(Stage(), "Done."), hooks={"before_llm": [programs.newest]})
    await asyncio.gather(*(agent.run_async([*history(number), asked("Go")]) for number in range(2, 6)))
    dropped = sorted(span.attributes["assembly.dropped.count"] for span in assemblies(told))
    assert dropped == [1, 3, 5, 7]
    assert len({span.trace_id for span in told.spans}) == 4


def test_what_the_provider_holds_is_not_known(told, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    server = Responses()
    own = {"http_client_kwargs": {"transport": server.transport}}
    asked = [ChatMessage.from_user("And now?")]
    OpenAIResponsesChatGenerator(**own).run(asked)
    OpenAIResponsesChatGenerator(**own).run(asked, generation_kwargs={"previous_response_id": "resp_0"})
    OpenAIResponsesChatGenerator(generation_kwargs={"previous_response_id": "resp_0"}, **own).run(asked)
    OpenAIResponsesChatGenerator(generation_kwargs={"conversation": "conv_0"}, **own).run(asked)
    assert server.continued_from == [None, "resp_0", "resp_0", "conv_0"]
    known = [span.attributes.get("assembly.input.unknown") for span in told.spans_named("assemble_context")]
    assert known == [None, True, True, True]


@SUMMARISES
@pytest.mark.parametrize("program", ["summarised", "summarised_awaited"])
async def test_a_summarizers_model_call_is_in_its_compact_block(told, program):
    await check_summarizers_calls(told, getattr(programs, program), Stage())
