"""How Haystack's messages are read, and how a summary or a shorter result stands for them."""

from __future__ import annotations

import haystack.dataclasses.chat_message as chat
import pytest
from haystack.dataclasses import ChatMessage, FileContent, ImageContent, ReasoningContent, TextContent, ToolCall

import otel_assembly.instrumentation.haystack.messages as rows
from otel_assembly import describe
from otel_assembly.messages import MEDIA_TOKENS, result_texts, shortened, summary_like

IMAGE = ImageContent("aGVsbG8=", mime_type="image/png", validation=False)
FILE = FileContent("aGVsbG8=", mime_type="application/pdf", validation=False)
CALL = ToolCall("look", {"q": "ä", "n": [1, {"deep": None}]}, "1")


def test_what_each_message_is():
    said = {
        "request": ChatMessage.from_user("hello"),
        "system": ChatMessage.from_system("be kind"),
        "response": ChatMessage.from_assistant("hello you"),
        "tool_result": ChatMessage.from_tool("found", CALL),
    }
    for kind, message in said.items():
        assert describe(message).kind == kind
    assert describe(said["request"]).texts == ("hello",)


def test_what_is_said_and_shown():
    found = describe(ChatMessage.from_user(content_parts=["see", IMAGE, "this", FILE], name="ann"))
    assert (found.texts, found.media_tokens, found.name) == (("see", "ann", "this"), 2 * MEDIA_TOKENS, "ann")


def test_what_an_answer_says_thinks_and_asks_for():
    meta = {"usage": {"prompt_tokens": 7, "completion_tokens": 3}}
    thought = ReasoningContent("let me see", extra={"encrypted_content": "x" * 160})
    found = describe(ChatMessage.from_assistant("I look.", tool_calls=[CALL], meta=meta, reasoning=thought))
    assert found.texts == ("let me see", "I look.", "look", '{"q": "ä", "n": [1, {"deep": null}]}') or found.texts == (
        "I look.", "look", '{"q": "ä", "n": [1, {"deep": null}]}', "let me see"
    )  # fmt: skip
    assert (found.opens, found.billed_tokens, found.output_tokens, found.media_tokens) == (["1"], 7, 3, 30)
    assert [call.name for call in found.calls] == ["look"]
    signed = ReasoningContent("hm", extra={"signature": "y" * 16})
    used = {"usage": {"input_tokens": 5, "output_tokens": 2}}
    other = describe(ChatMessage.from_assistant("Yes.", reasoning=signed, meta=used))
    assert (other.media_tokens, other.billed_tokens, other.output_tokens) == (3, 5, 2)


@pytest.mark.parametrize("usage", [None, {}, "much", {"prompt_tokens": None}])
def test_an_answer_that_does_not_say_what_it_cost(usage):
    found = describe(ChatMessage.from_assistant("Yes.", meta={"usage": usage}))
    assert (found.billed_tokens, found.output_tokens) == (None, None)


def test_a_tool_s_result_of_texts_and_files():
    found = describe(ChatMessage.from_tool([TextContent("one"), IMAGE, TextContent("two"), FILE], CALL))
    assert (found.kind, found.closes, found.texts) == ("tool_result", ["1"], ("one", "two"))
    assert found.media_tokens == 2 * MEDIA_TOKENS


def test_a_call_without_an_id_is_owed_nothing():
    call = ToolCall("look", {})
    assert describe(ChatMessage.from_assistant(tool_calls=[call])).opens == []
    answered = describe(ChatMessage.from_tool("found", call))
    assert (answered.closes, answered.kind, answered.texts) == ([], "tool_result", ("found",))


def test_every_content_that_this_release_has_is_known():
    known = {function.__name__ for function in chat._CONTENT_PART_CLASSES_TO_SERIALIZATION_KEYS}
    assert known <= set(rows._ROWS)


def test_a_content_that_nobody_knows_counts_by_what_it_holds():
    class BrandNewContent(TextContent):
        pass

    found = describe(ChatMessage.from_user(content_parts=[BrandNewContent("new")]))
    assert found.unknown == ("BrandNewContent",)
    assert "new" in found.texts[0]


def test_what_compaction_says_in_the_place_of_others_nobody_has_said():
    note = ChatMessage.from_user("[3 were removed]", meta={"context_compaction": {"strategy": "sliding_window"}})
    assert describe(note).kind == "summary"
    pruned = ChatMessage.from_tool("gone", CALL, meta={"context_compaction": {"strategy": "tool_result_pruning"}})
    assert describe(pruned).kind == "tool_result"


def test_the_system_prompts_in_front():
    asked, later = ChatMessage.from_user("hello"), ChatMessage.from_system("Three.")
    front = [ChatMessage.from_system("One."), ChatMessage.from_system("Two.")]
    prompts, held = rows.split_prompts([*front, asked, later])
    assert prompts == ["One.", "Two."]
    assert [message is other for message, other in zip(held, (asked, later), strict=True)] == [True, True]
    assert rows.split_prompts(front) == (["One.", "Two."], [])
    assert rows.split_prompts([]) == ([], [])


def test_a_summary_survives_being_stored():
    message = ChatMessage.from_user("x")
    summary = summary_like(message, "they met", [message])
    stored = ChatMessage.from_dict(summary.to_dict())
    for event in (summary, stored):
        assert describe(event).kind == "summary"
        assert "they met" in describe(event).texts[0]


def test_haystack_takes_a_summary_of_ours_for_nobody_s_request():
    utils = pytest.importorskip("haystack.hooks.compaction.utils")
    message = ChatMessage.from_user("x")
    assert utils._latest_user_index([message, summary_like(message, "they met", [message])]) == 0


def test_a_shorter_result_answers_the_same_call():
    result = ChatMessage.from_tool("a long story", CALL, meta={"own": 1})
    assert result_texts(result) == ["a long story"]
    short = shortened(result, ["a story"])
    assert (describe(short).texts, describe(short).closes, short.meta) == (("a story",), ["1"], {"own": 1})
    assert describe(result).texts == ("a long story",)
    assert result_texts(ChatMessage.from_user("x")) == []
    assert result_texts(ChatMessage.from_tool([TextContent("one")], CALL)) == []
