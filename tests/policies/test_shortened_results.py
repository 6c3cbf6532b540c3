"""A tool's result that does not fit is shortened in every shape that it has, and still answers its call."""

from __future__ import annotations

import pytest

from otel_assembly import (
    Assembler,
    BudgetPolicy,
    Context,
    ContextOverflowError,
    ModelRequest,
    ModelResponse,
    ToolCallEvent,
    ToolResultEvent,
    describe,
)
from otel_assembly.events import ToolErrorEvent, ToolResultsEvent
from otel_assembly.messages import MEDIA_TOKENS, broken_pairs

ROWS = "\n".join(f"Row {number}: flight {number * 7} leaves from gate {number % 30}." for number in range(3_000))
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBOR"}}
ASK = {"role": "user", "content": "Which gate?"}
OURS = ModelResponse(tool_calls=(ToolCallEvent(id="a", name="rows"), ToolCallEvent(id="b", name="rows")))


def called(*ids):
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": item_id, "function": {"name": "rows", "arguments": "{}"}} for item_id in ids],
    }


def used(*ids):
    return {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": item_id, "name": "rows", "input": {}} for item_id in ids],
    }


def result(content, one="a"):
    return {"type": "tool_result", "tool_use_id": one, "content": content, "is_error": True}


SHAPES = {
    "ours": [ModelRequest(content="?"), OURS, *(ToolResultEvent(parent_id=letter, content=ROWS) for letter in "ab")],
    "an error of ours": [
        ModelRequest(content="?"),
        ModelResponse(tool_calls=OURS.tool_calls[:1]),
        ToolErrorEvent(parent_id="a", name="rows", error=ROWS),
    ],
    "several of ours together": [
        ModelRequest(content="?"),
        OURS,
        ToolResultsEvent(
            results=(ToolResultEvent(parent_id="a", content="short"), ToolErrorEvent(parent_id="b", error=ROWS))
        ),
    ],
    "chat": [ASK, called("a"), {"role": "tool", "tool_call_id": "a", "content": ROWS}],
    "chat, in parts": [
        ASK,
        called("a"),
        {
            "role": "tool",
            "tool_call_id": "a",
            "content": [{"type": "text", "text": ROWS}, {"type": "text", "text": ROWS}],
        },
    ],
    "anthropic": [ASK, used("a"), {"role": "user", "content": [result(ROWS)]}],
    "anthropic, in parts with an image": [
        ASK,
        used("a"),
        {"role": "user", "content": [result([{"type": "text", "text": ROWS}, IMAGE, {"type": "text", "text": "end"}])]},
    ],
    "anthropic, several": [ASK, used("a", "b"), {"role": "user", "content": [result(ROWS, "b"), result(ROWS, "a")]}],
    "responses": [
        ASK,
        {"type": "function_call", "call_id": "a", "name": "rows", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": ROWS},
    ],
    "responses, in parts": [
        ASK,
        {"type": "custom_tool_call", "call_id": "a", "name": "rows", "input": ""},
        {"type": "custom_tool_call_output", "call_id": "a", "output": [{"type": "input_text", "text": ROWS}]},
    ],
    "responses, of a shell": [
        ASK,
        {"type": "shell_call", "call_id": "a", "action": {"commands": ["ls"]}},
        {"type": "shell_call_output", "call_id": "a", "output": [{"stdout": ROWS, "stderr": "", "outcome": {}}]},
    ],
    "bedrock": [
        ASK,
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "a", "name": "rows", "input": {}}}]},
        {
            "role": "user",
            "content": [{"toolResult": {"toolUseId": "a", "content": [{"text": ROWS}, {"json": [ROWS]}]}}],
        },
    ],
    "gemini": [
        ASK,
        {"role": "model", "parts": [{"functionCall": {"name": "rows", "args": {}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "rows", "response": {"output": ROWS}}}]},
    ],
    "gemini, an object": [
        ASK,
        {"role": "model", "parts": [{"functionCall": {"name": "rows", "args": {}}}]},
        {"role": "user", "parts": [{"function_response": {"name": "rows", "response": {"rows": [ROWS], "n": 1}}}]},
    ],
}


@pytest.mark.parametrize("shape", list(SHAPES))
async def test_a_result_that_does_not_fit_is_shortened_in_every_shape(shape, recorder):
    events, window = SHAPES[shape], 2_000
    with pytest.raises(ContextOverflowError):
        await Assembler([BudgetPolicy(window, 0)]).assemble([], events)
    said = repr(events)
    assembly = await Assembler([BudgetPolicy(window, 0, compact="extractive")]).assemble([], events, Context())
    assert repr(events) == said
    assert 500 < assembly.totals.tokens_out <= window
    assert len(assembly.events) == len(events)
    facts = list(map(describe, assembly.events))
    assert broken_pairs(facts) == []
    assert [fact.kind for fact in facts] == [describe(event).kind for event in events]
    assert [list(fact.closes) for fact in facts] == [list(describe(event).closes) for event in events]
    assert sum(fact.media_tokens for fact in facts) == sum(describe(event).media_tokens for event in events)
    assert all("Row" in " ".join(fact.texts) for fact in facts if fact.closes)
    assert {type(event) for event in assembly.events} == {type(event) for event in events}
    assert recorder.violations() == []


async def test_of_several_results_the_long_ones_are_shortened_and_the_short_one_stays():
    results = [result("It rains.", "a"), result(ROWS, "b"), result(ROWS, "c")]
    events = [ASK, used("a", "b", "c"), {"role": "user", "content": results}]
    assembly = await Assembler([BudgetPolicy(2_000, 0, compact="extractive")]).assemble([], events)
    kept = assembly.events[-1]["content"]
    assert kept[0] == results[0]
    assert [part["tool_use_id"] for part in kept] == ["a", "b", "c"]
    assert all(part["is_error"] for part in kept)
    lengths = [len(part["content"]) for part in kept[1:]]
    assert min(lengths) > 0.8 * max(lengths) > 500


async def test_pictures_of_a_result_stay_where_they_were():
    parts = [{"type": "text", "text": ROWS}, IMAGE, {"type": "text", "text": "end"}]
    events = [ASK, used("a"), {"role": "user", "content": [result(parts)]}]
    assembly = await Assembler([BudgetPolicy(3_000, 0, compact="extractive")]).assemble([], events)
    ((kept,),) = (event["content"] for event in assembly.events[-1:])
    assert [part["type"] for part in kept["content"]] == ["text", "image"]
    assert kept["content"][1] is IMAGE
    assert describe(assembly.events[-1]).media_tokens == MEDIA_TOKENS
