"""What is said of each call: who asks, in which conversation, and which capability made what of its messages."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import pydantic_ai_programs as programs
import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability, CombinedCapability, Hooks, ProcessHistory, WrapperCapability
from pydantic_ai.exceptions import ModelRetry, SkipModelRequest
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai_models import ScriptedModel, Stage, history
from traced_calls import check_summarizers_calls

HARNESS = pytest.mark.skipif(not hasattr(programs, "tiered"), reason="the harness is not installed")


def steps(assembly: Any) -> list[str]:
    return [child.attributes["assembly.policy.name"] for child in assembly.children]


def assemblies(telemetry: Any) -> list[Any]:
    return sorted(telemetry.spans_named("assemble_context"), key=lambda span: span.end_ns)


def newest(messages: list[Any]) -> list[Any]:
    return messages[-2:]


async def test_one_conversation_is_one_ledger_over_all_its_runs(told):
    agent = Agent(ScriptedModel(Stage(), "Done."), name="bob")
    first = await agent.run("One")
    await agent.run("Two", message_history=first.all_messages())
    await agent.run("Other")
    spans = assemblies(told)
    conversations = [span.attributes["gen_ai.conversation.id"] for span in spans]
    ledgers = [span.attributes["assembly.ledger.id"] for span in spans]
    assert [span.attributes["assembly.turn"] for span in spans] == [0, 1, 0]
    assert conversations[0] == conversations[1] != conversations[2]
    assert ledgers[0] == ledgers[1] != ledgers[2]
    assert spans[1].attributes["assembly.previous.id"] == spans[0].attributes["assembly.id"]
    assert {span.attributes["gen_ai.agent.name"] for span in spans} == {"bob"}


async def test_a_conversation_s_id_of_the_program_s_own(told):
    agent = Agent(ScriptedModel(Stage(), "Done."), name="bob")
    await agent.run("One", conversation_id="4711")
    await agent.run("Two", conversation_id="4711")
    assert [span.attributes["assembly.turn"] for span in assemblies(told)] == [0, 1]
    assert {span.attributes["gen_ai.conversation.id"] for span in assemblies(told)} == {"4711"}


async def test_a_history_processor_goes_by_its_function_s_name(told):
    agent = Agent(
        ScriptedModel(Stage(), "Done."),
        capabilities=[ProcessHistory(newest), ProcessHistory(lambda messages: messages[-1:])],
    )
    await agent.run("Go", message_history=history(3))
    (assembly,) = assemblies(told)
    assert steps(assembly) == ["newest", "history_processor"]
    assert [child.attributes["assembly.dropped.items"] for child in assembly.children] == [["0-4"], ["5"]]
    assert assembly.kept == ["6"]
    assert assembly.attributes["assembly.dropped.count"] == 6


async def test_a_streamed_request_has_the_same_steps_and_the_same_asker(told):
    stage = Stage()
    model = ScriptedModel(stage, "call:look", "Done.")
    agent = Agent(model, name="bob", tools=[programs.look], capabilities=[ProcessHistory(newest)])
    async with agent.run_stream("Go", message_history=history(3), conversation_id="one") as result:
        await result.get_output()
    await agent.run("Again", message_history=result.all_messages(), event_stream_handler=_reads)
    spans = assemblies(told)
    assert [steps(span)[0] for span in spans] == ["newest"] * 3
    assert {span.attributes["gen_ai.agent.name"] for span in spans} == {"bob"}
    assert [span.attributes["assembly.turn"] for span in spans] == [0, 1, 2]


async def _reads(ctx: Any, events: Any) -> None:
    async for _ in events:
        pass


async def test_a_capability_that_changes_nothing_is_no_step(told):
    await Agent(ScriptedModel(Stage(), "Done."), capabilities=[ProcessHistory(newest)]).run("Go")
    (assembly,) = assemblies(told)
    assert steps(assembly) == []
    assert told.metric("assembly.policy.declined") == 1


async def test_what_wraps_the_request_is_the_first_step(told):
    @dataclass
    class Wrapping(AbstractCapability[Any]):
        async def wrap_model_request(self, ctx: Any, *, request_context: Any, handler: Any) -> Any:
            return await handler(replace(request_context, messages=request_context.messages[2:]))

    stage = Stage()
    agent = Agent(ScriptedModel(stage, "Done."), capabilities=[Wrapping(), ProcessHistory(newest)])
    await agent.run("Go", message_history=history(3))
    (assembly,) = assemblies(told)
    assert assembly.attributes["assembly.events.in"] == 7
    assert assembly.attributes["assembly.events.out"] == len(stage.received[0].events)
    assert {"newest"} < set(steps(assembly))


async def test_capabilities_in_others_are_steps_of_the_same_call(told):
    @dataclass
    class Around(WrapperCapability[Any]):
        pass

    inner = CombinedCapability([ProcessHistory(newest)])
    agent = Agent(ScriptedModel(Stage(), "Done."), name="bob", capabilities=[Around(inner)])
    await agent.run("Go", message_history=history(3))
    (assembly,) = assemblies(told)
    assert steps(assembly) == ["newest"]


async def test_a_subclass_is_one_step_by_its_own_name(told):
    @dataclass
    class Newest(AbstractCapability[Any]):
        keep: int = 3

        async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
            request_context.messages = request_context.messages[-self.keep :]
            return request_context

    @dataclass
    class Fewer(Newest):
        async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
            request_context = await super().before_model_request(ctx, request_context)
            request_context.messages = request_context.messages[1:]
            return request_context

    @dataclass
    class Same(Newest):
        pass

    agent = Agent(ScriptedModel(Stage(), "Done."), capabilities=[Same(5), Fewer(3)])
    await agent.run("Go", message_history=history(3))
    (assembly,) = assemblies(told)
    assert [child.attributes["assembly.events.out"] for child in assembly.children][-1] == 2
    assert steps(assembly)[0] == "Same"
    assert steps(assembly)[-1] == "Fewer"
    assert assembly.children[0].attributes["assembly.policy.config"] == '{"keep":5}'


async def test_instructions_that_a_hook_writes_anew_are_its_step(told):
    def shorter(ctx: Any, request_context: Any) -> Any:
        parameters = request_context.model_request_parameters
        parts = [replace(part, content="Be brief.") for part in parameters.instruction_parts]
        request_context.model_request_parameters = replace(parameters, instruction_parts=parts)
        return request_context

    stage = Stage()
    hooks = Hooks(before_model_request=shorter)
    await Agent(ScriptedModel(stage, "Done."), instructions="Be long. " * 9, capabilities=[hooks]).run("Go")
    (assembly,) = assemblies(told)
    assert steps(assembly) == ["hooks"]
    assert assembly.attributes["assembly.tokens.out"] == stage.received[0].tokens
    assert assembly.attributes["assembly.tokens.in"] > assembly.attributes["assembly.tokens.out"]


async def test_messages_that_the_framework_puts_together_are_a_step_of_its_own(told):
    stage = Stage()
    held = [*history(1), ModelRequest.user_text_prompt("One more.")]
    merging = Hooks(before_model_request=_with(held))
    await Agent(ScriptedModel(stage, "Done."), capabilities=[merging]).run("Go")
    (assembly,) = assemblies(told)
    assert steps(assembly) == ["hooks", "framework"]
    assert assembly.attributes["assembly.events.out"] == len(stage.received[0].events) == 3


def _with(held: list[Any]) -> Any:
    def put(ctx: Any, request_context: Any) -> Any:
        request_context.messages = [*held, *request_context.messages]
        return request_context

    return put


async def test_a_capability_that_raises_is_a_step_with_its_error_and_nothing_is_sent(told):
    def fails(messages: list[Any]) -> list[Any]:
        raise LookupError("private words")

    stage = Stage()
    with pytest.raises(LookupError):
        await Agent(ScriptedModel(stage, "Done."), name="bob", capabilities=[ProcessHistory(fails)]).run("Go")
    (assembly,) = assemblies(told)
    assert stage.received == []
    assert assembly.attributes["assembly.events.out"] == 0
    assert assembly.attributes["error.type"] == assembly.children[0].attributes["error.type"] == "LookupError"


async def test_a_request_that_is_answered_without_a_model_calls_none(told):
    @dataclass
    class Cached(AbstractCapability[Any]):
        async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
            raise SkipModelRequest(ModelResponse([TextPart("From the cache.")]))

    stage = Stage()
    agent = Agent(ScriptedModel(stage, "Done."), capabilities=[ProcessHistory(newest), Cached()])
    assert (await agent.run("Go", message_history=history(3))).output == "From the cache."
    assert stage.received == []
    assert [steps(assembly)[0] for assembly in assemblies(told)] == ["newest"]


async def test_a_request_that_a_capability_wants_once_more_is_two_calls(told):
    @dataclass
    class Strict(AbstractCapability[Any]):
        async def after_model_request(self, ctx: Any, *, request_context: Any, response: Any) -> Any:
            if response.parts[0].content == "Sloppy.":
                raise ModelRetry("Do it again.")
            return response

    stage = Stage()
    agent = Agent(ScriptedModel(stage, "Sloppy.", "Good."), capabilities=[Strict()], retries=2)
    assert (await agent.run("Go")).output == "Good."
    told_of = [assembly.attributes["assembly.tokens.out"] for assembly in assemblies(told)]
    assert told_of == [request.tokens for request in stage.received]
    assert len(told_of) == 2


async def test_an_agent_that_answers_in_a_model_s_place_makes_calls_of_its_own(told):
    stage = Stage()
    inner = Agent(ScriptedModel(stage, "From inside."), name="inner")

    async def ask(messages: Any, info: Any) -> Any:
        return ModelResponse([TextPart((await inner.run("Say it")).output)])

    outer = Agent(FunctionModel(ask, model_name="gpt-4o"), name="outer")
    assert (await outer.run("Go")).output == "From inside."
    spans = assemblies(told)
    assert [span.attributes["gen_ai.agent.name"] for span in spans] == ["outer", "inner"]
    assert len({span.trace_id for span in told.spans}) == 1


async def test_two_runs_at_once_keep_apart(told):
    stage = Stage()
    model = ScriptedModel(stage, lambda messages: "call:look" if len(messages) == 1 else "Done.")
    agents = [Agent(model, name=name, tools=[programs.look], instructions=name * 9) for name in ("one", "two")]
    await asyncio.gather(*(agent.run("Go") for agent in agents for _ in range(3)))
    spans = assemblies(told)
    assert len(spans) == 12
    by_name = {name: {span.attributes["gen_ai.conversation.id"] for span in spans
                      if span.attributes["gen_ai.agent.name"] == name} for name in ("one", "two")}  # fmt: skip
    assert {name: len(found) for name, found in by_name.items()} == {"one": 3, "two": 3}
    assert sorted(span.attributes["assembly.turn"] for span in spans) == [0] * 6 + [1] * 6


async def test_what_a_provider_compacts_is_an_attempt_as_well(told):
    stage = Stage()
    await programs.compacted_by_the_provider(stage)
    (assembly,) = assemblies(told)
    block = told.span("compact_block summary")
    assert block.parent.attributes["assembly.policy.name"] == steps(assembly)[0] == "Compaction"
    assert len(stage.summaries) == len(stage.received) == 1


@HARNESS
async def test_a_summary_is_an_attempt_inside_the_call_that_it_is_made_for(told):
    stage = Stage()
    await programs.summarised(stage)
    blocks = told.spans_named("compact_block summary")
    assert len(blocks) == len(stage.summaries)
    assert {block.parent.attributes["assembly.policy.name"] for block in blocks} == {"summarization"}
    assert {block.attributes["assembly.compaction.outcome"] for block in blocks} == {"compacted"}
    assert len(assemblies(told)) == len(stage.received)


@HARNESS
@pytest.mark.parametrize(
    ("program", "policy"),
    [("sliding_window", "sliding_window"), ("cleared_results", "clear_tool_results"), ("tiered", "tiered")],
)
async def test_what_the_harness_does_goes_by_its_name(told, program, policy):
    await getattr(programs, program)(Stage())
    named = {name for assembly in assemblies(told) for name in steps(assembly)}
    assert named - {"framework"} == {policy}


@HARNESS
async def test_the_tokens_that_compaction_is_to_keep_within_are_its_budget(told):
    await programs.tiered(Stage())
    tiered = [assembly for assembly in assemblies(told) if "tiered" in steps(assembly)]
    assert {span.attributes["assembly.budget.limit"] for span in tiered} == {5}


@HARNESS
async def test_a_summary_that_fails_is_told_with_its_error(told):
    await programs.summaries_fail(Stage())
    (block,) = told.spans_named("compact_block summary")
    assert block.attributes["error.type"] == "ConnectionError"
    assert block.parent.attributes["error.type"] == "ConnectionError"


if find_spec("openai"):

    async def test_what_the_provider_holds_is_not_known(told):
        import httpx
        from openai import AsyncOpenAI
        from openai_server import Responses
        from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings
        from pydantic_ai.providers.openai import OpenAIProvider

        server = Responses()
        client = AsyncOpenAI(
            api_key="none", base_url="http://nowhere", http_client=httpx.AsyncClient(transport=server.transport)
        )
        agent = Agent(OpenAIResponsesModel("gpt-4o", provider=OpenAIProvider(openai_client=client)))
        first = await agent.run("Where?")
        for held, history_of in (("auto", first.all_messages()), ("resp_7", None)):
            settings = OpenAIResponsesModelSettings(openai_previous_response_id=held)
            await agent.run("And now?", message_history=history_of, model_settings=settings)
        await agent.run("So?", model_settings=OpenAIResponsesModelSettings(openai_conversation_id="conv_0"))
        assert server.continued_from == [None, "resp_1", "resp_7", "conv_0"]
        known = [span.attributes.get("assembly.input.unknown") for span in told.spans_named("assemble_context")]
        assert known == [None, True, True, True]


@HARNESS
@pytest.mark.parametrize("program", ["summarised", "compacted_by_the_provider"])
async def test_a_summarizers_model_call_is_in_its_compact_block(told, program):
    await check_summarizers_calls(told, getattr(programs, program), Stage())
