"""Every form of messages that the engine reads is sent to OpenAI and to Anthropic, and their own types accept it."""

from __future__ import annotations

import json
import re

import anthropic.types
import openai.types.chat
import pytest
from pydantic import TypeAdapter

from otel_assembly import (
    Assembler,
    Context,
    ConversationPolicy,
    ModelRequest,
    ModelResponse,
    ToolCallEvent,
    ToolResultEvent,
    describe,
    to_anthropic,
    to_openai,
)
from otel_assembly.events import ToolErrorEvent, ToolResultsEvent

OPENAI = TypeAdapter(list[openai.types.chat.ChatCompletionMessageParam])
ANTHROPIC = TypeAdapter(list[anthropic.types.MessageParam])
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

PNG = "iVBORw0KGgo="
ARGUMENTS = {"order": "4711"}
WRITTEN = json.dumps(ARGUMENTS)

#: The same conversation: a question with a picture, a thought, two calls at once, two results, an answer.
CHAT = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "Where is it?"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        ],
    },
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "find", "arguments": WRITTEN}},
            {"id": "b", "type": "function", "function": {"name": "ask", "arguments": WRITTEN}},
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": "depot 04"},
    {"role": "tool", "tool_call_id": "b", "content": "no answer"},
    {"role": "assistant", "content": "In depot 04."},
]
ANTHROPIC_DICTS = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "Where is it?"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        ],
    },
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "a", "name": "find", "input": ARGUMENTS},
            {"type": "tool_use", "id": "b", "name": "ask", "input": ARGUMENTS},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": "depot 04"},
            {"type": "tool_result", "tool_use_id": "b", "content": "no answer", "is_error": True},
        ],
    },
    {"role": "assistant", "content": "In depot 04."},
]
RESPONSES = [
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "Where is it?"},
            {"type": "input_image", "detail": "low", "image_url": f"data:image/png;base64,{PNG}"},
        ],
    },
    {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "hm"}]},
    {
        "type": "message",
        "id": "m",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
    },
    {"type": "function_call", "call_id": "a", "name": "find", "arguments": WRITTEN},
    {"type": "function_call", "call_id": "b", "name": "ask", "arguments": WRITTEN},
    {"type": "function_call_output", "call_id": "a", "output": "depot 04"},
    {"type": "function_call_output", "call_id": "b", "output": "no answer"},
    {"role": "assistant", "content": "In depot 04."},
]
BEDROCK = [
    {
        "role": "user",
        "content": [{"text": "Where is it?"}, {"image": {"format": "png", "source": {"bytes": b"\x89PNG\r\n\x1a\n"}}}],
    },
    {
        "role": "assistant",
        "content": [
            {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "c2ln"}}},
            {"text": "I look."},
            {"toolUse": {"toolUseId": "a", "name": "find", "input": ARGUMENTS}},
            {"toolUse": {"toolUseId": "b", "name": "ask", "input": ARGUMENTS}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"toolResult": {"toolUseId": "a", "content": [{"text": "depot 04"}]}},
            {"toolResult": {"toolUseId": "b", "content": [{"text": "no answer"}], "status": "error"}},
        ],
    },
    {"role": "assistant", "content": [{"text": "In depot 04."}]},
]
GEMINI = [
    {"role": "user", "parts": [{"text": "Where is it?"}, {"inlineData": {"mimeType": "image/png", "data": PNG}}]},
    {
        "role": "model",
        "parts": [
            {"text": "hm", "thought": True},
            {"text": "I look."},
            {"functionCall": {"name": "find", "args": ARGUMENTS}, "thoughtSignature": "c2ln"},
            {"functionCall": {"name": "ask", "args": ARGUMENTS}},
        ],
    },
    {
        "role": "user",
        "parts": [
            {"functionResponse": {"name": "find", "response": {"result": "depot 04"}}},
            {"functionResponse": {"name": "ask", "response": {"error": "no answer"}}},
        ],
    },
    {"role": "model", "parts": [{"text": "In depot 04."}]},
]
GENAI = [
    {
        "role": "user",
        "parts": [
            {"type": "text", "content": "Where is it?"},
            {"type": "blob", "modality": "image", "mime_type": "image/png", "content": PNG},
        ],
    },
    {
        "role": "assistant",
        "parts": [
            {"type": "reasoning", "content": "hm"},
            {"type": "text", "content": "I look."},
            {"type": "tool_call", "id": "a", "name": "find", "arguments": ARGUMENTS},
            {"type": "tool_call", "id": "b", "name": "ask", "arguments": ARGUMENTS},
        ],
    },
    {
        "role": "tool",
        "parts": [
            {"type": "tool_call_response", "id": "a", "response": "depot 04"},
            {"type": "tool_call_response", "id": "b", "response": "no answer"},
        ],
    },
    {"role": "assistant", "parts": [{"type": "text", "content": "In depot 04."}]},
]
FORMS = {
    "openai": CHAT,
    "anthropic": ANTHROPIC_DICTS,
    "responses": RESPONSES,
    "bedrock": BEDROCK,
    "gemini": GEMINI,
    "opentelemetry": GENAI,
}
forms = pytest.mark.parametrize("form", FORMS)


def openai_accepts(messages):
    OPENAI.validate_python(messages)
    waiting = []
    for message in messages:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting
        for call in message.get("tool_calls") or ():
            assert NAME.fullmatch(call["function"]["name"])
            assert 0 < len(call["id"]) <= 40
            waiting.append(call["id"])
        assert len(set(waiting)) == len(waiting)
    assert not waiting


def anthropic_accepts(sent):
    ANTHROPIC.validate_python(sent["messages"])
    waiting, seen = [], []
    for message in sent["messages"]:
        blocks = message["content"] if isinstance(message["content"], list) else []
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        assert sorted(results) == sorted(waiting)
        uses = [block for block in blocks if block["type"] == "tool_use"]
        assert all(NAME.fullmatch(block["name"]) and re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"]) for block in uses)
        waiting = [block["id"] for block in uses]
        seen += waiting
    assert len(set(seen)) == len(seen)


@forms
def test_openai_accepts_a_conversation_of_every_form(form):
    sent = to_openai(["Be brief."], FORMS[form])
    openai_accepts(sent)
    asked, *_ = sent[1]["content"]
    assert asked["text"] == "Where is it?"
    assert sent[1]["content"][1]["image_url"]["url"].startswith("data:image/png;base64,iVBORw0KGgo")
    calls = [call["function"] for message in sent for call in message.get("tool_calls") or ()]
    assert calls == [{"name": name, "arguments": WRITTEN} for name in ("find", "ask")]
    assert next(message["content"] for message in sent if message["role"] == "tool") == "depot 04"
    assert sent[-1]["content"] == "In depot 04."
    assert "hm" not in json.dumps(sent)


@forms
def test_anthropic_accepts_a_conversation_of_every_form(form):
    sent = to_anthropic(["Be brief."], FORMS[form])
    anthropic_accepts(sent)
    blocks = [block for message in sent["messages"] for block in message["content"] if isinstance(block, dict)]
    assert blocks[0] == {"type": "text", "text": "Where is it?"}
    assert blocks[1]["source"] == {"type": "base64", "media_type": "image/png", "data": PNG}
    uses = [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
    assert uses == [("find", ARGUMENTS), ("ask", ARGUMENTS)]
    first = next(block for block in blocks if block["type"] == "tool_result")
    assert first["content"] == "depot 04"


@forms
async def test_an_assembly_of_every_form_is_sent(form):
    events = [*FORMS[form], {"role": "user", "content": "Thanks."}]
    assembly = await Assembler([ConversationPolicy()]).assemble(["Be brief."], events, Context())
    openai_accepts(to_openai(*assembly))
    anthropic_accepts(to_anthropic(*assembly))


def test_anthropics_own_messages_go_as_they_are():
    sent = to_anthropic([], ANTHROPIC_DICTS)["messages"]
    assert all(message is given for message, given in zip(sent, ANTHROPIC_DICTS, strict=True))


def test_anthropics_own_blocks_keep_their_marks_behind_what_had_to_move():
    marked = {"type": "text", "text": "Thanks.", "cache_control": {"type": "ephemeral"}}
    found = {"type": "tool_result", "tool_use_id": "t:1", "content": [{"type": "text", "text": "depot 04"}]}
    call = {"type": "tool_use", "id": "t:1", "name": "functions.find", "input": {}, "cache_control": {"type": "x"}}
    events = [
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [marked, found]},
    ]
    _, asked, answered = to_anthropic([], events)["messages"]
    assert asked["content"] == [{**call, "id": "t_1", "name": "functions_find"}]
    assert answered["content"] == [{**found, "tool_use_id": "t_1"}, marked]


def test_a_users_text_beside_a_result_is_sent_behind_it():
    events = [
        *ANTHROPIC_DICTS[:2],
        {"role": "user", "content": [*ANTHROPIC_DICTS[2]["content"], {"type": "text", "text": "Be quick."}]},
    ]
    sent = to_openai([], events)
    openai_accepts(sent)
    assert sent[-1] == {"role": "user", "content": "Be quick."}


def test_a_picture_in_a_result_goes_to_openai_behind_the_results():
    picture = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
    events = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "shoot", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [picture]}]},
    ]
    sent = to_openai([], events)
    openai_accepts(sent)
    assert sent[2:] == [
        {"role": "tool", "tool_call_id": "a", "content": ""},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]},
    ]


def test_files_of_every_form_are_documents():
    pdf = "JVBERi0xLjQK"
    document = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": pdf}}
    openai_file = {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{pdf}"}}
    parts = {
        "content": [
            document,
            openai_file,
            {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{pdf}"},
            {"document": {"format": "pdf", "name": "a", "source": {"bytes": b"%PDF-1.4\n"}}},
        ],
        "parts": [{"inlineData": {"mimeType": "application/pdf", "data": pdf}}],
    }
    for key, several in parts.items():
        for part in several:
            message = {"role": "user", key: [part]}
            (sent,) = to_anthropic([], [message])["messages"]
            assert sent["content"] == [document]
            (sent,) = to_openai([], [message])
            assert sent["content"][0]["file"]["file_data"] == f"data:application/pdf;base64,{pdf}"


def test_what_only_its_provider_runs_is_sent_to_another_as_text():
    searched = [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "depot"}},
        {"type": "text", "text": "It is there."},
    ]
    (sent,) = to_openai([], [{"role": "assistant", "content": searched}])
    assert "".join(part["text"] for part in sent["content"]) == 'web_search{"query": "depot"}It is there.'
    (_, sent) = to_anthropic([], [{"role": "assistant", "content": searched}])["messages"]
    assert sent["content"] == searched


# Names and ids that a model invents, or that another provider gave


@pytest.mark.parametrize("name", ["functions.add", "add two", "", "x" * 200, "été", "find"])
@pytest.mark.parametrize("call_id", ["c1", "functions.add:0", "call/1", "", "c" * 90])
def test_names_and_ids_that_a_model_invents_are_accepted(name, call_id):
    own = [
        ModelRequest(content="go"),
        ModelResponse(tool_calls=(ToolCallEvent(id=call_id, name=name, arguments="{}"),)),
        ToolErrorEvent(parent_id=call_id, error="no such tool"),
    ]
    chat = [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": call_id, "content": "no such tool"},
    ]
    blocks = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": call_id, "name": name, "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": "no such tool"}]},
    ]
    for events in (own, chat, blocks):
        openai_accepts(to_openai([], events))
        anthropic_accepts(to_anthropic([], events))
        assert [call.name for call in describe(events[1]).calls] == [name]


def test_long_ids_that_begin_alike_are_told_apart():
    ids = [f"{'c' * 60}{number}" for number in range(3)]
    calls = tuple(ToolCallEvent(id=item_id, name="find", arguments="{}") for item_id in ids)
    results = tuple(ToolResultEvent(parent_id=item_id, name="find", content=item_id[-1]) for item_id in ids)
    sent = to_openai(
        [], [ModelRequest(content="go"), ModelResponse(tool_calls=calls), ToolResultsEvent(results=results)]
    )
    openai_accepts(sent)
    assert [message["content"] for message in sent[2:]] == ["0", "1", "2"]


# Results that answer no call

ORPHANS = {
    "ours": [ToolResultsEvent(results=(ToolResultEvent(parent_id="x", name="t", content="orphan"),))],
    "one of ours": [ToolResultEvent(parent_id="x", name="t", content="orphan")],
    "openai": [{"role": "tool", "tool_call_id": "x", "content": "orphan"}],
    "openai, without an id": [{"role": "tool", "content": "orphan"}],
    "anthropic": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "orphan"}]}],
    "anthropic, beside a text": [
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "x", "content": "orphan"},
                {"type": "text", "text": "still here"},
            ],
        }
    ],
    "responses": [{"type": "function_call_output", "call_id": "x", "output": "orphan"}],
    "bedrock": [{"role": "user", "content": [{"toolResult": {"toolUseId": "x", "content": [{"text": "orphan"}]}}]}],
    "gemini": [{"role": "user", "parts": [{"functionResponse": {"name": "x", "response": {"result": "orphan"}}}]}],
}


@pytest.mark.parametrize("orphan", ORPHANS)
@pytest.mark.parametrize("render", [to_openai, to_anthropic])
def test_a_result_that_answers_no_call_is_not_sent(orphan, render):
    events = [ModelRequest(content="a"), *ORPHANS[orphan], ModelResponse(content="b"), ModelRequest(content="c")]
    sent = json.dumps(render([], events))
    assert "orphan" not in sent
    assert ("still here" in sent) == ("beside" in orphan)


@pytest.mark.parametrize("render", [to_openai, to_anthropic])
@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"image": {"format": "png", "source": {"s3Location": {"uri": "s3://secret"}}}}]},
        {"role": "user", "content": [{"video": {"format": "mp4", "source": {"bytes": b"secret"}}}]},
        {"role": "user", "parts": [{"inlineData": {"mimeType": "audio/mp3", "data": ""}}]},
        {"type": "item_reference", "id": "secret"},
    ],
    ids=["a file elsewhere", "a video", "no sound", "an item that only its provider has"],
)
def test_a_part_that_has_no_form_there_is_refused_by_its_type(render, message):
    with pytest.raises(Exception, match="cannot render event 0") as refused:
        render([], [message])
    assert "secret" not in str(refused.value)
