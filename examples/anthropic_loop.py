"""A tool loop with Anthropic's client and no framework, without any code for otel-assembly.

    opentelemetry-instrument python examples/anthropic_loop.py

A local server replaces the provider. It recommends a dish without nuts while the request contains the guest's first
message. The loop sends the newest two turns, so the third answer recommends a dish with nuts.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from anthropic import Anthropic

GUEST = "I am allergic to nuts. Recommend me a dinner, please."
COURSES = ("the starter", "the main course", "the cheese", "the dessert")
SYSTEM = "You are a waiter. Recommend what suits the guest."
PARAMETERS = {"type": "object", "properties": {"course": {"type": "string"}}, "required": ["course"]}
TOOL: Any = {"name": "dishes_for", "description": "Look up the dishes for a course.", "input_schema": PARAMETERS}
#: The newest turns, each a request and all that follows it, that the loop sends.
TURNS = 2


def dishes_for(course: str) -> str:
    """Look up the dishes for a course."""
    return f"For {course}: number 1, without nuts, or number 2, with walnuts. " + "Both come with bread. " * 12


def answer(client: Anthropic, turns: list[list[Any]]) -> str:
    """Call the model, and the tools that it asks for, until it answers."""
    while True:
        messages = [message for turn in turns[-TURNS:] for message in turn]
        response: Any = client.messages.create(
            model="claude-sonnet-5", max_tokens=500, system=SYSTEM, messages=messages, tools=[TOOL]
        )
        turns[-1].append({"role": "assistant", "content": response.content})
        calls = [block for block in response.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in response.content)
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": dishes_for(**call.input)} for call in calls
        ]
        turns[-1].append({"role": "user", "content": results})


class Provider(BaseHTTPRequestHandler):
    """A scripted model that calls the tool, then recommends a dish."""

    def do_POST(self) -> None:
        """Return the scripted response."""
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        newest = request["messages"][-1]["content"]
        if isinstance(newest, str):
            course = next(course for course in COURSES if course in newest)
            tool_id = f"toolu_{COURSES.index(course)}"
            block = {"type": "tool_use", "id": tool_id, "name": "dishes_for", "input": {"course": course}}
        else:
            knows = "allergic" in json.dumps(request["messages"])
            block = {"type": "text", "text": "Take number 1." if knows else "Take number 2, the walnuts are fresh."}
        head = {"id": "msg_1", "type": "message", "role": "assistant", "model": request["model"]}
        usage = {"input_tokens": 1, "output_tokens": 1}
        body = json.dumps({**head, "content": [block], "stop_reason": "end_turn", "usage": usage}).encode()
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
        client = Anthropic(base_url=f"http://127.0.0.1:{server.server_port}", api_key="none")
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
