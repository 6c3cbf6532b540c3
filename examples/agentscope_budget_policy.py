"""A token budget for an AgentScope agent, which keeps the newest request and complete tool calls.

A scripted model calls a tool ten times in one reply, so the example needs no network. AgentScope keeps all calls in one
message; `AssemblyMiddleware` sends the part that fits the budget.

    python examples/agentscope_budget_policy.py
"""

from __future__ import annotations

import asyncio
from typing import Any

from agentscope.agent import Agent
from agentscope.credential import CredentialBase
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import Msg, TextBlock, ToolCallBlock, UserMsg
from agentscope.model import ChatModelBase, ChatResponse
from agentscope.permission import PermissionBehavior, PermissionDecision
from agentscope.tool import FunctionTool, ToolChunk, Toolkit
from pydantic import BaseModel

from otel_assembly import BudgetPolicy
from otel_assembly.instrumentation.agentscope import AssemblyMiddleware

BUDGET = 1_500


class ScriptedModel(ChatModelBase):
    """A scripted model that prints how many tool results it received, then calls the tool, ten times in all."""

    class Parameters(BaseModel):
        """The model has no parameters."""

    def __init__(self) -> None:
        super().__init__(CredentialBase(), "gpt-4o", self.Parameters(), stream=False, max_retries=0)
        self.formatter = OpenAIChatFormatter()
        self.asked = 0

    async def _call_api(self, model_name: str, messages: list[Msg], tools: Any = None, *_: Any, **__: Any) -> Any:
        self.asked += 1
        results = sum(len(message.get_content_blocks("tool_result")) for message in messages)
        print(f"call {self.asked:2}: {results} results of {self.asked - 1} were sent")
        if self.asked <= 10:
            call = ToolCallBlock(id=f"call-{self.asked}", name="fares", input=f'{{"day": {self.asked}}}')
            return ChatResponse(content=[call], is_last=True)
        first = next(message for message in messages if message.role == "user")
        return ChatResponse(content=[TextBlock(text=f"You asked: {first.get_text_content()}")], is_last=True)


def fares(day: int) -> ToolChunk:
    """Fares of one day.

    Args:
        day: The day.
    """
    text = f"On day {day}: " + ", ".join(f"flight {number} for {number + day} EUR" for number in range(40))
    return ToolChunk(content=[TextBlock(text=text)])


async def main() -> None:
    """Send one request; the model then makes ten tool calls and answers."""
    allowed = PermissionDecision(behavior=PermissionBehavior.ALLOW, message="reading is free")
    agent = Agent(
        "travel",
        "You find flights.",
        ScriptedModel(),
        toolkit=Toolkit(tools=[FunctionTool(fares, permission=allowed)]),
        middlewares=[AssemblyMiddleware([BudgetPolicy(window=BUDGET + 200, output_reserve=200)])],
    )
    answer = await agent.reply(UserMsg("customer", "Which day in May is the cheapest?"))
    print(answer.get_text_content())
    print(f"The agent itself still has {len(agent.state.context[-1].content)} blocks.")


if __name__ == "__main__":
    asyncio.run(main())
