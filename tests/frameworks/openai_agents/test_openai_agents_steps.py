"""What is said of each call: who asks, in which conversation, and what made what of its items."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from importlib.util import find_spec
from inspect import signature
from types import SimpleNamespace
from typing import Any

import openai_agents_programs as programs
import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIResponsesCompactionSession,
    RunConfig,
    Runner,
    SessionSettings,
    SQLiteSession,
    handoff,
)
from agents.run import ModelInputData
from agents.run_internal.items import drop_orphan_function_calls
from openai import AsyncOpenAI
from openai_agents_models import ScriptedModel, Stage, history
from traced_calls import check_summarizers_calls


def steps(assembly: Any) -> list[str]:
    return [child.attributes["assembly.policy.name"] for child in assembly.children]


def assemblies(telemetry: Any) -> list[Any]:
    return sorted(telemetry.spans_named("assemble_context"), key=lambda span: span.end_ns)


def said(span: Any, name: str) -> Any:
    return span.attributes.get(f"assembly.{name}")


async def test_a_session_is_one_ledger_over_all_its_runs(told):
    agent = Agent("bob", model=ScriptedModel(Stage(), "Done."))
    one, two = SQLiteSession("one"), SQLiteSession("two")
    for session in (one, one, two):
        await Runner.run(agent, "Go", session=session)
    spans = assemblies(told)
    assert [span.attributes["gen_ai.conversation.id"] for span in spans] == ["one", "one", "two"]
    assert [said(span, "turn") for span in spans] == [0, 1, 0]
    assert said(spans[0], "ledger.id") == said(spans[1], "ledger.id") != said(spans[2], "ledger.id")
    assert said(spans[1], "previous.id") == said(spans[0], "id")
    assert {span.attributes["gen_ai.agent.name"] for span in spans} == {"bob"}


async def test_a_run_without_one_is_a_conversation_by_itself_and_has_no_id(told):
    agent = Agent("bob", model=ScriptedModel(Stage(), "call:look", "Done."), tools=[programs.look])
    await Runner.run(agent, "Go")
    await Runner.run(agent, "Go")
    spans = assemblies(told)
    assert [said(span, "turn") for span in spans] == [0, 1, 0]
    assert all("gen_ai.conversation.id" not in span.attributes for span in told.spans)


async def test_an_agent_that_is_handed_to_asks_by_its_own_name_in_the_same_conversation(told):
    stage = Stage()
    second = Agent("second", model=ScriptedModel(stage, "Done."))
    first = Agent("first", model=ScriptedModel(stage, "call:transfer_to_second"), handoffs=[second])
    await Runner.run(first, "Go", session=SQLiteSession("both"))
    assert [span.attributes["gen_ai.agent.name"] for span in assemblies(told)] == ["first", "second"]
    assert {span.attributes["gen_ai.conversation.id"] for span in assemblies(told)} == {"both"}
    assert said(assemblies(told)[1], "events.in") == 3


async def test_a_filter_goes_by_its_function_s_name(told):
    held: Any = [*history(3), {"role": "user", "content": "Go"}]
    agent = Agent("bob", model=ScriptedModel(Stage(), "Done."))
    await Runner.run(agent, held, run_config=RunConfig(call_model_input_filter=programs.newest))
    unnamed = RunConfig(
        call_model_input_filter=lambda call: ModelInputData(call.model_data.input[-1:], call.model_data.instructions)
    )
    await Runner.run(agent, held, run_config=unnamed)
    first, second = assemblies(told)
    assert (steps(first), steps(second)) == (["newest"], ["call_model_input_filter"])
    assert said(first.children[0], "dropped.items") == ["0-3"]
    assert (first.kept, second.kept) == (["4", "5", "6"], ["6"])


async def test_a_filter_that_changes_nothing_is_no_step(told):
    config = RunConfig(call_model_input_filter=programs.newest)
    await Runner.run(Agent("bob", model=ScriptedModel(Stage(), "Done.")), "Go", run_config=config)
    assert steps(assemblies(told)[0]) == []
    assert told.metric("assembly.policy.declined") == 1


async def test_a_filter_that_raises_is_told_with_its_error_and_nothing_was_sent(told):
    def breaks(call: Any) -> Any:
        raise LookupError("theirs")

    stage = Stage()
    agent, config = Agent("bob", model=ScriptedModel(stage, "Done.")), RunConfig(call_model_input_filter=breaks)
    with pytest.raises(LookupError):
        await Runner.run(agent, "Go", run_config=config)
    (assembly,) = assemblies(told)
    assert (assembly.attributes["error.type"], steps(assembly), stage.received) == ("LookupError", ["breaks"], [])


async def test_the_framework_s_trimmer_is_a_step_with_its_settings(told):
    await programs.trimmed_outputs(Stage())
    named = {name for assembly in assemblies(told) for name in steps(assembly)}
    assert named == {"tool_output_trimmer"}
    step = next(child for assembly in assemblies(told) for child in assembly.children)
    assert json.loads(said(step, "policy.config")) == {"recent_turns": 1, "max_output_chars": 100, "preview_chars": 20}
    assert said(step, "tokens.out") < said(step, "tokens.in")


async def test_what_a_limit_leaves_in_the_session_is_known_by_what_was_read_and_added(told):
    await programs.in_a_limited_session(Stage())
    last = assemblies(told)[-1]
    limit, orphans = last.children[0], last.children[1:]
    assert steps(last)[0] == "session_limit"
    assert json.loads(said(limit, "policy.config")) == {"limit": 2}
    assert set(said(limit, "dropped.reasons")) == {"outside_window"}
    assert said(limit, "dropped.items")[0].startswith("0")
    # Earlier releases send a model results without their calls.
    mends = "output_pruning_indexes" in signature(drop_orphan_function_calls).parameters
    named = {name for assembly in assemblies(told) for name in steps(assembly)}
    assert named == ({"session_limit", "framework"} if mends else {"session_limit"})
    reasons = {
        why
        for assembly in assemblies(told)
        for child in assembly.children[1:]
        for why in said(child, "dropped.reasons")
    }
    assert reasons == ({"orphaned_tool_result"} if mends else set())
    assert len(orphans) < 2


async def test_a_long_limited_session_reports_all_its_items_at_the_same_number_of_calls(told):
    agent = Agent("bob", model=ScriptedModel(Stage(), "Done."))
    session = SQLiteSession("long", session_settings=SessionSettings(limit=10))
    added, calls = 0, []

    def counts(frame, event, _):
        calls[-1] += event == "call" and "otel_assembly" in frame.f_code.co_filename

    for more in (6, 600, 700):
        await Runner.run(agent, "Go", session=session)
        await session.add_items(history(more))
        await Runner.run(agent, "Go", session=session)
        added += 2 + 2 * more + 2
        await Runner.run(agent, "Go", session=session)  # it counts what was added
        added += 2
        calls.append(0)
        sys.setprofile(counts)
        await Runner.run(agent, "Go on", session=session)
        sys.setprofile(None)
        last = assemblies(told)[-1]
        assert (said(last, "events.in"), said(last, "events.out")) == (added + 1, 11)
        assert said(last, "dropped.count") == added - 10
        assert said(last, "newly_dropped.count") == 2
        added += 2
    assert calls[2] <= calls[1] * 1.02


async def test_of_a_session_around_another_the_outer_one_counts(told):
    class Sealed(SQLiteSession):
        """Stores something else than it is given."""

        def __init__(self, inner: SQLiteSession) -> None:
            super().__init__(inner.session_id)
            self.inner = inner

        async def add_items(self, items: list[Any]) -> None:
            await self.inner.add_items([{"sealed": item} for item in items])

        async def get_items(self, limit: int | None = None) -> list[Any]:
            return [message["sealed"] for message in await self.inner.get_items(limit)]

    agent = Agent("bob", model=ScriptedModel(Stage(), "Done."))
    config = RunConfig(session_settings=SessionSettings(limit=2))
    await Runner.run(agent, "Go", session=SQLiteSession("met before"), run_config=config)
    session = Sealed(SQLiteSession("sealed"))
    for turn in range(3):
        await Runner.run(agent, f"Go {turn}", session=session, run_config=config)
    assert [steps(assembly) for assembly in assemblies(told)] == [[], [], [], ["session_limit"]]
    assert said(assemblies(told)[-1].children[0], "dropped.items") == ["0-1"]


async def test_what_this_process_has_not_read_is_not_claimed_to_be_known(told):
    session = SQLiteSession("unread", session_settings=SessionSettings(limit=2))
    await session.add_items(history(4))
    agent = Agent("bob", model=ScriptedModel(Stage(), "Done."))
    await Runner.run(agent, "Go", session=session)
    (assembly,) = assemblies(told)
    assert (steps(assembly), said(assembly, "events.in"), said(assembly, "events.out")) == ([], 3, 3)


async def test_a_session_s_callback_is_a_step_of_every_call_of_the_run(told):
    await programs.session_callback(Stage())
    named = [steps(assembly) for assembly in assemblies(told)]
    assert named == [[]] * 4 + [["newest_four"]] * 2
    last = assemblies(told)[-1]
    assert said(last, "events.in") > said(last, "events.out") == 5


async def test_a_summary_in_a_callback_is_an_attempt_inside_its_step(told):
    stage = Stage()
    await programs.session_callback_summarises(stage)
    blocks = told.spans_named("compact_block summary")
    assert len(blocks) == len(stage.summaries) == 2
    assert {block.parent.attributes["assembly.policy.name"] for block in blocks} == {"sums_up"}
    assert {said(block, "compaction.outcome") for block in blocks} == {"compacted"}
    assert len(assemblies(told)) == len(stage.received)


async def test_a_summary_in_a_filter_is_an_attempt_inside_its_step(told):
    stage = Stage()
    await programs.filter_summarises(stage)
    (block,) = told.spans_named("compact_block summary")
    (assembly,) = assemblies(told)
    assert block.parent.attributes["assembly.policy.name"] == steps(assembly)[0] == "sums_up"
    assert (said(assembly, "events.in"), said(assembly, "events.out"), said(assembly, "compacted.count")) == (9, 2, 8)


async def test_a_handoff_s_filter_is_a_step_of_all_calls_behind_it(told):
    await programs.handed_off_filtered(Stage())
    spans = assemblies(told)
    assert [steps(span) for span in spans] == [[], [], ["remove_all_tools"], ["remove_all_tools"]]
    assert [said(span, "events.in") for span in spans] == [5, 9, 11, 13]
    assert [said(span, "events.out") for span in spans] == [5, 9, 5, 7]
    assert said(spans[2].children[0], "dropped.items") == ["5-10"]


async def test_a_handoff_s_own_filter_that_may_be_async(told):
    async def forgets(data: Any) -> Any:
        await asyncio.sleep(0)
        return data.clone(input_history=(), pre_handoff_items=())

    stage = Stage()
    second = Agent("second", model=ScriptedModel(stage, "Done."))
    model = ScriptedModel(stage, "call:transfer_to_second")
    first = Agent("first", model=model, handoffs=[handoff(second, input_filter=forgets)])
    await Runner.run(first, history(2))
    last = assemblies(told)[-1]
    assert steps(last) == ["forgets"]
    assert said(last, "dropped.count") == 4


async def test_a_nested_history_stands_for_what_was_said(told):
    stage = Stage()
    await programs.handed_off_nested(stage)
    spans = assemblies(told)
    assert [steps(span) for span in spans[2:]] == [["nest_handoff_history"]] * 2 + [["nest_handoff_history"] * 2]
    assert said(spans[2], "compacted.count") > 0
    assert said(spans[2], "dropped.count") == 0


if find_spec("agents.testing"):  # in the newest releases alone

    async def test_what_a_sandbox_cuts_is_a_step_of_all_calls_behind_it(told):
        from agents.sandbox import SandboxAgent, SandboxRunConfig
        from agents.sandbox.capabilities import Compaction
        from agents.testing.sandbox import scripted_sandbox_session

        model = ScriptedModel(Stage(), "call:look", "Done.")
        agent = SandboxAgent(name="boxed", model=model, tools=[programs.look], capabilities=[Compaction()])
        summary = {"type": "compaction", "id": "cmp", "encrypted_content": "x" * 16}
        held: Any = [*history(2), summary, {"role": "user", "content": "Go"}]
        config = RunConfig(sandbox=SandboxRunConfig(session=scripted_sandbox_session([])))
        await Runner.run(agent, held, run_config=config)
        spans = assemblies(told)
        assert [steps(span) for span in spans] == [["compaction"]] * 2
        assert [(said(span, "events.in"), said(span, "events.out")) for span in spans] == [(6, 2), (8, 4)]


async def test_what_the_provider_holds_is_not_known(told):
    await programs.held_by_the_provider(Stage())
    known = [said(span, "input.unknown") for span in assemblies(told)]
    assert known == [None, True, True, True]
    assert assemblies(told)[-1].attributes["gen_ai.conversation.id"] == "conv_1"


async def test_a_session_that_is_compacted_is_a_step_of_the_next_run(told):
    await programs.compacted_session(Stage())
    named = [steps(assembly) for assembly in assemblies(told)]
    assert ["responses_compaction"] in named
    compacted = next(assembly for assembly in assemblies(told) if "responses_compaction" in steps(assembly))
    assert said(compacted, "compacted.count") > 0


async def test_what_the_provider_is_given_to_compact_is_an_attempt_of_that_step(told):
    class Client(AsyncOpenAI):
        """One whose server answers at once."""

        async def post(self, path: str, **given: Any) -> Any:
            assert path == "/responses/compact"
            times.append(time.time_ns())
            output = [{"type": "compaction", "id": "cmp", "encrypted_content": "x" * 64}]
            times.append(time.time_ns())
            return SimpleNamespace(output=output, usage=None)

    times: list[int] = []

    session = OpenAIResponsesCompactionSession(
        "asked", SQLiteSession("asked"), client=Client(api_key="none"), compaction_mode="input",
        should_trigger_compaction=lambda context: len(context["session_items"]) > 3,
    )  # fmt: skip
    agent = Agent("bob", model=ScriptedModel(Stage(), "Done."), model_settings=ModelSettings())
    for turn in range(3):
        await Runner.run(agent, f"Go {turn}", session=session)
    (block,) = told.spans_named("compact_block summary")
    assert block.parent.attributes["assembly.policy.name"] == "responses_compaction"
    assert block.start_ns <= times[0] <= times[1] <= block.end_ns
    assert said(block, "tokens.in") > 0


async def test_retries_are_calls_of_their_own_with_the_same_steps(told):
    stage = Stage()
    await programs.retried(stage)
    spans = assemblies(told)
    assert len(spans) == len(stage.received) == 4
    assert [said(span, "tokens.out") for span in spans] == [request.tokens for request in stage.received]


async def test_what_a_model_of_a_program_s_own_changes_is_a_step_of_the_framework(told):
    await programs.wrapped(Stage())
    first, second = assemblies(told)
    assert (steps(first), steps(second)) == (["framework"], [])
    assert first.attributes["gen_ai.agent.name"] == "loud"


async def test_runs_at_once_keep_apart(told):
    model = ScriptedModel(Stage(), lambda items: "call:look" if len(items) == 1 else "Done.")
    agents = [Agent(name, model=model, tools=[programs.look], instructions=name * 9) for name in ("one", "two")]
    await asyncio.gather(*(Runner.run(agent, "Go") for agent in agents for _ in range(3)))
    spans = assemblies(told)
    assert sorted(said(span, "turn") for span in spans) == [0] * 6 + [1] * 6
    assert len({said(span, "ledger.id") for span in spans}) == len({span.trace_id for span in spans}) == 6


async def test_an_agent_in_a_tool_stands_in_the_run_around_it(told):
    await programs.agent_as_tool(Stage())
    assert [span.name for span in told.spans if span.parent is None] == ["invoke_agent boss"]
    assert sorted(span.attributes["gen_ai.agent.name"] for span in assemblies(told)) == ["boss"] * 2 + ["helper"] * 2


async def test_a_guardrail_s_agent_in_front_of_the_first_turn_stands_in_the_run_as_well(told):
    await programs.guarded(Stage())
    assert [span.name for span in told.spans if span.parent is None] == ["invoke_agent guarded"]


async def test_a_run_that_fails_ends_with_the_error(told):
    await programs.raised(Stage())
    (top,) = [span for span in told.spans if span.parent is None]
    assert (top.status, top.attributes["error.type"]) == ("ERROR", "RuntimeError")


@pytest.mark.parametrize("program", [programs.filter_summarises, programs.session_callback_summarises])
async def test_a_summarizers_model_call_is_in_its_compact_block(told, program):
    await check_summarizers_calls(told, program, Stage())
