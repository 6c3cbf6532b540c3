"""What is sent of an assembly: as much as was counted, and in the order that providers take."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recount import pair
from strategies import as_events, as_messages, prompt_lists, scripts

from otel_assembly import (
    Assembler,
    BudgetPolicy,
    Context,
    ContextOverflowError,
    ConversationPolicy,
    EventFacts,
    HeadAndTailPolicy,
    History,
    ModelRequest,
    ModelResponse,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    ToolCallEvent,
    ToolResultEvent,
    describe,
    to_anthropic,
    to_openai,
)
from otel_assembly.errors import DescribeError, RenderError
from otel_assembly.events import CompactionSummary, ToolErrorEvent, ToolResultsEvent
from otel_assembly.messages import ChatSummary, EventKind, summary_text
from otel_assembly.runtime import NO_RESULT_YET
from otel_assembly.testing import conversation
from otel_assembly.tokens import TiktokenCounter, TokenMeter

METER = TokenMeter(TiktokenCounter("o200k_base"))
#: What a made-up answer costs.
PENDING = 4 + METER.text(NO_RESULT_YET)


def call(*ids, text="", arguments="{}"):
    calls = tuple(ToolCallEvent(id=item_id, name="search", arguments=arguments) for item_id in ids)
    return ModelResponse(content=text, tool_calls=calls)


def result(of, text="found"):
    return ToolResultEvent(parent_id=of, name="search", content=text)


def roles(messages):
    return [message["role"] for message in messages]


def kinds(message):
    return [block["type"] for block in message["content"]]


# OpenAI's form


def test_each_of_our_events_is_its_message():
    events = [
        ModelRequest(content="Where is my bag?"),
        call("a", "b", text="I look.", arguments='{"q": "bag"}'),
        ToolResultsEvent(results=(result("a", "gate 14"), ToolErrorEvent(parent_id="b", error="timeout"))),
        ModelResponse(content="At gate 14."),
    ]
    function = {"name": "search", "arguments": '{"q": "bag"}'}
    assert to_openai(["Be brief."], events) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Where is my bag?"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"id": letter, "type": "function", "function": function} for letter in "ab"],
        },
        {"role": "tool", "tool_call_id": "a", "content": "gate 14"},
        {"role": "tool", "tool_call_id": "b", "content": "timeout"},
        {"role": "assistant", "content": "At gate 14."},
    ]


def test_a_call_without_a_text_has_no_content():
    asked, _ = to_openai([], [call("a"), result("a")])
    assert asked["content"] is None


def test_a_summary_says_that_it_is_one():
    summary = CompactionSummary(summary="The bag is lost.")
    assert to_openai([], [summary]) == [{"role": "system", "content": summary_text("The bag is lost.")}]
    said = [{"type": "text", "text": summary_text("The bag is lost.")}]
    assert to_anthropic([], [summary]) == {"system": [], "messages": [{"role": "user", "content": said}]}


def test_what_was_not_counted_is_not_sent():
    events = conversation("ask", "alert", "note", "call a", "result a", "fatal")
    echoed = [*events[:4], events[3].tool_calls[0], events[4], ToolResultsEvent(results=(events[4],)), *events[5:]]
    assert roles(to_openai([], echoed)) == ["user", "assistant", "tool"]
    assert to_openai([], echoed) == to_openai([], events)
    assert to_anthropic([], echoed) == to_anthropic([], events)


def test_a_chat_message_goes_as_it_is():
    events = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}], "name": "Ann"},
        {"role": "assistant", "content": None, "tool_calls": to_openai([], [call("a")])[0]["tool_calls"]},
        {"role": "tool", "tool_call_id": "a", "content": "found"},
        {"role": "assistant", "refusal": "no", "content": None},
        ChatSummary(role="system", content="earlier"),
    ]
    sent = to_openai([], events)
    assert all(message is event for message, event in zip(sent, events, strict=True))


def test_results_that_a_recorder_joined_are_messages_of_their_own():
    asked = to_openai([], [call("a", "b")])[0]
    joined = {"role": "tool", "tool_call_ids": ["a", "b"], "content": "found both"}
    sent = to_openai([], [asked, joined])
    assert sent[1:] == [
        {"role": "tool", "tool_call_id": "a", "content": "found both"},
        {"role": "tool", "tool_call_id": "b", "content": ""},
    ]


def test_our_own_mark_of_an_approval_is_not_sent():
    asked = to_openai([], [call("a")])[0]
    marked = {**asked, "tool_calls": [{**asked["tool_calls"][0], "awaiting_approval": True}]}
    assert to_openai([], [marked])[0] == asked
    assert "awaiting_approval" in marked["tool_calls"][0]


# Both


def test_a_result_that_came_late_stands_behind_its_call():
    ask, later = ModelRequest(content="first"), ModelRequest(content="then")
    events = [ask, call("a", "b"), result("b", "two"), later, result("a", "one")]
    assert [m.get("tool_call_id") or m["role"] for m in to_openai([], events)] == [
        "user",
        "assistant",
        "b",
        "a",
        "user",
    ]
    messages = to_anthropic([], events)["messages"]
    assert roles(messages) == ["user", "assistant", "user"]
    assert kinds(messages[2]) == ["tool_result", "tool_result", "text"]


def test_a_call_that_nobody_has_answered_yet_gets_an_answer_or_none():
    events = [ModelRequest(content="go"), call("a", "b"), result("b"), ModelRequest(content="what now?")]
    waits = {"role": "tool", "tool_call_id": "a", "content": NO_RESULT_YET}
    assert to_openai([], events)[3] == waits
    assert waits not in to_openai([], events, pending=None)
    blocks = to_anthropic([], events, pending="later")["messages"][2]["content"]
    assert blocks[1] == {"type": "tool_result", "tool_use_id": "a", "content": "later"}
    assert kinds(to_anthropic([], events, pending=None)["messages"][2]) == ["tool_result", "text"]


def test_two_calls_of_one_id_are_told_apart():
    events = [call("a", "a"), result("a", "one"), result("a", "two")]
    asked, first, second = to_openai([], events)
    assert [call["id"] for call in asked["tool_calls"]] == ["a", "a_2"]
    assert [first["tool_call_id"], second["tool_call_id"]] == ["a", "a_2"]
    again = [*events, call("a"), result("a", "three")]
    assert pairing_of_anthropic(to_anthropic([], again)) == ["a", "a_2", "a_3"]


def test_half_a_surrogate_pair_can_be_sent():
    events = [
        ModelRequest(content="cut \ud83d"),
        {"role": "user", "content": [{"type": "text", "text": "cut \ud83d"}]},
        call("a", arguments='{"q": "\\ud83d", "\\ud83d": 1}'),
        result("a", "\ud83d"),
    ]
    json.dumps(to_openai(["\ud83d"], events), ensure_ascii=False).encode()
    json.dumps(to_anthropic(["\ud83d"], events), ensure_ascii=False).encode()


class Foreign:
    pass


class ForeignSystem:
    pass


@describe.register
def _(event: Foreign) -> EventFacts:
    return EventFacts(EventKind.REQUEST, "secret")


@describe.register
def _(event: ForeignSystem) -> EventFacts:
    return EventFacts(EventKind.SYSTEM, "secret")


@pytest.mark.parametrize("render", [to_openai, to_anthropic])
@pytest.mark.parametrize(
    "event",
    [
        Foreign(),
        ForeignSystem(),
    ],
    ids=["a type of one's own", "a system message of one"],
)
def test_what_has_no_form_is_refused_by_its_type_and_place(render, event):
    with pytest.raises(RenderError) as refused:
        render([], [{"role": "system", "content": "hi"}, event])
    assert (refused.value.index, refused.value.event_type) == (1, type(event))
    assert f"event 1, a {type(event).__module__}.{type(event).__qualname__}" in str(refused.value)
    assert "pass events of otel_assembly or message dicts" in str(refused.value)
    assert "secret" not in str(refused.value)


# Anthropic's form


def test_anthropic_gets_one_message_a_side_and_results_together():
    events = [
        {"role": "system", "content": "In Seoul."},
        ModelRequest(content="Where is my bag?"),
        call("a", "b", text="I look.", arguments='{"q": "bag"}'),
        result("a", "gate 14"),
        ToolErrorEvent(parent_id="b", error="timeout"),
        ModelRequest(content="and?"),
    ]
    assert to_anthropic(["Be brief."], events) == {
        "system": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "In Seoul."}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Where is my bag?"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "a", "name": "search", "input": {"q": "bag"}},
                    {"type": "tool_use", "id": "b", "name": "search", "input": {"q": "bag"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "a", "content": "gate 14"},
                    {"type": "tool_result", "tool_use_id": "b", "content": "timeout", "is_error": True},
                    {"type": "text", "text": "and?"},
                ],
            },
        ],
    }


@pytest.mark.parametrize(
    "arguments",
    [
        '{"q": ',
        "[1]",
        "7",
        "null",
        "bag",
        '{"q": NaN}',
        "[" * 100_000,
        '{"q":' * 600 + "1" + "}" * 600,
        '{"q":' * 101 + "1" + "}" * 101,
        '{"q": Infinity}',
        '{"q": 1e999}',
    ],
)
def test_arguments_that_are_no_object_do_not_make_the_request_fail(arguments):
    sent = to_anthropic([], [call("a", arguments=arguments), result("a")])
    assert sent["messages"][1]["content"][0]["input"] == {"malformed_arguments": arguments}


def test_arguments_are_sent_as_an_object_to_a_hundred_levels():
    for arguments in ('{"q": [' + "[], " * 200 + "1]}", '{"q":' * 100 + "1" + "}" * 100):
        sent = to_anthropic([], [call("a", arguments=arguments), result("a")])
        assert sent["messages"][1]["content"][0]["input"] == json.loads(arguments)


@pytest.mark.parametrize("arguments", ["", "  ", "{}"])
def test_no_arguments_are_an_empty_object(arguments):
    assert to_anthropic([], [call("a", arguments=arguments)])["messages"][1]["content"][0]["input"] == {}


def test_ids_and_names_are_spelled_as_anthropic_takes_them():
    asked = ModelResponse(tool_calls=(ToolCallEvent(id="functions.search:0", name="my search", arguments="{}"),))
    messages = to_anthropic([], [ModelRequest(content="go"), asked, result("functions.search:0")])["messages"]
    assert messages[1]["content"][0] == {
        "type": "tool_use",
        "id": "functions_search_0",
        "name": "my_search",
        "input": {},
    }
    assert messages[2]["content"][0]["tool_use_id"] == "functions_search_0"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "text", "text": None}]},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "user", "content": [{"type": "image_url"}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": None}}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": 5}]},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "image_url", "image_url": {}}]},
        {"role": "assistant", "content": "secret", "refusal": 5},
    ],
    ids=["no text", "a text that is not there", "no picture", "no address", "a number", "in a result", "a refusal"],
)
def test_a_part_that_is_put_together_wrongly_is_refused_by_its_message(message):
    with pytest.raises((RenderError, DescribeError)) as refused:
        to_anthropic([], [call("a"), message])
    assert "secret" not in str(refused.value)


def test_what_says_nothing_is_left_out_and_an_answer_is_not_the_first():
    events = [ModelResponse(content="Hello."), ModelRequest(content=" "), ModelResponse(content="Still there?")]
    sent = to_anthropic(["", "\n"], events)
    assert sent["system"] == []
    assert roles(sent["messages"]) == ["user", "assistant"]
    assert [block["text"] for block in sent["messages"][1]["content"]] == ["Hello.", "Still there?"]


def test_pictures_and_files_of_chat_messages():
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    content = [
        "look",
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
        image,
    ]
    (message,) = to_anthropic([], [{"role": "user", "content": content}])["messages"]
    assert message["content"] == [
        {"type": "text", "text": "look"},
        image,
        {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
        image,
    ]
    with pytest.raises(RenderError, match="a part of type 'input_audio'"):
        to_anthropic([], [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}])


async def test_cache_control_stands_where_the_assembly_says_it_pays():
    def marked(sent):
        blocks = [*sent["system"], *(block for message in sent["messages"] for block in message["content"])]
        return [at for at, block in enumerate(blocks) if "cache_control" in block]

    assembler, history = Assembler([ConversationPolicy()]), History(conversation("ask", "call a b"))
    history.extend(conversation("results a b"))
    first = await assembler.assemble(["p", "q"], history, Context())
    sent = to_anthropic(*first, breakpoints=first.breakpoints)
    assert marked(sent) == [1, 6]  # the prompts; the last result
    history.extend(conversation("answer", "ask"))
    second = await assembler.assemble(["p", "q"], history, Context())
    assert marked(to_anthropic(*second, breakpoints=second.breakpoints)) == [1, 6, 8]
    assert marked(to_anthropic(*second)) == []


# Any conversation

SETTINGS = settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
steps = st.sampled_from([0, 40])
choices = st.sampled_from(["raise", "drop"])
reducers = st.one_of(
    st.builds(ConversationPolicy),
    st.builds(SlidingWindowPolicy, st.integers(1, 12), transparent=st.booleans()),
    st.builds(HeadAndTailPolicy, st.integers(1, 6), st.integers(1, 8), transparent=st.booleans()),
    st.builds(TokenBudgetPolicy, st.integers(20, 700), step_tokens=steps, on_overflow=choices),
    st.builds(BudgetPolicy, st.integers(60, 700), st.integers(0, 40), step_tokens=steps, on_overflow=choices),
)
chains = st.lists(reducers, min_size=1, max_size=3)
conversations = st.one_of(scripts().map(as_events), scripts(echoes=False).map(as_messages))


async def assembled(events, chain, prompts):
    try:
        return await Assembler(chain).assemble(prompts, events, Context())
    except ContextOverflowError:
        return None


def tokens_of(messages):
    """Each message of OpenAI's form, counted as an event that came in."""
    return sum(map(METER.event, map(describe, messages))) + METER.priming


def unanswered(messages):
    """Which calls of OpenAI's form have no result right behind them; anything else out of place is an error."""
    waiting, found = [], []
    for message in messages:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
            continue
        found += waiting
        waiting = [call["id"] for call in message.get("tool_calls") or ()]
        assert len(set(waiting)) == len(waiting)
    return found + waiting


def pairing_of_anthropic(sent):
    """The ids of all calls, each of which has its one result in the message right behind it."""
    seen, before = [], []
    assert not sent["messages"] or sent["messages"][0]["role"] == "user"
    for message in sent["messages"]:
        results = [block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"]
        assert sorted(results) == sorted(before)
        assert kinds(message)[: len(results)] == ["tool_result"] * len(results)
        before = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        seen += before
    assert not before
    assert len(set(seen)) == len(seen)
    return seen


@SETTINGS
@given(conversations, chains, prompt_lists)
async def test_what_is_sent_to_openai_is_what_was_counted(events, chain, prompts):
    assembly = await assembled(events, chain, prompts)
    if assembly is None:
        return
    exact = to_openai(*assembly, pending=None)
    if any(pair(assembly.events).also.values()):  # an answer that says another one again: that was counted twice
        assert tokens_of(exact) <= assembly.totals.tokens_out
    else:
        assert tokens_of(exact) == assembly.totals.tokens_out
    waiting = unanswered(exact)
    sent = to_openai(*assembly)
    assert unanswered(sent) == []
    assert tokens_of(sent) == tokens_of(exact) + PENDING * len(waiting)
    json.dumps(sent, ensure_ascii=False).encode()


@SETTINGS
@given(conversations, chains, prompt_lists)
async def test_what_is_sent_to_anthropic_is_whole(events, chain, prompts):
    assembly = await assembled(events, chain, prompts)
    if assembly is None:
        return
    sent = to_anthropic(*assembly, breakpoints=assembly.breakpoints)
    pairing_of_anthropic(sent)
    blocks = [*sent["system"], *(block for message in sent["messages"] for block in message["content"])]
    assert all(message["content"] for message in sent["messages"])
    assert all(item != two for item, two in zip(roles(sent["messages"]), roles(sent["messages"])[1:], strict=False))
    assert all(block["text"].strip() for block in blocks if block["type"] == "text")
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"]) for block in blocks if block["type"] == "tool_use")
    assert sum("cache_control" in block for block in blocks) <= 4
    json.dumps(sent, ensure_ascii=False, allow_nan=False).encode()
