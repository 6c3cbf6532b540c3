"""An AgentScope agent whose context compression loses the first request. It has no code for otel-assembly.

A scripted model replaces the provider. Its summaries fail, as if a provider refused a long prompt. AgentScope then
truncates the context and logs a warning. The order number in the first message is lost, which the answer shows.

    OTEL_ASSEMBLY_SPAN_FILE=spans.jsonl OTEL_TRACES_EXPORTER=otel_assembly_file opentelemetry-instrument \
        python examples/agentscope_agent.py
    otel-assembly explain --traces spans.jsonl --turn 5 --item 0
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from agentscope.agent import Agent, ContextConfig
from agentscope.credential import CredentialBase
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import Msg, TextBlock, UserMsg
from agentscope.model import ChatModelBase, ChatResponse, ChatUsage
from pydantic import BaseModel

PROBLEM = "It will not turn on, and I have tried every socket in the house. " * 25


class ScriptedModel(ChatModelBase):
    """A scripted model that answers from the messages that it receives, and fails to summarize."""

    class Parameters(BaseModel):
        """The model has no parameters."""

    def __init__(self) -> None:
        super().__init__(CredentialBase(), "gpt-4o", self.Parameters(), stream=False, max_retries=0, context_size=2_500)
        self.formatter = OpenAIChatFormatter()

    async def _call_api(self, model_name: str, messages: list[Msg], tools: Any = None, *_: Any, **__: Any) -> Any:
        if tools and tools[0]["function"]["name"] == "generate_structured_output":
            raise ConnectionError("the provider refused the prompt")
        requests = [message.get_text_content() or "" for message in messages if message.role == "user"]
        if "refund" not in requests[-1]:
            says = "I see."
        elif any("4711" in text for text in requests):
            says = "Order 4711 is refunded."
        else:
            says = "Gladly! Which order is it?"
        usage = ChatUsage(input_tokens=sum(map(len, requests)) // 4, output_tokens=8, time=0.0)
        return ChatResponse(content=[TextBlock(text=says)], is_last=True, usage=usage)


async def main() -> None:
    """Mention the order first, then other subjects, and ask for the refund last."""
    agent = Agent("support", "You refund orders.", ScriptedModel(), context_config=ContextConfig(reserve_ratio=0.3))
    for text in ("My order is 4711: a kettle.", *[PROBLEM] * 5, "Please refund it."):
        answer = await agent.reply(UserMsg("customer", text))
        print(f"customer: {text[:60]}\nsupport:  {answer.get_text_content()}")


if __name__ == "__main__":
    logging.getLogger("as").setLevel(logging.ERROR)
    asyncio.run(main())
