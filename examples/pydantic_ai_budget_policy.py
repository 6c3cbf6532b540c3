"""A token budget for a Pydantic AI agent, which keeps the newest request and complete tool calls.

A scripted model calls a tool ten times in one run, so the example needs no network. The history keeps all messages.

    python examples/pydantic_ai_budget_policy.py
"""

from __future__ import annotations

import asyncio

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from otel_assembly import BudgetPolicy
from otel_assembly.instrumentation.pydantic_ai import AssemblyCapability

REQUEST = "I use a wheelchair. Which of the ten rooms can I visit?"


def room(number: int) -> str:
    """Look up a room."""
    return f"Room {number}: by the lift. " + "Do not touch the frames. " * 30


def guide(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """A scripted model that prints how many messages it received, then calls the tool for the next room."""
    asked = [part for message in messages for part in message.parts if isinstance(part, ToolCallPart)]
    last = asked[-1].args_as_dict()["number"] if asked else 0
    print(f"{len(messages)} messages; it knows of the wheelchair: {'wheelchair' in str(messages)}")
    if last < 10:
        return ModelResponse([ToolCallPart("room", {"number": last + 1})])
    return ModelResponse([TextPart("All ten.")])


agent = Agent(
    FunctionModel(guide, model_name="gpt-4o"),
    name="guide",
    instructions="You guide guests through a museum.",
    tools=[room],
    capabilities=[AssemblyCapability([BudgetPolicy(window=1_000, output_reserve=200)])],
)


async def main() -> None:
    """Ask the agent one question, and print its answer."""
    result = await agent.run(REQUEST)
    print(result.output, f"The history has {len(result.all_messages())} messages.")


if __name__ == "__main__":
    asyncio.run(main())
