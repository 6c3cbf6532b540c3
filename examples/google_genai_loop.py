"""A tool loop with Google's client `google-genai` and no framework, without any code for otel-assembly.

    opentelemetry-instrument python examples/google_genai_loop.py

A local server replaces the provider. It recommends a dish without nuts while the request contains the guest's first
message. The loop sends the newest two turns, so the third answer recommends a dish with nuts.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.genai import Client, types

GUEST = "I am allergic to nuts. Recommend me a dinner, please."
COURSES = ("the starter", "the main course", "the cheese", "the dessert")
SYSTEM = "You are a waiter. Recommend what suits the guest."
PARAMETERS = {"type": "object", "properties": {"course": {"type": "string"}}, "required": ["course"]}
FUNCTION = types.FunctionDeclaration(
    name="dishes_for", description="Look up the dishes for a course.", parameters_json_schema=PARAMETERS
)
CONFIG = types.GenerateContentConfig(system_instruction=SYSTEM, tools=[types.Tool(function_declarations=[FUNCTION])])
#: The newest turns, each a request and all that follows it, that the loop sends.
TURNS = 2


def dishes_for(course: str) -> str:
    """Look up the dishes for a course."""
    return f"For {course}: number 1, without nuts, or number 2, with walnuts. " + "Both come with bread. " * 12


def answer(client: Client, turns: list[list[Any]]) -> str:
    """Call the model, and the tools that it asks for, until it answers."""
    while True:
        contents = [content for turn in turns[-TURNS:] for content in turn]
        response: Any = client.models.generate_content(model="gemini-2.5-flash", contents=contents, config=CONFIG)
        turns[-1].append(response.candidates[0].content)
        if not response.function_calls:
            return str(response.text)
        results = [
            types.Part.from_function_response(name=call.name, response={"result": dishes_for(**call.args)})
            for call in response.function_calls
        ]
        turns[-1].append(types.UserContent(results))


class Provider(BaseHTTPRequestHandler):
    """A scripted model that calls the tool, then recommends a dish."""

    def do_POST(self) -> None:
        """Return the scripted response."""
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        newest = request["contents"][-1]["parts"][0]
        if "text" in newest:
            course = next(course for course in COURSES if course in newest["text"])
            part: dict[str, Any] = {"functionCall": {"name": "dishes_for", "args": {"course": course}}}
        else:
            knows = "allergic" in json.dumps(request["contents"])
            part = {"text": "Take number 1." if knows else "Take number 2, the walnuts are fresh."}
        candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
        body = json.dumps({"candidates": [candidate]}).encode()
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
        url = f"http://127.0.0.1:{server.server_port}"
        client = Client(api_key="none", http_options=types.HttpOptions(base_url=url))
        turns: list[list[Any]] = []
        for number, course in enumerate(COURSES):
            said = f"{GUEST} First {course}." if number == 0 else f"And {course}?"
            print("guest:", said)
            turns.append([types.UserContent(said)])
            print("waiter:", answer(client, turns))
        client.close()
        server.shutdown()


if __name__ == "__main__":
    main()
