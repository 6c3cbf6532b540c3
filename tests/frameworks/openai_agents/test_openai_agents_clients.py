"""The SDK's own models, over OpenAI's client: what the client sends is what is told."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
)
from openai import AsyncOpenAI
from openai_agents_models import Received, ScriptedModel, Stage
from openai_agents_programs import look
from recount import count, event_tokens

from otel_assembly.tokens import MessageFraming

MODELS = {"responses": OpenAIResponsesModel, "chat": OpenAIChatCompletionsModel}


class Server:
    """Answers on this machine as OpenAI does, first with two calls, and keeps what it was sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        answers = self._answer

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                answer = json.dumps(answers(body)).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.http.serve_forever, daemon=True).start()
        self.client = AsyncOpenAI(api_key="none", base_url=f"http://127.0.0.1:{self.http.server_port}")

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        self.sent.append(body)
        calls = len(self.sent) % 2 == 1
        usage: dict[str, Any] = dict.fromkeys(
            ("input_tokens", "output_tokens", "total_tokens", "prompt_tokens", "completion_tokens"), 1
        )
        usage["input_tokens_details"], usage["output_tokens_details"] = {"cached_tokens": 0}, {"reasoning_tokens": 0}
        ids = [f"call_{len(self.sent)}_{number}" for number in range(2)]
        if "input" in body:
            said = [{"type": "output_text", "text": "Done.", "annotations": []}]
            output: list[Any] = [
                {"type": "message", "id": f"m{len(self.sent)}", "role": "assistant", "status": "completed",
                 "content": said}
            ]  # fmt: skip
            if calls:
                output = [{"type": "function_call", "id": f"fc_{item_id}", "call_id": item_id, "name": "look",
                           "arguments": "{}", "status": "completed"} for item_id in ids]  # fmt: skip
            return {"id": f"r{len(self.sent)}", "object": "response", "created_at": 0, "model": body["model"],
                      "output": output, "tool_choice": "auto", "tools": [], "parallel_tool_calls": True,
                      "usage": usage}  # fmt: skip
        message: dict[str, Any] = {"role": "assistant", "content": "Done."}
        if calls:
            asked = [
                {"id": item_id, "type": "function", "function": {"name": "look", "arguments": "{}"}} for item_id in ids
            ]
            message = {"role": "assistant", "content": None, "tool_calls": asked}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return {"id": "c", "object": "chat.completion", "created": 0, "model": body["model"], "choices": [choice],
                  "usage": usage}  # fmt: skip


def said(body: dict[str, Any]) -> list[str]:
    """All texts of a request, in the order in which they are read."""
    found = []
    for item in body.get("input") or body["messages"]:
        if item.get("role") == "system" and "messages" in body:
            continue
        content = item.get("content") or item.get("output") or ""
        found += [content] if isinstance(content, str) else [part["text"] for part in content]
        calls = [call["function"] for call in item.get("tool_calls") or ()]
        calls += [item] if item.get("type") == "function_call" else []
        found += [text for call in calls for text in (call["name"], call["arguments"])]
    return [text for text in found if text]


@pytest.fixture
def server():
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


@pytest.mark.parametrize("kind", MODELS)
async def test_what_its_client_sends_is_what_is_told(told, kind, server):
    model = MODELS[kind](model="gpt-4o", openai_client=server.client)
    agent, session = Agent("real", instructions="Look.", model=model, tools=[look]), SQLiteSession(f"real {kind}")
    for turn in range(3):
        assert (await Runner.run(agent, f"Go {turn}", session=session)).final_output == "Done."
    spans = sorted(told.spans_named("assemble_context"), key=lambda span: span.end_ns)
    assert len(spans) == len(server.sent) == 6
    assert {span.attributes["assembly.model"] for span in spans} == {"gpt-4o"}
    assert [span.attributes["assembly.events.in"] for span in spans] == [1, 5, 7, 11, 13, 17]
    assert all(span.attributes["assembly.events.out"] == span.attributes["assembly.events.in"] for span in spans)
    assert all(not span.children for span in spans)
    arrived = [span.attributes.get("assembly.arrived.items") for span in spans]
    assert arrived == [["0"], ["1", "2", "3", "4"], ["5", "6"], ["7", "8", "9", "10"], ["11", "12"],
                       ["13", "14", "15", "16"]] or all(arrived)  # fmt: skip
    tools = [body["tools"] for body in server.sent]
    if kind == "responses":
        told_tokens = [span.attributes["assembly.tokens.out"] for span in spans]
        assert told_tokens == [_tokens(body, tools) for body, tools in zip(server.sent, tools, strict=True)]


def _tokens(body: dict[str, Any], tools: list[Any]) -> int:
    received = Received(body["instructions"], body["input"], [], body["model"])
    schemas = [{"type": "function", "function": {name: tool[name] for name in ("name", "description", "parameters")}}
               for tool in tools]  # fmt: skip
    assert said(body) == [text for event in received.events for text in event.texts]
    assert sum(map(event_tokens, received.events)) > 0
    return received.tokens + MessageFraming().tool_schemas(schemas, count)


async def test_a_guardrail_s_agent_beside_the_first_turn_is_in_the_same_trace(told):
    stage = Stage()
    checker = Agent("checker", model=ScriptedModel(stage, "Fine."))

    async def check(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        await Runner.run(checker, given, context=ctx.context)
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

    model = ScriptedModel(stage, "call:look", "Done.")
    agent = Agent("guarded", model=model, tools=[look], input_guardrails=[InputGuardrail(check)])
    assert (await Runner.run(agent, "Go")).final_output == "Done."
    spans = told.spans_named("assemble_context")
    assert sorted(span.attributes["gen_ai.agent.name"] for span in spans) == ["checker", "guarded", "guarded"]
    assert [span.name for span in told.spans if span.parent is None] == ["invoke_agent guarded"]
    assert sorted(span.attributes["assembly.tokens.out"] for span in spans) == sorted(
        request.tokens for request in stage.received
    )


async def test_in_a_span_of_the_program_s_own_a_run_has_none_of_ours(told):
    agent = Agent("inside", model=ScriptedModel(Stage(), "Done."))
    with told.tracer_provider.get_tracer("theirs").start_as_current_span("request"):
        await Runner.run(agent, "Go")
        result = Runner.run_streamed(agent, "Go")
        assert [event async for event in result.stream_events()]
    assert {span.parent.name for span in told.spans_named("assemble_context")} == {"request"}
    assert len({span.trace_id for span in told.spans}) == 1
