"""``otel-assembly replay`` of requests as each provider's client was given them."""

from __future__ import annotations

import json

import pytest
from recount import count

ASKS = ["Where is my bag?", "And my coat?", "Thanks."]
FOUND = "It is on belt 4. " * 300


def chat(turn):
    return [
        {"role": "user", "content": ASKS[turn]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"c{turn}", "function": {"name": "search", "arguments": '{"q": "it"}'}}],
        },
        {"role": "tool", "tool_call_id": f"c{turn}", "content": FOUND},
        {"role": "assistant", "content": "On belt 4."},
    ]


def anthropic(turn):
    return [
        {"role": "user", "content": [{"type": "text", "text": ASKS[turn]}]},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": f"c{turn}", "name": "search", "input": {"q": "it"}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"c{turn}", "content": FOUND}]},
        {"role": "assistant", "content": [{"type": "text", "text": "On belt 4."}]},
    ]


def responses(turn):
    return [
        {"role": "user", "content": ASKS[turn]},
        {"type": "reasoning", "id": f"rs{turn}", "summary": []},
        {"type": "function_call", "call_id": f"c{turn}", "name": "search", "arguments": '{"q": "it"}'},
        {"type": "function_call_output", "call_id": f"c{turn}", "output": FOUND},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "On belt 4."}]},
    ]


def bedrock(turn):
    return [
        {"role": "user", "content": [{"text": ASKS[turn]}]},
        {
            "role": "assistant",
            "content": [{"toolUse": {"toolUseId": f"c{turn}", "name": "search", "input": {"q": "it"}}}],
        },
        {"role": "user", "content": [{"toolResult": {"toolUseId": f"c{turn}", "content": [{"text": FOUND}]}}]},
        {"role": "assistant", "content": [{"text": "On belt 4."}]},
    ]


def gemini(turn):
    response = {"name": "search", "response": {"output": FOUND}}
    return [
        {"role": "user", "parts": [{"text": ASKS[turn]}]},
        {"role": "model", "parts": [{"functionCall": {"name": "search", "args": {"q": "it"}}}]},
        {"role": "user", "parts": [{"functionResponse": response}]},
        {"role": "model", "parts": [{"text": "On belt 4."}]},
    ]


FORMS = {
    "chat": (chat, "messages", {"system": "be brief"}),
    "anthropic": (anthropic, "messages", {"system": [{"type": "text", "text": "be brief"}]}),
    "responses": (responses, "input", {"instructions": "be brief"}),
    "bedrock": (bedrock, "messages", {"system": [{"text": "be brief"}]}),
    "gemini": (gemini, "contents", {"systemInstruction": {"parts": [{"text": "be brief"}]}}),
}
forms = pytest.mark.parametrize("form", list(FORMS))


def recording(path, form, **more):
    turn, key, system = FORMS[form]
    messages = [message for number in range(3) for message in turn(number)]
    path.write_text(json.dumps({key: messages, **system, **more}) + "\n", encoding="utf-8")
    return path


@forms
def test_a_request_of_each_provider_is_replayed_turn_by_turn(otel_assembly, tmp_path, form):
    whole = otel_assembly("replay", recording(tmp_path / "a.jsonl", form), "--json")
    assert whole.status == 0, whole.err
    assert (whole.json["conversations"], whole.json["turns"], whole.json["orphans"]) == (1, 6, 0)
    # Before the last answer: the system prompt, three asks, three results, two answers.
    said = ["be brief", *ASKS, *[FOUND] * 3, *["On belt 4."] * 2, *["search", '{"q": "it"}'] * 3]
    framing = whole.json["max_tokens_out"] - sum(map(count, said))
    assert 0 < framing < 100

    cut = otel_assembly("replay", recording(tmp_path / "b.jsonl", form), "--budget", 2_000, "--json").json
    assert 0 < cut["max_tokens_out"] <= 2_000
    assert cut["dropped"] > 0
    assert cut["orphans"] == 0


@forms
def test_the_messages_alone_are_a_conversation_too(otel_assembly, tmp_path, form):
    turn, _, _ = FORMS[form]
    path = tmp_path / "a.json"
    path.write_text(json.dumps([message for number in range(3) for message in turn(number)]), encoding="utf-8")
    assert otel_assembly("replay", path, "--json").json["turns"] == 6
    path = tmp_path / "b.jsonl"
    path.write_text("\n".join(json.dumps(message) for message in turn(0)), encoding="utf-8")
    assert otel_assembly("replay", path, "--json").json["turns"] == 2


def test_half_an_emoji_is_replayed(otel_assembly, tmp_path):
    path = tmp_path / "a.jsonl"
    messages = [{"role": "user", "content": "cut \ud83d"}, {"role": "assistant", "content": "well \ud83d"}]
    path.write_text(json.dumps({"id": "cut \ud83d", "messages": messages}) + "\n", encoding="utf-8")
    spans, page = tmp_path / "spans.jsonl", tmp_path / "turns.html"
    ran = otel_assembly("replay", path, "--export", spans, "--html", page)
    assert ran.status == 0, ran.err
    assert "assemble_context" in spans.read_text(encoding="utf-8")
    assert page.read_text(encoding="utf-8")
