"""A token budget for an AG2 agent: `BudgetPolicy` in AG2's own list of policies. It needs no network.

    python examples/ag2_budget_policy.py

AG2's own token budget counts the printed form of an event, which is truncated at 80 characters, so a long document
exceeds it. `BudgetPolicy` counts the content that the model receives, and never drops the newest user request.
"""

from __future__ import annotations

import asyncio

from ag2 import Agent, Context
from ag2.events import BaseEvent, ModelRequest, ToolCallEvent
from ag2.policies import AlertPolicy
from ag2.testing import TestConfig

from otel_assembly import BudgetPolicy
from otel_assembly.instrumentation.ag2 import AssembledPolicy


class Seen:
    """An AG2 policy that prints the events that the previous policy kept, and changes nothing."""

    name = "seen"

    async def apply(
        self, prompts: list[str], events: list[BaseEvent], context: Context
    ) -> tuple[list[str], list[BaseEvent]]:
        requests = [event for event in events if isinstance(event, ModelRequest)]
        characters = sum(len(part.content) for event in requests for part in event.parts)
        print(f"   model  sees {len(events)} events; of the user {len(requests)} requests, {characters} characters")
        return prompts, events


def read_handbook(page: int) -> str:
    """Read a page of the handbook."""
    return f"Page {page}: " + "A parcel that was damaged on its way is replaced or refunded in fourteen days. " * 60


MODEL = TestConfig(
    ToolCallEvent("read_handbook", arguments='{"page": 1}', id="call-1"),
    "It is replaced or refunded.",
    ToolCallEvent("read_handbook", arguments='{"page": 2}', id="call-2"),
    "Within fourteen days.",
    "You are welcome.",
    model="gpt-4o",
)

AGENT = Agent(
    "support",
    prompt="You are a support agent of a shop for lamps.",
    config=MODEL,
    tools=[read_handbook],
    assembly=[AlertPolicy(), AssembledPolicy([BudgetPolicy(window=1_800, output_reserve=300)]), Seen()],
)


async def main() -> None:
    conversation = AGENT
    for request in (
        "What becomes of a damaged parcel? " + "Mine is badly dented, and rattles. " * 20,
        "And how long does it take?",
        "Thank you.",
    ):
        print(f"customer  {request[:70]}")
        conversation = await conversation.ask(request)
        print(f" support  {conversation.body}")


if __name__ == "__main__":
    asyncio.run(main())
