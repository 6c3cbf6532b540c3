"""A streamed answer is read as the same answer would be if it came whole."""

from __future__ import annotations

import base64
import json

import pytest
from provider_bodies import (
    CHAT_CALL,
    FUNCTION_CALL,
    GEMINI_CALL,
    OUTPUT,
    REASONING,
    THINKING,
    TOOL_USE,
    chat_body,
    chat_chunks,
    gemini_body,
    message_body,
    response_body,
)

from otel_assembly.instrumentation.provider_clients import answer_text

USER = [{"role": "user", "content": "Where is my bag?"}]


def call_delta(index, arguments, **more):
    return {"delta": {"tool_calls": [{"index": index, "function": {"arguments": arguments}, **more}]}}


def collected(call, stream, most=None):
    """The answer that is collected from a stream, of which the program reads at most some chunks."""
    for number, chunk in enumerate(stream, 1):
        call.collector.add(chunk)
        if number == most:
            break
    return call.collector.answer()


def test_a_streamed_chat_answer_is_a_message(server, openai_client, calls):
    server.streams(
        chat_chunks(
            {"delta": {"role": "assistant", "content": "", "refusal": None}},
            {"delta": {"content": "Let me "}},
            {"delta": {"content": "look."}},
            {"delta": {"tool_calls": [{**CHAT_CALL, "index": 0, "function": {"name": "find", "arguments": ""}}]}},
            call_delta(0, '{"q": '),
            call_delta(1, "{}", id="c2", type="function"),
            call_delta(0, '"bag"}'),
            {"delta": {}, "finish_reason": "tool_calls"},
        )
    )
    stream = openai_client.chat.completions.create(model="m", messages=USER, stream=True)
    answer = collected(calls[0], stream)
    second = {"id": "c2", "type": "function", "function": {"arguments": "{}"}}
    assert answer.messages == [
        {"role": "assistant", "content": "Let me look.", "refusal": None, "tool_calls": [CHAT_CALL, second]}
    ]
    assert (answer.id, answer.input_tokens) == ("chat1", 7)
    assert calls[0].answer is None


def test_each_choice_of_a_streamed_chat_answer_is_read(server, openai_client, calls):
    server.streams(
        chat_chunks(
            {"index": 1, "delta": {"role": "assistant", "refusal": "I can"}},
            {"index": 0, "delta": {"role": "assistant", "content": "At gate 14."}},
            {"index": 1, "delta": {"refusal": "not."}},
        )
    )
    stream = openai_client.chat.completions.create(model="m", messages=USER, stream=True, n=2)
    answer = collected(calls[0], stream)
    assert answer.messages == [{"role": "assistant", "content": "At gate 14."}]
    assert answer.alternatives == ([{"role": "assistant", "content": None, "refusal": "I cannot."}],)


def test_each_choice_of_a_chat_answer_is_read(server, openai_client, calls):
    body = chat_body({"role": "assistant", "content": "At gate 14."})
    other = {**body["choices"][0], "index": 1, "message": {"role": "assistant", "content": "Lost."}}
    server.answers({**body, "choices": [*body["choices"], other]})
    openai_client.chat.completions.create(model="m", messages=USER, n=2)
    assert calls[0].answer.messages == [{"role": "assistant", "content": "At gate 14."}]
    assert calls[0].answer.alternatives == ([{"role": "assistant", "content": "Lost."}],)


def test_a_server_may_omit_or_repeat_the_index_of_a_call(server, openai_client, calls):
    def call(call_id, **more):
        function = {"name": "find", "arguments": f'{{"q": "{call_id}"}}'}
        return {"delta": {"tool_calls": [{"id": call_id, "type": "function", "function": function, **more}]}}

    server.streams(chat_chunks(call("a"), call("b")))
    server.streams(chat_chunks(call("a", index=0), call("b", index=0)))
    for number in range(2):
        stream = openai_client.chat.completions.create(model="m", messages=USER, stream=True)
        message = collected(calls[number], stream).messages[0]
        assert [call["id"] for call in message["tool_calls"]] == ["a", "b"]
        assert [call["function"]["arguments"] for call in message["tool_calls"]] == ['{"q": "a"}', '{"q": "b"}']


def test_an_abandoned_chat_stream_has_the_part_that_arrived(server, openai_client, calls):
    server.streams(
        chat_chunks({"delta": {"role": "assistant"}}, {"delta": {"content": "At "}}, {"delta": {"content": "14"}})
    )
    stream = openai_client.chat.completions.create(model="m", messages=USER, stream=True)
    answer = collected(calls[0], stream, most=2)
    stream.close()
    assert answer.messages == [{"role": "assistant", "content": "At "}]


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")  # of the client
def test_a_parsed_chat_answer_is_read_as_it_is_sent_back(server, openai_client, calls):
    pydantic = pytest.importorskip("pydantic")
    gate = pydantic.create_model("Gate", gate=(int, ...))
    server.answers(chat_body({"role": "assistant", "content": '{"gate": 14}'}))
    server.answers(chat_body({"role": "assistant", "content": "Yes."}))
    completions = openai_client.chat.completions
    completions = completions if hasattr(completions, "parse") else openai_client.beta.chat.completions  # before 1.92
    parsed = completions.parse(model="m", messages=USER, response_format=gate)
    message = parsed.choices[0].message
    assert message.parsed.gate == 14
    openai_client.chat.completions.create(model="m", messages=[*USER, message])
    assert calls[0].answer.messages == [calls[1].request.messages[1]]
    assert calls[1].request.messages == server.requests[1]["messages"]


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")  # of the client
def test_a_parsed_response_is_read_as_it_is_sent_back(server, openai_client, calls):
    pydantic = pytest.importorskip("pydantic")
    gate = pydantic.create_model("Gate", gate=(int, ...))
    output = {**OUTPUT, "content": [{**OUTPUT["content"][0], "text": '{"gate": 14}'}]}
    server.answers(response_body([output]))
    server.answers(response_body([OUTPUT]))
    parsed = openai_client.responses.parse(model="m", input=USER, text_format=gate)
    openai_client.responses.create(model="m", input=[*USER, *parsed.output])
    assert calls[1].request.messages == server.requests[1]["input"]
    assert calls[0].answer.messages == calls[1].request.messages[1:]


def test_raw_responses_are_read_without_side_effects(server, openai_client, anthropic_client, calls):
    server.answers(chat_body({"role": "assistant", "content": "At gate 14."}))
    server.answers(message_body([{"type": "text", "text": "At gate 14."}]))
    chat = openai_client.chat.completions.with_raw_response.create(model="m", messages=USER)
    message = anthropic_client.messages.with_raw_response.create(model="m", max_tokens=9, messages=USER)
    assert [answer_text(call.answer) for call in calls] == ["At gate 14.", "At gate 14."]
    assert chat.parse().choices[0].message.content == message.parse().content[0].text == "At gate 14."


def test_raw_responses_that_are_not_read_yet_stay_unread(server, openai_client, calls):
    server.answers(chat_body({"role": "assistant", "content": "At gate 14."}))
    server.streams(chat_chunks({"delta": {"role": "assistant", "content": "At gate 14."}}))
    with openai_client.chat.completions.with_streaming_response.create(model="m", messages=USER) as response:
        assert calls[0].answer is None
        assert response.parse().choices[0].message.content == "At gate 14."
    raw = openai_client.chat.completions.with_raw_response.create(model="m", messages=USER, stream=True)
    assert calls[1].answer is None
    assert answer_text(collected(calls[1], raw.parse())) == "At gate 14."


def response_events(item, *events):
    """The events of a response with one item, up to the item's end."""
    started = {**item, "content": [], "summary": [], "arguments": ""}
    started = {key: value for key, value in started.items() if key in item}
    return [
        {"type": "response.created", "response": response_body([], status="in_progress"), "sequence_number": 0},
        {"type": "response.output_item.added", "output_index": 0, "item": started, "sequence_number": 1},
        *({"output_index": 0, "item_id": item["id"], "sequence_number": 2, **event} for event in events),
    ]


def text_delta(text, **more):
    return {"type": "response.output_text.delta", "content_index": 0, "delta": text, "logprobs": [], **more}


def test_a_streamed_response_is_its_last_event(server, openai_client, calls):
    completed = {"type": "response.completed", "response": response_body([OUTPUT]), "sequence_number": 9}
    server.streams([*response_events(OUTPUT, text_delta("At gate 14.")), completed], named=True, done=False)
    stream = openai_client.responses.create(model="m", input=USER, stream=True)
    answer = collected(calls[0], stream)
    assert answer.messages == [OUTPUT]
    assert (answer.id, answer.input_tokens) == ("resp1", 7)


def test_a_response_that_ends_without_output_has_the_items_that_arrived(server, openai_client, calls):
    done = {"type": "response.output_item.done", "item": OUTPUT}
    completed = {"type": "response.completed", "response": response_body([]), "sequence_number": 9}
    server.streams([*response_events(OUTPUT, text_delta("At"), done), completed], named=True, done=False)
    stream = openai_client.responses.create(model="m", input=USER, stream=True)
    answer = collected(calls[0], stream)
    assert (answer.id, answer.messages, answer.input_tokens) == ("resp1", [OUTPUT], 7)


@pytest.mark.parametrize(
    ("item", "events", "expected"),
    [
        (OUTPUT, [text_delta("At "), text_delta("gate")], {"content": [{"type": "output_text", "text": "At gate"}]}),
        (
            FUNCTION_CALL,
            [{"type": "response.function_call_arguments.delta", "delta": '{"q'}],
            {"arguments": '{"q'},
        ),
        (
            REASONING,
            [{"type": "response.reasoning_summary_text.delta", "summary_index": 0, "delta": "Lo"}],
            {"summary": [{"type": "summary_text", "text": "Lo"}]},
        ),
        (
            OUTPUT,
            [{"type": "response.refusal.delta", "content_index": 0, "delta": "No"}],
            {"content": [{"type": "refusal", "refusal": "No"}]},
        ),
    ],
)
def test_an_abandoned_response_has_the_part_that_arrived(server, openai_client, calls, item, events, expected):
    server.streams(response_events(item, *events), named=True, done=False)
    stream = openai_client.responses.create(model="m", input=USER, stream=True)
    answer = collected(calls[0], stream)
    assert (answer.id, answer.messages) == ("resp1", [{**item, **expected}])


def message_events(*blocks, end=True):
    """The events of Anthropic's stream; a block is its start and its deltas."""
    usage = {"input_tokens": 7, "output_tokens": 1, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 0}
    events = [{"type": "message_start", "message": message_body([], usage=usage)}]
    for index, (start, *deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    delta = {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}}
    return [*events, *([{**delta, "usage": {"output_tokens": 9}}, {"type": "message_stop"}] if end else [])]


MESSAGE_BLOCKS = [
    (
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "Lo"},
        {"type": "thinking_delta", "thinking": "ok."},
        {"type": "signature_delta", "signature": "sig"},
    ),
    ({"type": "text", "text": ""}, {"type": "text_delta", "text": "One "}, {"type": "text_delta", "text": "moment."}),
    (
        {"type": "tool_use", "id": "t1", "name": "find", "input": {}},
        {"type": "input_json_delta", "partial_json": '{"q": '},
        {"type": "input_json_delta", "partial_json": '"bag"}'},
    ),
]


def test_a_streamed_message_of_anthropic_has_its_blocks(server, anthropic_client, calls):
    server.streams(message_events(*MESSAGE_BLOCKS), named=True, done=False)
    stream = anthropic_client.messages.create(model="m", max_tokens=9, messages=USER, stream=True)
    answer = collected(calls[0], stream)
    content = [THINKING, {"type": "text", "text": "One moment."}, TOOL_USE]
    assert answer.messages == [{"role": "assistant", "content": content}]
    assert (answer.id, answer.input_tokens) == ("msg1", 12)
    assert answer_text(answer) == "One moment."


def test_an_abandoned_message_of_anthropic_has_the_part_that_arrived(server, anthropic_client, calls):
    server.streams(message_events(*MESSAGE_BLOCKS), named=True, done=False)
    stream = anthropic_client.messages.create(model="m", max_tokens=9, messages=USER, stream=True)
    answer = collected(calls[0], stream, most=12)
    stream.close()
    tool_use = {**TOOL_USE, "input": '{"q": '}
    assert answer.messages[0]["content"] == [THINKING, {"type": "text", "text": "One moment."}, tool_use]


def test_edits_in_a_stream_of_anthropic_are_read(server, anthropic_client, calls):
    edit = {"type": "clear_tool_uses_20250919", "cleared_tool_uses": 2, "cleared_input_tokens": 900}
    compaction = {"type": "compaction", "content": "A bag is lost."}
    events = message_events(({"type": "compaction", "content": None}, {**compaction, "type": "compaction_delta"}))
    events[-2]["context_management"] = {"applied_edits": [edit]}
    server.streams(events, named=True, done=False)
    stream = anthropic_client.beta.messages.create(model="m", max_tokens=9, messages=USER, stream=True)
    answer = collected(calls[0], stream)
    assert answer.applied_edits == (edit, compaction)
    assert answer.messages == [{"role": "assistant", "content": [compaction]}]


def test_a_streamed_answer_of_gemini_is_one_content(server, gemini_client, calls):
    server.streams(
        [
            gemini_body({"text": "Look", "thought": True}),
            gemini_body({"text": "ing.", "thought": True}),
            gemini_body({"text": "One "}),
            gemini_body({"text": "moment."}),
            gemini_body(GEMINI_CALL),
        ],
        done=False,
    )
    chunks = list(gemini_client.models.generate_content_stream(model="gemini-x", contents="Where?"))
    assert len(chunks) == 5
    answer = calls[0].collector.answer()
    parts = [{"text": "Looking.", "thought": True}, {"text": "One moment."}, GEMINI_CALL]
    assert calls[0].request.model == "gemini-x"
    assert answer.messages == [{"role": "model", "parts": parts}]
    assert (answer.id, answer.input_tokens, answer_text(answer)) == ("g1", 7, "One moment.")


def test_a_streamed_answer_of_gemini_has_the_messages_that_a_chat_sends_back(server, gemini_client, calls):
    server.streams([gemini_body({"text": "One "}), gemini_body({"text": "moment."})], done=False)
    server.answers(gemini_body({"text": "At gate 14."}))
    chat = gemini_client.chats.create(model="gemini-x")
    assert "".join(chunk.text for chunk in chat.send_message_stream("Where?")) == "One moment."
    chat.send_message("And now?")
    answer = calls[0].collector.answer()
    assert answer.alternatives == (calls[1].request.messages[1:-1],)
    assert answer.messages == [{"role": "model", "parts": [{"text": "One moment."}]}]


@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
async def test_an_abandoned_stream_of_gemini_has_the_part_that_arrived(server, gemini_client, calls):
    server.streams([gemini_body({"text": "One "}), gemini_body({"text": "moment."})], done=False)
    async with gemini_client.aio as client:
        stream = await client.models.generate_content_stream(model="gemini-x", contents="Where?")
        async for _ in stream:
            break
        await stream.aclose()
    assert answer_text(calls[0].collector.answer()) == "One "


CONVERSE_EVENTS = [
    {"messageStart": {"role": "assistant"}},
    {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"reasoningContent": {"text": "Lo"}}}},
    {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"reasoningContent": {"text": "ok."}}}},
    {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"reasoningContent": {"signature": "sig"}}}},
    {"contentBlockStop": {"contentBlockIndex": 0}},
    {"contentBlockDelta": {"contentBlockIndex": 1, "delta": {"text": "One "}}},
    {"contentBlockDelta": {"contentBlockIndex": 1, "delta": {"text": "moment."}}},
    {"contentBlockStart": {"contentBlockIndex": 2, "start": {"toolUse": {"toolUseId": "t1", "name": "find"}}}},
    {"contentBlockDelta": {"contentBlockIndex": 2, "delta": {"toolUse": {"input": '{"q": '}}}},
    {"contentBlockDelta": {"contentBlockIndex": 2, "delta": {"toolUse": {"input": '"bag"}'}}}},
    {"contentBlockStop": {"contentBlockIndex": 2}},
    {"messageStop": {"stopReason": "tool_use"}},
    {"metadata": {"usage": {"inputTokens": 7, "outputTokens": 2, "totalTokens": 9}, "metrics": {"latencyMs": 1}}},
]
CONVERSE_CONTENT = [
    {"reasoningContent": {"reasoningText": {"text": "Look.", "signature": "sig"}}},
    {"text": "One moment."},
    {"toolUse": {"toolUseId": "t1", "name": "find", "input": {"q": "bag"}}},
]


def test_a_streamed_answer_of_converse_has_its_blocks(server, bedrock, calls):
    if "reasoningContent" not in bedrock.meta.service_model.shape_for("ContentBlockDelta").members:
        pytest.skip("this release of botocore has no reasoning")
    server.streams_aws(CONVERSE_EVENTS)
    response = bedrock.converse_stream(modelId="m", messages=[{"role": "user", "content": [{"text": "Where?"}]}])
    answer = collected(calls[0], response["stream"])
    assert calls[0].answer is None
    assert answer.messages == [{"role": "assistant", "content": CONVERSE_CONTENT}]
    assert (answer.input_tokens, answer_text(answer)) == (7, "One moment.")


def test_the_answer_of_invoke_model_stays_readable(server, bedrock, calls):
    body = {"messages": USER, "system": "Be kind.", "max_tokens": 9, "anthropic_version": "bedrock-2023-05-31"}
    server.answers(message_body([TOOL_USE]))
    response = bedrock.invoke_model(modelId="anthropic.claude-3-haiku-20240307-v1:0", body=json.dumps(body))
    assert (calls[0].request.messages, calls[0].request.prompts) == (USER, ["Be kind."])
    assert calls[0].answer is None
    calls[0].collector.add(response["body"].read())
    assert calls[0].collector.answer().messages == [{"role": "assistant", "content": [TOOL_USE]}]


@pytest.mark.parametrize(
    "read",
    [
        lambda body: body.read(),
        lambda body: body.read(9_999),
        lambda body: body.read(int(body._content_length)),
        list,
    ],
)
def test_the_answer_of_invoke_model_is_remembered_when_its_body_was_read(clients, server, telemetry, question, read):
    messages = [{"role": "user", "content": question}]
    answer = {"role": "assistant", "content": [{"type": "text", "text": f"At gate 14. {question}"}]}
    for sent in (messages, [answer, {"role": "user", "content": "Thanks."}]):
        server.answers(message_body(answer["content"]))
        body = {"messages": sent, "max_tokens": 9, "anthropic_version": "bedrock-2023-05-31"}
        answer_body = clients.bedrock.invoke_model(modelId="anthropic.claude-x", body=json.dumps(body))["body"]
        read(answer_body)
        answer_body.close()
    inputs = [span.attributes["assembly.events.in"] for span in telemetry.spans_named("assemble_context")]
    assert inputs == [1, 3]


def invoke_events(*events):
    return [{"chunk": {"bytes": base64.b64encode(json.dumps(event).encode()).decode()}} for event in events]


METRICS = {"amazon-bedrock-invocationMetrics": {"inputTokenCount": 7, "outputTokenCount": 2}}


@pytest.mark.parametrize(
    ("body", "events", "tokens"),
    [
        (
            {"messages": USER},
            message_events(({"type": "text", "text": ""}, {"type": "text_delta", "text": "At 14."})),
            12,
        ),
        ({"messages": [{"role": "user", "content": [{"text": "Where?"}]}]}, CONVERSE_EVENTS, 7),
        ({"prompt": "Where?"}, [{"generation": "At "}, {"generation": "14.", "stop_reason": "stop", **METRICS}], 7),
        ({"prompt": "Where?"}, [{"outputs": [{"text": "At "}]}, {"outputs": [{"text": "14."}], **METRICS}], 7),
        ({"inputText": "Where?"}, [{"outputText": "At 14.", "index": 0, **METRICS}], 7),
    ],
    ids=["Anthropic", "Nova", "Llama", "Mistral", "Titan"],
)
def test_a_streamed_answer_of_invoke_model_is_read(server, bedrock, calls, body, events, tokens):
    server.streams_aws(invoke_events(*events))
    response = bedrock.invoke_model_with_response_stream(modelId="m", body=json.dumps(body))
    answer = collected(calls[0], response["body"])
    assert calls[0].request.messages[0]["role"] == "user"
    assert answer_text(answer) in {"At 14.", "One moment."}
    assert answer.input_tokens == tokens
