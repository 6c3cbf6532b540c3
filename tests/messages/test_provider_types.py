"""Every type that the providers' own clients know is read, so that a new release of one shows what is new."""

from __future__ import annotations

import typing

import anthropic.types
import openai.types.chat
import openai.types.responses
import pytest

from otel_assembly import describe


def types_of(union) -> set[str]:
    """The values of ``type`` in a union of typed dicts."""
    found: set[str] = set()
    for member in typing.get_args(union):
        if typing.get_origin(member) is not None:
            found |= types_of(member)
        elif isinstance(member, type):
            hint = typing.get_type_hints(member).get("type")
            while hint is not None and typing.get_origin(hint) is not typing.Literal:
                hint = next(iter(typing.get_args(hint)), None)
            found |= set(typing.get_args(hint))
    return found


ITEMS = types_of(openai.types.responses.ResponseInputItemParam) - {"message"}
BLOCKS = types_of(anthropic.types.ContentBlockParam)
CHAT_PARTS = types_of(openai.types.chat.ChatCompletionContentPartParam) | {"refusal"}
INPUT_PARTS = types_of(openai.types.responses.response_input_content_param.ResponseInputContentParam)


def test_the_clients_say_what_there_is():
    assert {"function_call", "function_call_output", "reasoning"} <= ITEMS
    assert {"tool_use", "tool_result", "thinking"} <= BLOCKS
    assert {"text", "image_url"} <= CHAT_PARTS
    assert {"input_text", "input_image"} <= INPUT_PARTS


@pytest.mark.parametrize("kind", sorted(ITEMS))
def test_every_item_of_responses_is_known(kind):
    facts = describe({"type": kind, "id": "i", "call_id": "c", "output": "o", "name": "n", "arguments": "{}"})
    assert not facts.unknown


@pytest.mark.parametrize("kind", sorted(BLOCKS | CHAT_PARTS | INPUT_PARTS))
def test_every_part_of_a_content_is_known(kind):
    part = {"type": kind, "id": "i", "name": "n", "input": {}, "text": "t", "thinking": "h", "data": "ZA=="}
    assert not describe({"role": "assistant", "content": [part]}).unknown
