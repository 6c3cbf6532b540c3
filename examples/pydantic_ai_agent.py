"""An agent on Pydantic AI with a tool and a history processor, without any code for otel-assembly.

    opentelemetry-instrument python examples/pydantic_ai_agent.py

A scripted model replaces the provider. It describes a way without stairs while the prompt contains the guest's first
message. The processor keeps the newest six messages, so the second answer leads up the stairs.
"""

from __future__ import annotations

import asyncio

from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

GUEST = "I use a wheelchair. Guide me through the museum, please."
ROOMS = ("the hall", "the portraits", "the sculptures", "the tower")


def keep_recent(messages: list[ModelMessage]) -> list[ModelMessage]:
    """Keep the newest six messages."""
    return messages[-6:]


def way_to(room: str) -> str:
    """Look up how to get to a room."""
    return f"To {room}: the stairs on the left, or the lift behind the desk. " + "Do not touch the frames. " * 12


def guide(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """A scripted model that calls the tool, then describes the way."""
    newest = messages[-1]
    asked = [part for part in newest.parts if isinstance(newest, ModelRequest)]
    if not any(isinstance(part, ToolReturnPart) for part in asked):
        room = next((room for room in reversed(ROOMS) if room in str(newest)), ROOMS[0])
        return ModelResponse([ToolCallPart("way_to", {"room": room})])
    if "wheelchair" in str(messages):
        return ModelResponse([TextPart("Take the lift behind the desk.")])
    return ModelResponse([TextPart("Take the stairs on the left.")])


agent = Agent(
    FunctionModel(guide, model_name="gpt-4o"),
    name="guide",
    instructions="You guide guests through a museum. Say the way that suits them.",
    tools=[way_to],
    capabilities=[ProcessHistory(keep_recent)],
)


async def main() -> None:
    """Ask for several rooms, one after the other, in one conversation."""
    history: list[ModelMessage] = []
    for number, room in enumerate(ROOMS):
        said = f"{GUEST} First to {room}." if number == 0 else f"And now to {room}?"
        print("guest:", said)
        result = await agent.run(said, message_history=history)
        history = result.all_messages()
        print("guide:", result.output)


if __name__ == "__main__":
    asyncio.run(main())
