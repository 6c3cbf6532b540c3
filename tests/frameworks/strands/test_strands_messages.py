"""How Strands' messages, prompts and tools are read: each of its content blocks, in whatever message."""

from __future__ import annotations

import json

import pytest
from pydantic import BaseModel
from strands import Agent
from strands.types.content import ContentBlock
from strands.types.tools import ToolResultContent
from strands_models import ScriptedModel, Stage, history

from otel_assembly import describe
from otel_assembly.instrumentation.strands.messages import (
    agent_messages,
    model_messages,
    output_schema,
    prompts_of,
    schemas_of,
)
from otel_assembly.messages import MEDIA_TOKENS

PICTURE = {"format": "png", "source": {"bytes": b"x"}}
#: Each block that a message may hold: what a model reads of it, and how many files are beside that.
BLOCKS = {
    "text": ("hello", ("hello",), 0),
    "image": (PICTURE, (), 1),
    "audio": ({"format": "mp3", "source": {"bytes": b"x"}}, (), 1),
    "video": ({"format": "mp4", "source": {"bytes": b"x"}}, (), 1),
    "document": ({"format": "pdf", "name": "a", "source": {"bytes": b"x"}}, (), 1),
    "cachePoint": ({"type": "default"}, (), 0),
    "guardContent": ({"text": {"text": "is it fine?", "qualifiers": ["query"]}}, ("is it fine?",), 0),
    "reasoningContent": ({"reasoningText": {"text": "so", "signature": "s"}}, ("so",), 0),
    "citationsContent": ({"content": [{"text": "as is said"}], "citations": [{"title": "x"}]}, ("as is said",), 0),
    "toolUse": (
        {"name": "look", "toolUseId": "1", "input": {"q": "ä"}},
        ("look", json.dumps({"q": "ä"}, ensure_ascii=False)),
        0,
    ),
    "toolResult": (
        {"toolUseId": "1", "status": "success", "content": [{"text": "found"}, {"json": {"n": 1}}, {"image": PICTURE}]},
        ("found", '{"n": 1}'),
        1,
    ),
}


def test_every_block_of_the_framework_s_is_known_here():
    assert set(ContentBlock.__annotations__) <= set(BLOCKS)
    assert set(ToolResultContent.__annotations__) <= {"text", "json", "image", "document", "video", "audio"}


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_what_a_model_reads_of_a_block(block, role):
    held, texts, files = BLOCKS[block]
    found = describe({"role": role, "content": [{block: held}], "tracking_id": "x", "metadata": {"usage": {}}})
    assert (found.texts, found.media_tokens) == (texts, files * MEDIA_TOKENS)
    assert found.opens == (["1"] if block == "toolUse" else [])
    assert found.closes == (["1"] if block == "toolResult" else [])


@pytest.mark.parametrize("content", ["document", "video", "audio"])
def test_a_file_that_a_tool_has_given(content):
    held = {"toolUseId": "1", "status": "success", "content": [{content: BLOCKS[content][0]}]}
    assert describe({"role": "user", "content": [{"toolResult": held}]}).media_tokens == MEDIA_TOKENS


def test_what_each_message_is():
    result = {"toolResult": BLOCKS["toolResult"][0]}
    assert describe({"role": "user", "content": [{"text": "hello"}]}).kind == "request"
    assert describe({"role": "user", "content": [result]}).kind == "tool_result"
    assert describe({"role": "user", "content": [result, {"text": "and?"}]}).kind == "request"
    assert describe({"role": "assistant", "content": [{"toolUse": BLOCKS["toolUse"][0]}]}).kind == "response"
    assert describe({"role": "assistant", "content": []}).kind == "response"


def test_reasoning_that_only_the_provider_can_read_counts_by_its_length():
    sealed = describe({"role": "assistant", "content": [{"reasoningContent": {"redactedContent": b"x" * 400}}]})
    assert sealed.texts == ()
    assert sealed.media_tokens > 0


def test_prompts_are_the_texts_of_the_blocks_or_the_one_text():
    assert prompts_of("Be kind.", [{"text": "Be kind."}]) == ["Be kind."]
    assert prompts_of("One.\nTwo.", [{"text": "One."}, {"cachePoint": {"type": "default"}}, {"text": "Two."}]) == [
        "One.", "Two."
    ]  # fmt: skip
    assert prompts_of([{"text": "One."}]) == ["One."]
    assert prompts_of("Be kind.") == ["Be kind."]
    assert prompts_of(None, None) == prompts_of("") == prompts_of([]) == []


def test_the_schemas_of_tools():
    spec = {"name": "look", "description": "Look.", "inputSchema": {"json": {"type": "object"}}}
    function = {"name": "look", "description": "Look.", "parameters": {"type": "object"}}
    assert schemas_of([spec]) == ({"type": "function", "function": function},)
    assert schemas_of([{**spec, "inputSchema": {"type": "object"}}]) == schemas_of([spec])
    assert schemas_of(None) == ()

    class Answer(BaseModel):
        """An answer."""

        city: str

    assert output_schema(Answer)["function"]["name"] == "Answer"
    assert "city" in output_schema(Answer)["function"]["parameters"]["properties"]


def test_what_an_agent_holds_is_the_same_object_until_it_is_changed_in_place():
    agent = Agent(model=ScriptedModel(Stage(), ""), messages=history(2), callback_handler=None)
    first = agent_messages(agent)
    agent.messages[0]["metadata"] = {"custom": {"pinned": True}}
    agent.messages[1]["content"][0]["text"] = "something else"
    agent.messages.append(agent.messages[3])
    second = agent_messages(agent)
    assert [message is other for message, other in zip(first, second, strict=False)] == [True, False, True, True]
    assert second[4] == second[3]
    assert first[1] == history(2)[1]
    assert model_messages(agent.messages) == second


def test_a_malformed_message_is_the_model_s_to_refuse():
    agent = Agent(model=ScriptedModel(Stage(), ""), messages=[{"role": "user"}], callback_handler=None)
    assert agent_messages(agent) == [{"role": "user"}]
