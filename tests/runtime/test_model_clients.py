"""The real SDKs, in front of a server that answers as providers have been seen to."""

from __future__ import annotations

import json
import sys
from typing import get_args

import pytest
from providers import (
    NO_QUOTA,
    RATE_LIMIT,
    SERVER_ERROR,
    TOO_LONG_FOR_ANTHROPIC,
    TOO_LONG_FOR_OPENAI,
    WRONG_KEY,
    Answer,
    Provider,
    anthropic_error,
    completion,
    completion_pieces,
    function_call,
    message,
    message_pieces,
    refusal,
    text_block,
    tool_block,
)

import otel_assembly.runtime
from otel_assembly import (
    Agent,
    AnthropicModel,
    Assembler,
    ConfigurationError,
    Context,
    ConversationPolicy,
    History,
    ModelRequest,
    ModelResponse,
    OpenAIModel,
    ToolResultEvent,
    to_anthropic,
    to_openai,
)
from otel_assembly.errors import ModelCallError, ModelContextLengthError
from otel_assembly.events import ResponseChunk, Usage
from otel_assembly.runtime import ModelClient
from otel_assembly.telemetry import TracingMiddleware
from otel_assembly.testing import RecordedTelemetry

pytest.importorskip("openai", reason="not installed: python -m pip install --group dev")
pytest.importorskip("anthropic", reason="not installed: python -m pip install --group dev")
pytestmark = pytest.mark.usefixtures("one_authority")

ASK = ModelRequest(content="Where is my bag?")
SECRET = ModelRequest(content="the-secret-of-the-prompt")
PARAMETERS = {"type": "object", "properties": {"q": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "search", "description": "Search.", "parameters": PARAMETERS}}


def openai_at(server, **settings):
    return OpenAIModel("gpt-4o", base_url=f"{server.url}/v1", api_key="key", **{"max_retries": 0, **settings})


def anthropic_at(server, **settings):
    return AnthropicModel("claude-sonnet-5", base_url=server.url, api_key="key", **{"max_retries": 0, **settings})


async def answer_of(model, *given, **settings):
    """The last of what came, and the pieces before it."""
    try:
        answer = await model(*given, **settings)
        if isinstance(answer, ModelResponse):
            return answer, []
        *pieces, whole = [event async for event in answer]
        assert all(isinstance(piece, ResponseChunk) for piece in pieces)
        return whole, [piece.content for piece in pieces]
    finally:
        await model.close()


async def error_of(model):
    with pytest.raises(ModelCallError) as raised:
        await answer_of(model, ["Be brief."], [SECRET])
    assert SECRET.content not in str(raised.value)
    assert raised.value.model == model.model
    assert raised.value.provider == model.provider
    return raised.value


# OpenAI


async def test_openai_is_sent_the_assembly_and_its_answer_is_a_response():
    async with Provider(completion()) as server:
        model = openai_at(server, temperature=0)
        answer, pieces = await answer_of(model, ["Be brief."], [ASK], tools=[TOOL], tool_choice="auto")
    (request,) = server.requests
    assert request.pop("headers")["authorization"] == "Bearer key"
    assert request == {
        "path": "/v1/chat/completions",
        "model": "gpt-4o",
        "temperature": 0,
        "messages": to_openai(["Be brief."], [ASK]),
        "tools": [TOOL],
        "tool_choice": "auto",
    }
    assert (answer.content, answer.tool_calls, pieces) == ("At gate 14.", (), [])
    assert answer.usage == Usage(input_tokens=1117, output_tokens=46)
    assert isinstance(model, ModelClient)


@pytest.mark.parametrize(
    ("choice", "sent"),
    [("none", "none"), ("required", "required"), ("search", {"type": "function", "function": {"name": "search"}})],
)
async def test_openai_is_told_which_tool(choice, sent):
    async with Provider(completion()) as server:
        await answer_of(openai_at(server), [], [ASK], tools=[TOOL], tool_choice=choice)
    assert server.requests[0]["tool_choice"] == sent


@pytest.mark.parametrize("streams", [False, True])
async def test_calls_of_openai_come_as_the_model_wrote_them(streams):
    calls = [function_call("a", '{"q": "bag"}'), function_call("b", '{"q": ')]
    deltas = [
        {"tool_calls": [{"index": 0, **function_call("a", "")}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"q": '}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"bag"}'}}]},
        {"tool_calls": [{"index": 1, **function_call("b", '{"q": ')}]},
    ]
    whole = completion(None, calls) if not streams else Answer(pieces=completion_pieces(*deltas, finish="tool_calls"))
    async with Provider(whole, completion()) as server:
        model = openai_at(server, streams=streams)
        answer, pieces = await answer_of(model, [], [ASK], tools=[TOOL])
        assert [(call.id, call.name, call.arguments) for call in answer.tool_calls] == [
            ("a", "search", '{"q": "bag"}'),
            ("b", "search", '{"q": '),
        ]
        assert (answer.content, pieces) == ("", [])
        results = [ToolResultEvent(parent_id=letter, content="found") for letter in "ab"]
        await answer_of(openai_at(server), [], [ASK, answer, *results])
    assert server.requests[1]["messages"][1]["tool_calls"] == calls


async def test_openai_streams_pieces_and_then_the_whole():
    async with Provider(Answer(pieces=completion_pieces("At ", "gate 14."))) as server:
        answer, pieces = await answer_of(openai_at(server, streams=True), [], [ASK])
    assert server.requests[0]["stream_options"] == {"include_usage": True}
    assert (pieces, answer.content) == (["At ", "gate 14."], "At gate 14.")
    assert answer.usage == Usage(input_tokens=1117, output_tokens=46)


async def test_a_server_that_numbers_no_pieces_and_bills_nothing():
    parts = [function_call("a", '{"q"'), {"function": {"arguments": ": 1}"}}, function_call("b", "{}")]
    deltas = [{"tool_calls": [part]} for part in parts]
    stream = Answer(pieces=completion_pieces(*deltas, finish="tool_calls", usage=None))
    async with Provider(stream, completion("hm", [function_call("", "")], usage=None)) as server:
        streamed, _ = await answer_of(openai_at(server, streams=True), [], [ASK])
        whole, _ = await answer_of(openai_at(server), [], [ASK])
    assert [(call.id, call.arguments) for call in streamed.tool_calls] == [("a", '{"q": 1}'), ("b", "{}")]
    assert streamed.usage is whole.usage is None
    assert whole.tool_calls[0].id
    assert whole.tool_calls[0].arguments == "{}"


async def test_a_server_that_gives_every_call_one_number():
    """As Gemini's does: a call that is begun with another id and a name is another call."""
    parts = [
        {"index": 0, **function_call("a", '{"q"')},
        {"index": 0, "id": "a", "function": {"arguments": ": 1}"}},
        {"index": 0, **function_call("b", "{}")},
        {"index": 0, **function_call("c", '{"q"')},
        {"index": 0, "id": "of this piece", "function": {"arguments": ": 3}"}},
    ]
    stream = Answer(pieces=completion_pieces(*({"tool_calls": [part]} for part in parts), finish="tool_calls"))
    async with Provider(stream) as server:
        answer, _ = await answer_of(openai_at(server, streams=True), [], [ASK])
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [
        ("search", '{"q": 1}'),
        ("search", "{}"),
        ("search", '{"q": 3}'),
    ]
    assert [call.id for call in answer.tool_calls[:2]] == ["a", "b"]


@pytest.mark.parametrize("model", [OpenAIModel, AnthropicModel])
def test_whether_answers_stream_is_not_for_the_sdk_to_say(model):
    with pytest.raises(ConfigurationError, match="streams=True"):
        model("name", api_key="key", stream=True)


async def test_a_stream_that_is_refused_is_refused_before_anybody_reads_it():
    answer, *_ = next(iter(TOO_LONG_FOR_OPENAI.values()))
    async with Provider(answer) as server:
        with pytest.raises(ModelContextLengthError):
            await openai_at(server, streams=True)([], [ASK])


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("shape", TOO_LONG_FOR_OPENAI)
async def test_a_prompt_that_openai_finds_too_long(shape, streams):
    answer, window, tokens = TOO_LONG_FOR_OPENAI[shape]
    async with Provider(answer) as server:
        error = await error_of(openai_at(server, streams=streams))
    assert isinstance(error, ModelContextLengthError)
    assert (error.window, error.tokens, error.status, error.retryable) == (window, tokens, 400, False)


@pytest.mark.parametrize(
    ("answer", "status", "retryable", "problem"),
    [
        (RATE_LIMIT, 429, True, "rate_limit_exceeded, tokens"),
        (NO_QUOTA, 429, False, "insufficient_quota"),
        (SERVER_ERROR, 500, True, "server_error"),
        (WRONG_KEY, 401, False, "invalid_api_key, invalid_request_error"),
        (refusal(400, {"error": {"message": "the-secret-of-the-prompt", "code": "quoted: secret"}}), 400, False, ""),
        (refusal(503, "the-secret-of-the-prompt"), 503, True, "InternalServerError"),
    ],
    ids=["rate limit", "quota", "server", "key", "no name", "no json"],
)
async def test_an_error_of_openai_says_its_status_and_whether_to_call_again(answer, status, retryable, problem):
    async with Provider(answer) as server:
        error = await error_of(openai_at(server))
    assert (error.status, error.retryable) == (status, retryable)
    assert not isinstance(error, ModelContextLengthError)
    assert problem in error.problem
    assert error.__cause__ is not None


async def test_the_sdk_calls_again_unless_it_is_told_not_to():
    again = {"retry-after-ms": "1"}
    async with Provider(refusal(429, RATE_LIMIT.body, **again), completion()) as server:
        answer, _ = await answer_of(openai_at(server, max_retries=2), [], [ASK])
    assert answer.content == "At gate 14."
    assert len(server.requests) == 2


@pytest.mark.parametrize("connection", ["cut", "closed"])
async def test_an_answer_of_openai_that_breaks_off_is_an_error(connection):
    lines = completion_pieces("At ", "gate", finish=None, usage=None, done=False)
    async with Provider(Answer(pieces=lines, cut=connection == "cut")) as server:
        model = openai_at(server, streams=True)
        said = []
        with pytest.raises(ModelCallError) as raised:
            said.extend([piece.content async for piece in keeping(await model([], [ASK]), said)])
        await model.close()
    assert said == ["At ", "gate"]
    assert (raised.value.status, raised.value.retryable) == (None, True)


async def keeping(events, kept):
    async for event in events:
        kept.append(event.content)
        yield event


async def test_an_error_in_the_middle_of_a_stream_of_openais():
    said = {"error": {"message": "The server had an error", "type": "server_error", "code": None}}
    lines = [*completion_pieces("At ", finish=None, usage=None, done=False), f"data: {json.dumps(said)}\n\n"]
    async with Provider(Answer(pieces=lines)) as server:
        error = await error_of(openai_at(server, streams=True))
    assert (error.status, error.retryable, error.problem) == (500, True, "server_error")


async def test_a_number_says_the_status_of_an_error_in_the_middle_of_a_stream():
    said = {"error": {"message": "Bad image.", "type": "BadRequestError", "code": 400}}
    lines = [*completion_pieces("At ", finish=None, usage=None, done=False), f"data: {json.dumps(said)}\n\n"]
    async with Provider(Answer(pieces=lines)) as server:
        error = await error_of(openai_at(server, streams=True))
    assert (error.status, error.retryable, error.problem) == (400, False, "BadRequestError")


@pytest.mark.parametrize("at", [openai_at, anthropic_at])
async def test_what_speaks_another_language_is_no_broken_connection(at):
    async with Provider(Answer(body="a page", headers={"content-type": "text/html"})) as server:
        error = await error_of(at(server))
    assert not error.retryable
    assert "base_url" in error.problem


async def test_what_the_sdk_refuses_to_send_is_no_broken_connection():
    async with Provider() as server:
        error = await error_of(anthropic_at(server, max_tokens=100_000))
    assert not server.requests
    assert not error.retryable
    assert "the SDK refuses the request (ValueError)" in error.problem
    assert "Streaming" in str(error.__cause__)


async def test_a_server_that_is_not_there():
    async with Provider() as server:
        pass
    for model in (openai_at(server), anthropic_at(server), openai_at(server, streams=True)):
        error = await error_of(model)
        assert (error.status, error.retryable) == (None, True)


async def test_an_answer_without_a_choice_is_an_error():
    empty = completion()
    empty.body["choices"] = []
    async with Provider(empty) as server:
        assert (await error_of(openai_at(server))).retryable


async def test_a_stream_that_nobody_reads_to_its_end_is_closed():
    async with Provider(Answer(pieces=completion_pieces(*["word "] * 50))) as server:
        model = openai_at(server, streams=True)
        stream = await model([], [ASK])
        assert (await anext(stream)).content == "word "
        await stream.aclose()
        await model.close()


async def test_an_argument_that_the_sdk_does_not_know_is_the_sdks_word():
    async with Provider() as server:
        with pytest.raises(TypeError, match="temprature"):
            await answer_of(openai_at(server, temprature=0), [], [ASK])


# Anthropic


async def test_anthropic_is_sent_the_assembly_and_its_answer_is_a_response():
    content = (
        {"type": "thinking", "thinking": "hm", "signature": "x"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_a", "name": "search", "input": {"q": "가방"}},
        {"type": "tool_use", "id": "toolu_b", "name": "search", "input": {}},
    )
    async with Provider(message(*content, stop="tool_use")) as server:
        model = anthropic_at(server, max_tokens=100, stop_sequences=["END"])
        answer, _ = await answer_of(model, ["Be brief."], [ASK], tools=[TOOL], tool_choice="required")
    (request,) = server.requests
    headers = request.pop("headers")
    assert "key" in (headers.get("x-api-key"), headers.get("authorization", "").removeprefix("Bearer "))
    assert request == {
        "path": "/v1/messages",
        "model": "claude-sonnet-5",
        "max_tokens": 100,
        "stop_sequences": ["END"],
        **to_anthropic(["Be brief."], [ASK]),
        "tools": [{"name": "search", "description": "Search.", "input_schema": PARAMETERS}],
        "tool_choice": {"type": "any"},
    }
    assert answer.content == "I look."
    assert [(call.id, call.name, call.arguments) for call in answer.tool_calls] == [
        ("toolu_a", "search", '{"q": "가방"}'),
        ("toolu_b", "search", "{}"),
    ]
    assert answer.usage == Usage(input_tokens=21 + 188 + 2048, output_tokens=15)
    assert isinstance(model, ModelClient)


@pytest.mark.parametrize(
    ("choice", "sent"),
    [("auto", {"type": "auto"}), ("none", {"type": "none"}), ("search", {"type": "tool", "name": "search"})],
)
async def test_anthropic_is_told_which_tool(choice, sent):
    flat = {"name": "search", "input_schema": PARAMETERS}
    async with Provider(message()) as server:
        await answer_of(anthropic_at(server), [], [ASK], tools=[flat], tool_choice=choice)
    assert server.requests[0]["tool_choice"] == sent
    assert server.requests[0]["tools"] == [flat]
    assert "system" not in server.requests[0]


async def test_anthropic_streams_pieces_and_malformed_arguments_as_they_were_written():
    blocks = (
        ({"type": "thinking", "thinking": "", "signature": ""}, [{"type": "thinking_delta", "thinking": "hm"}]),
        text_block("At ", "gate 14."),
        tool_block("toolu_a", '{"q": ', '"bag"}'),
        tool_block("toolu_b", '{"q": '),
        tool_block("toolu_c"),
    )
    async with Provider(Answer(pieces=message_pieces(*blocks)), message()) as server:
        answer, pieces = await answer_of(anthropic_at(server, streams=True), [], [ASK])
        results = [ToolResultEvent(parent_id=call.id, content="found") for call in answer.tool_calls]
        await answer_of(anthropic_at(server), [], [ASK, answer, *results])
    assert (pieces, answer.content) == (["At ", "gate 14."], "At gate 14.")
    assert [call.arguments for call in answer.tool_calls] == ['{"q": "bag"}', '{"q": ', "{}"]
    assert answer.usage == Usage(input_tokens=21 + 188 + 2048, output_tokens=15)
    sent = [block.get("input") for block in server.requests[1]["messages"][1]["content"]]
    assert sent == [None, None, {"q": "bag"}, {"malformed_arguments": '{"q": '}, {}]


async def test_anthropics_cache_is_marked_where_that_is_asked_for():
    async with Provider(message(), message()) as server:
        await answer_of(anthropic_at(server, caches=True), ["a", "b"], [ASK, ModelResponse(content="Yes?"), ASK])
        await answer_of(anthropic_at(server, caches=True), [], [ASK])
    marked = server.requests[0]
    assert ["cache_control" in block for block in marked["system"]] == [False, True]
    assert "cache_control" in marked["messages"][-1]["content"][-1]
    assert "cache_control" not in marked["messages"][0]["content"][0]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("shape", TOO_LONG_FOR_ANTHROPIC)
async def test_a_prompt_that_anthropic_finds_too_long(shape, streams):
    answer, window, tokens = TOO_LONG_FOR_ANTHROPIC[shape]
    async with Provider(answer) as server:
        error = await error_of(anthropic_at(server, streams=streams))
    assert isinstance(error, ModelContextLengthError)
    assert (error.window, error.tokens, error.status) == (window, tokens, answer.status)


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (429, "rate_limit_error", True),
        (500, "api_error", True),
        (529, "overloaded_error", True),
        (400, "invalid_request_error", False),
        (401, "authentication_error", False),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
async def test_an_error_of_anthropic_says_its_status_and_whether_to_call_again(status, kind, retryable, streams):
    said = anthropic_error(kind, "the-secret-of-the-prompt")
    async with Provider(refusal(status, said)) as server:
        error = await error_of(anthropic_at(server, streams=streams))
    assert (error.status, error.retryable, error.problem) == (status, retryable, kind)


@pytest.mark.parametrize("connection", ["cut", "closed"])
async def test_an_answer_of_anthropic_that_breaks_off_is_an_error(connection):
    lines = message_pieces(text_block("At ", "gate"), stopped=False)
    async with Provider(Answer(pieces=lines, cut=connection == "cut")) as server:
        error = await error_of(anthropic_at(server, streams=True))
    assert (error.status, error.retryable) == (None, True)


async def test_an_error_in_the_middle_of_a_stream_of_anthropics():
    said = json.dumps(anthropic_error("overloaded_error", "Overloaded"))
    lines = [*message_pieces(text_block("At "), stopped=False), f"event: error\ndata: {said}\n\n"]
    async with Provider(Answer(pieces=lines)) as server:
        error = await error_of(anthropic_at(server, streams=True))
    assert (error.status, error.retryable, error.problem) == (529, True, "overloaded_error")


# Both

# Finish reasons of both

#: What each API names the end of an answer, with the value of OpenTelemetry's GenAI conventions. Servers that have Chat
#: Completions pass words of their own on: Gemini's, vLLM's, DeepSeek's.
OPENAI_REASONS = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_call",
    "function_call": "tool_call",
    "content_filter": "content_filter",
    "SAFETY": "content_filter",
    "MAX_TOKENS": "length",
    "abort": "error",
    "insufficient_system_resource": "error",
    "something_new": "something_new",
}
ANTHROPIC_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_call",
    "refusal": "content_filter",
    "pause_turn": "pause_turn",
    "something_new": "something_new",
}
INCOMPLETE = {"length", "content_filter", "error", "pause_turn"}


def openai_answers(reason, *, with_a_call, streams):
    call = function_call("a", "{}")
    if not streams:
        return completion("At gate", [call] if with_a_call else None, finish=reason)
    deltas = ["At ", "gate", *([{"tool_calls": [{"index": 0, **call}]}] if with_a_call else [])]
    return Answer(pieces=completion_pieces(*deltas, finish=reason))


def anthropic_answers(reason, *, with_a_call, streams):
    call = {"type": "tool_use", "id": "a", "name": "search", "input": {}}
    if not streams:
        return message({"type": "text", "text": "At gate"}, *([call] if with_a_call else []), stop=reason)
    blocks = [text_block("At ", "gate"), *([tool_block("a", "{}")] if with_a_call else [])]
    return Answer(pieces=message_pieces(*blocks, stop=reason))


CLIENTS = {
    OpenAIModel: (openai_at, openai_answers, OPENAI_REASONS),
    AnthropicModel: (anthropic_at, anthropic_answers, ANTHROPIC_REASONS),
}


def test_every_client_and_every_reason_that_its_sdk_knows_is_tried_here():
    public = otel_assembly.runtime.__all__
    assert {client.__name__ for client in CLIENTS} == {name for name in public if name.endswith("Model")}
    from anthropic.types import Message
    from openai.types.chat.chat_completion import Choice

    assert set(get_args(Choice.model_fields["finish_reason"].annotation)) <= set(OPENAI_REASONS)
    reasons, _ = get_args(Message.model_fields["stop_reason"].annotation)  # a Literal, or None
    assert set(get_args(reasons)) <= set(ANTHROPIC_REASONS)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("with_a_call", [False, True])
@pytest.mark.parametrize(
    ("client", "reason", "value"),
    [(client, *pair) for client, (_, _, reasons) in CLIENTS.items() for pair in reasons.items()],
)
async def test_the_finish_reason_is_on_the_answer_and_on_its_span(client, reason, value, with_a_call, streams):
    model_at, answers, _ = CLIENTS[client]
    ran = []

    async def search() -> str:
        ran.append(1)
        return "gate 14"

    telemetry = RecordedTelemetry()
    end = next(word for word, meaning in CLIENTS[client][2].items() if meaning == "stop")
    replies = [answers(reason, with_a_call=with_a_call, streams=streams)]
    replies += [answers(end, with_a_call=False, streams=streams)] * with_a_call
    async with Provider(*replies) as server:
        model = model_at(server, streams=streams)
        agent = Agent("porter", "Be brief.", model, [search], middlewares=[TracingMiddleware()])
        with telemetry.as_default():
            answer = await agent.ask("Where is my bag?")
        await model.close()
    first = next(event for event in agent.session.history if isinstance(event, ModelResponse))
    assert (first.finish_reason, first.is_truncated) == (value, value in INCOMPLETE)
    assert ran == ([1] if with_a_call and value not in INCOMPLETE else [])
    chats = telemetry.spans_named(f"chat {model.model}")
    reasons = [list(span.attributes["gen_ai.response.finish_reasons"]) for span in chats]
    assert reasons == [[value], ["stop"]][: 1 + with_a_call]
    assert answer.finish_reason == ("stop" if with_a_call else value)
    run = telemetry.span("invoke_agent porter")
    assert list(run.attributes["gen_ai.response.finish_reasons"]) == [answer.finish_reason]
    assert telemetry.violations() == []
    telemetry.shutdown()


async def test_what_was_billed_calibrates_the_next_prompt(recorder):
    assembler = Assembler([ConversationPolicy()], model="claude-sonnet-5", recorder=recorder.recorder)
    history, context = History([ModelRequest(content="word " * 100)]), Context(model="claude-sonnet-5")
    first = await assembler.assemble(["Be brief."], history, context)
    assert first.totals.method == "estimated"
    counted = first.totals.tokens_out
    usage = {"input_tokens": counted, "cache_read_input_tokens": counted, "output_tokens": 3}
    async with Provider(message({"type": "text", "text": "Yes."}, usage=usage)) as server:
        answer, _ = await answer_of(anthropic_at(server), *first)
    history.append(answer)
    history.append(ASK)
    second = await assembler.assemble(["Be brief."], history, context)
    assert second.totals.method == "calibrated"
    calibrated = recorder.metric("assembly.tokens.calibration", model="claude-sonnet-5")
    assert (calibrated.count, calibrated.sum) == (1, pytest.approx(0.5))


@pytest.mark.parametrize(("model", "package"), [(OpenAIModel, "openai"), (AnthropicModel, "anthropic")])
def test_a_package_that_is_missing_is_named_with_its_extra(model, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigurationError, match=rf"otel-assembly\[{package}\]"):
        model("some-model")
    assert repr(model("some-model", client=object())) == f"{model.__name__}('some-model')"
