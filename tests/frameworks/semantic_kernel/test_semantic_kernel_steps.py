"""What is said of each call: who asks, in which conversation, and what reduced its messages."""

from __future__ import annotations

from typing import Any

import pytest
import semantic_kernel_programs as programs
from semantic_kernel import Kernel
from semantic_kernel.agents import ChatHistoryAgentThread
from semantic_kernel.contents import (
    AuthorRole,
    ChatHistory,
    ChatHistorySummarizationReducer,
    ChatHistoryTruncationReducer,
    ChatMessageContent,
)
from semantic_kernel.contents.history_reducer.chat_history_reducer import ChatHistoryReducer
from semantic_kernel.exceptions.content_exceptions import ChatHistoryReducerException
from semantic_kernel_models import ScriptedService, ScriptedTexts, Settings, Stage, talk
from semantic_kernel_programs import LOOK, agent
from traced_calls import TracedCalls, check_linked, check_summarizers_calls


def steps(assembly: Any) -> list[str]:
    return [child.attributes["assembly.policy.name"] for child in assembly.children]


def assemblies(telemetry: Any) -> list[Any]:
    return sorted(telemetry.spans_named("assemble_context"), key=lambda span: span.end_ns)


async def test_one_thread_is_one_ledger_over_all_its_runs(told):
    bob = agent(Stage(), "Done.")
    first = await bob.get_response("One")
    await bob.get_response("Two", thread=first.thread)
    await bob.get_response("Other")
    spans = assemblies(told)
    assert [span.attributes["assembly.turn"] for span in spans] == [0, 1, 0]
    conversations = [span.attributes["gen_ai.conversation.id"] for span in spans]
    assert conversations[0] == conversations[1] == first.thread.id != conversations[2]
    assert spans[1].attributes["assembly.previous.id"] == spans[0].attributes["assembly.id"]
    assert {span.attributes["gen_ai.agent.name"] for span in spans} == {"bob"}


async def test_each_agent_in_a_thread_has_a_ledger_of_its_own(told):
    await programs.several_agents_in_a_thread(Stage())
    spans = assemblies(told)
    assert [(s.attributes["gen_ai.agent.name"], s.attributes["assembly.turn"]) for s in spans] == [
        ("one", 0), ("one", 1), ("two", 0), ("two", 1), ("one", 2)
    ]  # fmt: skip
    assert len({span.attributes["gen_ai.conversation.id"] for span in spans}) == 1


async def test_a_history_of_a_program_s_own_is_a_conversation_without_an_id(told):
    await programs.direct(Stage())
    spans = assemblies(told)
    assert [span.attributes["assembly.turn"] for span in spans] == [*range(5)]
    assert not any("gen_ai.conversation.id" in span.attributes for span in spans)


async def test_prompts_go_on_with_the_history_among_their_arguments_and_are_else_conversations_of_their_own(told):
    await programs.chat_function(Stage())
    assert [span.attributes["assembly.turn"] for span in assemblies(told)] == [0, 1, 2, 3]
    told.clear()
    await programs.prompted(Stage())
    assert [span.attributes["assembly.turn"] for span in assemblies(told)] == [0, 1, 0]


async def test_a_truncation_is_a_step_of_the_next_call_with_its_settings(told):
    thread = ChatHistoryAgentThread(
        chat_history=talk(ChatHistoryTruncationReducer(target_count=3, threshold_count=1), 3)
    )
    await thread.reduce()
    await agent(Stage(), "Done.").get_response("Go", thread=thread)
    await ChatHistoryTruncationReducer(target_count=9).reduce()  # it has nothing to do
    (assembly,) = assemblies(told)
    (step,) = assembly.children
    assert step.name == "apply_policy truncation"
    assert step.attributes["assembly.policy.kind"] == "reduction"
    assert step.attributes["assembly.policy.config"] == '{"auto_reduce":false,"target_count":3,"threshold_count":1}'
    assert step.attributes["assembly.dropped.items"] == ["0-1"]
    assert step.attributes["assembly.dropped.reasons"] == ["outside_window"]
    assert (assembly.attributes["assembly.events.in"], assembly.attributes["assembly.events.out"]) == (7, 5)
    assert told.metric("assembly.policy.declined") == 1


async def test_system_prompts_stay_prompts_and_one_that_goes_is_dropped(told):
    class Newest(ChatHistoryReducer):
        async def reduce(self) -> Any:
            self.messages = [self.messages[0], *self.messages[-self.target_count :]]
            return self

    history = Newest(target_count=2, system_message="You note.")
    history.add_system_message("Be brief.")
    talk(history, 3)
    await history.reduce()
    await ScriptedService(Stage(), "Done.").get_chat_message_content(history, Settings())
    (assembly,) = assemblies(told)
    assert steps(assembly) == ["Newest"]
    assert assembly.attributes["assembly.events.in"] == 7
    assert assembly.attributes["assembly.prompts.out"] == 1
    assert assembly.attributes["assembly.dropped.count"] == 5


async def test_a_summary_says_what_it_stands_for_and_its_model_is_a_part_of_the_step(told):
    stage = Stage()
    summariser = ScriptedService(stage, "They looked.", name="gpt-4o-mini", summarises=True)
    history = talk(ChatHistorySummarizationReducer(service=summariser, target_count=2), 2)
    thread = ChatHistoryAgentThread(chat_history=history)
    looker = agent(stage, LOOK, "Done.", "Done.")
    await looker.get_response("Go", thread=thread)  # 4, and then 4 of its own
    await thread.reduce()
    await looker.get_response("And now?", thread=thread)
    last = assemblies(told)[-1]
    (step,) = last.children
    assert step.name == "apply_policy summarization"
    (block,) = step.children
    assert block.name == "compact_block summary"
    assert block.attributes["assembly.compaction.outcome"] == "compacted"
    assert last.attributes["assembly.compacted.count"] == 5
    assert "outside_window" not in last.attributes.get("assembly.dropped.reasons", ())
    assert len(assemblies(told)) == len(stage.received) == 3


async def test_calls_that_a_summariser_is_not_shown_are_dropped(told):
    stage = Stage()
    await programs.summarised(stage)
    made = [assembly for assembly in assemblies(told) if steps(assembly)]
    assert [span.children[0].attributes.get("assembly.dropped.reasons") for span in made] == [
        None, ["outside_window"], ["outside_window"]
    ]  # fmt: skip
    assert all(span.attributes["assembly.compacted.count"] > 0 for span in made)


async def test_a_summary_that_fails_is_told_and_so_is_a_reducer_that_raises(told):
    await programs.summaries_fail(Stage())
    blocks = told.spans_named("compact_block summary")
    assert [block.attributes["error.type"] for block in blocks] == ["ConnectionError"] * 3
    told.clear()
    summariser = ScriptedService(Stage(), ConnectionError("private words"), summarises=True)
    history = talk(ChatHistorySummarizationReducer(service=summariser, target_count=2), 2)
    with pytest.raises(ChatHistoryReducerException):
        await history.reduce()
    (assembly,) = assemblies(told)
    assert assembly.attributes["error.type"] == assembly.children[0].attributes["error.type"]
    assert assembly.attributes["error.type"].endswith(".ChatHistoryReducerException")
    assert "private words" not in str([span.attributes for span in told.spans])


async def test_a_reducer_that_returns_another_history_waits_for_that(told):
    class Copies(ChatHistoryReducer):
        async def reduce(self) -> Any:
            return ChatHistory(messages=self.messages[-self.target_count :])

    left = await talk(Copies(target_count=2), 3).reduce()
    await ScriptedService(Stage(), "Done.").get_chat_message_content(left, Settings())
    (assembly,) = assemblies(told)
    assert steps(assembly) == ["Copies"]
    assert assembly.attributes["assembly.events.in"] == 6


async def test_reducers_in_one_another_are_one_step(told):
    await programs.own_reducer(Stage())
    assert [steps(assembly) for assembly in assemblies(told)] == [["Requests"], ["Requests"], ["Fewer"], ["Fewer"]]


async def test_what_filters_and_programs_take_out_of_a_history_is_a_step(told):
    await programs.filtered(Stage())
    await programs.edited_by_hand(Stage())
    spans = assemblies(told)
    assert [steps(span) for span in spans] == [
        [],
        ["edited_history"],
        ["edited_history"],
        [],
        [],
        *[["edited_history"]] * 2,
    ]
    assert spans[1].children[0].attributes["assembly.dropped.items"] == ["0-3"]


async def test_a_history_that_is_read_again_is_not_edited(told):
    service, history = ScriptedService(Stage(), "Done."), talk(ChatHistory(), 2)
    await service.get_chat_message_content(history, Settings())
    history.messages = ChatHistory.restore_chat_history(history.serialize()).messages
    history.add_user_message("Go on")
    await service.get_chat_message_content(history, Settings())
    assert [steps(assembly) for assembly in assemblies(told)] == [[], []]
    assert assemblies(told)[-1].attributes["assembly.turn"] == 1


async def test_what_a_service_hands_on_otherwise_is_a_step_of_the_agent_s_call(told):
    await programs.subclassed(Stage())
    spans = assemblies(told)
    assert [steps(span) for span in spans] == [[], ["framework"]]
    assert {span.attributes["gen_ai.agent.name"] for span in spans} == {"own"}


async def test_of_a_fallback_each_service_that_is_tried_has_an_assembly(told):
    stage = Stage()
    await programs.falls_back(stage)
    spans = assemblies(told)
    assert len(spans) == len(stage.received) == 4
    assert {span.attributes["gen_ai.agent.name"] for span in spans} == {"faller"}


async def test_an_agent_in_a_tool_is_a_part_of_the_run(told):
    await programs.agents_as_tools(Stage())
    assert [span.attributes["gen_ai.agent.name"] for span in assemblies(told)] == ["boss", "helper", "helper", "boss"]
    assert [span.name for span in told.spans if span.parent is None] == ["invoke_agent boss"]


async def test_an_orchestration_is_one_run_until_it_has_its_result(told):
    await programs.handed_off(Stage())
    (top,) = [span for span in told.spans if span.parent is None]
    assert top.name == "invoke_agent HandoffOrchestration"
    assert [span.attributes["gen_ai.agent.name"] for span in assemblies(told)] == ["one", "two", "two"]
    assert top.end_ns >= max(span.end_ns for span in assemblies(told))


async def test_an_orchestration_that_fails_has_its_error(told):
    members = [agent(Stage(), ConnectionError("private words"), name="one"), agent(Stage(), "Two.", name="two")]
    with pytest.raises(ConnectionError):
        await programs._orchestrated(programs.SequentialOrchestration(members=members))
    top = told.span("invoke_agent SequentialOrchestration")
    assert top.attributes["error.type"] == "ConnectionError"


async def test_what_a_message_cost_is_told_with_it(told):
    stage = Stage()
    service, history = ScriptedService(stage, "Done."), ChatHistory()
    for question in ("One", "Two"):
        history.add_message(ChatMessageContent(role=AuthorRole.USER, content=question))
        history.add_message(await service.get_chat_message_content(history, Settings()))
    assert assemblies(told)[-1].attributes["assembly.events.in"] == 3


def by_strategies(telemetry: Any) -> list[Any]:
    return [
        assembly for assembly in assemblies(telemetry) if assembly.attributes["gen_ai.agent.name"] == "AgentGroupChat"
    ]


async def test_a_strategys_prompt_stands_for_the_conversation_that_is_rendered_into_it(told):
    await programs.group_chat(Stage())
    made = by_strategies(told)
    # Who is next, and whether it is done, twice: the chat has no calls of tools.
    assert [span.attributes["assembly.compacted.count"] for span in made] == [1, 2, 2, 3]
    assert [span.attributes["assembly.dropped.count"] for span in made] == [0] * 4
    assert [span.attributes["assembly.events.out"] for span in made] == [1] * 4
    assert [span.attributes["assembly.turn"] for span in made] == [0, 0, 1, 1]


async def test_what_a_strategys_reducer_leaves_out_is_a_step_of_its_call(told):
    await programs.group_chat(Stage(), history_reducer=ChatHistoryTruncationReducer(target_count=1))
    made = by_strategies(told)
    assert [steps(message) for message in made] == [["framework"], *[["truncation", "framework"]] * 3]
    assert [span.attributes["assembly.compacted.count"] for span in made] == [1] * 4
    assert [span.attributes["assembly.dropped.count"] for span in made] == [0, 1, 1, 2]
    assert {reason for span in made[1:] for reason in span.children[0].attributes["assembly.dropped.reasons"]} == {
        "outside_window"
    }


@pytest.mark.parametrize("program", [programs.summaries_fail])
async def test_a_summarizers_model_call_is_in_its_compact_block(told, program):
    await check_summarizers_calls(told, program, Stage())


async def test_prompts_and_their_model_spans_belong_together_also_without_a_parent(told, no_own_spans):
    stage = Stage()
    stage.received = TracedCalls(told)
    for service in (ScriptedService(stage, "Sunny."), ScriptedTexts(stage)):
        kernel = Kernel(services=[service])
        await kernel.invoke_prompt("The weather?")
        async for _ in kernel.invoke_prompt_stream("And tomorrow?"):
            pass
    check_linked(told)
