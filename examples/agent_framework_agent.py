"""A booking agent on Microsoft's agent-framework, without any code for otel-assembly.

Its strategy keeps the last three groups of messages, so the model soon no longer receives the original request:

    opentelemetry-instrument python examples/agent_framework_agent.py
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
    SlidingWindowStrategy,
)
from agent_framework.observability import ChatTelemetryLayer

ASKS = (
    "Book a table for six on Friday. Ann is allergic to nuts: the kitchen has to know.",
    "Make it eight o'clock.",
    "Outside, if it stays dry.",
    "Then confirm it, with everything the kitchen has to know.",
)


def free_tables(day: str, people: int) -> str:
    """Restaurants that have a table left."""
    return f"{day}, {people} people: Da Nino, The Anchor"


def weather(day: str) -> str:
    """The weather on a day."""
    return f"{day}: dry, 24 degrees"


def call(call_id: str, name: str, arguments: str) -> Content:
    return Content.from_function_call(call_id, name, arguments=arguments)


class Model(FunctionInvocationLayer, ChatMiddlewareLayer, ChatTelemetryLayer, BaseChatClient):
    """A scripted model, so the example needs no network and no API key."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = [
            call("1", "free_tables", '{"day": "Friday", "people": 6}'),
            "Da Nino and The Anchor have a table for six on Friday. Which one, and when?",
            "Da Nino at eight, then. Inside or outside?",
            call("2", "weather", '{"day": "Friday"}'),
            "It stays dry: a table outside.",
            "Confirmed: Da Nino, Friday at eight, outside. I know of nothing that the kitchen has to know.",
        ]

    async def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **_: Any) -> ChatResponse:
        return ChatResponse(messages=[Message("assistant", [self.answers.pop(0)])])


async def main() -> None:
    agent = Agent(
        Model(),
        "You book tables. Ask for what you need to know.",
        name="booking",
        tools=[free_tables, weather],
        compaction_strategy=SlidingWindowStrategy(keep_last_groups=3),
    )
    session = agent.create_session()
    for ask in ASKS:
        print(f"user:    {ask}")
        print(f"booking: {await agent.run(ask, session=session)}")


if __name__ == "__main__":
    asyncio.run(main())
