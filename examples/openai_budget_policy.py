"""A token budget for a tool loop with OpenAI's client, which keeps the newest request and complete tool calls.

A local server replaces the provider. It calls a tool ten times, and prints how many messages arrive. The loop sends its
whole history in each request.

    python examples/openai_budget_policy.py
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from openai import OpenAI

from otel_assembly import BudgetPolicy, bounded, conversation

REQUEST = "My daughter has asthma. Which of the ten paints can we have?"
TOOL: Any = {"type": "function", "function": {"name": "paint", "parameters": {"type": "object", "properties": {}}}}


class Provider(BaseHTTPRequestHandler):
    """A scripted model that prints how many messages it received, then calls the tool for the next paint."""

    def do_POST(self) -> None:
        """Return the scripted response to the messages."""
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        messages = request["messages"]
        print(f"{len(messages)} messages; it knows of the asthma: {'asthma' in json.dumps(messages)}")
        last = max((int(message.get("tool_call_id", 0)) for message in messages), default=0)
        message: dict[str, Any] = {"role": "assistant", "content": "All ten."}
        if last < 10:
            function = {"name": "paint", "arguments": "{}"}
            call = {"id": str(last + 1), "type": "function", "function": function}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": request["model"]}
        body = json.dumps({**head, "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Print no line for each request."""


def answer(client: OpenAI, messages: list[Any]) -> str:
    """Call the model, and the tool that it asks for, until it answers."""
    while True:
        message = client.chat.completions.create(model="gpt-4o", messages=messages, tools=[TOOL]).choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content or ""
        for call in message.tool_calls:
            paint = f"Paint {call.id}: water-based. " + "Stir well and keep from frost. " * 30
            messages.append({"role": "tool", "tool_call_id": call.id, "content": paint})


def main() -> None:
    """Ask one question, and print its answer."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Provider) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        original = OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none")
        client = bounded(original, [BudgetPolicy(window=1_000, output_reserve=200)])
        messages: list[Any] = [
            {"role": "system", "content": "You work in a paint shop."},
            {"role": "user", "content": REQUEST},
        ]
        with conversation("paints", agent="adviser"):
            print(answer(client, messages), f"The history has {len(messages)} messages.")
        original.close()
        server.shutdown()


if __name__ == "__main__":
    main()
