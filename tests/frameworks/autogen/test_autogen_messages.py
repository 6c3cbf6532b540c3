"""How AutoGen's messages are read, and how a summary or a shorter result stands for them."""

from __future__ import annotations

import pytest
from autogen_core import Image
from autogen_core.model_context import ChatCompletionContextState
from autogen_core.models import SystemMessage, UserMessage
from autogen_talk import calls, reply, results, user
from PIL import Image as Picture

import otel_assembly.instrumentation.autogen.messages  # noqa: F401  # the rows, which an instrumentor or a plug-in loads
from otel_assembly import describe
from otel_assembly.messages import result_texts, shortened, summary_like


def test_what_each_message_is():
    messages = [SystemMessage(content="be kind"), user("hello", "ann"), reply("hi"), calls("1", "2"), results("1", "2")]
    facts = [describe(message) for message in messages]
    assert [fact.kind for fact in facts] == ["system", "request", "response", "response", "tool_result"]
    assert facts[1].name == "ann"
    assert (facts[3].opens, facts[4].closes) == (["1", "2"], ["1", "2"])
    assert facts[3].texts == ("weather", '{"city": "Bonn"}') * 2
    assert facts[4].texts == ("it rains", "it rains")


def test_a_thought_is_sent_beside_calls_only():
    assert describe(calls("1", thought="let me see")).text == "let me see"
    answer = reply("hi").model_copy(update={"thought": "let me see"})
    assert describe(answer).texts == ("hi",)


@pytest.mark.parametrize(
    ("size", "tokens"),
    [((1024, 1024), 765), ((512, 512), 255), ((100, 100), 255), ((2048, 4096), 1105), ((4096, 200), 765)],
    ids=lambda value: "x".join(map(str, value)) if isinstance(value, tuple) else str(value),
)
def test_an_image_is_estimated_by_its_size(size, tokens):
    seen = UserMessage(content=["look:", Image(Picture.new("RGB", size)), "well?"], source="user")
    facts = describe(seen)
    assert (facts.text, list(facts.fields), facts.media_tokens) == ("look:", ["well?"], tokens)


def test_autogens_note_on_what_it_skipped_is_no_request():
    assert describe(user("Skipped 3 messages.", "System")).kind == "other"
    assert describe(user("Skipped 3 messages.", "user")).kind == "request"


@pytest.mark.parametrize(
    "message", [SystemMessage(content="x"), user("x"), reply("x"), calls("1"), results("1")], ids=lambda m: m.type
)
def test_a_summary_survives_autogens_state(message):
    summary = summary_like(message, "they met", [message])
    assert "they met" in summary.content
    state = ChatCompletionContextState(messages=[summary]).model_dump_json()
    loaded = ChatCompletionContextState.model_validate_json(state).messages[0]
    assert loaded == summary
    assert describe(loaded).kind == "summary"


def test_a_shorter_result_answers_the_same_call():
    result = results("1", text="a long story")
    short = shortened(result, ["a story"])
    assert short.content[0].content == "a story"
    assert (short.content[0].call_id, short.content[0].name) == ("1", "weather")
    assert result.content[0].content == "a long story"
    two = results("1", "2", text="a long story")
    assert result_texts(two) == ["a long story", "a long story"]
    assert [message.content for message in shortened(two, ["a", "b"]).content] == ["a", "b"]
    assert result_texts(user("x")) == ()
