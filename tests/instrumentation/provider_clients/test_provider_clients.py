"""Programs that call providers' clients themselves: one assembly for each request, and what the program omitted."""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections import Counter
from contextvars import Context
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import otel_assembly
from otel_assembly import Assembler, SlidingWindowPolicy, instrument, to_openai, uninstrument

openai = pytest.importorskip("openai", reason="openai is not installed")
anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed")


class Provider:
    """A server on loopback that answers each request with a text of its own, and keeps the bodies."""

    def __init__(self):
        self.bodies = []
        self.failures = []
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                provider.bodies.append(body)
                status = provider.failures.pop() if provider.failures else 200
                answer = provider.answer(self.path, body)
                data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
                self.send_response(status)
                kind = "text/event-stream" if isinstance(answer, str) else "application/json"
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, path, body):
        text = f"This is the answer number {len(self.bodies)}."
        if "chat" not in path:
            usage = {"input_tokens": 1, "output_tokens": 1}
            return {
                "id": f"msg_{len(self.bodies)}",
                "type": "message",
                "role": "assistant",
                "model": body["model"],
                "content": [{"type": "text", "text": text}],
                "stop_reason": "end_turn",
                "stop_sequence": None,
                "usage": usage,
            }
        shape = {"id": f"chatcmpl-{len(self.bodies)}", "created": 1, "model": body["model"]}
        if body.get("stream"):
            shape["object"] = "chat.completion.chunk"
            chunks = [{**shape, "choices": [{"index": 0, "delta": {"content": f"{word} "}}]} for word in text.split()]
            return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        message = {"role": "assistant", "content": text}
        return {
            **shape,
            "object": "chat.completion",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        }


@pytest.fixture
def provider():
    provider = Provider()
    yield provider
    provider.server.shutdown()
    provider.server.server_close()


@pytest.fixture
def client(provider, assembly_telemetry):
    instrument("openai", "anthropic")
    with openai.OpenAI(base_url=f"{provider.url}/v1", api_key="none") as client:
        yield client
    uninstrument()


def ask(client, messages, **settings):
    answer = client.chat.completions.create(model="gpt-4o", messages=messages, **settings)
    if settings.get("stream"):
        return "".join(chunk.choices[0].delta.content for chunk in answer).strip()
    return answer.choices[0].message.content


def window_loop(client, turns, **settings):
    """Keep the system prompt and the newest three messages, as many programs do."""
    messages = [{"role": "system", "content": "You are brief."}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Question {turn}"})
        messages = messages[:1] + messages[1:][-3:]
        messages.append({"role": "assistant", "content": ask(client, messages, **settings)})


def assemblies(telemetry):
    return [span.attributes for span in telemetry.spans_named("assemble_context")]


@pytest.mark.parametrize("settings", [{}, {"stream": True}], ids=["whole", "streamed"])
def test_each_request_has_one_assembly_that_shows_what_the_program_omitted(
    client, provider, assembly_telemetry, settings
):
    window_loop(client, 5, **settings)
    found = assemblies(assembly_telemetry)
    assert [attributes["assembly.events.out"] for attributes in found] == [
        len(body["messages"]) - 1 for body in provider.bodies
    ]
    assert [attributes["assembly.turn"] for attributes in found] == [0, 1, 2, 3, 4]
    assert [attributes["assembly.newly_dropped.count"] for attributes in found] == [0, 0, 2, 2, 2]
    steps = [span for span in assembly_telemetry.spans if span.name == "apply_policy caller"]
    assert {reason for step in steps for reason in step.attributes["assembly.dropped.reasons"]} == {"not_sent"}


def test_a_tool_result_that_is_edited_in_place_is_compacted(client, assembly_telemetry):
    call = {"id": "call_a1b2c3d4e5", "type": "function", "function": {"name": "look", "arguments": '{"at": "gate 14"}'}}
    messages = [
        {"role": "user", "content": "Where is my bag?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "found at gate 14 " * 50},
    ]
    messages.append({"role": "assistant", "content": ask(client, messages)})
    messages.append({"role": "user", "content": "And my other bag?"})
    messages.append({"role": "assistant", "content": ask(client, messages)})
    messages[2]["content"] = "[cleared]"
    messages.append({"role": "user", "content": "Thank you"})
    ask(client, messages)
    *earlier, last = assemblies(assembly_telemetry)
    assert [attributes["assembly.compacted.count"] for attributes in earlier] == [0, 0]
    assert (last["assembly.compacted.count"], last["assembly.dropped.count"]) == (1, 0)


def test_a_retry_inside_the_client_is_one_call(client, provider, assembly_telemetry):
    provider.failures = [500]
    ask(client.with_options(max_retries=1), [{"role": "user", "content": "Hello"}])
    assert len(provider.bodies) == 2
    assert len(assemblies(assembly_telemetry)) == 1


def test_anthropics_client_is_recorded_too(client, provider, assembly_telemetry):
    messages = [{"role": "user", "content": "Hello"}]
    asked = anthropic.Anthropic(base_url=provider.url, api_key="none").messages
    asked.create(model="claude-sonnet-5", max_tokens=9, system="You are brief.", messages=messages)
    (found,) = assemblies(assembly_telemetry)
    assert (found["assembly.framework"], found["assembly.events.out"], found["assembly.prompts.out"]) == (
        "anthropic",
        1,
        1,
    )


async def test_a_prompt_that_an_assembler_made_has_one_assembly(client, assembly_telemetry):
    messages = [{"role": "user", "content": f"Question {number}"} for number in range(6)]
    assembly = await Assembler([SlidingWindowPolicy(3)]).assemble(["You are brief."], messages)
    ask(client, to_openai(*assembly))
    (found,) = assemblies(assembly_telemetry)
    assert found.get("assembly.framework") is None


@pytest.mark.parametrize("messages", [5, None, [5], [{"role": "user", "content": object()}]])
def test_messages_of_a_wrong_type_fail_as_without_the_instrumentation(client, caplog, messages):
    raised = []
    for _ in range(2):
        with pytest.raises(Exception) as caught:  # whichever the client raises
            ask(client.with_options(base_url="http://127.0.0.1:9/v1", max_retries=0), messages)
        raised.append(type(caught.value))
        uninstrument()
    assert raised[0] is raised[1]
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) <= 1


def test_a_request_costs_the_same_function_calls_however_many_messages_are_unchanged(client):
    package = str(Path(otel_assembly.__file__).parent)
    entered = Counter()

    def count(frame, event, _):
        entered[event] += frame.f_code.co_filename.startswith(package)

    def calls_of_a_turn(length):
        roles = itertools.cycle(("user", "assistant"))
        messages = [{"role": next(roles), "content": f"{length} {number} " + "word " * 9} for number in range(length)]
        for turn in range(3):  # the first turn reads all messages
            messages.append({"role": "user", "content": f"Question {turn} of {length}"})
            entered.clear()
            if turn == 2:  # a profiled turn is slow
                sys.setprofile(count)
            try:
                answer = ask(client, messages)
            finally:
                sys.setprofile(None)
            messages.append({"role": "assistant", "content": answer})
        return entered["call"]

    # In an empty context no reduction waits that another test has recorded.
    first, second = (Context().run(calls_of_a_turn, length) for length in (10, 1_000))
    assert 100 < second <= first + 400  # one call per message would be 990 more
