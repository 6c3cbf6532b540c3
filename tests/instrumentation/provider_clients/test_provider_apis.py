"""The APIs by their paths and operations, and values of wrong types."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from otel_assembly.instrumentation.provider_clients import answer_text, api_of_operation, api_of_path, request_body

APIS = [
    api_of_path("openai", "post", "/chat/completions"),
    api_of_path("openai", "post", "/completions"),
    api_of_path("openai", "post", "/responses"),
    api_of_path("anthropic", "post", "/v1/messages"),
    api_of_path("google_genai", "post", "models/gemini-x:generateContent"),
    api_of_operation("Converse"),
    api_of_operation("InvokeModel"),
]
USER = {"role": "user", "content": "Where?"}


@pytest.mark.parametrize(
    ("library", "method", "path", "name"),
    [
        ("openai", "post", "/chat/completions", "chat_completions"),
        (
            "openai",
            "POST",
            "https://example.test/openai/deployments/mine/chat/completions?api-version=1",
            "chat_completions",
        ),
        ("openai", "post", "chat/completions", "chat_completions"),
        ("openai", "post", "/completions", "completions"),
        ("openai", "post", "/responses?beta=true", "responses"),
        ("openai", "post", "/responses/compact", "responses_compact"),
        ("openai", "get", "/responses", None),
        ("openai", "post", "/responses/resp1/cancel", None),
        ("openai", "post", "/responses/input_tokens", None),
        ("openai", "post", "/chat/completions/chat1", None),
        ("openai", "post", "/embeddings", None),
        ("openai", "post", "/batches", None),
        ("openai", "post", "/audio/transcriptions", None),
        ("anthropic", "post", "/v1/messages?beta=true", "messages"),
        ("anthropic", "post", "/v1/complete", "completions"),
        ("anthropic", "post", "/v1/messages/count_tokens", None),
        ("anthropic", "post", "/v1/messages/batches?beta=true", None),
        ("google_genai", "post", "models/gemini-x:generateContent", "generate_content"),
        ("google_genai", "post", "publishers/google/models/gemini-x:streamGenerateContent?alt=sse", "generate_content"),
        ("google_genai", "post", "models/gemini-x:countTokens", None),
        ("google_genai", "post", "models/gemini-x:batchGenerateContent", None),
        ("google_genai", "post", "models/gemini-x:batchEmbedContents", None),
        ("unknown", "post", "/chat/completions", None),
        ("openai", None, "/chat/completions", None),
        ("openai", "post", 5, None),
    ],
)
def test_the_path_of_a_request_names_its_api(library, method, path, name):
    api = api_of_path(library, method, path)
    assert (api.name if api is not None else None) == name


@pytest.mark.parametrize(
    ("operation", "model", "name"),
    [
        ("Converse", "amazon.nova-lite-v1:0", "converse"),
        ("ConverseStream", "amazon.nova-lite-v1:0", "converse"),
        ("InvokeModel", "arn:aws:bedrock:us-east-1:1:application-inference-profile/x", "invoke_model"),
        ("InvokeModelWithResponseStream", "meta.llama3-8b-instruct-v1:0", "invoke_model"),
        ("InvokeModel", "amazon.titan-embed-text-v2:0", None),
        ("InvokeModel", "amazon.titan-image-generator-v2:0", None),
        ("InvokeModel", "stability.sd3-5-large-v1:0", None),
        ("CountTokens", "amazon.nova-lite-v1:0", None),
        ("PutObject", None, None),
        (None, None, None),
        ([], None, None),
    ],
)
def test_the_operation_names_its_api(operation, model, name):
    api = api_of_operation(operation, {"modelId": model})
    assert (api.name if api is not None else None) == name


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("models/gemini-x:generateContent", "gemini-x"),
        ("publishers/google/models/gemini-x:streamGenerateContent?alt=sse", "gemini-x"),
        ("tunedModels/mine:generateContent", "mine"),
        ("", None),
    ],
)
def test_the_model_of_gemini_is_read_from_the_path(path, model):
    api = api_of_path("google_genai", "post", "models/m:generateContent")
    assert api.read_request({"contents": [{"role": "user", "parts": [{"text": "Where?"}]}]}, path).model == model


@pytest.mark.parametrize(
    ("body", "prompts", "messages"),
    [
        ({"messages": [USER], "system": "Be kind."}, ["Be kind."], [USER]),
        ({"messages": [USER], "system": [{"text": "Be kind."}]}, ["Be kind."], [USER]),
        ({"messages": [{"role": "system", "content": "Be kind."}, USER]}, ["Be kind."], [USER]),
        ({"prompt": "Where?"}, [], [USER]),
        ({"inputText": "Where?", "textGenerationConfig": {}}, [], [USER]),
    ],
    ids=["Anthropic", "Nova", "Mistral", "Llama", "Titan"],
)
@pytest.mark.parametrize("encode", [str, str.encode], ids=["text", "bytes"])
def test_the_keys_of_the_body_of_invoke_model_identify_its_form(body, prompts, messages, encode):
    request = api_of_operation("InvokeModel").read_request({"modelId": "m", "body": encode(json.dumps(body))}, "")
    assert (request.prompts, request.messages, request.model) == (prompts, messages, "m")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"generation": "At 14.", "prompt_token_count": 7}, "At 14."),
        ({"outputs": [{"text": "At 14.", "stop_reason": "stop"}]}, "At 14."),
        ({"results": [{"outputText": "At 14.", "tokenCount": 3}], "inputTextTokenCount": 7}, "At 14."),
        ({"completion": "At 14.", "stop_reason": "stop"}, "At 14."),
        ({"choices": [{"message": {"role": "assistant", "content": "At 14."}}]}, "At 14."),
        ({"output": {"message": {"role": "assistant", "content": "At 14."}}, "usage": {"inputTokens": 7}}, "At 14."),
    ],
    ids=["Llama", "Mistral", "Titan", "Claude 2", "Mistral's chat", "Nova"],
)
def test_the_keys_of_the_answer_of_invoke_model_identify_its_form(body, text):
    answer = api_of_operation("InvokeModel").read_answer({"body": json.dumps(body).encode()})
    assert answer.messages == [{"role": "assistant", "content": text}]


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_plain_messages_stay_the_same_objects(api):
    parts = [{"text": "Where?"}]
    messages = [{"role": "user", "content": parts, "parts": parts}, USER]
    body = {"messages": messages, "input": messages, "contents": messages}
    request = api.read_request({**body, "body": json.dumps(body)}, "")
    if api.name in {"completions", "invoke_model"}:
        return
    assert [id(message) for message in request.messages] == [id(message) for message in messages]
    assert request.messages is not messages


class Model:
    """An object of an SDK, with the method of pydantic's models."""

    def __init__(self, **fields):
        self.fields = fields

    def model_dump(self, **_):
        return dict(self.fields)


@pytest.mark.parametrize(
    ("message", "sent"),
    [
        (Model(role="assistant", content="x"), {"role": "assistant", "content": "x"}),
        ({"role": "assistant", "content": [Model(type="text")]}, {"role": "assistant", "content": [{"type": "text"}]}),
        ({"role": "assistant", "tool_calls": [Model(id="c")]}, {"role": "assistant", "tool_calls": [{"id": "c"}]}),
        (
            {"role": "user", "content": [{"type": "tool_result", "content": [Model(type="text")]}]},
            {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text"}]}]},
        ),
    ],
)
def test_sdk_objects_are_dumped_wherever_they_are_in_a_message(message, sent):
    request = APIS[0].read_request({"messages": [USER, message]}, "")
    assert request.messages == [USER, sent]
    assert request.messages[0] is USER


def test_a_changed_sdk_object_is_dumped_again():
    message = Model(role="assistant", content="x")
    before = APIS[0].read_request({"messages": [message]}, "").messages
    message.fields["content"] = "y"
    assert APIS[0].read_request({"messages": [message]}, "").messages != before


def _generator():
    yield USER


def _cycle():
    part = {"type": "text", "text": "x"}
    part["content"] = [part]
    return [{"role": "user", "content": [part]}]


WRONG = [None, 5, "text", b"bytes", [], [None], [5], ["text"], {}, {"role": 5}, object(), [object()], [{"content": 5}]]
KEYS = ["messages", "prompt", "input", "contents", "instructions", "system", "tools", "functions", "toolConfig", "body"]
KEYS += ["context_management", "conversation", "thread", "systemInstruction", "previous_response_id", "model"]


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_a_request_of_wrong_types_raises_nothing(api):
    good = {"messages": [USER], "prompt": "x", "input": [USER], "contents": [USER], "body": '{"prompt": "x"}'}
    for wrong in [*WRONG, _cycle()]:
        api.read_request(wrong, "")
        for key in KEYS:
            api.read_request({**good, key: wrong}, "")
            api.read_request({"body": json.dumps({**good, key: 5})}, "")
        api.read_request({"messages": [{"role": "system", "content": wrong}, {"role": wrong, "content": wrong}]}, "")


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_a_generator_of_messages_is_left_to_the_client(api):
    messages = _generator()
    assert api.read_request(dict.fromkeys(["messages", "input", "contents", "prompt", "body"], messages), "") is None
    assert list(messages) == [USER]


ANSWER_KEYS = ["choices", "output", "content", "usage", "candidates", "id", "body", "context_management", "completion"]
CHUNK_KEYS = ["type", "index", "delta", "item", "response", "message", "content_block", "output_index", "chunk"]
CHUNK_KEYS += ["metadata", "contentBlockStart", "contentBlockDelta"]
CHUNK_TYPES = ["response.output_text.delta", "response.output_item.added", "response.completed", "message_start"]
CHUNK_TYPES += ["message_delta", "content_block_start", "content_block_delta", None]
WRONG_CALLS = [{"delta": {"tool_calls": [5, {"function": 5}, {"id": [], "function": {}}]}}]


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_an_answer_of_wrong_types_raises_nothing(api):
    for wrong in [*WRONG, WRONG_CALLS]:
        api.read_answer(wrong)
        for key in ANSWER_KEYS:
            for answer in ({key: wrong}, SimpleNamespace(**{key: wrong}), {"output": [], "content": [], key: wrong}):
                answer_text(api.read_answer(answer))
        collector = api.collector()
        collector.add(wrong)
        for kind in CHUNK_TYPES:
            for key in [*CHUNK_KEYS, *ANSWER_KEYS]:
                chunk = {"type": kind, "index": 0, "output_index": 0, key: wrong}
                collector.add(chunk)
                collector.add(SimpleNamespace(**chunk))
                answer_text(collector.answer())


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_an_empty_stream_has_no_answer(api):
    assert api.collector().answer() is None


def test_extra_fields_are_part_of_a_body():
    body = request_body({"messages": [USER], "model": "m"}, {"model": "other"})
    assert APIS[0].read_request(body, "").model == "other"
    assert request_body(None, None) is None


def test_a_thread_of_anthropic_names_the_answer_that_it_continues():
    api = api_of_path("anthropic", "post", "/v1/messages")
    thread = {"type": "continue", "previous_message_id": "msg1"}
    request = api.read_request({"messages": [USER], "thread": thread, "compaction": {"type": "summarize"}}, "")
    assert (request.previous_response_id, request.edits) == ("msg1", ("compaction",))


def test_reasoning_that_anthropic_dropped_is_an_applied_edit():
    api = api_of_path("anthropic", "post", "/v1/messages")
    dropped = {"type": "thinking_dropped", "message_index": 1}
    kept = {"type": "thinking_mismatch_allowed", "message_index": 3}
    assert api.read_answer({"content": [], "input_transformations": [dropped, kept]}).applied_edits == (dropped,)
