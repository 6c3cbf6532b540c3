"""A token budget for an agent of Microsoft's agent-framework, which keeps the request and complete tool calls.

A scripted model calls a tool ten times in one run, so the example needs no network. The session keeps all messages.

    python examples/agent_framework_budget_policy.py
"""

from __future__ import annotations

import asyncio
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    Message,
)

from otel_assembly import BudgetPolicy
from otel_assembly.instrumentation.agent_framework import AssemblyMiddleware

REQUEST = "I use a wheelchair. Which of the ten rooms can I visit?"


def room(number: int) -> str:
    """Look up a room."""
    return f"Room {number}: by the lift. " + "Do not touch the frames. " * 30


class Guide(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """A scripted model that prints how many messages it received, then calls the tool for the next room."""

    model = "gpt-4o"
    asked = 0

    async def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **_: Any) -> ChatResponse:
        knows = any("wheelchair" in message.text for message in messages)
        print(f"{len(messages)} messages; it knows of the wheelchair: {knows}")
        if self.asked == 10:
            return ChatResponse(messages=[Message("assistant", ["All ten."])])
        self.asked += 1
        call = Content.from_function_call(str(self.asked), "room", arguments={"number": self.asked})
        return ChatResponse(messages=[Message("assistant", [call])])


plugin = AssemblyMiddleware([BudgetPolicy(window=1_000, output_reserve=200)])
agent = Agent(
    Guide(),
    "You guide guests through a museum.",
    name="guide",
    tools=[room],
    middleware=[plugin, plugin.tools],
)


async def main() -> None:
    """Ask the agent one question, and print its answer."""
    session = agent.create_session()
    answer = await agent.run(REQUEST, session=session)
    print(answer.text, f"The session has {len(session.state['in_memory']['messages'])} messages.")


if __name__ == "__main__":
    asyncio.run(main())
