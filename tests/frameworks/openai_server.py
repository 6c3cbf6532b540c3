"""A server of OpenAI's Responses that needs no network: it answers each request, and notes what it was sent."""

from __future__ import annotations

import json

import httpx


class Responses:
    """Answers with texts; the first answer may call a tool.

    Attributes:
        requests: The bodies of the requests.
        transport: What an HTTP client is given to reach the server.
    """

    def __init__(self, tool=None):
        self.requests = []
        self.tool = tool
        self.transport = httpx.MockTransport(self._respond)

    @property
    def continued_from(self):
        """What each request goes on from, which OpenAI holds."""
        return [request.get("previous_response_id") or request.get("conversation") for request in self.requests]

    def _respond(self, request):
        self.requests.append(json.loads(request.content))
        number = len(self.requests)
        call = {"type": "function_call", "id": "fc1", "call_id": "c1", "name": self.tool, "arguments": "{}"}
        text = {"type": "output_text", "text": f"Answer {number}.", "annotations": []}
        message = {"type": "message", "id": f"m{number}", "role": "assistant", "status": "completed", "content": [text]}
        body = {
            "id": f"resp_{number}",
            "object": "response",
            "created_at": 1,
            "model": "gpt-4o",
            "status": "completed",
            "output": [call if self.tool and number == 1 else message],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": {
                "input_tokens": 1,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": 1,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": 2,
            },
        }
        return httpx.Response(200, json=body)
