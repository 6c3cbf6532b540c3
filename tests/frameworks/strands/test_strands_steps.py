"""What reduces in Strands is a step of the call that it is made for, by its name, with what left and why."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from recount import count, prompt_tokens
from strands import Agent
from strands.agent.conversation_manager import (
    NullConversationManager,
    SlidingWindowConversationManager,
    SummarizingConversationManager,
)
from strands.hooks import AgentInitializedEvent, BeforeModelCallEvent, HookRegistry, MessageAddedEvent
from strands.session import FileSessionManager
from strands_models import ASSEMBLY, ScriptedModel, Stage, assert_told, history, steps, words
from strands_programs import (
    PROGRAMS,
    InvokeModelStage,
    Newest,
    _too_long,
    agent,
    agents_as_tools,
    compresses_early,
    graph,
    injected,
    look,
    middleware,
    report,
    said,
    slides,
    slides_per_turn,
    structured_alone,
    summaries_fail,
    summarised,
    summarised_by_an_agent,
    swarm,
)
from traced_calls import check_summarizers_calls

#: What not every release has.
with_middleware = pytest.mark.skipif(middleware not in PROGRAMS, reason="this release has no middleware")
early = pytest.mark.skipif(compresses_early not in PROGRAMS, reason="this release compresses nothing ahead of need")
managed = pytest.mark.skipif(not hasattr(Agent, "context_manager"), reason="this release has no context manager")


def last(telemetry: Any) -> Any:
    return telemetry.spans_named(ASSEMBLY)[-1]


def only_step(telemetry: Any) -> Any:
    (step,) = [step for span in telemetry.spans_named(ASSEMBLY) for step in span.children]
    return step.attributes


async def test_a_sliding_window_is_a_step_of_the_next_run_s_first_call(told):
    await slides(Stage())
    assert [steps(span) for span in told.spans_named(ASSEMBLY)] == [[], [], [], [], ["sliding_window"]]
    step = only_step(told)
    assert (step["assembly.policy.kind"], step["assembly.dropped.items"]) == ("reduction", ["0-3"])
    assert step["assembly.dropped.reasons"] == ["outside_window"]
    assert json.loads(step["assembly.policy.config"])["window_size"] == 4
    assert last(told).attributes["assembly.events.in"] == 9


async def test_one_that_is_applied_before_each_call_is_a_step_of_that(told):
    await slides_per_turn(Stage())
    spans = told.spans_named(ASSEMBLY)
    assert [steps(span) for span in spans] == [[], [], ["sliding_window"], ["sliding_window"]]
    assert [span.attributes["assembly.events.in"] for span in spans] == [1, 3, 5, 6]


async def test_what_a_model_finds_too_much_leaves_for_its_budget(told):
    stage = Stage()
    manager = SlidingWindowConversationManager(10)
    await agent(stage, _too_long, messages=history(8), conversation_manager=manager).invoke_async("Go")
    refused, sent = told.spans_named(ASSEMBLY)
    assert (steps(refused), steps(sent)) == ([], ["sliding_window"])
    assert set(sent.children[0].attributes["assembly.dropped.reasons"]) == {"over_budget"}


async def test_a_result_that_is_cut_stands_for_the_whole_one(told):
    def short(messages: Any) -> Any:
        return "call:report" if len(messages) == 1 else _too_long(messages)

    await agent(Stage(), short, tools=(report,)).invoke_async("Report")
    step = only_step(told)
    assert (step["assembly.policy.name"], step["assembly.compacted.items"]) == ("sliding_window", ["2"])
    assert step["assembly.events.out"] == step["assembly.events.in"] == 3


@pytest.mark.parametrize(("program", "compactor"), [(summarised, "gpt-4o"), (summarised_by_an_agent, "gpt-4o-mini")])
async def test_a_summariser_s_call_is_an_attempt_of_its_step(told, program, compactor):
    stage = Stage()
    await program(stage)
    (attempt,) = [span for span in told.spans if span.name.startswith("compact_block")]
    assert attempt.parent.attributes["assembly.policy.name"] == "summarizing"
    assert attempt.parent.attributes["assembly.compacted.items"] == ["0-7"]
    assert attempt.attributes["assembly.compaction.compactor"] == compactor
    assert attempt.attributes["assembly.compaction.outcome"] == "compacted"
    assert attempt.attributes["assembly.compaction.provenance"] == ["0-7"]
    (heard,) = stage.summaries
    assert attempt.attributes["assembly.tokens.in"] == prompt_tokens(heard.prompts, heard.events) - 3
    assert attempt.attributes["assembly.tokens.out"] == 4 + count("They asked for words.")


async def test_a_summariser_that_fails_ends_the_run_and_says_so(told):
    await summaries_fail(Stage())
    unmade = last(told)
    assert unmade.attributes["error.type"] == "ConnectionError"
    assert steps(unmade) == ["summarizing"]
    (attempt,) = unmade.children[0].children
    assert attempt.attributes["assembly.compaction.outcome"] == "raised"


@early
async def test_a_summary_ahead_of_need_that_fails_ends_nothing(told):
    model = ScriptedModel(Stage(), "Done.", summary=ConnectionError("gone"), context_window_limit=100)
    manager = SummarizingConversationManager(0.5, 2, proactive_compression=True)
    clerk = agent(Stage(), model=model, messages=history(4), conversation_manager=manager)
    assert said(await clerk.invoke_async("Go")) == "Done."
    (span,) = told.spans_named(ASSEMBLY)
    assert steps(span) == ["summarizing"]
    assert span.children[0].attributes["assembly.events.out"] == 9
    assert span.children[0].children[0].attributes["assembly.compaction.outcome"] == "raised"
    assert span.attributes["assembly.model.window"] == 100


async def test_a_manager_of_the_user_s_own_is_called_as_it_is_there(told):
    class Fewer(SlidingWindowConversationManager):
        pass

    clerk = agent(Stage(), "One.", "Two.", conversation_manager=Newest(1))
    for text in ("A", "B"):
        await clerk.invoke_async(text)
    other = agent(Stage(), "One.", messages=history(3), conversation_manager=Fewer(2, per_turn=True))
    await other.invoke_async("A")
    assert [steps(span) for span in told.spans_named(ASSEMBLY)] == [[], ["Newest"], ["Fewer"]]
    assert last(told).children[0].attributes["assembly.dropped.reasons"] == ["outside_window"]


async def test_one_that_does_nothing_is_no_step_and_one_that_had_nothing_to_do_is_counted(told):
    for manager in (NullConversationManager(), SlidingWindowConversationManager(40)):
        await agent(Stage(), "One.", conversation_manager=manager).invoke_async("A")
    assert [steps(span) for span in told.spans_named(ASSEMBLY)] == [[], []]
    assert told.metric("assembly.policy.declined") == 1
    assert told.metric("assembly.policy.declined", policy_name="sliding_window") == 1


async def test_a_hook_that_edits_what_an_agent_holds_is_a_step_by_its_name(told):
    def initialised(event: AgentInitializedEvent) -> None:
        event.agent.messages.pop(0)

    async def shortens(event: BeforeModelCallEvent) -> None:
        await asyncio.sleep(0)
        del event.agent.messages[:2]

    def looks_only(event: BeforeModelCallEvent) -> None:
        assert event.agent.messages

    class Hooks:
        def register_hooks(self, registry: Any, **kwargs: Any) -> None:
            registry.add_callback(AgentInitializedEvent, initialised)
            registry.add_callback(BeforeModelCallEvent, shortens)
            registry.add_callback(BeforeModelCallEvent, looks_only)

    clerk = agent(Stage(), "One.", messages=history(3), hooks=[Hooks()])
    added = lambda event: event.message["content"].append({"text": "PS"})  # noqa: E731  # as many write them
    clerk.hooks.add_callback(MessageAddedEvent, added)
    await clerk.invoke_async("A")
    made_here = "test_a_hook_that_edits_what_an_agent_holds_is_a_step_by_its_name"
    assert steps(last(told)) == ["initialised", made_here, "shortens"]


async def test_whoever_asks_for_callbacks_gets_their_own_and_an_agent_may_be_a_test_s(told):
    """What stands for an agent in a program's tests need hold no messages."""
    called: list[Any] = []

    def callback(event: BeforeModelCallEvent) -> None:
        called.append(event)

    registry = HookRegistry()
    registry.add_callback(BeforeModelCallEvent, callback)
    event = BeforeModelCallEvent(agent=Mock())
    assert [*registry.get_callbacks_for(event)] == [callback]
    registry.invoke_callbacks(event)
    await registry.invoke_callbacks_async(event)
    assert called == [event, event]
    SlidingWindowConversationManager(2).apply_management(Mock(messages=history(1)))


@with_middleware
async def test_what_middleware_edits_is_a_step_and_what_else_it_asks_a_call_of_its_own(told):
    await middleware(Stage())
    spans = told.spans_named(ASSEMBLY)
    assert [steps(span) for span in spans] == [[], ["brief", "newest"]] * 4
    assert {span.attributes["assembly.model"] for span in spans[::2]} == {"gpt-4o-mini"}
    assert {span.attributes["assembly.events.in"] for span in spans[1::2]} == {7, 9}


@with_middleware
async def test_what_is_injected_for_one_call_is_a_step_of_that(told):
    await injected(Stage())
    assert [steps(span) for span in told.spans_named(ASSEMBLY)] == [["injection"], [], ["injection"]]


async def test_what_is_edited_between_two_runs_is_what_the_next_one_holds(told):
    clerk = agent(Stage(), "One.", "Two.")
    await clerk.invoke_async("A")
    clerk.messages[0]["content"][0]["text"] = "Something else"
    await clerk.invoke_async("B")
    assert steps(last(told)) == []
    assert last(told).attributes["assembly.events.in"] == 3


async def test_a_guardrail_s_redaction_is_what_the_next_call_holds(told):
    class Guarded(ScriptedModel):
        async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            if "secret" in str(messages):
                yield {"redactContent": {"redactUserContentMessage": "[redacted]"}}
            async for chunk in super().stream(messages, *args, **kwargs):
                yield chunk

    stage = Stage()
    clerk = agent(stage, model=Guarded(stage, "No.", "Fine."))
    for text in ("The secret", "On"):
        await clerk.invoke_async(text)
    first, second = told.spans_named(ASSEMBLY)
    assert [first.attributes["assembly.tokens.out"], second.attributes["assembly.tokens.out"]] == [
        request.tokens for request in stage.received
    ]
    assert "[redacted]" in str(stage.received[1].messages)
    assert steps(second) == []


@with_middleware  # earlier ones change what the agent holds
async def test_what_no_hook_explains_is_the_framework_s(told):
    held: Any = [{"role": "user", "content": [{"text": "?"}]}, {"role": "assistant", "content": [{"text": " "}]}]
    await agent(Stage(), "Done.", messages=held).invoke_async("Go")
    assert steps(last(told)) == ["framework"]


async def test_who_asks_in_which_conversation_with_which_tools_and_window(told, tmp_path):
    session = FileSessionManager(session_id="s-1", storage_dir=str(tmp_path))
    model = ScriptedModel(Stage(), "Done.", context_window_limit=5_000)
    clerk = agent(Stage(), model=model, session_manager=session)
    await clerk.invoke_async("Go")
    attributes = last(told).attributes
    assert attributes["gen_ai.agent.name"] == "clerk"
    assert attributes["gen_ai.conversation.id"] == "s-1"
    assert attributes["assembly.model.window"] == 5_000
    assert told.span("invoke_agent clerk").attributes["gen_ai.conversation.id"] == "s-1"
    await agent(Stage(), "Done.").invoke_async("Go")
    assert "gen_ai.conversation.id" not in last(told).attributes


async def test_two_agents_of_one_session_have_a_ledger_each(told, tmp_path):
    for name in ("first", "second"):
        for _ in range(2):
            session = FileSessionManager(session_id="s-1", storage_dir=str(tmp_path))
            await agent(Stage(), "Done.", agent_id=name, session_manager=session).invoke_async("Go")
    ledgers = [span.attributes["assembly.ledger.id"] for span in told.spans_named(ASSEMBLY)]
    assert ledgers[0] == ledgers[1] != ledgers[2] == ledgers[3]


@pytest.mark.parametrize(
    "program", [message for message in (agents_as_tools, graph, swarm, structured_alone) if message in PROGRAMS]
)
async def test_what_runs_in_a_run_is_in_its_trace_and_has_no_ledger_in_common(told, program):
    await program(Stage())
    spans = told.spans_named(ASSEMBLY)
    assert len({span.trace_id for span in spans}) == 1
    names = {span.attributes["gen_ai.agent.name"] for span in spans}
    ledgers = {(span.attributes["gen_ai.agent.name"], span.attributes["assembly.ledger.id"]) for span in spans}
    assert len(ledgers) == len(names) == len({ledger for _, ledger in ledgers})
    assert sum(span.name.startswith("invoke_agent") for span in told.spans) == 1


async def test_a_sync_agent_called_in_an_async_program_is_in_the_caller_s_trace(told):
    with told.tracer().start_as_current_span("request") as request:
        agent(Stage(), "Done.")("Go")
    assert last(told).trace_id == f"{request.get_span_context().trace_id:032x}"
    assert not [span for span in told.spans if span.name.startswith("invoke_agent")]


async def test_a_hook_that_is_added_by_another_one_runs_and_is_seen_as_it_would_be(told):
    def add(event: Any, text: str) -> None:
        event.agent.messages.append({"role": "user", "content": [{"text": text}]})

    def adds_another(event: BeforeModelCallEvent) -> None:
        event.agent.hooks.add_callback(BeforeModelCallEvent, partial(add, text="Late."))

    stage = Stage()
    clerk = agent(stage, "Done.")
    clerk.hooks.add_callback(BeforeModelCallEvent, adds_another)
    await clerk.invoke_async("Go")
    assert [message["content"][0]["text"] for message in stage.received[0].messages] == ["Go", "Late."]
    assert steps(last(told)) == ["add"]


@with_middleware
async def test_what_is_behind_a_middleware_that_tries_again_works_once_more(told):
    async def tries_again(context: Any, next_fn: Any) -> Any:
        try:
            async for event in next_fn(context):
                yield event
        except ConnectionError:
            async for event in next_fn(context):
                yield event

    async def hints(context: Any, next_fn: Any) -> Any:
        hint = {"role": "user", "content": [{"text": "A hint."}]}
        async for event in next_fn(replace(context, messages=[*context.messages, hint])):
            yield event

    stage = Stage()
    clerk = agent(stage, ConnectionError("gone"), "Done.", messages=history(1))
    for message in (tries_again, hints):
        clerk._middleware_registry.add_middleware(InvokeModelStage, message)
    await clerk.invoke_async("Go")
    assert_told(told, stage.received)
    assert [steps(span) for span in told.spans_named(ASSEMBLY)] == [["hints"], ["hints"]]


@managed
async def test_strategies_are_steps_by_their_names_with_their_conditions(told):
    strategies: Any = ["stale_tool_cleanup", "overflow_protection"]
    stage = Stage()
    model = ScriptedModel(stage, *["call:look"] * 6, "Done.", context_window_limit=100_000)
    clerk = agent(stage, model=model, context_manager={"strategies": strategies})
    await clerk.invoke_async("Go")
    step = last(told).children[0].attributes
    assert step["assembly.policy.name"] == "drop"
    assert json.loads(step["assembly.policy.config"]) == {"preserve_recent": 5.0}
    assert step["assembly.events.in"] == step["assembly.events.out"]


@managed
async def test_what_a_strategy_marks_as_left_out_is_out(told):
    model = ScriptedModel(Stage(), "One.", context_window_limit=200)
    clerk = agent(Stage(), model=model, context_manager={"strategies": ["overflow_protection"]}, messages=history(8))
    await clerk.invoke_async("Go")
    step = last(told).children[0].attributes
    assert (step["assembly.policy.name"], set(step["assembly.dropped.reasons"])) == ("truncate", {"over_budget"})
    assert step["assembly.dropped.count"] == step["assembly.events.in"] - step["assembly.events.out"]


@managed
async def test_a_model_s_own_tools_are_steps(told):
    lines = ("call:summarize_context", 'call:truncate_context {"keep_recent": 4}', "Done.")
    model = ScriptedModel(Stage(), *lines, summary="Words.", context_window_limit=100_000)
    await agent(Stage(), model=model, context_manager="agentic", messages=history(10)).invoke_async("Go")
    found = [steps(span) for span in told.spans_named(ASSEMBLY)]
    assert found == [["token_usage"], ["summarize_context", "token_usage"], ["truncate_context", "token_usage"]]


async def test_a_tool_that_is_called_by_the_program_changes_what_is_held(told):
    clerk = agent(Stage(), "Done.", tools=(look,))
    await asyncio.to_thread(clerk.tool.look, q=words(2))
    await clerk.invoke_async("Go")
    assert last(told).attributes["assembly.events.in"] == len(clerk.messages) - 1


@pytest.mark.parametrize("program", [summarised, summarised_by_an_agent, summaries_fail])
async def test_a_summarizers_model_call_is_in_its_compact_block(told, program):
    await check_summarizers_calls(told, program, Stage())
