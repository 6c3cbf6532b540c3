"""What is read of litellm's calls, in front of a server of OpenAI."""

from __future__ import annotations

import pytest
from provider_bodies import (
    CHAT_CALL,
    CHAT_TOOL,
    FUNCTION_CALL,
    OUTPUT,
    REASONING,
    chat_body,
    chat_chunks,
    response_body,
)

from otel_assembly.instrumentation.provider_clients import answer_text, api_of_operation

litellm = pytest.importorskip("litellm", reason="litellm is not installed: python -m pip install --group dev")
WITH_RESPONSES = pytest.mark.skipif(
    not hasattr(litellm, "responses"), reason="this release of LiteLLM has no responses"
)
# litellm itself warns of its types and of its own deprecated calls.
pytestmark = pytest.mark.filterwarnings("ignore")
USER = [{"role": "user", "content": "Where is my bag?"}]


@pytest.fixture
def options(server):
    """The arguments of a call that goes to the server."""
    return {"model": "openai/gpt-4o-mini", "api_key": "k", "api_base": server.url}


@pytest.mark.parametrize("as_dict", [False, True], ids=["message", "dict"])
def test_a_litellm_request_is_read_as_it_is_sent(server, options, as_dict):
    api = api_of_operation("completion")
    server.answers(chat_body({"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]}))
    server.answers(chat_body({"role": "assistant", "content": "At gate 14."}))
    answer = litellm.completion(messages=USER, tools=[CHAT_TOOL], **options)
    message = answer.choices[0].message
    if as_dict:
        message = {"role": "assistant", "tool_calls": message.tool_calls}
    arguments = {"messages": [*USER, message, {"role": "tool", "tool_call_id": "c1", "content": "gate 14"}], **options}
    request = api.read_request(arguments, "")
    litellm.completion(**arguments)
    assert request.messages == server.requests[1]["messages"]
    assert request.model == "openai/gpt-4o-mini"
    assert api.read_answer(answer).messages == [request.messages[1]]
    assert api.read_answer(answer).input_tokens == 7


async def test_a_streamed_answer_of_litellm_is_read(server, options):
    api = api_of_operation("acompletion")
    end = {"delta": {}, "finish_reason": "stop"}
    server.streams(chat_chunks({"delta": {"role": "assistant", "content": "At "}}, {"delta": {"content": "14."}}, end))
    collector = api.collector()
    async for chunk in await litellm.acompletion(messages=USER, stream=True, **options):
        collector.add(chunk)
    assert collector.answer().messages == [{"role": "assistant", "content": "At 14."}]


@WITH_RESPONSES
def test_a_response_of_litellm_is_read(server, options):
    api = api_of_operation("responses")
    server.answers(response_body([REASONING, FUNCTION_CALL, OUTPUT]))
    answer = api.read_answer(litellm.responses(input="Where?", **options))
    assert answer.messages == [REASONING, FUNCTION_CALL, OUTPUT]
    assert answer_text(answer) == "At gate 14."
    assert api.read_request({"input": "Where?", **options}, "").messages == [{"role": "user", "content": "Where?"}]


@WITH_RESPONSES
def test_an_abandoned_response_of_litellm_has_the_part_that_arrived(server, options):
    api = api_of_operation("responses")
    head = {"output_index": 0, "sequence_number": 1}
    delta = {**head, "type": "response.output_text.delta", "content_index": 0, "item_id": "m1"}
    events = [
        {**head, "type": "response.created", "response": response_body([])},
        {**head, "type": "response.output_item.added", "item": {**OUTPUT, "content": []}},
        {**delta, "delta": "At "},
        {**delta, "delta": "14."},
    ]
    server.streams(events, named=True, done=False)
    collector = api.collector()
    for number, event in enumerate(litellm.responses(input="Where?", stream=True, **options), 1):
        collector.add(event)
        if number == len(events):
            break
    assert answer_text(collector.answer()) == "At 14."
