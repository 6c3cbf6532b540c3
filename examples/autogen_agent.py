"""A booking agent on AutoGen, without any code for otel-assembly.

Its model context keeps the last four messages, so the model soon no longer receives the original request:

    opentelemetry-instrument python examples/autogen_agent.py
"""

from __future__ import annotations

import asyncio
import logging

from autogen_agentchat.agents import AssistantAgent
from autogen_core import FunctionCall
from autogen_core.model_context import BufferedChatCompletionContext
from autogen_core.models import CreateResult, ModelInfo, RequestUsage
from autogen_ext.models.replay import ReplayChatCompletionClient

logging.getLogger("autogen_core").setLevel(logging.ERROR)

ASKS = (
    "Book a table for six on Friday. Ann is allergic to nuts: the kitchen has to know.",
    "Make it eight o'clock.",
    "Outside, if it stays dry.",
    "Then confirm it, with everything the kitchen has to know.",
)


async def free_tables(day: str, people: int) -> str:
    """Restaurants that have a table left."""
    return f"{day}, {people} people: Da Nino, The Anchor"


async def weather(day: str) -> str:
    """The weather on a day."""
    return f"{day}: dry, 24 degrees"


def call(call_id: str, name: str, arguments: str) -> CreateResult:
    return CreateResult(
        finish_reason="function_calls",
        content=[FunctionCall(id=call_id, name=name, arguments=arguments)],
        usage=RequestUsage(prompt_tokens=0, completion_tokens=0),
        cached=False,
    )


# The responses are scripted, so the example needs no network and no API key.
ANSWERS = [
    call("1", "free_tables", '{"day": "Friday", "people": 6}'),
    "Da Nino and The Anchor have a table for six on Friday. Which one, and when?",
    "Da Nino at eight, then. Inside or outside?",
    call("2", "weather", '{"day": "Friday"}'),
    "It stays dry: a table outside.",
    "Confirmed: Da Nino, Friday at eight, outside. I know of nothing that the kitchen has to know.",
]


async def main() -> None:
    info = ModelInfo(vision=False, function_calling=True, json_output=False, family="unknown", structured_output=False)
    agent = AssistantAgent(
        "booking",
        ReplayChatCompletionClient(ANSWERS, model_info=info),
        tools=[free_tables, weather],
        system_message="You book tables. Ask for what you need to know.",
        model_context=BufferedChatCompletionContext(buffer_size=4),
        reflect_on_tool_use=True,
    )
    for ask in ASKS:
        print(f"user:    {ask}")
        result = await agent.run(task=ask)
        print(f"booking: {result.messages[-1].to_text()}")


if __name__ == "__main__":
    asyncio.run(main())
