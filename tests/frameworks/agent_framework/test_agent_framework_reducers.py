"""What agent-framework's compaction does to a conversation, and why: the steps of each call, and what they say."""

from __future__ import annotations

import agent_programs
import pytest
from agent_framework import (
    Agent,
    CompactionProvider,
    ContextWindowCompactionStrategy,
    InMemoryHistoryProvider,
    SummarizationStrategy,
)
from agent_programs import QUESTIONS, Stage
from scripted_clients import assert_told, steps
from traced_calls import check_summarizers_calls

pytestmark = pytest.mark.filterwarnings("ignore:.*is experimental")


async def play(told, program):
    stage = Stage()
    await program(stage)
    return stage, assert_told(told, stage.received)


STEPS = {
    "sliding_window": "sliding_window",
    "sliding_window_in_a_stream": "sliding_window",
    "truncation": "truncation",
    "truncation_by_tokens": "truncation",
    "selective_tool_calls": "selective_tool_call",
    "tool_results": "tool_result",
    "summarization": "summarization",
    "summarization_that_fails": "summarization",
    "composed": "token_budget_composed",
    "composed_down_to_the_fallback": "token_budget_composed",
    "provider_before": "sliding_window",
    "provider_after": "skip_excluded",
    "own_strategy": "newest_five",
    "middleware_that_edits": "chat_middleware",
    "middleware_that_edits_in_a_stream": "chat_middleware",
    "history_in_files": "sliding_window",
}


@pytest.mark.parametrize("program", STEPS)
async def test_each_reduction_is_a_step_with_its_own_name_and_nothing_is_left_unexplained(told, program):
    _, assemblies = await play(told, getattr(agent_programs, program))
    named = [name for assembly in assemblies for name in steps(assembly)]
    assert set(named) == {STEPS[program]}


def counts(assemblies, name):
    return [assembly.attributes[f"assembly.{name}"] for assembly in assemblies]


def why(assembly, place=0):
    return set(assembly.children[place].dropped_reasons.values())


async def test_a_session_is_one_conversation_of_its_agent(told):
    _, assemblies = await play(told, agent_programs.resumed_from_saved_state)
    assert counts(assemblies, "turn") == list(range(9))
    assert len({assembly.attributes["assembly.ledger.id"] for assembly in assemblies}) == 1
    assert {assembly.attributes["gen_ai.conversation.id"] for assembly in assemblies} == {"s1"}
    assert {assembly.attributes["gen_ai.agent.name"] for assembly in assemblies} == {"clerk"}
    assert {assembly.attributes["assembly.model"] for assembly in assemblies} == {"gpt-4o"}
    assert all("tool_schemas" in assembly.attributes["assembly.kind.names"] for assembly in assemblies)
    assert counts(assemblies, "prompt.sources") == [["caller"]] * 9


async def test_a_window_is_told_with_all_that_the_conversation_holds(told):
    _, assemblies = await play(told, agent_programs.sliding_window)
    assert counts(assemblies, "events.in") == [1, 3, 5, 7, 9, 11, 13, 15, 17]
    assert why(assemblies[-1]) == {"outside_window"}
    assert '"keep_last_groups":3' in assemblies[-1].children[0].attributes["assembly.policy.config"]


async def test_what_a_provider_leaves_out_before_a_run_is_told_of_all_calls_of_the_run(told):
    _, assemblies = await play(told, agent_programs.provider_before)
    assert counts(assemblies, "events.in") == [1, 3, 5, 7, 9, 11, 13, 15, 17]
    assert counts(assemblies, "dropped.count") == [0, 0, 1, 1, 5, 5, 5, 11, 14]
    assert counts(assemblies, "newly_dropped.count") == [0, 0, 1, 0, 4, 0, 0, 6, 3]


async def test_what_a_provider_marks_after_a_run_is_missed_by_the_next_one(told):
    _, assemblies = await play(told, agent_programs.provider_after)
    assert counts(assemblies, "events.in") == [1, 3, 5, 7, 9, 11, 13, 15, 17]
    assert why(assemblies[-1]) == {"outside_window"}


async def test_truncation_says_whether_it_goes_by_messages_or_by_tokens(told):
    _, assemblies = await play(told, agent_programs.truncation)
    assert why(assemblies[-1]) == {"outside_window"}
    assert "assembly.budget.limit" not in assemblies[-1].children[0].attributes
    told.clear()
    _, assemblies = await play(told, agent_programs.truncation_by_tokens)
    assert why(assemblies[-1]) == {"over_budget"}
    assert assemblies[-1].attributes["assembly.budget.limit"] == 150


async def test_a_summariser_is_an_attempt_inside_the_assembly_that_asked_for_it(told):
    stage, assemblies = await play(told, agent_programs.summarization)
    blocks = told.spans_named("compact_block summary")
    assert len(blocks) == len(stage.summaries) == 7
    assert {block.parent.name for block in blocks} == {"apply_policy summarization"}
    assert {block.attributes["assembly.compaction.outcome"] for block in blocks} == {"compacted"}
    assert counts(assemblies, "compacted.count")[-1] > 0


async def test_a_summariser_that_fails_is_an_attempt_that_came_to_nothing(told):
    await play(told, agent_programs.summarization_that_fails)
    outcomes = [block.attributes["assembly.compaction.outcome"] for block in told.spans_named("compact_block summary")]
    assert outcomes[:4] == ["raised", "empty", "compacted", "raised"]


async def test_what_several_reducers_leave_out_has_the_reason_of_the_one_that_did(told):
    _, assemblies = await play(told, agent_programs.providers_and_strategy)
    assert steps(assemblies[6]) == ["sliding_window", "tool_result"]
    assert steps(assemblies[7]) == ["summarization", "skip_excluded", "sliding_window"]
    assert "policy" not in {
        reason for assembly in assemblies for child in assembly.children for reason in child.dropped_reasons.values()
    }


async def test_what_middleware_puts_in_is_an_injection_and_what_it_takes_out_a_reduction(told):
    _, assemblies = await play(told, agent_programs.middleware_that_edits_in_a_stream)
    assert counts(assemblies, "events.injected") == [1] * 9
    assert {child.attributes["assembly.policy.kind"] for assembly in assemblies for child in assembly.children} == {
        "injection"
    }
    told.clear()
    _, assemblies = await play(told, agent_programs.middleware_that_edits)
    assert assemblies[-1].children[0].attributes["assembly.policy.kind"] == "reduction"


async def test_history_that_is_loaded_around_each_call_comes_in(told):
    _, assemblies = await play(told, agent_programs.history_around_each_call)
    assert counts(assemblies, "events.in") == [1, 3, 5, 7, 9, 11, 13, 15, 17]
    assert [steps(assembly) for assembly in assemblies] == [[]] * 9


async def test_a_retry_is_an_assembly_of_its_own_with_the_same_input(told):
    _, assemblies = await play(told, agent_programs.middleware_that_retries)
    assert counts(assemblies, "events.in") == [1, 3, 3, 3, 5, 5]
    assert counts(assemblies, "events.out") == [1, 3, 3, 1, 5, 5]


async def test_a_class_of_clients_that_hands_on_what_it_changed_is_looked_through(told):
    _, assemblies = await play(told, agent_programs.a_client_of_ones_own)
    assert [steps(assembly) for assembly in assemblies] == [[], [], ["framework"], ["framework", "framework"]]


async def test_the_window_of_the_model_is_that_which_a_strategy_is_told(told):
    stage = Stage()
    strategy = ContextWindowCompactionStrategy(max_context_window_tokens=8_000, max_output_tokens=500)
    await agent_programs.talk(stage, agent_programs.clerk(stage, compaction_strategy=strategy))
    assert counts(assert_told(told, stage.received), "model.window") == [8_000] * 9


async def test_a_summarizer_that_works_when_a_run_is_over_is_recorded_then_also_after_the_last_run(told):
    stage, assemblies = await play(told, agent_programs.providers_and_strategy)
    blocks = told.spans_named("compact_block summary")
    assert len(blocks) == len(stage.summaries)
    compactions = [span for span in told.spans_named("assemble_context") if "assembly.name" in span.attributes]
    assert {span.attributes["assembly.name"] for span in compactions} == {"compaction"}
    assert {span.parent.name for span in compactions} == {"invoke_agent clerk"}
    assert {block.parent.parent.span_id for block in blocks} == {span.span_id for span in compactions}
    assert {block.parent.name for block in blocks} == {"apply_policy summarization"}
    assert {block.attributes["assembly.compaction.outcome"] for block in blocks} == {"compacted"}
    assert all(block.attributes["assembly.tokens.in"] > block.attributes["assembly.tokens.out"] > 0 for block in blocks)
    assert steps(assemblies[7])[0] == "summarization"


async def test_a_summarizer_that_fails_when_a_run_is_over_is_recorded_then(told):
    stage = Stage()
    strategy = SummarizationStrategy(client=stage.summariser(RuntimeError("no")), target_count=1, threshold=1)
    providers = [InMemoryHistoryProvider(), CompactionProvider(after_strategy=strategy)]
    agent = Agent(stage.client(*"1234"), "You help.", name="clerk", context_providers=providers)
    session = agent.create_session()
    for question in QUESTIONS[:4]:
        await stage.ask(agent, question, session=session)
    assert_told(told, stage.received)
    blocks = told.spans_named("compact_block summary")
    assert len(blocks) == len(stage.summaries)
    assert [block.attributes["assembly.compaction.outcome"] for block in blocks] == ["raised", "compacted"]
    assert {block.parent.parent.parent.name for block in blocks} == {"invoke_agent clerk"}


@pytest.mark.parametrize(
    "program",
    [agent_programs.summarization, agent_programs.providers_and_strategy],
    ids=lambda program: program.__name__,
)
async def test_a_summarizers_model_call_is_in_its_compact_block(told, program):
    await check_summarizers_calls(told, program, Stage())
