"""Whatever a program passes to a client, or does to it, happens as it would without the instrumentation."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import threading
from types import MappingProxyType, SimpleNamespace

import pytest
from any_answer import any_answer
from client_calls import assemblies, chat, user
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

from otel_assembly import conversation, instrument, uninstrument

httpx = pytest.importorskip("httpx", reason="httpx is not installed")
openai = pytest.importorskip("openai", reason="openai is not installed")
pytestmark = [
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),  # of the clients
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # sockets of dropped streams
]
CLIENTS = ("openai", "anthropic", "google_genai", "botocore")


@pytest.fixture(scope="module", autouse=True)
def _only_new_garbage():
    """Objects of the modules before are not searched for garbage, which these tests do often."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _answers(server):
    server.answers_all(lambda path, body: any_answer(path, body, f"Answer number {len(server.requests)}."))
    yield
    gc.collect()


def warnings_in(caplog):
    return [record.getMessage() for record in caplog.records if record.name.startswith("otel_assembly")]


@pytest.fixture
def runs_as_without_us(clients, server, caplog):
    """Return a function that runs a program with and without the instrumentation, and compares what happens."""

    def outcome(program):
        server.requests.clear()
        try:
            result = program(clients, server)
        except BaseException as error:  # whatever the program raises
            result = type(error), re.sub("0x[0-9a-f]+", "0x", str(error))
        return result, [*server.requests]

    def run(program):
        with caplog.at_level(logging.WARNING, "otel_assembly"):
            ours = outcome(program)
            uninstrument()
            assert ours == outcome(program)
            instrument(*CLIENTS)
        assert len(warnings_in(caplog)) <= 1

    return run


def ask(name, clients, messages):
    """Send messages, whatever they are, with one of the clients, and return the answer's text."""
    if name == "openai":
        return chat(clients, messages).choices[0].message.content
    if name == "responses":
        return clients.openai.responses.create(model="m", input=messages).output_text
    if name == "anthropic":
        return clients.anthropic.messages.create(model="m", max_tokens=9, messages=messages).content[0].text
    if name == "gemini":
        return clients.gemini.models.generate_content(model="m", contents=messages).text
    return clients.bedrock.converse(modelId="m", messages=messages)["output"]["message"]["content"][0]["text"]


def recursive():
    message = user("Where?")
    message["content"] = [{"type": "text", "text": "Where?"}, message]
    return [message]


#: Functions that make messages, because a generator can be read only once.
MESSAGES = {
    "none": lambda: None,
    "number": lambda: 5,
    "text": lambda: "Where?",
    "bytes": lambda: b"Where?",
    "dict": lambda: user("Where?"),
    "empty": list,
    "list with none": lambda: [None],
    "list with number": lambda: [5],
    "list with text": lambda: ["Where?"],
    "list with bytes": lambda: [b"Where?"],
    "list with list": lambda: [[user("Where?")]],
    "recursive": recursive,
    "generator": lambda: (user(text) for text in ("Where?", "When?")),
    "tuple": lambda: (user("Where?"), user("When?")),
    "view": lambda: {1: user("Where?")}.values(),
    "read-only dict": lambda: [MappingProxyType(user("Where?"))],
    "object": lambda: [SimpleNamespace(role="user", content="Where?")],
    "content none": lambda: [user(None)],
    "content number": lambda: [user(5)],
    "content object": lambda: [user(object())],
    "content generator": lambda: [user({"type": "text", "text": text} for text in ("Where?", "When?"))],
    "content bytes": lambda: [user(b"Where?")],
    "part number": lambda: [user([5, None])],
    "part text": lambda: [user([{"type": "text", "text": 5}])],
    "no role": lambda: [{"content": "Where?"}],
    "role number": lambda: [{"role": 5, "content": "Where?"}],
    "unknown role": lambda: [{"role": "pilot", "content": "Where?"}],
    "key number": lambda: [{5: "Where?"}],
    "calls number": lambda: [{"role": "assistant", "content": "", "tool_calls": [5]}],
    "calls none": lambda: [{"role": "assistant", "tool_calls": [{"id": None, "function": None}]}],
    "result": lambda: [{"role": "tool", "content": 5}],
    "lone surrogate": lambda: [user("Where\ud800?")],
    "long": lambda: [user("Where? " * 300_000)],
}


@pytest.mark.parametrize("client", ["openai", "responses", "anthropic", "gemini", "bedrock"])
def test_messages_of_any_type_have_the_same_effect(runs_as_without_us, client):
    for make_messages in MESSAGES.values():
        runs_as_without_us(lambda clients, _, make=make_messages: ask(client, clients, make()))


@pytest.mark.parametrize("client", ["openai", "responses", "anthropic", "gemini", "bedrock"])
def test_an_error_of_the_server_is_raised_unchanged(runs_as_without_us, client):
    messages = [{"role": "user", "parts" if client == "gemini" else "content": [{"text": "Where?"}]}]

    def program(clients, server):
        server.fails(400)
        return ask(client, clients, messages)

    runs_as_without_us(program)


def ask_without_messages(clients, _):
    return clients.openai.chat.completions.create(model="m")


def ask_without_a_limit(clients, _):
    return clients.anthropic.messages.create(model="m", messages=[user("Where?")])


def ask_bedrock_nothing(clients, _):
    return clients.bedrock.converse(messages=[user("Where?")])


def ask_with_wrong_settings(clients, _):
    return chat(clients, [user("Where?")], tools=5, stream="yes", extra_body=[1], extra_headers=5)


def close_the_client_in_mid_stream(clients, server):
    client = openai.OpenAI(api_key="k", base_url=server.url, max_retries=0)
    stream = client.chat.completions.create(model="m", messages=[user("Where?")], stream=True)
    first = next(stream)
    client.close()
    return first.id, [chunk.id for chunk in stream]


def ask_a_closed_client(clients, server):
    client = openai.OpenAI(api_key="k", base_url=server.url, max_retries=0)
    client.close()
    return client.chat.completions.create(model="m", messages=[user("Where?")])


def change_the_body_in_a_hook(clients, server):
    def change(request):
        request.stream = httpx.ByteStream(b'{"model": "m", "messages": []}')
        request.headers["content-length"] = str(len(request.stream._stream))

    with httpx.Client(event_hooks={"request": [change]}) as http:
        client = openai.OpenAI(api_key="k", base_url=server.url, http_client=http)
        return client.chat.completions.create(model="m", messages=[user("Where?")]).choices[0].message.content


def interrupt_a_request(clients, server):
    def interrupt(request):
        raise KeyboardInterrupt

    with httpx.Client(transport=httpx.MockTransport(interrupt)) as http:
        client = openai.OpenAI(api_key="k", base_url=server.url, http_client=http)
        return client.chat.completions.create(model="m", messages=[user("Where?")])


def interrupt_the_reader_of_a_stream(clients, server):
    for _ in chat(clients, [user("Where?")], stream=True):
        raise KeyboardInterrupt


def receive_no_json(clients, server):
    server.answers_with(b"<html>", "application/json")
    return chat(clients, [user("Where?")]).id


def receive_a_text_in_place_of_an_answer(clients, server):
    server.answers_with(b"gate 14", "text/plain")
    return repr(chat(clients, [user("Where?")]))


def receive_an_answer_of_wrong_types(clients, server):
    server.answers({"id": 5, "choices": [{"message": {"content": 5, "tool_calls": 5}}, None], "usage": "none"})
    return repr(chat(clients, [user("Where?")]))


def receive_a_broken_stream(clients, server):
    server.answers_with(b'data: {"id": 5, "choices": [{"delta": 5}]}\n\ndata: {"cho', "text/event-stream")
    return [repr(chunk) for chunk in chat(clients, [user("Where?")], stream=True)]


@pytest.mark.parametrize(
    "program",
    [
        ask_without_messages,
        ask_without_a_limit,
        ask_bedrock_nothing,
        ask_with_wrong_settings,
        close_the_client_in_mid_stream,
        ask_a_closed_client,
        change_the_body_in_a_hook,
        interrupt_a_request,
        interrupt_the_reader_of_a_stream,
        receive_no_json,
        receive_a_text_in_place_of_an_answer,
        receive_an_answer_of_wrong_types,
        receive_a_broken_stream,
    ],
)
def test_a_program_runs_as_without_the_instrumentation(runs_as_without_us, program):
    runs_as_without_us(program)


def stream_of(client, clients, text):
    if client == "openai":
        return chat(clients, [user(text)], stream=True)
    if client == "responses":
        return clients.openai.responses.create(model="m", input=text, stream=True)
    if client == "anthropic":
        return clients.anthropic.messages.create(model="m", max_tokens=9, messages=[user(text)], stream=True)
    if client == "gemini":
        return clients.gemini.models.generate_content_stream(model="m", contents=text)
    content = {"role": "user", "content": [{"text": text}]}
    return clients.bedrock.converse_stream(modelId="m", messages=[content])["stream"]


@pytest.mark.parametrize("client", ["openai", "responses", "anthropic", "gemini", "bedrock"])
def test_a_stream_that_is_left_is_one_assembly(clients, server, telemetry, caplog, question, client):
    for chunks in (0, 1, 2):
        for is_closed in (False, True):
            stream = stream_of(client, clients, f"{question} {chunks} {is_closed}")
            iterator = iter(stream)
            for _ in range(chunks):
                next(iterator)
            if is_closed:
                stream.close()
            del stream, iterator
            gc.collect()
    assert len(assemblies(telemetry)) == len(server.requests) == (4 if client == "gemini" else 6)  # sent with a step
    stream = iter(stream_of(client, clients, question))
    first = next(stream)
    uninstrument()
    assert [first, *stream][1:]
    assert not warnings_in(caplog)


@pytest.mark.parametrize("chunks", [None, 0, 1], ids=["call", "stream", "read stream"])
async def test_a_cancelled_request_raises_the_cancellation(server, telemetry, clients, caplog, question, chunks):
    release = threading.Event()
    server.answers_all(lambda path, body: (release.wait(9), any_answer(path, body, "Late."))[1])
    if chunks is not None:
        release.set()
    started = asyncio.Event()

    async def program():
        async with clients.openai_async as client:
            started.set()
            answer = await client.chat.completions.create(
                model="m", messages=[user(question)], stream=chunks is not None
            )
            for _ in range(chunks):
                await anext(answer)
            await asyncio.sleep(9)

    task = asyncio.create_task(program())
    await started.wait()
    while not server.requests:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    assert len(assemblies(telemetry)) == 1
    assert not warnings_in(caplog)


def test_threads_without_the_context_have_assemblies(clients, telemetry, question):
    def ask(number):
        chat(clients, [user(f"{question} {number}")])

    with conversation("order-17"):
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    spans = assemblies(telemetry)
    assert len(spans) == 4
    assert {span.attributes.get("gen_ai.conversation.id") for span in spans} == {None}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_continues_the_conversation(clients, server, telemetry, question):
    messages = [user(question)]
    messages += [chat(clients, messages).choices[0].message, user("And then?")]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            telemetry.clear()
            client = openai.OpenAI(api_key="k", base_url=server.url, max_retries=0)
            client.chat.completions.create(model="m", messages=messages)
            (span,) = assemblies(telemetry)
            status = 0 if span.attributes["assembly.events.out"] == 3 else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    chat(clients, messages)
    assert [span.attributes["assembly.events.out"] for span in assemblies(telemetry)] == [1, 3]


class Broken(SpanProcessor):
    """A span processor that fails."""

    def on_start(self, span, parent_context=None):
        raise RuntimeError("the processor is broken")

    on_end = on_start


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_broken_exporter_does_not_reach_the_program(server, caplog, question, stream):
    provider = TracerProvider()
    provider.add_span_processor(Broken())
    instrument("openai", tracer_provider=provider)
    try:
        clients = SimpleNamespace(openai=openai.OpenAI(api_key="k", base_url=server.url))
        with conversation("order-17"):
            for _ in range(3):
                answer = chat(clients, [user(question)], stream=stream)
                assert not stream or len(list(answer)) == 5
    finally:
        uninstrument()
    assert len(server.requests) == 3
    assert len(warnings_in(caplog)) == len({*warnings_in(caplog)})  # one for each kind of record
