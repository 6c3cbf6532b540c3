"""A tool loop with OpenAI's client and no framework, without any code for otel-assembly.

    opentelemetry-instrument python examples/openai_loop.py

A local server replaces the provider. It recommends a dish without nuts while the request contains the guest's first
message. The loop sends the newest two turns, so the third answer recommends a dish with nuts.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from openai import OpenAI

GUEST = "I am allergic to nuts. Recommend me a dinner, please."
COURSES = ("the starter", "the main course", "the cheese", "the dessert")
SYSTEM = {"role": "system", "content": "You are a waiter. Recommend what suits the guest."}
PARAMETERS = {"type": "object", "properties": {"course": {"type": "string"}}, "required": ["course"]}
FUNCTION = {"name": "dishes_for", "description": "Look up the dishes for a course.", "parameters": PARAMETERS}
#: The newest turns, each a request and all that follows it, that the loop sends.
TURNS = 2


def dishes_for(course: str) -> str:
    """Look up the dishes for a course."""
    return f"For {course}: number 1, without nuts, or number 2, with walnuts. " + "Both come with bread. " * 12


def answer(client: OpenAI, turns: list[list[Any]]) -> str:
    """Call the model, and the tools that it asks for, until it answers."""
    while True:
        messages = [SYSTEM, *(message for turn in turns[-TURNS:] for message in turn)]
        tools: Any = [{"type": "function", "function": FUNCTION}]
        message = client.chat.completions.create(model="gpt-4o", messages=messages, tools=tools).choices[0].message
        turns[-1].append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content or ""
        for call in message.tool_calls:
            dishes = dishes_for(**json.loads(call.function.arguments))
            turns[-1].append({"role": "tool", "tool_call_id": call.id, "content": dishes})


class Provider(BaseHTTPRequestHandler):
    """A scripted model that calls the tool, then recommends a dish."""

    def do_POST(self) -> None:
        """Return the scripted response."""
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        newest = request["messages"][-1]
        if newest["role"] == "tool":
            knows = "allergic" in json.dumps(request["messages"])
            message = {"content": "Take number 1." if knows else "Take number 2, the walnuts are fresh."}
        else:
            course = next(course for course in COURSES if course in newest["content"])
            function = {"name": "dishes_for", "arguments": json.dumps({"course": course})}
            message = {"content": None, "tool_calls": [{"id": course, "type": "function", "function": function}]}
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **message}}
        head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": request["model"]}
        body = json.dumps({**head, "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Print no line for each request."""


def main() -> None:
    """Ask for several courses, one after the other, in one conversation."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Provider) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none")
        turns: list[list[Any]] = []
        for number, course in enumerate(COURSES):
            said = f"{GUEST} First {course}." if number == 0 else f"And {course}?"
            print("guest:", said)
            turns.append([{"role": "user", "content": said}])
            print("waiter:", answer(client, turns))
        client.close()
        server.shutdown()


if __name__ == "__main__":
    main()
