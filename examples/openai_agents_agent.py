"""An agent on the OpenAI Agents SDK with a tool and a session, without any code for otel-assembly.

    opentelemetry-instrument python examples/openai_agents_agent.py

A scripted model replaces the provider. It describes a way without stairs while the prompt contains the guest's first
message. The session returns its newest three items, so the second answer leads up the stairs.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from agents import (
    Agent,
    Model,
    ModelResponse,
    RunConfig,
    Runner,
    SessionSettings,
    SQLiteSession,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

GUEST = "I use a wheelchair. Guide me through the museum, please."
ROOMS = ("the hall", "the portraits", "the sculptures", "the tower")


@function_tool
def way_to(room: str) -> str:
    """Look up how to get to a room."""
    return f"To {room}: the stairs on the left, or the lift behind the desk. " + "Do not touch the frames. " * 12


class Guide(Model):
    """A scripted model that calls the tool, then describes the way."""

    model = "gpt-4o"

    async def get_response(self, *_: Any, **given: Any) -> ModelResponse:
        """Return the scripted response."""
        newest = given["input"][-1]
        if newest.get("type") == "function_call_output":
            knows = "wheelchair" in str(given["input"])
            said = "Take the lift behind the desk." if knows else "Take the stairs on the left."
            return _answer(_says(said, f"answer to {newest['call_id']}"))
        room = next((room for room in reversed(ROOMS) if room in str(newest)), ROOMS[0])
        call = ResponseFunctionToolCall(
            name="way_to", arguments=json.dumps({"room": room}), call_id=f"way to {room}", type="function_call"
        )
        return _answer(call)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        """Streaming is not supported."""
        raise NotImplementedError


def _says(text: str, name: str) -> ResponseOutputMessage:
    said = ResponseOutputText(text=text, type="output_text", annotations=[], logprobs=[])
    return ResponseOutputMessage(id=name, content=[said], role="assistant", status="completed", type="message")


def _answer(item: ResponseFunctionToolCall | ResponseOutputMessage) -> ModelResponse:
    return ModelResponse(output=[item], usage=Usage(), response_id=None)


agent = Agent(
    "guide",
    instructions="You guide guests through a museum. Say the way that suits them.",
    model=Guide(),
    tools=[way_to],
)


async def main() -> None:
    """Ask for several rooms, one after the other, in one conversation."""
    set_tracing_disabled(True)  # export no traces to OpenAI
    session = SQLiteSession("museum")
    # The setting that loses the guest's first message.
    config = RunConfig(session_settings=SessionSettings(limit=3))
    for number, room in enumerate(ROOMS):
        said = f"{GUEST} First to {room}." if number == 0 else f"And now to {room}?"
        print("guest:", said)
        result = await Runner.run(agent, said, session=session, run_config=config)
        print("guide:", result.final_output)
    session.close()


if __name__ == "__main__":
    asyncio.run(main())
