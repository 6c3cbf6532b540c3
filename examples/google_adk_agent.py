"""An agent on Google ADK with a tool and a plugin that filters the context, without any code for otel-assembly.

    opentelemetry-instrument python examples/google_adk_agent.py

A scripted model replaces the provider. It describes a way without stairs while the prompt contains the guest's first
message. The plugin keeps the newest two invocations, so the third answer leads up the stairs.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from google.adk.agents import Agent
from google.adk.apps import App
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.plugins.context_filter_plugin import ContextFilterPlugin
from google.adk.runners import InMemoryRunner
from google.genai import types

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

GUEST = "I use a wheelchair. Guide me through the museum, please."
ROOMS = ("the hall", "the portraits", "the sculptures", "the tower")


class Guide(BaseLlm):
    """A scripted model that calls the tool, then describes the way."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield the scripted response to a request."""
        newest = llm_request.contents[-1]
        if newest.parts[0].function_response is None:
            room = next((room for room in reversed(ROOMS) if room in newest.parts[0].text), ROOMS[0])
            part = types.Part.from_function_call(name="way_to", args={"room": room})
        elif "wheelchair" in str(llm_request.contents):
            part = types.Part(text="Take the lift behind the desk.")
        else:
            part = types.Part(text="Take the stairs on the left.")
        used = types.GenerateContentResponseUsageMetadata(prompt_token_count=len(str(llm_request.contents)) // 4)
        yield LlmResponse(content=types.Content(role="model", parts=[part]), usage_metadata=used)


def way_to(room: str) -> str:
    """Look up how to get to a room."""
    return f"To {room}: the stairs on the left, or the lift behind the desk. " + "Do not touch the frames. " * 12


agent = Agent(
    name="guide",
    model=Guide(model="gpt-4o"),
    instruction="You guide guests through a museum. Say the way that suits them.",
    tools=[way_to],
)
# The setting that loses the guest's first message.
app = App(name="museum", root_agent=agent, plugins=[ContextFilterPlugin(num_invocations_to_keep=2)])


async def main() -> None:
    """Ask for several rooms, one after the other, in one session."""
    runner = InMemoryRunner(app=app)
    session = await runner.session_service.create_session(app_name="museum", user_id="guest")
    for number, room in enumerate(ROOMS):
        said = f"{GUEST} First to {room}." if number == 0 else f"And now to {room}?"
        print("guest:", said)
        message = types.UserContent(parts=[types.Part(text=said)])
        async for event in runner.run_async(user_id="guest", session_id=session.id, new_message=message):
            if event.is_final_response():
                print("guide:", event.content.parts[0].text)


if __name__ == "__main__":
    asyncio.run(main())
