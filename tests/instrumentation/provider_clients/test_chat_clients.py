"""Programs that call the clients of Groq, Ollama, Mistral and Cohere: one assembly per request, in one conversation."""

from __future__ import annotations

import asyncio
import importlib
import itertools

import httpx
import pytest
from client_calls import assemblies, user
from provider_bodies import CHAT_TOOL, chat_body

from otel_assembly import instrument, uninstrument

cohere, groq, mistralai, ollama = (
    pytest.importorskip(name, reason="not installed: python -m pip install --group dev")
    for name in ("cohere", "groq", "mistralai", "ollama")
)
if not hasattr(mistralai, "Mistral"):  # from 2.0 on
    mistralai = importlib.import_module("mistralai.client")

WORDS = ["Your ", "bag ", "is ", "here."]


class Groq:
    framework = "groq"
    path = "/openai/v1/chat/completions"

    def __init__(self, url):
        options = {"base_url": url, "api_key": "none", "max_retries": 0}
        self.http, self.http_async = groq.Groq(**options), groq.AsyncGroq(**options)
        self.chat, self.chat_async = (client.chat.completions.create for client in (self.http, self.http_async))

    def answer(self, server, number, *, stream):
        texts = [f"{number} ", *WORDS]
        if not stream:
            server.answers(chat_body({"role": "assistant", "content": "".join(texts)}, id=f"chat-{number}"))
            return
        shape = {"id": f"chat-{number}", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        choice = {"index": 0, "finish_reason": None}
        server.streams({**shape, "choices": [{**choice, "delta": {"content": text}}]} for text in texts)

    def text(self, part):
        choice = part.choices[0]
        return (choice.delta if hasattr(choice, "delta") else choice.message).content


class Ollama:
    framework = "ollama"
    path = "/api/chat"

    def __init__(self, url):
        self.client, self.client_async = ollama.Client(host=url), ollama.AsyncClient(host=url)
        self.http, self.http_async = self.client._client, self.client_async._client  # 0.5 cannot close the clients
        self.chat, self.chat_async = self.client.chat, self.client_async.chat

    def answer(self, server, number, *, stream):
        texts = [f"{number} ", *WORDS]
        parts = [
            {"message": {"role": "assistant", "content": text}} for text in (texts if stream else ["".join(texts)])
        ]
        parts[-1] |= {"done": True, "prompt_eval_count": 7}
        server.answers_lines(parts)

    def text(self, part):
        return part.message.content


class Mistral(Groq):
    framework = "mistralai"
    path = "/v1/chat/completions"

    def __init__(self, url):
        self.http, self.http_async = httpx.Client(), httpx.AsyncClient()
        self.client = mistralai.Mistral(api_key="none", server_url=url, client=self.http, async_client=self.http_async)

    def chat(self, *, stream, **request):
        return (self.client.chat.stream if stream else self.client.chat.complete)(**request)

    async def chat_async(self, *, stream, **request):
        return await (self.client.chat.stream_async if stream else self.client.chat.complete_async)(**request)

    def text(self, part):
        return super().text(getattr(part, "data", part))


class Cohere:
    framework = "cohere"
    path = "/v2/chat"

    def __init__(self, url):
        self.http, self.http_async = httpx.Client(), httpx.AsyncClient()
        options = {"api_key": "none", "base_url": url}
        self.client = cohere.ClientV2(**options, httpx_client=self.http)
        self.client_async = cohere.AsyncClientV2(**options, httpx_client=self.http_async)

    def chat(self, *, stream, **request):
        return (self.client.chat_stream if stream else self.client.chat)(**request)

    async def chat_async(self, *, stream, **request):
        return self.client_async.chat_stream(**request) if stream else await self.client_async.chat(**request)

    def answer(self, server, number, *, stream):
        texts = [f"{number} ", *WORDS]
        usage = {"tokens": {"input_tokens": 7, "output_tokens": 2}}
        if not stream:
            message = {"role": "assistant", "content": [{"type": "text", "text": "".join(texts)}]}
            server.answers({"id": f"{number}", "finish_reason": "COMPLETE", "message": message, "usage": usage})
            return
        start = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
        server.streams(
            [
                {"type": "message-start", "id": f"{number}", "delta": {"message": start}},
                {"type": "content-start", "index": 0, "delta": {"message": {"content": {"type": "text", "text": ""}}}},
                *(
                    {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": text}}}}
                    for text in texts
                ),
                {"type": "content-end", "index": 0},
                {"type": "message-end", "delta": {"finish_reason": "COMPLETE", "usage": usage}},
            ],
            named=True,
            done=False,
        )

    def text(self, part):
        if hasattr(part, "message"):
            return part.message.content[0].text
        return part.delta.message.content.text if part.type == "content-delta" else ""


@pytest.fixture(params=[Groq, Ollama, Mistral, Cohere])
async def provider(request, server, telemetry):
    """A provider with its client, instrumented."""
    instrument(request.param.framework)
    provider = request.param(server.url)
    yield provider
    provider.http.close()
    await (getattr(provider.http_async, "aclose", None) or provider.http_async.close)()
    uninstrument()


@pytest.fixture
def client(server, telemetry):
    """Ollama's client, instrumented."""
    instrument("ollama")
    client = ollama.Client(host=server.url)
    yield client
    client._client.close()
    uninstrument()


async def ask(provider, messages, *, stream, is_async):
    if is_async:
        answer = await provider.chat_async(model="m", messages=messages, stream=stream)
        return "".join([provider.text(part) async for part in answer]) if stream else provider.text(answer)
    answer = await asyncio.to_thread(provider.chat, model="m", messages=messages, stream=stream)
    return "".join(map(provider.text, answer)) if stream else provider.text(answer)


@pytest.mark.parametrize(("stream", "is_async"), [*itertools.product([False, True], repeat=2)])
async def test_a_window_of_three_messages_drops_the_older_ones(provider, server, telemetry, question, stream, is_async):
    messages = []
    for turn in range(4):
        provider.answer(server, turn, stream=stream)
        messages = [*messages, user(f"{turn}: {question}")][-3:]
        answer = await ask(provider, messages, stream=stream, is_async=is_async)
        messages.append({"role": "assistant", "content": answer})
    found = [span.attributes for span in assemblies(telemetry)]
    assert answer == "3 Your bag is here."
    assert server.paths == [provider.path] * 4
    assert [attributes["assembly.framework"] for attributes in found] == [provider.framework] * 4
    assert [attributes["assembly.events.out"] for attributes in found] == [
        len(body["messages"]) for body in server.requests
    ]
    assert [attributes["assembly.turn"] for attributes in found] == [0, 1, 2, 3]
    assert [attributes["assembly.newly_dropped.count"] for attributes in found] == [0, 0, 2, 2]


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls_of_ollama_have_no_ids(client, server, telemetry, question, stream):
    messages = [user(question)]
    call = {"function": {"name": "find", "arguments": {"q": "bag"}}}
    server.answers_lines([{"message": {"role": "assistant", "content": "", "tool_calls": [call, call]}}])
    server.answers_lines([{"message": {"role": "assistant", "content": "At gate 14."}}])
    answer = client.chat(model="m", messages=messages, tools=[CHAT_TOOL], stream=stream)
    message = next(answer).message if stream else answer.message
    assert not stream or [*answer] == []
    messages += [message, *[{"role": "tool", "content": "gate 14", "tool_name": "find"}] * 2]
    client.chat(model="m", messages=messages)
    second = assemblies(telemetry)[1].attributes
    assert (second["assembly.turn"], second["assembly.events.out"]) == (1, 4)
    assert (second["assembly.dropped.count"], second.get("assembly.pairs.broken", 0)) == (0, 0)


def test_a_text_that_ollama_completes_has_an_assembly(client, server, telemetry, question):
    server.answers_lines([{"response": "At gate 14."}])
    client.generate(model="m", prompt=question, system="Be brief.")
    (found,) = (span.attributes for span in assemblies(telemetry))
    assert (found["assembly.events.out"], found["assembly.prompts.out"]) == (1, 1)


def test_requests_that_call_no_model_have_no_assembly(client, server, telemetry):
    server.answers_lines([{"embeddings": [[0.1]]}])
    client.embed(model="m", input="text")
    assert server.paths == ["/api/embed"]
    assert assemblies(telemetry) == []


CALL = {"id": "find_a1b2c3d4", "type": "function", "function": {"name": "find", "arguments": '{"q": "bag"}'}}
TOOL = {"type": "function", "function": {"name": "find", "description": "Find.", "parameters": {"type": "object"}}}


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_call_of_cohere_is_continued(server, telemetry, question, stream):
    instrument("cohere")
    if stream:
        first = {**CALL, "function": {"name": "find", "arguments": ""}}
        rest = {"function": {"arguments": CALL["function"]["arguments"]}}
        server.streams(
            [
                {"type": "message-start", "id": "1", "delta": {"message": {"role": "assistant"}}},
                {"type": "tool-plan-delta", "delta": {"message": {"tool_plan": "I will look."}}},
                {"type": "tool-call-start", "index": 0, "delta": {"message": {"tool_calls": first}}},
                {"type": "tool-call-delta", "index": 0, "delta": {"message": {"tool_calls": rest}}},
                {"type": "tool-call-end", "index": 0},
                {"type": "message-end", "delta": {"finish_reason": "TOOL_CALL"}},
            ],
            named=True,
            done=False,
        )
    else:
        message = {"role": "assistant", "tool_plan": "I will look.", "tool_calls": [CALL]}
        server.answers({"id": "1", "finish_reason": "TOOL_CALL", "message": message})
    server.answers({"id": "2", "finish_reason": "COMPLETE", "message": {"role": "assistant", "content": []}})
    with httpx.Client() as http:
        client = cohere.ClientV2(api_key="none", base_url=server.url, httpx_client=http)
        messages = [cohere.UserChatMessageV2(content=question)]
        if stream:
            assert len([*client.chat_stream(model="m", messages=messages, tools=[TOOL])]) == 6
            messages.append({"role": "assistant", "tool_plan": "I will look.", "tool_calls": [CALL]})
        else:
            messages.append(client.chat(model="m", messages=messages, tools=[TOOL]).message)
        result = {"type": "document", "document": {"data": {"gate": "14"}}}
        messages.append({"role": "tool", "tool_call_id": CALL["id"], "content": [result]})
        client.chat(model="m", messages=messages, tools=[TOOL])
    uninstrument()
    second = assemblies(telemetry)[1].attributes
    assert (second["assembly.turn"], second["assembly.events.out"], second["assembly.dropped.count"]) == (1, 3, 0)
    assert second.get("assembly.pairs.broken", 0) == 0


def test_objects_of_mistrals_client_are_read(server, telemetry, question):
    instrument("mistralai")
    server.answers(chat_body({"role": "assistant", "content": "", "tool_calls": [CALL]}))
    server.answers(chat_body({"role": "assistant", "content": "At gate 14."}))
    with httpx.Client() as http:
        chat = mistralai.Mistral(api_key="none", server_url=server.url, client=http).chat
        messages = [mistralai.models.UserMessage(content=question)]
        messages.append(chat.complete(model="m", messages=messages, tools=[TOOL]).choices[0].message)
        messages.append(mistralai.models.ToolMessage(tool_call_id=CALL["id"], content="gate 14", name="find"))
        chat.complete(model="m", messages=messages, tools=[TOOL])
    uninstrument()
    second = assemblies(telemetry)[1].attributes
    assert (second["assembly.turn"], second["assembly.events.out"], second["assembly.dropped.count"]) == (1, 3, 0)
