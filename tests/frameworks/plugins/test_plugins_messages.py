"""A plug-in decides what the model receives: budgets, dropped messages, prompts and summaries."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plugin_talks import SYSTEM_PROMPT, each_framework, each_way_of_calls, words

from otel_assembly import BudgetPolicy, ContextOverflowError, SlidingWindowPolicy
from otel_assembly.budget import ExtractiveCompactor
from otel_assembly.errors import PolicyFailedError
from otel_assembly.instrumentation import instrument, uninstrument
from otel_assembly.testing import RecordedTelemetry

LOOKS = [*(["call:look", "call:look"] for _ in range(6)), "Done."]


def budget(window: int = 400, **settings: Any) -> BudgetPolicy:
    return BudgetPolicy(window=window, output_reserve=50, **{"step_tokens": 0, **settings})


async def run_with_history(talk: Any, turns: int, request: str = "Find all") -> str:
    """Ask about other things first, then for what takes many tool calls."""
    for turn in range(turns):
        await talk.ask(f"question {turn}: {words(5)}")
    return await talk.ask(request)


def talk_with_history(adapter: Any, policies: Any, turns: int = 4, lines: Any = LOOKS, **settings: Any) -> Any:
    answers = [f"answer {turn}: {words(5)}" for turn in range(turns)]
    return adapter.talk(adapter.plugin(policies, **settings), *answers, *lines)


@each_way_of_calls
async def test_each_call_meets_the_budget_and_the_framework_keeps_the_dropped_messages(adapter, assembly_telemetry):
    talk, whole = (talk_with_history(adapter, policies) for policies in ([budget()], []))
    for each in (whole, talk):
        assembly_telemetry.clear()
        assert await run_with_history(each, 4) == "Done."
    assert len(talk.calls) == 4 + 7
    assert max(call.tokens for call in talk.calls) <= 350 < whole.calls[-1].tokens
    assert all(map(talk.accepts, talk.calls))
    assert {call.prompt for call in talk.calls} == {SYSTEM_PROMPT}
    assert all("Find all" in call.texts for call in talk.calls[4:])
    assert "question 0" not in str(talk.calls[-1].texts)
    kept = await talk.history()
    assert Counter(map(type, kept)) == Counter(map(type, await whole.history()))
    assert all(f"question {turn}" in str(kept) for turn in range(4))
    spans = assembly_telemetry.spans_named("assemble_context")
    assert [span.attributes["assembly.tokens.out"] for span in spans] == [call.tokens for call in talk.calls]
    assert {span.attributes["assembly.budget.limit"] for span in spans} == {350}
    assert {span.attributes["assembly.framework"] for span in spans} == {adapter.framework}
    assert assembly_telemetry.violations() == []


@each_way_of_calls
async def test_a_budget_that_cannot_be_met_raises_before_the_model_is_called(adapter, instrumented):
    talk = adapter.talk(adapter.plugin([budget(110)]))
    with pytest.raises(ContextOverflowError):
        await talk.ask(f"Find all: {words(100)}")
    assert talk.calls == []
    (span,) = instrumented.spans_named("assemble_context")
    assert span.attributes["assembly.overflowed"] is True
    assert span.attributes["error.type"] == "context_overflow"
    assert instrumented.metric("assembly.budget.overflows") == 1


@each_framework
async def test_an_error_of_a_policy_reaches_the_caller(adapter):
    class Fails:
        name = "fails"

        async def apply(self, prompts: Any, events: Any, context: Any) -> Any:
            raise RuntimeError("no")

    talk = adapter.talk(adapter.plugin([Fails()]))
    with pytest.raises(PolicyFailedError, match="fails"):
        await talk.ask("Go")
    assert talk.calls == []


@each_way_of_calls
async def test_a_prompt_that_a_policy_adds_follows_the_agents_own(adapter):
    class Reminds:
        name = "reminds"

        async def apply(self, prompts: Any, events: Any, context: Any) -> Any:
            return [*prompts, "Remember the order."], events

    talk = adapter.talk(adapter.plugin([Reminds()]), "call:look", "Done.")
    assert await talk.ask("Go") == "Done."
    assert [call.prompt for call in talk.calls] == [f"{SYSTEM_PROMPT}\n\nRemember the order."] * 2


@each_framework
async def test_a_summary_is_one_message_that_any_model_accepts(adapter, assembly_telemetry):
    policy = budget(500, compact=ExtractiveCompactor(), summary_tokens=60)
    talk = talk_with_history(adapter, [policy], turns=15, lines=LOOKS)
    assert await run_with_history(talk, 15) == "Done."
    assert max(call.tokens for call in talk.calls) <= 450
    start, kind = talk.summary
    summaries = [[event.kind for event in call.events if "".join(event.texts).startswith(start)] for call in talk.calls]
    assert summaries[-1] == [kind]
    assert all(map(talk.accepts, talk.calls))
    assert max(map(len, summaries)) == 1
    outcomes = {
        span.attributes["assembly.compaction.outcome"] for span in assembly_telemetry.spans_named("compact_block older")
    }
    assert "compacted" in outcomes


@each_framework
async def test_the_model_receives_the_same_with_and_without_instrumentation(adapter):
    received = []
    for is_instrumented in (False, True):
        telemetry = RecordedTelemetry()
        lines = [*["call:look"] * 6, "Done."]  # no concurrent calls, whose messages have no fixed order in AG2
        talk = talk_with_history(adapter, [budget(300), SlidingWindowPolicy(9)], lines=lines)
        with telemetry.as_default():
            if is_instrumented:
                instrument(adapter.framework)
            try:
                await run_with_history(talk, 4)
            finally:
                uninstrument(adapter.framework)
        spans = telemetry.spans_named("assemble_context")
        sizes = [(span.attributes["assembly.events.out"], span.attributes["assembly.tokens.out"]) for span in spans]
        received.append(
            (sizes, [(call.prompts, [(event.kind, event.texts) for event in call.events]) for call in talk.calls])
        )
        telemetry.shutdown()
    assert received[0] == received[1]


TEXTS = st.sampled_from(["why?", "tell me more " * 9, "é" * 30, words(40)])


@each_way_of_calls
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    requests=st.lists(TEXTS, max_size=7),
    answer=TEXTS,
    results=st.lists(st.lists(TEXTS, min_size=1, max_size=3), max_size=5),
    window=st.integers(200, 900),
    step=st.sampled_from([0, 200]),
)
async def test_in_any_run_each_call_meets_the_budget_and_is_sendable(adapter, requests, answer, results, window, step):
    texts = iter([text for group in results for text in group])

    async def look() -> str:
        """Look something up."""
        return f"found: {next(texts)}"

    plugin = adapter.plugin([budget(window, step_tokens=step)])
    lines = [*[answer] * len(requests), *(["call:look"] * len(group) for group in results), "Done."]
    talk = adapter.talk(plugin, *lines, tools=(look,))
    if not talk.keeps_equal_messages:
        requests = [f"{number}. {request}" for number, request in enumerate(requests)]
    asked = 0
    try:
        for request in (*requests, "Find all"):
            asked = len(talk.calls)
            reply = await talk.ask(request)
    except ContextOverflowError:
        pass
    else:
        assert reply == "Done."
        assert len(talk.calls) == len(requests) + len(results) + 1
        assert str(await talk.history()).count("found: ") >= sum(map(len, results))
    for call in talk.calls:
        assert call.tokens <= window - 50
        assert talk.accepts(call)
        assert call.events[-1].kind != "response"
    assert all(request in call.texts for call in talk.calls[asked:])
