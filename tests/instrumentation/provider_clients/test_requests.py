"""What is read of requests is what the client sends."""

from __future__ import annotations

import pytest
from provider_bodies import (
    ANTHROPIC_TOOL,
    CHAT_CALL,
    CHAT_TOOL,
    FUNCTION_CALL,
    GEMINI_CALL,
    OUTPUT,
    REASONING,
    THINKING,
    TOOL_USE,
    chat_body,
    gemini_body,
    message_body,
    response_body,
)

from otel_assembly.instrumentation.provider_clients import api_of_operation


def test_a_chat_request_is_read_as_it_is_sent(server, openai_client, calls):
    server.answers(chat_body({"role": "assistant", "content": None, "refusal": None, "tool_calls": [CHAT_CALL]}))
    server.answers(chat_body({"role": "assistant", "content": "At gate 14.", "refusal": None}))
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "developer", "content": [{"type": "text", "text": "Be short."}]},
        {"role": "user", "content": "Where is my bag?"},
    ]
    answer = openai_client.chat.completions.create(model="gpt-x", messages=messages, tools=[CHAT_TOOL])
    messages += [answer.choices[0].message, {"role": "tool", "tool_call_id": "c1", "content": "gate 14"}]
    openai_client.chat.completions.create(model="gpt-x", messages=messages, tools=[CHAT_TOOL], extra_body={"user": "u"})

    first, second = calls
    assert first.request.prompts == ["Be kind.", "Be short."]
    assert first.request.messages == [{"role": "user", "content": "Where is my bag?"}]
    assert (first.request.model, first.request.tools) == ("gpt-x", [CHAT_TOOL])
    assert second.request.messages == server.requests[1]["messages"][2:]
    assert first.answer.messages == [second.request.messages[1]]
    assert (first.answer.id, first.answer.input_tokens) == ("chat1", 7)


async def test_an_async_client_sends_the_same_request(server, watch, calls):
    openai = watch("openai")
    server.answers(chat_body({"role": "assistant", "content": "At gate 14."}))
    async with openai.AsyncOpenAI(api_key="k", base_url=server.url) as client:
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Where?"}])
    assert calls[0].request.messages == server.requests[0]["messages"]
    assert calls[0].answer.messages == [{"role": "assistant", "content": "At gate 14."}]


def test_azure_requests_with_a_deployment_are_read(server, watch, calls):
    openai = watch("openai")
    server.answers(chat_body({"role": "assistant", "content": "At gate 14."}))
    client = openai.AzureOpenAI(api_key="k", azure_endpoint=server.url, api_version="2024-10-21", max_retries=0)
    client.chat.completions.create(model="mine", messages=[{"role": "user", "content": "Where?"}])
    assert server.paths[0].startswith("/openai/deployments/mine/chat/completions")
    assert (calls[0].request.model, calls[0].request.messages) == ("mine", server.requests[0]["messages"])


def test_a_responses_request_is_read_as_it_is_sent(server, openai_client, calls):
    server.answers(response_body([REASONING, FUNCTION_CALL]))
    server.answers(response_body([OUTPUT], id="resp2"))
    messages = [{"role": "developer", "content": "Be short."}, {"role": "user", "content": "Where is my bag?"}]
    answer = openai_client.responses.create(model="gpt-x", instructions="Be kind.", input=messages)
    messages += [*answer.output, {"type": "function_call_output", "call_id": "c1", "output": "gate 14"}]
    openai_client.responses.create(model="gpt-x", input=messages)

    first, second = calls
    assert first.request.prompts == ["Be kind.", "Be short."]
    assert first.request.messages == [{"role": "user", "content": "Where is my bag?"}]
    assert second.request.messages == server.requests[1]["input"][1:]
    assert first.answer.messages == second.request.messages[1:3] == [REASONING, FUNCTION_CALL]
    assert (first.answer.id, first.answer.input_tokens) == ("resp1", 7)


def test_a_responses_request_names_the_state_that_it_continues(server, openai_client, calls):
    compaction = {"type": "compaction", "id": "cmp1", "encrypted_content": "xyz"}
    server.answers(response_body([compaction, OUTPUT]))
    server.answers(response_body([OUTPUT]))
    openai_client.responses.create(
        model="m",
        input="Where?",
        previous_response_id="resp0",
        truncation="auto",
        # Arguments that older clients do not have.
        extra_body={"context_management": [{"type": "compaction", "compact_threshold": 1000}]},
    )
    openai_client.responses.create(model="m", input="Where?", extra_body={"conversation": {"id": "conv1"}})

    first, second = calls
    assert first.request.messages == [{"role": "user", "content": "Where?"}]
    assert (first.request.previous_response_id, first.request.edits) == ("resp0", ("truncation", "compaction"))
    assert first.answer.applied_edits == (compaction,)
    assert (second.request.conversation_id, second.request.edits) == ("conv1", ())


def test_a_compaction_is_a_model_call(server, openai_client, calls):
    if not hasattr(openai_client.responses, "compact"):
        pytest.skip("this release of openai compacts nothing")
    user = {"type": "message", "role": "user", "id": "m0", "status": "completed", "content": "Where?"}
    compaction = {"type": "compaction", "id": "cmp1", "encrypted_content": "xyz"}
    server.answers(response_body([user, compaction], object="response.compaction"))
    openai_client.responses.compact(model="m", input=[{"role": "user", "content": "Where?"}])
    assert calls[0].api.name == "responses_compact"
    assert calls[0].request.messages == [{"role": "user", "content": "Where?"}]
    assert calls[0].answer.messages == [user, compaction]
    assert calls[0].answer.applied_edits == (compaction,)


def test_the_prompt_of_a_completion_is_a_user_message(server, openai_client, calls):
    choice = {"index": 0, "text": " gate 14", "finish_reason": "stop", "logprobs": None}
    for _ in range(2):
        server.answers({"id": "cmpl1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]})
    openai_client.completions.create(model="m", prompt="The bag is at")
    openai_client.completions.create(model="m", prompt=["One", "Two"])
    assert calls[0].request.messages == [{"role": "user", "content": "The bag is at"}]
    assert calls[0].answer.messages == [{"role": "assistant", "content": " gate 14"}]
    assert calls[1].request is None


def test_other_requests_make_no_model_call(server, openai_client, calls):
    embedding = {"object": "embedding", "index": 0, "embedding": [0.5]}
    server.answers(
        {"object": "list", "model": "m", "data": [embedding], "usage": {"prompt_tokens": 1, "total_tokens": 1}}
    )
    openai_client.embeddings.create(model="m", input="Where?", encoding_format="float")
    assert calls == []


def test_a_messages_request_is_read_as_it_is_sent(server, anthropic_client, calls):
    server.answers(message_body([THINKING, TOOL_USE]))
    server.answers(message_body([{"type": "text", "text": "At gate 14."}]))
    messages = [{"role": "user", "content": "Where is my bag?"}]
    system = [{"type": "text", "text": "Be kind."}, {"type": "text", "text": "Be short."}]
    answer = anthropic_client.messages.create(
        model="m", max_tokens=9, messages=messages, system=system, tools=[ANTHROPIC_TOOL]
    )
    results = [{"type": "tool_result", "tool_use_id": "t1", "content": "gate 14"}]
    messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
    anthropic_client.messages.create(model="m", max_tokens=9, messages=messages, system="Be kind.")

    first, second = calls
    assert first.request.prompts == ["Be kind.", "Be short."]
    assert (first.request.messages, first.request.tools) == (server.requests[0]["messages"], [ANTHROPIC_TOOL])
    assert (second.request.prompts, second.request.messages) == (["Be kind."], server.requests[1]["messages"])
    assert first.answer.messages == [second.request.messages[1]]
    assert (first.answer.id, first.answer.input_tokens) == ("msg1", 13)


def test_edits_of_the_context_are_read_from_request_and_answer(server, anthropic_client, calls):
    edit = {"type": "clear_tool_uses_20250919", "cleared_tool_uses": 2, "cleared_input_tokens": 900}
    server.answers(message_body([{"type": "text", "text": "Here."}], context_management={"applied_edits": [edit]}))
    anthropic_client.beta.messages.create(
        model="m",
        max_tokens=9,
        messages=[{"role": "user", "content": "Where?"}],
        betas=["context-management-2025-06-27"],
        extra_body={
            "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}
        },  # no argument of old clients
    )
    assert calls[0].request.edits == ("clear_tool_uses_20250919",)
    assert calls[0].answer.applied_edits == (edit,)


async def test_counting_tokens_makes_no_model_call(server, watch, calls):
    anthropic = watch("anthropic")
    server.answers({"input_tokens": 3})
    async with anthropic.AsyncAnthropic(api_key="k", base_url=server.url) as client:
        await client.messages.count_tokens(model="m", messages=[{"role": "user", "content": "Where?"}])
    assert calls == []


def test_a_gemini_request_is_read_as_it_is_sent(server, gemini_client, calls):
    types = pytest.importorskip("google.genai").types
    server.answers(gemini_body(GEMINI_CALL))
    server.answers(gemini_body({"text": "At gate 14."}))
    declaration = types.FunctionDeclaration(name="find", parameters_json_schema={"type": "object", "properties": {}})
    config = types.GenerateContentConfig(
        system_instruction="Be kind.", tools=[types.Tool(function_declarations=[declaration])]
    )
    contents = [types.Content(role="user", parts=[types.Part(text="Where is my bag?")])]
    answer = gemini_client.models.generate_content(model="gemini-x", contents=contents, config=config)
    result = types.Part.from_function_response(name="find", response={"result": "gate 14"})
    contents += [answer.candidates[0].content, types.Content(role="user", parts=[result])]
    gemini_client.models.generate_content(model="gemini-x", contents=contents)

    first, second = calls
    assert (first.request.prompts, first.request.model) == (["Be kind."], "gemini-x")
    assert [tool["name"] for tool in first.request.tools] == ["find"]
    assert first.request.messages == server.requests[0]["contents"]
    assert second.request.messages == server.requests[1]["contents"]
    assert first.answer.messages == [second.request.messages[1]]
    assert (first.answer.id, first.answer.input_tokens) == ("g1", 7)


@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
async def test_an_async_gemini_request_is_read(server, gemini_client, calls):
    server.answers(gemini_body({"text": "At gate 14."}))
    async with gemini_client.aio as client:
        await client.models.generate_content(model="gemini-x", contents="Where?")
    assert calls[0].request.messages == server.requests[0]["contents"]
    assert calls[0].answer.messages == [{"role": "model", "parts": [{"text": "At gate 14."}]}]


def test_a_converse_request_is_read_as_it_is_sent(server, bedrock, calls):
    if "cachePoint" not in bedrock.meta.service_model.shape_for("SystemContentBlock").members:
        pytest.skip("this release of botocore has no cache points")
    tool_use = {"toolUse": {"toolUseId": "t1", "name": "find", "input": {"q": "bag"}}}
    answer = {"output": {"message": {"role": "assistant", "content": [tool_use]}}, "stopReason": "tool_use"}
    server.answers(
        {**answer, "usage": {"inputTokens": 7, "outputTokens": 2, "totalTokens": 9, "cacheReadInputTokens": 3}}
    )
    server.answers({"output": {"message": {"role": "assistant", "content": [{"text": "At gate 14."}]}}})
    tool = {"toolSpec": {"name": "find", "inputSchema": {"json": {"type": "object"}}}}
    messages = [{"role": "user", "content": [{"text": "Where is my bag?"}]}]
    response = bedrock.converse(
        modelId="amazon.nova-lite-v1:0",
        messages=messages,
        system=[{"text": "Be kind."}, {"cachePoint": {"type": "default"}}],
        toolConfig={"tools": [tool, {"cachePoint": {"type": "default"}}]},
    )
    result = {"toolResult": {"toolUseId": "t1", "content": [{"text": "gate 14"}]}}
    messages += [response["output"]["message"], {"role": "user", "content": [result]}]
    bedrock.converse(modelId="amazon.nova-lite-v1:0", messages=messages)

    first, second = calls
    assert (first.request.prompts, first.request.model) == (["Be kind."], "amazon.nova-lite-v1:0")
    assert (first.request.messages, first.request.tools) == (server.requests[0]["messages"], [tool["toolSpec"]])
    assert second.request.messages == server.requests[1]["messages"]
    assert first.answer.messages == [second.request.messages[1]]
    assert first.answer.input_tokens == 10


def test_objects_of_an_sdk_are_read_at_any_depth():
    function = pytest.importorskip("openai.types.chat.chat_completion_message_tool_call").Function
    call = {"id": "call_a1b2c3d4", "type": "function", "function": function(name="find", arguments="{}")}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    request = api_of_operation("completion").read_request({"model": "m", "messages": messages}, "completion")
    assert request.messages[0]["tool_calls"] == [{**call, "function": {"name": "find", "arguments": "{}"}}]
