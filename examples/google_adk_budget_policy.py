"""A token budget for a Google ADK agent, which keeps the newest request and complete tool calls.

A scripted model calls a tool ten times in one run, so the example needs no network. The session keeps all messages.

    python examples/google_adk_budget_policy.py
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from google.adk.agents import Agent
from google.adk.apps import App
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from otel_assembly import BudgetPolicy
from otel_assembly.instrumentation.google_adk import AssemblyPlugin

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

REQUEST = "I use a wheelchair. Which of the ten rooms can I visit?"


class Guide(BaseLlm):
    """A scripted model that prints how many messages it received, then calls the tool for the next room."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield the scripted response to a request."""
        sent = llm_request.contents
        asked = [part.function_call for content in sent for part in content.parts if part.function_call is not None]
        last = asked[-1].args["number"] if asked else 0
        print(f"{len(sent)} messages; it knows of the wheelchair: {'wheelchair' in str(sent)}")
        part = types.Part(text="All ten.")
        if last < 10:
            part = types.Part.from_function_call(name="room", args={"number": last + 1})
        used = types.GenerateContentResponseUsageMetadata(prompt_token_count=len(str(llm_request.contents)) // 4)
        yield LlmResponse(content=types.Content(role="model", parts=[part]), usage_metadata=used)


def room(number: int) -> str:
    """Look up a room."""
    return f"Room {number}: by the lift. " + "Do not touch the frames. " * 30


agent = Agent(name="guide", model=Guide(model="gpt-4o"), instruction="You guide guests through a museum.", tools=[room])
plugin = AssemblyPlugin([BudgetPolicy(window=1_000, output_reserve=200)])
app = App(name="museum", root_agent=agent, plugins=[plugin])


async def main() -> None:
    """Ask the agent one question, and print its answer."""
    runner = InMemoryRunner(app=app)
    session = await runner.session_service.create_session(app_name="museum", user_id="guest")
    where = {"user_id": "guest", "session_id": session.id}
    async for event in runner.run_async(**where, new_message=types.UserContent(parts=[types.Part(text=REQUEST)])):
        if event.is_final_response():
            answer = event.content.parts[0].text
    held = await runner.session_service.get_session(app_name="museum", **where)
    print(answer, f"The session has {len(held.events)} messages.")


if __name__ == "__main__":
    asyncio.run(main())
