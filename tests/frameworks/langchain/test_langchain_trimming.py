"""What is told of ``trim_messages``."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from langchain_agents import REQUEST, chat, tool_loop
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.messages import trim_messages as imported_early
from langchain_core.messages.utils import count_tokens_approximately

from otel_assembly.instrumentation import instrument, uninstrument

EARLY_RUNNABLE = imported_early(max_tokens=3, token_counter=len, strategy="last")
ASSEMBLY, STEP = "assemble_context", "apply_policy trim_messages"


class NoMoreCalls:
    """What no model was called with is told, outside of any graph, as LangChain is instrumented no more."""

    def __init__(self, telemetry):
        self._telemetry = telemetry

    def __getattr__(self, name):
        uninstrument("langchain")
        return getattr(self._telemetry, name)


@pytest.fixture
def telemetry(telemetry):
    return NoMoreCalls(telemetry)


def words(messages):
    return sum(len(str(message.content).split()) for message in messages)


def test_the_opening_request_is_lost_and_the_trace_says_so(telemetry):
    messages = chat(10)
    kept = imported_early(messages, max_tokens=60, token_counter=words, strategy="last")
    assert all(message.content != REQUEST for message in kept)
    span, step = telemetry.span(ASSEMBLY), telemetry.span(STEP)
    assert span.attributes["assembly.framework"] == "langchain"
    assert span.attributes["assembly.events.in"] == len(messages)
    assert span.kept == list(map(str, range(len(messages) - len(kept), len(messages))))
    assert step.dropped_reasons["0"] == "over_budget"
    assert set(step.dropped_reasons) == set(map(str, range(len(messages) - len(kept))))
    assert span.attributes["assembly.budget.limit"] == 60
    assert span.attributes["assembly.resumed.count"] == len(step.dropped_reasons)  # the input contains answers already


def test_every_way_to_it_is_seen(telemetry):
    from langchain_core.messages import trim_messages
    from langchain_core.messages.utils import trim_messages as the_function

    messages = chat(4)
    imported_early(messages, max_tokens=3, token_counter=len)
    trim_messages(messages, max_tokens=3, token_counter=len)
    the_function(messages, max_tokens=3, token_counter=len)
    EARLY_RUNNABLE.invoke(messages)
    asyncio.run(EARLY_RUNNABLE.ainvoke(messages))
    (EARLY_RUNNABLE | (lambda kept: kept)).invoke(messages)
    spans = telemetry.spans_named(ASSEMBLY)
    assert [span.attributes["assembly.turn"] for span in spans] == [0, 1, 2, 3, 4, 5]
    assert len({span.attributes["assembly.ledger.id"] for span in spans}) == 1


@pytest.mark.parametrize("form", ["dicts", "pairs", "generator"])
def test_whatever_it_is_given(telemetry, form):
    dicts = [{"role": "user", "content": f"question {number}"} for number in range(6)]
    given = {
        "dicts": dicts,
        "pairs": [("user", message["content"]) for message in dicts],
        "generator": (HumanMessage(message["content"]) for message in dicts),
    }[form]
    imported_early(given, max_tokens=2, token_counter=len)
    assert telemetry.span(ASSEMBLY).kept == ["4", "5"]
    assert telemetry.span(STEP).dropped_reasons == dict.fromkeys(map(str, range(4)), "outside_window")


def test_a_counter_of_messages_is_told_as_a_limit_of_messages_whatever_it_is_called(telemetry):
    imported_early(chat(4), max_tokens=3, token_counter=lambda messages: len(messages))
    step = telemetry.span(STEP)
    assert set(step.dropped_reasons.values()) == {"outside_window"}
    assert '"max_messages":3' in step.attributes["assembly.policy.config"]
    assert "assembly.budget.limit" not in telemetry.span(ASSEMBLY).attributes


def test_the_first_messages_may_be_kept_instead(telemetry):
    messages = chat(4)
    imported_early(messages, max_tokens=3, token_counter=len, strategy="first", end_on="ai")
    assert telemetry.span(ASSEMBLY).kept == ["0", "1"]
    reasons = telemetry.span(STEP).dropped_reasons
    assert reasons.pop("2") == "policy"  # it would have fitted; it was no answer
    assert set(reasons.values()) == {"outside_window"}
    assert len(telemetry.spans_named(ASSEMBLY)) == 1


def test_a_message_cut_in_the_middle_is_compacted_and_the_rest_dropped(telemetry):
    messages = [HumanMessage(f"{number} " + "word\n" * 20) for number in range(4)]
    kept = imported_early(
        messages,
        max_tokens=30,
        token_counter=words,
        allow_partial=True,
        text_splitter=lambda text: text.splitlines(True),
    )
    assert 0 < words(kept[:1]) < 21
    step = telemetry.span(STEP)
    assert step.dropped_reasons == {"0": "over_budget", "1": "over_budget"}
    assert step.compacted == ["2"]
    assert len(step.injected) == 1


def test_a_system_message_stays_and_is_not_dropped(telemetry):
    messages = [SystemMessage("You help."), *chat(5)]
    imported_early(messages, max_tokens=30, token_counter=words, include_system=True, start_on="human")
    assert telemetry.span(ASSEMBLY).kept[0] == "0"
    reasons = telemetry.span(STEP).dropped_reasons
    assert reasons["1"] == "over_budget"
    assert set(reasons.values()) == {"over_budget", "policy"}  # some of it fitted, but began with no question


def test_a_newest_message_that_cannot_fit_is_an_overflow(telemetry):
    messages = [HumanMessage("short"), HumanMessage("word " * 50)]
    assert imported_early(messages, max_tokens=10, token_counter=words) == []
    for name in (ASSEMBLY, STEP):
        span = telemetry.span(name)
        assert span.attributes["assembly.overflowed"] is True
        assert span.attributes["assembly.overflow.tokens"] == 40
        assert span.attributes["assembly.overflow.cause"] == "newest_atom"
        assert span.attributes["error.type"] == "context_overflow"
    assert telemetry.metric("assembly.budget.overflows", framework="langchain") == 1


def test_a_tool_loop_of_which_nothing_may_begin_the_prompt_is_an_overflow(telemetry):
    assert (
        imported_early(tool_loop(30), max_tokens=200, token_counter=count_tokens_approximately, start_on="human") == []
    )
    span = telemetry.span(ASSEMBLY)
    assert span.attributes["assembly.overflow.cause"] == "framework"
    assert span.attributes["assembly.overflow.tokens"] > 0
    assert span.attributes["assembly.dropped.count"] == 61


def test_nothing_that_had_to_leave_is_told_as_well(telemetry):
    messages = chat(2)
    assert imported_early(messages, max_tokens=100, token_counter=len) == messages
    assert telemetry.span(ASSEMBLY).kept == ["0", "1", "2", "3", "4"]
    assert telemetry.span(ASSEMBLY).attributes["assembly.overflowed"] is False


def test_the_counter_is_not_asked_more_often_for_it(assembly_telemetry):
    asked = []

    def counter(messages):
        asked.append([message.content for message in messages])
        return words(messages)

    def trimmed():
        asked.clear()
        settings = {"max_tokens": 50, "token_counter": counter, "start_on": "human", "include_system": True}
        return imported_early([SystemMessage("s"), *chat(20)], **settings), list(asked)

    without = trimmed()
    instrument("langchain")
    try:
        assert trimmed() == without
    finally:
        uninstrument("langchain")


def test_what_a_counter_raises_comes_out_unchanged(telemetry):
    problem = RuntimeError("no")

    def counter(messages):
        raise problem

    with pytest.raises(RuntimeError) as raised:
        imported_early(chat(2), max_tokens=3, token_counter=counter)
    assert raised.value is problem
    assert telemetry.span(ASSEMBLY).status == "ERROR"
    assert telemetry.span(ASSEMBLY).attributes["error.type"] == "RuntimeError"


def test_conversations_in_threads_are_told_apart(telemetry):
    conversations = [chat(6) for _ in range(8)]

    def trim(messages):
        for _ in range(3):
            imported_early(messages, max_tokens=4, token_counter=len)
            messages = [*messages, AIMessage("more")]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(trim, conversations))
    spans = telemetry.spans_named(ASSEMBLY)
    turns = {}
    for span in spans:
        turns.setdefault(span.attributes["assembly.ledger.id"], []).append(span.attributes["assembly.turn"])
    assert sorted(map(sorted, turns.values())) == [[0, 1, 2]] * 8
    assert all(span.children[0].name == STEP for span in spans)


def test_what_cannot_be_read_costs_the_telemetry_and_not_the_agent(assembly_telemetry, caplog):
    """A part that nobody knows counts, and a message that contains itself is a warning."""
    loop = {}
    loop["again"] = loop
    held = [
        HumanMessage("hi \ud83d"),
        HumanMessage([{"type": "hologram of a trim", "x": 1}]),
        AIMessage("", tool_calls=[{"id": "1", "name": "f", "args": loop}]),
        HumanMessage("bye"),
    ]
    for messages in ([held[0], held[1], held[3]], held):
        alone = imported_early(messages, max_tokens=2, token_counter=len, strategy="last")
        instrument("langchain")
        try:
            assert imported_early(messages, max_tokens=2, token_counter=len, strategy="last") == alone
        finally:
            uninstrument("langchain")
    told = [record.getMessage() for record in caplog.records]
    assert len([message for message in told if "hologram of a trim" in message]) == 1
    assert (
        len([message for message in told if "DescribeError" in message and "the agent is not affected" in message]) == 1
    )
    assert assembly_telemetry.spans_named(ASSEMBLY)
