"""LiteLLM with bounded functions, in front of a server of OpenAI."""

from __future__ import annotations

import inspect

import pytest
from client_calls import assemblies, user
from provider_bodies import OUTPUT, chat_body, chat_chunks, response_body

from otel_assembly import (
    BudgetPolicy,
    ConfigurationError,
    ContextOverflowError,
    SlidingWindowPolicy,
    bounded,
    instrument,
    uninstrument,
)

litellm = pytest.importorskip("litellm", reason="litellm is not installed: python -m pip install --group dev")
# litellm itself warns of its types and of its own deprecated calls.
pytestmark = pytest.mark.filterwarnings("ignore")
MESSAGES = [{"role": "system", "content": "Be brief."}, *(user(f"Question {number}") for number in range(6))]
KEPT = [MESSAGES[0], *MESSAGES[-3:]]
WINDOW = [SlidingWindowPolicy(3)]


@pytest.fixture
def options(server):
    """The arguments of a call that goes to the server."""
    return {"api_key": "k", "api_base": server.url, "max_retries": 0}


@pytest.fixture
def answers(server):
    """Answer one request of each kind, in this order."""
    server.answers(chat_body({"role": "assistant", "content": "At gate 14."}))
    server.streams(chat_chunks({"delta": {"content": "At 14."}}, {"delta": {}, "finish_reason": "stop"}))
    server.answers(response_body([OUTPUT]))


@pytest.fixture(params=[False, True], ids=["plain", "instrumented"])
def instrumented(request, telemetry):
    """Whether LiteLLM and the client of OpenAI, which it uses, are instrumented."""
    if request.param:
        instrument("litellm", "openai")
    yield
    uninstrument()


def test_the_functions_of_the_module_are_bounded(server, options, answers, telemetry, instrumented):
    client = bounded(litellm, WINDOW)
    client.completion("openai/gpt-4o", MESSAGES, max_tokens=5, **options)
    list(client.completion(model="openai/gpt-4o", messages=MESSAGES, stream=True, **options))
    client.responses(MESSAGES, model="openai/gpt-4o", **options)
    chat, stream, response = server.requests
    assert chat["messages"] == stream["messages"] == KEPT
    assert chat["max_tokens"] == 5
    assert response["input"] == KEPT
    assert [span.attributes["assembly.events.out"] for span in assemblies(telemetry)] == [3, 3, 3]
    assert {span.attributes["assembly.framework"] for span in assemblies(telemetry)} == {"litellm"}


async def test_the_asynchronous_functions_of_the_module_are_bounded(server, options, answers, telemetry, instrumented):
    client = bounded(litellm, WINDOW)
    await client.acompletion(model="openai/gpt-4o", messages=MESSAGES, **options)
    stream = await client.acompletion(model="openai/gpt-4o", messages=MESSAGES, stream=True, **options)
    assert [chunk async for chunk in stream]
    await client.aresponses(input=MESSAGES, model="openai/gpt-4o", **options)
    chat, stream, response = server.requests
    assert chat["messages"] == stream["messages"] == response["input"] == KEPT
    assert len(assemblies(telemetry)) == 3


def test_an_answer_can_be_sent_back(server, options):
    client = bounded(litellm, WINDOW)
    bodies = []
    for complete in (litellm.completion, client.completion):
        for _ in range(2):
            server.answers(chat_body({"role": "assistant", "content": "At gate 14."}))
        message = complete(model="openai/gpt-4o", messages=MESSAGES, **options).choices[0].message
        complete(model="openai/gpt-4o", messages=[*MESSAGES, message, user("Thank you.")], **options)
        bodies.append(server.requests[-1]["messages"])
    whole, kept = bodies
    assert kept == [whole[0], *whole[-3:]]


def test_an_overflow_is_raised_before_anything_is_sent(server, options):
    with pytest.raises(ContextOverflowError):
        bounded(litellm, [BudgetPolicy(3, 1)]).completion(model="openai/gpt-4o", messages=MESSAGES, **options)
    assert server.requests == []


def test_messages_that_the_provider_stores_are_refused(server, options):
    client = bounded(litellm, WINDOW)
    with pytest.raises(ConfigurationError, match="litellm client, request to responses: 'previous_response_id'"):
        client.responses(input="Hello", model="openai/gpt-4o", previous_response_id="resp_1", **options)
    assert server.requests == []


def test_other_names_are_those_of_the_module(server):
    client = bounded(litellm, WINDOW)
    assert client.embedding is litellm.embedding
    assert client.drop_params is litellm.drop_params
    assert set(dir(litellm)) <= set(dir(client))
    assert inspect.iscoroutinefunction(client.acompletion)
    assert client.completion.__name__ == "completion"
    with pytest.raises(AttributeError, match="set 'drop_params' on the module litellm itself"):
        client.drop_params = True
    with pytest.raises(AttributeError):
        client.no_such_name  # noqa: B018  # raises
