"""A support agent on AG2, without any code for otel-assembly. A scripted model replaces the provider.

    python examples/ag2_support_agent.py
    otel-assembly demo        # runs this agent under opentelemetry-instrument and prints its spans

The window drops the customer's first request, a long document exceeds the token budget, an observer warns that the
agent repeats itself, and another observer halts it.
"""

from __future__ import annotations

import asyncio

from ag2 import Agent, Context, observer
from ag2.events import ObserverAlert, Severity, ToolCallEvent
from ag2.observers import LoopDetector
from ag2.policies import AlertPolicy, ConversationPolicy, SlidingWindowPolicy, TokenBudgetPolicy
from ag2.testing import TestConfig


def look_up_order(order: str) -> str:
    """Look up an order by its number."""
    return f"Order {order}: one reading lamp, 480 EUR, delivered on Monday, signed for by a neighbour."


def read_handbook() -> str:
    """Read what the handbook says about damaged parcels."""
    rule = "A damaged parcel is replaced or refunded in fourteen days if form {}B and a photograph of it are on file."
    return "\n".join(f"{number}. {rule.format(number)}" for number in range(1, 61))


def refund(order: str, euros: int) -> str:
    """Refund an order."""
    return f"{euros} EUR for order {order} were sent back."


@observer(ToolCallEvent.name == "refund")
async def refund_limit(event: ToolCallEvent, context: Context) -> None:
    """Halt the agent at a refund of more than 100 EUR, which a person has to approve."""
    euros = event.serialized_arguments["euros"]
    if euros > 100:
        message = f"a refund of {euros} EUR is above the limit of 100 EUR"
        await context.send(ObserverAlert(source="refund-limit", severity=Severity.FATAL, message=message))


MODEL = TestConfig(
    "I am sorry to hear that. May I have the order number?",
    ToolCallEvent("look_up_order", arguments='{"order": "4711"}', id="call-1"),
    "It was delivered on Monday. I will ask the carrier.",
    ToolCallEvent("look_up_order", arguments='{"order": "4711"}', id="call-2"),
    ToolCallEvent("look_up_order", arguments='{"order": "4711"}', id="call-3"),
    "The order is still as it was.",
    ToolCallEvent("read_handbook", id="call-4"),
    "Damaged parcels are replaced or refunded within fourteen days.",
    ToolCallEvent("refund", arguments='{"order": "4711", "euros": 480}', id="call-5"),
    "Your money is on its way!",  # never reached: the agent is halted before
    model="gpt-4o",
)

CUSTOMER = (
    "My new lamp has a broken shade. Please send another shade, and no money: I like it.",
    "It is order 4711.",
    "Is there anything new?",
    "What do you do about such parcels?",
    "Then please do it.",
)

AGENT = Agent(
    "support",
    prompt="You are a support agent of a shop for lamps. Be brief, and do what the customer asked for.",
    config=MODEL,
    tools=[look_up_order, read_handbook, refund],
    observers=[LoopDetector(window_size=6, repeat_threshold=3), refund_limit],
    assembly=[AlertPolicy(), ConversationPolicy(), SlidingWindowPolicy(12), TokenBudgetPolicy(600)],
)


async def main() -> None:
    conversation = AGENT
    for request in CUSTOMER:
        print(f"customer  {request}")
        conversation = await conversation.ask(request)
        print(f" support  {conversation.body}")


if __name__ == "__main__":
    asyncio.run(main())
