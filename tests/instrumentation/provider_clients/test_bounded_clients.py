"""Bounded copies of providers' clients: what arrives at the provider is what the policies kept."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest
from client_calls import assemblies, user
from lazy_clients import LazyClients
from provider_bodies import (
    ANTHROPIC_TOOL,
    CHAT_CALL,
    CHAT_TOOL,
    OUTPUT,
    REASONING,
    chat_body,
    chat_chunks,
    gemini_body,
    message_body,
    response_body,
)

from otel_assembly import (
    AlertPolicy,
    Assembler,
    BudgetPolicy,
    ConfigurationError,
    Context,
    ContextOverflowError,
    HaltedError,
    ModelRequest,
    ObserverAlert,
    Severity,
    SlidingWindowPolicy,
    bounded,
    conversation,
    instrument,
    uninstrument,
)

openai = pytest.importorskip("openai", reason="openai is not installed")
anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed")
genai = pytest.importorskip("google.genai", reason="google-genai is not installed")

EXAMPLE = Path(__file__).parents[3] / "examples" / "openai_budget_policy.py"
TEXT = "At gate 14."
WINDOW = [SlidingWindowPolicy(3)]
#: google-genai's own class inherits from one of aiohttp's.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
MESSAGES = [
    message
    for turn in range(4)
    for message in (user(f"Question {turn}?"), {"role": "assistant", "content": f"Answer {turn}."})
] + [user("And now?")]
CONTENTS = [
    {"role": "model" if message["role"] == "assistant" else "user", "parts": [{"text": message["content"]}]}
    for message in MESSAGES
]
CHAT = {"model": "gpt-4o", "messages": [{"role": "system", "content": "Be brief."}, *MESSAGES], "max_tokens": 5}
RESPONSES = {"model": "gpt-4o", "instructions": "Be brief.", "input": MESSAGES, "max_output_tokens": 50}
CLAUDE = {"model": "claude-sonnet-5", "system": "Be brief.", "messages": MESSAGES, "max_tokens": 5}
GEMINI = {"model": "gemini-2.5-pro", "contents": CONTENTS, "config": {"system_instruction": "Be brief."}}


@pytest.fixture
async def originals(server):
    """The clients that are not bounded."""
    clients = LazyClients(server.url)
    yield clients
    clients.close()
    await clients.aclose()


def answer_chat(server):
    server.answers(chat_body({"role": "assistant", "content": TEXT}))


def stream_chat(server):
    server.streams(chat_chunks({"delta": {"content": TEXT}}, {"delta": {}, "finish_reason": "stop"}))


def answer_response(server):
    server.answers(response_body([OUTPUT]))


def stream_response(server):
    server.streams([{"type": "response.completed", "sequence_number": 1, "response": response_body([OUTPUT])}], True)


def answer_message(server):
    server.answers(message_body([{"type": "text", "text": TEXT}]))


def stream_message(server):
    message = message_body([])
    events = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": TEXT}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]
    server.streams(events, named=True, done=False)


def answer_gemini(server):
    server.answers(gemini_body({"text": TEXT}))


def stream_gemini(server):
    server.streams([gemini_body({"text": TEXT})], done=False)


#: The client, the call and how the server answers it.
SYNC = {
    "chat": ("openai", lambda client: client.chat.completions.create(**CHAT), answer_chat),
    "chat stream": ("openai", lambda client: client.chat.completions.create(**CHAT, stream=True), stream_chat),
    "chat stream helper": ("openai", lambda client: client.chat.completions.stream(**CHAT), stream_chat),
    "chat parse": ("openai", lambda client: client.chat.completions.parse(**CHAT), answer_chat),
    "chat beta": ("openai", lambda client: client.beta.chat.completions.parse(**CHAT), answer_chat),
    "chat raw": ("openai", lambda client: client.chat.completions.with_raw_response.create(**CHAT), answer_chat),
    "chat raw client": ("openai", lambda client: client.with_raw_response.chat.completions.create(**CHAT), answer_chat),
    "chat streaming response": (
        "openai",
        lambda client: client.chat.completions.with_streaming_response.create(**CHAT),
        answer_chat,
    ),
    "chat with_options": (
        "openai",
        lambda client: client.with_options(timeout=9).chat.completions.create(**CHAT),
        answer_chat,
    ),
    "chat copy": (
        "openai",
        lambda client: client.copy(timeout=9).copy().chat.completions.create(**CHAT),
        answer_chat,
    ),
    "responses": ("openai", lambda client: client.responses.create(**RESPONSES), answer_response),
    "responses stream": ("openai", lambda client: client.responses.create(**RESPONSES, stream=True), stream_response),
    "responses parse": ("openai", lambda client: client.responses.parse(**RESPONSES), answer_response),
    "messages": ("anthropic", lambda client: client.messages.create(**CLAUDE), answer_message),
    "messages beta": ("anthropic", lambda client: client.beta.messages.create(**CLAUDE), answer_message),
    "messages stream": ("anthropic", lambda client: client.messages.create(**CLAUDE, stream=True), stream_message),
    "messages stream helper": ("anthropic", lambda client: client.messages.stream(**CLAUDE), stream_message),
    "messages raw": ("anthropic", lambda client: client.messages.with_raw_response.create(**CLAUDE), answer_message),
    "messages with_options": (
        "anthropic",
        lambda client: client.with_options(timeout=9).messages.create(**CLAUDE),
        answer_message,
    ),
    "gemini": ("gemini", lambda client: client.models.generate_content(**GEMINI), answer_gemini),
    "gemini stream": ("gemini", lambda client: client.models.generate_content_stream(**GEMINI), stream_gemini),
}
ASYNC = {
    **{
        name: (f"{client}_async", call, answer)
        for name, (client, call, answer) in SYNC.items()
        if client in ("openai", "anthropic")
    },
    "gemini": ("gemini", lambda client: client.aio.models.generate_content(**GEMINI), answer_gemini),
    "gemini stream": ("gemini", lambda client: client.aio.models.generate_content_stream(**GEMINI), stream_gemini),
}


ONE_PER_API = ["chat", "responses", "messages", "gemini", "gemini stream"]


def complete(answer):
    """Read the answer of a call to its end."""
    if hasattr(answer, "__enter__"):
        with answer as stream:
            return list(stream) if hasattr(stream, "__next__") else None
    return list(answer) if hasattr(answer, "__next__") else answer


async def complete_async(answer):
    if inspect.isawaitable(answer):
        answer = await answer
    if hasattr(answer, "__aenter__"):
        async with answer as stream:
            return [chunk async for chunk in stream] if hasattr(stream, "__anext__") else None
    return [chunk async for chunk in answer] if hasattr(answer, "__anext__") else answer


def key_of(body):
    return next(key for key in ("messages", "input", "contents") if key in body)


def bounded_body(body):
    """The body of a request of which `WINDOW` keeps three messages."""
    key = key_of(body)
    leading = [message for message in body[key] if message["role"] == "system"]
    return {**body, key: [*leading, *body[key][-3:]]}


@pytest.mark.parametrize("name", SYNC)
def test_a_request_is_sent_with_the_messages_that_the_policies_keep(server, originals, name):
    client_name, call, answer = SYNC[name]
    client = getattr(originals, client_name)
    for requesting in (client, bounded(client, WINDOW), client):
        answer(server)
        complete(call(requesting))
    before, sent, after = server.requests
    assert sent == bounded_body(before)
    assert after == before, "the original client is unchanged"
    assert len(sent[key_of(sent)]) < len(before[key_of(before)])


@pytest.mark.parametrize("name", ONE_PER_API)
async def test_a_synchronous_client_works_in_a_running_event_loop(server, originals, name):
    test_a_request_is_sent_with_the_messages_that_the_policies_keep(server, originals, name)


@pytest.mark.parametrize("name", ASYNC)
async def test_a_request_of_an_asynchronous_client_is_bounded(server, originals, name):
    client_name, call, answer = ASYNC[name]
    client = getattr(originals, client_name)
    for requesting in (client, bounded(client, WINDOW), client):
        answer(server)
        await complete_async(call(requesting))
    before, sent, after = server.requests
    assert sent == bounded_body(before)
    assert after == before


@pytest.mark.parametrize("platform", ["azure", "bedrock", "vertex"])
def test_a_client_of_another_platform_is_bounded(server, platform):
    if platform == "azure":
        client = openai.AzureOpenAI(api_key="k", azure_endpoint=server.url, api_version="2025-01-01")
    elif platform == "bedrock":
        client = anthropic.AnthropicBedrock(api_key="k", aws_region="us-east-1", base_url=server.url)
    else:
        client = anthropic.AnthropicVertex(region="r", project_id="p", access_token="t", base_url=server.url)
    for requesting in (client, bounded(client, WINDOW).with_options(timeout=9)):
        if platform == "azure":
            answer_chat(server)
            requesting.chat.completions.create(**CHAT)
        else:
            answer_message(server)
            requesting.messages.create(**CLAUDE)
    client.close()
    before, sent = server.requests
    assert sent == bounded_body(before)
    assert server.paths[0] == server.paths[1]


def test_a_client_of_groq_is_bounded(server):
    groq = pytest.importorskip("groq", reason="groq is not installed")
    client = groq.Groq(api_key="k", base_url=server.url)
    for requesting in (client, bounded(client, WINDOW)):
        answer_chat(server)
        requesting.chat.completions.create(**CHAT)
    client.close()
    before, sent = server.requests
    assert sent == bounded_body(before)


def test_the_copy_has_the_type_of_the_client(originals):
    for name in ("openai", "openai_async", "anthropic", "anthropic_async", "gemini"):
        client = getattr(originals, name)
        assert type(bounded(client, WINDOW)) is type(client)


@pytest.mark.parametrize(
    "name", [*ONE_PER_API, "chat stream", "chat raw", "chat with_options", "responses stream", "messages stream helper"]
)
def test_each_request_of_an_instrumented_client_has_one_assembly(server, telemetry, originals, name):
    client_name, call, answer = SYNC[name]
    client = bounded(getattr(originals, client_name), WINDOW)
    instrument("openai", "anthropic", "google_genai")
    try:
        for _ in range(2):
            answer(server)
            complete(call(client))
    finally:
        uninstrument()
    found = assemblies(telemetry)
    assert [span.attributes["assembly.events.out"] for span in found] == [3, 3]
    assert {span.attributes["assembly.framework"] for span in found} == {client_name.replace("gemini", "google_genai")}
    assert not [span for span in telemetry.spans if span.name == "apply_policy caller"]


@pytest.mark.parametrize("name", ["chat", "messages", "messages stream helper", "gemini", "gemini stream"])
async def test_each_request_of_an_instrumented_asynchronous_client_has_one_assembly(server, telemetry, originals, name):
    client_name, call, answer = ASYNC[name]
    client = bounded(getattr(originals, client_name), WINDOW)
    instrument("openai", "anthropic", "google_genai")
    try:
        answer(server)
        await complete_async(call(client))
    finally:
        uninstrument()
    assert [span.attributes["assembly.events.out"] for span in assemblies(telemetry)] == [3]


def test_the_requests_of_the_original_are_still_recorded(server, telemetry, clients, question):
    client = bounded(clients.openai, WINDOW)
    for requesting in (client, clients.openai):
        answer_chat(server)
        requesting.chat.completions.create(model="gpt-4o", messages=[user(question)])
    assert len(assemblies(telemetry)) == 2


def test_a_retry_inside_the_client_is_one_assembly(server, telemetry, originals):
    client = bounded(originals.openai, WINDOW).with_options(max_retries=1)
    server.fails(503)
    answer_chat(server)
    client.chat.completions.create(**CHAT)
    assert [len(body["messages"]) for body in server.requests] == [4, 4]
    assert len(assemblies(telemetry)) == 1


@pytest.mark.parametrize("name", ONE_PER_API)
def test_an_overflow_is_raised_before_anything_is_sent(server, originals, name):
    client_name, call, _ = SYNC[name]
    client = bounded(getattr(originals, client_name), [BudgetPolicy(window=3, output_reserve=1)])
    with pytest.raises(ContextOverflowError):
        complete(call(client))
    assert server.requests == []


def test_the_tools_of_a_request_are_counted(server, originals):
    client = bounded(originals.openai, [BudgetPolicy(window=500, output_reserve=1, step_tokens=0)])
    tool = {"type": "function", "function": {**CHAT_TOOL["function"], "description": "Find a bag. " * 200}}
    with pytest.raises(ContextOverflowError):
        client.chat.completions.create(**CHAT, tools=[tool])
    answer_chat(server)
    client.chat.completions.create(**CHAT)
    assert len(server.requests) == 1


class HaltsOn:
    """A policy that halts the conversation if the newest message has a text."""

    name = "halts"

    def __init__(self, text):
        self.text = text

    async def apply(self, prompts, events, context):
        if self.text in json.dumps(events[-1]):
            await context.send(ObserverAlert(source="guard", severity=Severity.FATAL, message="stop"))
        return prompts, events


@pytest.mark.parametrize("name", ONE_PER_API)
def test_a_halt_is_raised_before_anything_is_sent(server, originals, name):
    client_name, call, _ = SYNC[name]
    client = bounded(getattr(originals, client_name), [HaltsOn("now")])
    with pytest.raises(HaltedError, match="stop"):
        complete(call(client))
    assert server.requests == []


def test_an_assembler_that_returns_halts_raises_them_here(server, originals):
    client = bounded(originals.openai, Assembler([HaltsOn("now")], on_halt="return"))
    with pytest.raises(HaltedError, match="stop"):
        client.chat.completions.create(**CHAT)
    assert server.requests == []


def ask(server, client, text):
    answer_chat(server)
    return client.chat.completions.create(model="gpt-4o", messages=[user(text)])


def test_a_halt_of_a_named_conversation_stops_its_later_requests(server, originals, question):
    client = bounded(originals.openai, [HaltsOn("bomb")])
    with conversation(question):
        ask(server, client, "Hello")
        for text in ("A bomb!", "Hello"):
            with pytest.raises(HaltedError):
                ask(server, client.with_options(timeout=9), text)
    with conversation(f"{question} again"):
        ask(server, client, "Hello")
    assert len(server.requests) == 2


def test_a_halt_without_a_name_stops_one_request(server, originals):
    client = bounded(originals.openai, [HaltsOn("bomb")])
    ask(server, client, "Hello")
    with pytest.raises(HaltedError):
        ask(server, client, "A bomb!")
    ask(server, client, "Hello")
    assert len(server.requests) == 2


async def test_a_program_can_halt_a_named_conversation(server, originals, question):
    client = bounded(originals.openai_async, WINDOW)
    context = Context(conversation_id=question)
    await context.send(ObserverAlert(source="operator", severity=Severity.FATAL, message="stop"))
    with conversation(question), pytest.raises(HaltedError, match="stop"):
        await client.chat.completions.create(**CHAT)
    assert server.requests == []


@pytest.mark.parametrize("field", ["previous_response_id", "conversation"])
def test_a_request_with_messages_that_the_provider_stores_is_refused(server, originals, field):
    client = bounded(originals.openai, WINDOW)
    with pytest.raises(ConfigurationError) as caught:
        client.responses.create(model="gpt-4o", input="And now?", **{field: "stored_1"})
    assert str(caught.value) == (
        f"bounded openai client, request to /responses: '{field}' refers to messages that the provider stores, which "
        "policies cannot drop; send the messages themselves as 'input', or use the client that is not bounded"
    )
    assert server.requests == []


def test_a_request_that_calls_no_model_is_sent_unchanged(server, telemetry, originals):
    policies = [BudgetPolicy(window=3, output_reserve=1)]
    data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
    server.answers({"object": "list", "data": data, "model": "m", "usage": {"prompt_tokens": 1, "total_tokens": 1}})
    bounded(originals.openai, policies).embeddings.create(model="m", input="A long text. " * 50)
    server.answers({"input_tokens": 900})
    bounded(originals.anthropic, policies).messages.count_tokens(model="claude-sonnet-5", messages=MESSAGES)
    server.answers({"totalTokens": 900})
    bounded(originals.gemini, policies).models.count_tokens(model="gemini-2.5-pro", contents=CONTENTS)
    assert [
        len(body.get(key, ())) for body, key in zip(server.requests[1:], ("messages", "contents"), strict=True)
    ] == [
        9,
        9,
    ]
    assert assemblies(telemetry) == []


def test_a_request_that_the_policies_keep_whole_is_sent_unchanged(server, originals):
    for requesting in (originals.openai, bounded(originals.openai, [SlidingWindowPolicy(50)])):
        answer_response(server)
        requesting.responses.create(model="gpt-4o", input="Hello", extra_body={"top_k": 3})
    assert server.requests[1] == server.requests[0]


def test_messages_in_extra_body_are_bounded(server, originals):
    client = bounded(originals.openai, WINDOW)
    answer_chat(server)
    client.chat.completions.create(model="gpt-4o", messages=[], extra_body={"messages": MESSAGES, "top_k": 3})
    assert server.requests[0] == {"model": "gpt-4o", "messages": MESSAGES[-3:], "top_k": 3}


def test_answers_of_the_sdks_are_sent_as_without_policies(server, originals):
    openai_client, claude = originals.openai, originals.anthropic
    server.answers(chat_body({"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]}))
    answer = openai_client.chat.completions.create(**CHAT, tools=[CHAT_TOOL])
    result = {"role": "tool", "tool_call_id": "c1", "content": TEXT}
    messages = [*MESSAGES, answer.choices[0].message, result]
    server.answers(response_body([REASONING, OUTPUT]))
    items = [*MESSAGES, *openai_client.responses.create(model="gpt-4o", input="Hi").output, user("Thank you.")]
    server.answers(
        message_body([{"type": "text", "text": TEXT}, {"type": "tool_use", "id": "t1", "name": "find", "input": {}}])
    )
    content = claude.messages.create(**CLAUDE, tools=[ANTHROPIC_TOOL]).content
    blocks = [{"type": "tool_result", "tool_use_id": "t1", "content": TEXT}]
    turns = [*MESSAGES, {"role": "assistant", "content": content}, {"role": "user", "content": blocks}]
    server.requests.clear()
    for bound in (lambda client: client, lambda client: bounded(client, [SlidingWindowPolicy(4)])):
        answer_chat(server)
        bound(openai_client).chat.completions.create(model="gpt-4o", messages=messages, tools=[CHAT_TOOL])
        answer_response(server)
        bound(openai_client).responses.create(model="gpt-4o", input=items)
        answer_message(server)
        bound(claude).messages.create(model="claude-sonnet-5", max_tokens=5, messages=turns, tools=[ANTHROPIC_TOOL])
    for whole, sent in zip(server.requests[:3], server.requests[3:], strict=True):
        kept = sent[key_of(sent)]
        assert 1 < len(kept) < len(whole[key_of(whole)])
        assert sent == {**whole, key_of(whole): whole[key_of(whole)][-len(kept) :]}


class Adds:
    """A policy that adds a prompt, and an event that is not in the form of an API."""

    name = "adds"

    async def apply(self, prompts, events, context):
        return [*prompts, "Answer in English."], [*events, ModelRequest(content="Remember the bag.")]


def test_what_policies_add_is_sent_in_the_form_of_the_api(server, originals):
    for name in ("chat", "responses", "messages", "gemini"):
        client_name, call, answer = SYNC[name]
        answer(server)
        complete(call(bounded(getattr(originals, client_name), [*WINDOW, Adds()])))
    chat, response, message, gemini = server.requests
    assert [part["content"] for part in chat["messages"] if part["role"] == "system"] == [
        "Be brief.",
        "Answer in English.",
    ]
    assert response["instructions"] == "Be brief.\n\nAnswer in English."
    texts = [{"type": "text", "text": text} for text in ("Be brief.", "Answer in English.")]
    assert message["system"] == texts
    assert [part["text"] for part in gemini["systemInstruction"]["parts"]] == ["Be brief.", "Answer in English."]
    for body in (chat, response, message):
        assert body[key_of(body)][-1] == user("Remember the bag.")
        assert body[key_of(body)][-4:-1] == MESSAGES[-3:]
    assert gemini["contents"][-1] == {"role": "user", "parts": [{"text": "Remember the bag."}]}


def test_a_prompt_that_a_policy_keeps_is_sent_as_it_is(server, originals):
    cached = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
    answer_message(server)
    bounded(originals.anthropic, [Adds()]).messages.create(**{**CLAUDE, "system": [cached]})
    developer = {"role": "developer", "content": "Be brief.", "name": "us"}
    answer_chat(server)
    bounded(originals.openai, [Adds()]).chat.completions.create(model="gpt-4o", messages=[developer, *MESSAGES])
    claude, chat = server.requests
    assert claude["system"] == [cached, {"type": "text", "text": "Answer in English."}]
    assert chat["messages"][:2] == [developer, {"role": "developer", "content": "Answer in English."}]


@pytest.mark.parametrize("name", ["chat", "responses", "messages", "gemini"])
def test_a_summary_is_a_message_of_the_api(server, originals, name):
    client_name, call, answer = SYNC[name]

    def summarize(text, target_tokens):
        return "They asked three things."

    budget = BudgetPolicy(window=70, output_reserve=1, step_tokens=0, compact=summarize, summary_tokens=30)
    answer(server)
    complete(call(bounded(getattr(originals, client_name), [budget])))
    (body,) = server.requests
    first = next(message for message in body[key_of(body)] if message["role"] != "system")
    assert first["role"] == "user"
    assert "They asked three things." in (first["parts"][0]["text"] if name == "gemini" else first["content"])
    assert 1 < len(body[key_of(body)]) < 9


def test_a_policy_can_use_an_asynchronous_client_in_each_request_of_a_synchronous_one(server, originals):
    async def summarize(text, target_tokens):
        async with openai.AsyncOpenAI(api_key="k", base_url=server.url) as summarizer:
            answer = await summarizer.chat.completions.create(model="gpt-4o", messages=[user(text)])
        return answer.choices[0].message.content

    budget = BudgetPolicy(window=70, output_reserve=1, step_tokens=0, compact=summarize, summary_tokens=30)
    client = bounded(originals.openai, [budget])
    for turn in range(3):
        answer_chat(server)
        answer_chat(server)
        client.chat.completions.create(**{**CHAT, "messages": [user(f"Turn {turn}"), *MESSAGES]})
    sent = server.requests[1::2]
    assert len(server.requests) == 6
    assert all(TEXT in body["messages"][0]["content"] for body in sent)


def test_a_policy_can_use_a_bounded_client_itself(server, originals):
    inner = bounded(originals.openai, WINDOW)

    class Asks:
        name = "asks"

        async def apply(self, prompts, events, context):
            inner.chat.completions.create(**CHAT)
            return prompts, events[-1:]

    for _ in range(2):
        answer_chat(server)
    bounded(originals.openai, [Asks()]).chat.completions.create(**CHAT)
    assert [len(body["messages"]) for body in server.requests] == [4, 2]


def test_two_threads_can_use_one_client_in_one_conversation(server, originals, question):
    client = bounded(originals.openai, WINDOW)
    failures = []

    def loop(name):
        try:
            with conversation(question):
                for turn in range(10):
                    client.chat.completions.create(
                        model="gpt-4o", messages=[user(f"{name} {number}") for number in range(turn + 5)]
                    )
        except BaseException as error:
            failures.append(error)

    for _ in range(20):
        answer_chat(server)
    threads = [threading.Thread(target=loop, args=(name,)) for name in ("left", "right")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    sent = [[message["content"] for message in body["messages"]] for body in server.requests]
    expected = [
        [f"{name} {number}" for number in range(turn + 2, turn + 5)] for name in ("left", "right") for turn in range(10)
    ]
    assert sorted(sent) == sorted(expected)


async def test_requests_of_one_conversation_can_overlap(server, originals, question):
    client = bounded(originals.openai_async, WINDOW)
    for _ in range(5):
        answer_chat(server)
    with conversation(question):
        await asyncio.gather(*(client.chat.completions.create(**CHAT) for _ in range(5)))
    assert [len(body["messages"]) for body in server.requests] == [4] * 5


def test_an_assembly_has_the_names_of_the_conversation(server, telemetry, originals, question):
    client = bounded(originals.anthropic, WINDOW)
    with conversation(question, agent="support"):
        for length in (5, 7):
            answer_message(server)
            client.messages.create(**{**CLAUDE, "messages": MESSAGES[:length]})
    found = [span.attributes for span in assemblies(telemetry)]
    assert {(attributes["gen_ai.conversation.id"], attributes["gen_ai.agent.name"]) for attributes in found} == {
        (question, "support")
    }
    assert [attributes["assembly.turn"] for attributes in found] == [0, 1]
    assert [attributes["assembly.dropped.count"] for attributes in found] == [2, 4]
    assert {attributes["assembly.model"] for attributes in found} == {"claude-sonnet-5"}


@pytest.fixture
def summarized():
    """The texts that `summarizing` was called with."""
    return []


@pytest.fixture
def summarizing(originals, summarized):
    """A client whose budget replaces old messages by a summary."""

    def summarize(text, target_tokens):
        summarized.append(text)
        return f"They asked {len(summarized)} things."

    budget = BudgetPolicy(window=400, output_reserve=1, step_tokens=200, compact=summarize, summary_tokens=30)
    return bounded(originals.openai, [budget])


def questions(name, count):
    return [user("Hello."), *(user(f"Question {number} of {name}? " + "word " * 20) for number in range(count))]


@pytest.mark.parametrize("is_named", [True, False], ids=["named", "unnamed"])
def test_the_requests_of_a_conversation_share_turns_and_summaries(
    server, telemetry, summarizing, summarized, question, is_named
):
    with conversation(question) if is_named else nullcontext():
        for count in (14, 16, 18):
            answer_chat(server)
            summarizing.with_options(timeout=9).chat.completions.create(model="m", messages=questions("Ann", count))
    (summary,) = {body["messages"][0]["content"] for body in server.requests}
    assert "They asked 1 things." in summary
    assert len(summarized) == 1
    assert [span.attributes["assembly.turn"] for span in assemblies(telemetry)] == [0, 1, 2]


def test_conversations_that_begin_alike_are_separate(server, summarizing, summarized):
    for count in (0, 15, 16):
        for name in ("Ann", "Bob"):
            answer_chat(server)
            summarizing.chat.completions.create(model="m", messages=questions(name, count))
    for number, (name, other) in enumerate((("Ann", "Bob"), ("Bob", "Ann"))):
        for body in server.requests[2 + number :: 2]:
            assert f"They asked {number + 1} things." in body["messages"][0]["content"]
            assert other not in json.dumps(body)
        assert name in summarized[number]
        assert other not in summarized[number]
    assert len(summarized) == 2


@pytest.mark.parametrize("name", ["chat", "messages", "gemini", "gemini stream"])
def test_the_policies_of_a_bounded_client_can_be_replaced(server, originals, name):
    client_name, call, answer = SYNC[name]
    client = bounded(bounded(getattr(originals, client_name), WINDOW), [SlidingWindowPolicy(5)])
    answer(server)
    complete(call(client))
    (body,) = server.requests
    assert len([message for message in body[key_of(body)] if message["role"] != "system"]) == 5


def test_a_client_of_gemini_and_its_copy_do_not_close_each_other(server, originals):
    bounded(originals.gemini, WINDOW).close()
    copied = bounded(genai.Client(api_key="k", http_options={"base_url": server.url}), WINDOW)
    gc.collect()
    for requesting in (originals.gemini, copied):
        answer_gemini(server)
        requesting.models.generate_content(**GEMINI)
    assert [len(body["contents"]) for body in server.requests] == [9, 3]
    del copied, requesting
    gc.collect()  # closes the connections


async def test_a_bounded_client_of_gemini_closes_its_asynchronous_connections(server):
    client = bounded(genai.Client(api_key="k", http_options={"base_url": server.url}), WINDOW)
    answer_gemini(server)
    await client.aio.models.generate_content(**GEMINI)
    await client.aio.aclose()
    del client
    gc.collect()  # a connection that is left open is a warning, which fails the test


def test_a_chat_of_gemini_keeps_its_history(server, originals):
    chat = bounded(originals.gemini, WINDOW).chats.create(model="gemini-2.5-pro")
    for turn in range(4):
        answer_gemini(server)
        chat.send_message(f"Question {turn}")
    assert [len(body["contents"]) for body in server.requests] == [1, 3, 3, 3]
    assert len(chat.get_history()) == 8


def test_the_example_keeps_the_request():
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=True)
    *requests, last = done.stdout.splitlines()
    assert all(line.endswith("it knows of the asthma: True") for line in requests)
    assert max(int(line.split()[0]) for line in requests) == 8
    assert last == "All ten. The history has 23 messages."


class Other:
    pass


@pytest.mark.parametrize(
    ("client", "policies", "problem"),
    [
        (Other(), WINDOW, "client is a test_bounded_clients.Other; give a client object of openai"),
        (openai, WINDOW, "client is the module openai; give a client object of openai"),
        (openai.OpenAI, WINDOW, "client is the class OpenAI; give an instance"),
        (None, WINDOW, "client is a builtins.NoneType; give"),
        (openai.OpenAI(api_key="k"), [], "policies is empty"),
        (openai.OpenAI(api_key="k"), None, "policies is one"),
        (openai.OpenAI(api_key="k"), SlidingWindowPolicy(3), "policies is one"),
        (openai.OpenAI(api_key="k"), ["budget"], "policy at index 0"),
        (openai.OpenAI(api_key="k"), [AlertPolicy], "policy at index 0"),
    ],
)
def test_wrong_arguments_are_refused(client, policies, problem):
    with pytest.raises(ConfigurationError) as caught:
        bounded(client, policies)
    assert problem in str(caught.value)


def test_messages_that_cannot_be_read_are_refused(server, originals):
    client = bounded(originals.openai, WINDOW)
    with pytest.raises(ConfigurationError, match="'messages' cannot be read; pass a list of messages"):
        client.post("/chat/completions", body={"model": "gpt-4o", "messages": 5}, cast_to=object)
    assert server.requests == []
