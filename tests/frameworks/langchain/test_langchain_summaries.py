"""What is told of ``SummarizationMiddleware``."""

from __future__ import annotations

import asyncio

import pytest
from langchain.agents.middleware import SummarizationMiddleware
from langchain_agents import agent, arun, run, scripted, summarizer, tool_loop
from langchain_core.messages import HumanMessage
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.runnables import RunnableLambda

#: By what LangChain counts if it is not told otherwise; the summariser is given 4,000 of these at most.
APPROXIMATELY = {"token_counter": count_tokens_approximately}
#: LangChain 1.0 summarises in a thread, which nobody can cancel.
AWAITS_ITS_SUMMARISER = hasattr(SummarizationMiddleware, "_acreate_summary")
ASSEMBLY, STEP, SUMMARY = "assemble_context", "apply_policy summarization", "compact_block summary"


async def either(how, graph, messages):
    return run(graph, messages) if how == "sync" else await arun(graph, messages)


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_a_summary_stands_for_what_it_was_made_of(telemetry, how):
    graph, model = agent(0, summarizer("They want a refund."))
    messages = tool_loop(4)
    await either(how, graph, messages)
    assert [message.id for message in model.sent[0][2:]] == [message.id for message in messages[5:]]
    span, step, summary = telemetry.span(ASSEMBLY), telemetry.span(STEP), telemetry.span(SUMMARY)
    assert step.compacted == ["0", "1", "2", "3", "4"]
    assert step.dropped_reasons == {}
    assert span.kept == [*step.injected, "5", "6", "7", "8"]
    assert summary.parent.span_id == step.span_id
    assert summary.attributes["assembly.compaction.outcome"] == "compacted"
    assert summary.whole["assembly.compaction.provenance"] == ["0-4"]
    assert summary.attributes["assembly.tokens.in"] > summary.attributes["assembly.tokens.out"] > 0


async def test_a_check_that_finds_nothing_to_do_is_a_count_and_no_step(telemetry):
    graph, _ = agent(2, summarizer(at=100))
    await arun(graph)
    run(agent(1, summarizer(at=100))[0])
    assert [span.children for span in telemetry.spans_named(ASSEMBLY)] == [[]] * 5
    assert telemetry.metric("assembly.policy.declined", policy_name="summarization", agent_name="LangGraph") == 5


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_a_history_too_long_to_summarise_is_an_overflow(telemetry, how):
    """One request, then calls: no question is near enough to the end for the summary's input to begin with."""
    graph, model = agent(0, summarizer(scripted("Never asked for."), at=20, **APPROXIMATELY))
    await either(how, graph, tool_loop(150))
    assert "too long to summarize" in model.sent[0][1].content
    assert telemetry.spans_named(SUMMARY) == []  # no summariser was called
    for span in (telemetry.span(ASSEMBLY), telemetry.span(STEP)):
        assert span.attributes["assembly.overflowed"] is True
        assert span.attributes["assembly.overflow.cause"] == "framework"
        assert span.attributes["assembly.overflow.tokens"] > 0
        assert span.attributes["error.type"] == "context_overflow"
        assert span.status == "ERROR"
    reasons = telemetry.span(STEP).dropped_reasons
    assert reasons == dict.fromkeys(map(str, range(297)), "over_budget")
    assert telemetry.metric("assembly.budget.overflows", agent_name="LangGraph") == 1
    assert telemetry.span(ASSEMBLY).attributes["assembly.resumed.count"] == 297


async def test_what_the_summariser_never_saw_was_dropped_not_compacted(telemetry):
    graph, _ = agent(0, summarizer("Only of late.", at=10, keep=2, **APPROXIMATELY))
    messages = [HumanMessage(f"Question {number}: " + "word " * 800, id=str(number)) for number in range(10)]
    await arun(graph, messages)
    step = telemetry.span(STEP)
    assert step.dropped_reasons
    assert step.compacted
    assert sorted([*step.dropped_reasons, *step.compacted]) == list(map(str, range(8)))
    assert set(step.dropped_reasons.values()) == {"over_budget"}
    assert max(step.dropped_reasons) < min(step.compacted)
    assert len(telemetry.spans_named(ASSEMBLY)) == 1  # trimming what the summariser reads is no drop of its own


@pytest.mark.parametrize(
    ("text", "outcome"), [("Error generating summary: 500 Server Error", "error_text"), ("", "empty")], ids=str
)
async def test_a_summary_that_is_none_has_lost_what_it_replaced(telemetry, text, outcome):
    graph, _ = agent(0, summarizer(text))
    await arun(graph, tool_loop(4))
    assert telemetry.span(SUMMARY).attributes["assembly.compaction.outcome"] == outcome
    assert telemetry.span(STEP).dropped_reasons == dict.fromkeys(map(str, range(5)), "policy_error")
    assert telemetry.span(ASSEMBLY).attributes["assembly.resumed.count"] == 5


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_what_the_summariser_raises_comes_out_unchanged(telemetry, how):
    problem = KeyError("the summariser's own")

    class Broken(type(scripted())):
        def _generate(self, *args, **kwargs):
            raise problem

    middleware = summarizer(Broken(messages=iter(())))
    middleware._summary_model = middleware.model  # without retries, which wait
    graph, _ = agent(0, middleware)
    if not AWAITS_ITS_SUMMARISER:  # and makes what it raises the summary
        await either(how, graph, tool_loop(4))
        assert telemetry.span(SUMMARY).attributes["assembly.compaction.outcome"] == "error_text"
        assert telemetry.span(STEP).dropped_reasons == dict.fromkeys(map(str, range(5)), "policy_error")
        return
    with pytest.raises(KeyError) as raised:
        await either(how, graph, tool_loop(4))
    assert raised.value is problem
    assert telemetry.span(SUMMARY).attributes["assembly.compaction.outcome"] == "raised"
    assert telemetry.span(STEP).attributes["error.type"] == "KeyError"
    assert telemetry.span(ASSEMBLY).attributes["error.type"] == "KeyError"


async def test_a_cancellation_in_the_middle_of_a_summary_closes_every_span_and_says_so(telemetry):
    if not AWAITS_ITS_SUMMARISER:
        return
    asked = asyncio.Event()

    async def never(_):
        asked.set()
        await asyncio.sleep(60)

    middleware = summarizer("-")
    middleware._summary_model = RunnableLambda(never)
    graph, model = agent(0, middleware)
    task = asyncio.create_task(arun(graph, tool_loop(4)))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert model.sent == []
    for name in (SUMMARY, STEP, ASSEMBLY, "invoke_agent LangGraph"):
        span = telemetry.span(name)
        assert span.status == "ERROR", name
        assert span.attributes["error.type"] == "cancelled", name
    assert "assembly.policy.errors" not in telemetry.metrics
    assert telemetry.span(ASSEMBLY).attributes["assembly.events.out"] == 0


async def test_a_class_derived_from_it_goes_by_its_own_name(telemetry):
    class Terse(SummarizationMiddleware):
        pass

    middleware = summarizer("S")
    middleware.__class__ = Terse
    graph, _ = agent(0, middleware)
    await arun(graph, tool_loop(4))
    assert telemetry.span("apply_policy Terse").compacted == ["0", "1", "2", "3", "4"]
    assert telemetry.span(SUMMARY).parent.name == "apply_policy Terse"


async def test_a_summary_of_a_summary_keeps_its_place_from_turn_to_turn(telemetry):
    graph, _ = agent(6, summarizer("First.", "Second.", "Third.", at=6, keep=2))
    await arun(graph)
    first, second = telemetry.spans_named(STEP)[:2]
    assert first.injected[0] in second.compacted
    assert second.dropped_reasons == {}
