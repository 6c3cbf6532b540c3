"""Each of LlamaIndex's messages, read as a provider is sent it."""

from __future__ import annotations

import pytest
from llama_index.core.base.llms.types import (
    AudioBlock,
    CachePoint,
    ChatMessage,
    CitableBlock,
    CitationBlock,
    DocumentBlock,
    ImageBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    VideoBlock,
)
from llama_index.core.llms.llm import ToolSelection

import otel_assembly.instrumentation.llama_index.messages  # noqa: F401  # importing it registers the rows
from otel_assembly import describe
from otel_assembly.messages import MEDIA_TOKENS, EventKind, result_texts, shortened, summary_like

TEXT = TextBlock(text="hello")
PICTURE = ImageBlock(url="https://example.org/a.png")
CALL = ToolCallBlock(tool_call_id="1", tool_name="look", tool_kwargs={"q": "ü"})


def said(*blocks, role="user", **keywords):
    return describe(ChatMessage(role=role, blocks=list(blocks), additional_kwargs=keywords))


@pytest.mark.parametrize(
    ("block", "texts", "media"),
    [
        (TEXT, ["hello"], 0),
        (PICTURE, [], MEDIA_TOKENS),
        (AudioBlock(url="https://example.org/a.mp3"), [], MEDIA_TOKENS),
        (VideoBlock(url="https://example.org/a.mp4"), [], MEDIA_TOKENS),
        (DocumentBlock(url="https://example.org/a.pdf"), [], MEDIA_TOKENS),
        (CachePoint(cache_control={"type": "ephemeral"}), [], 0),
        (
            CitableBlock(title="A title", source="a.pdf", content=[TEXT, PICTURE]),
            ["A title", "a.pdf", "hello"],
            MEDIA_TOKENS,
        ),
        (
            CitationBlock(cited_content=TEXT, source="a.pdf", title="A title", additional_location_info={}),
            ["hello"],
            0,
        ),
        (ThinkingBlock(content="I think", additional_information={"signature": "s" * 90}), ["I think"], 16),
        (ThinkingBlock(), [], 0),
        (CALL, ["look", '{"q": "ü"}'], 0),
        (ToolCallBlock(tool_name="look", tool_kwargs='{"q": 1}'), ["look", '{"q": 1}'], 0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_block_is_read_as_it_is_sent(block, texts, media):
    facts = said(block, role="assistant")
    assert list(facts.texts) == texts
    assert facts.media_tokens == media
    assert not facts.unknown


@pytest.mark.parametrize("role", MessageRole)
def test_every_role_is_known(role):
    kinds = {
        "system": EventKind.SYSTEM, "developer": EventKind.SYSTEM, "user": EventKind.REQUEST,
        "assistant": EventKind.RESPONSE, "chatbot": EventKind.RESPONSE, "model": EventKind.RESPONSE,
        "tool": EventKind.TOOL_RESULT, "function": EventKind.TOOL_RESULT,
    }  # fmt: skip
    assert said(TEXT, role=role).kind is kinds[role.value]


def test_a_result_answers_its_call_and_can_be_shortened():
    call = said(CALL, role="assistant")
    message = ChatMessage(role="tool", content="a long result", additional_kwargs={"tool_call_id": "1"})
    assert call.opens == ["1"] == describe(message).closes
    assert result_texts(message) == ["a long result"]
    shorter = shortened(message, ["a long …"])
    assert shorter.content == "a long …"
    assert message.content == "a long result"
    assert describe(shorter).closes == ["1"]
    assert not result_texts(ChatMessage(role="user", content="no result"))


class _Function:
    name, arguments = "look", '{"q": "a"}'


class _Called:
    id, function = "1", _Function()


@pytest.mark.parametrize(
    ("call", "own", "arguments"),
    [
        ({"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"q": "a"}'}}, "1", '{"q": "a"}'),
        (_Called(), "1", '{"q": "a"}'),
        ({"id": "1", "name": "look", "input": {"q": "a"}}, "1", '{"q": "a"}'),
        (ToolSelection(tool_id="1", tool_name="look", tool_kwargs={"q": "a"}), "1", '{"q": "a"}'),
    ],
    ids=["chat", "object", "input", "selection"],
)
def test_calls_that_are_kept_beside_the_blocks_are_read_once(call, own, arguments):
    facts = said(TEXT, role="assistant", tool_calls=[call])
    assert list(facts.texts) == ["hello", "look", arguments]
    assert facts.opens == [own]
    assert said(TEXT, CALL, role="assistant", tool_calls=[call]).opens == ["1"]


def test_the_old_form_of_a_call_is_read_as_well():
    facts = said(role="assistant", function_call={"name": "look", "arguments": "{}"})
    assert list(facts.texts) == ["look", "{}"]
    assert not facts.opens


def test_who_speaks_is_sent_with_the_role_but_for_a_tool():
    # A client of LlamaIndex's sends a message's keywords if they hold calls, and else only its blocks.
    assert said(TEXT, name="Ann").name == ""
    assert said(TEXT, role="assistant", name="Ann", tool_calls=[]).name == "Ann"
    assert said(TEXT, role="tool", name="look", tool_call_id="1").name == ""


def test_what_a_store_notes_on_a_message_is_no_part_of_it():
    one, other = ChatMessage(content="hello"), ChatMessage(content="hello", additional_kwargs={"session_id": "s"})
    assert describe(one) == describe(other) != describe(ChatMessage(content="hello", role="system"))


def test_a_summary_of_ours_is_a_message_of_the_user():
    made = summary_like(ChatMessage(content="hello"), "They greeted.", ())
    assert made.role is MessageRole.USER
    assert "They greeted." in made.content
    assert not made.additional_kwargs
    assert describe(made).kind is EventKind.SUMMARY
