"""A token budget for a Strands agent, which keeps the newest request and complete tool calls.

A scripted model calls a tool ten times in one run, so the example needs no network. The agent keeps all messages.

    python examples/strands_budget_policy.py
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from strands import Agent, tool
from strands.models.model import Model

from otel_assembly import BudgetPolicy
from otel_assembly.instrumentation.strands import AssemblyConversationManager

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

REQUEST = "I must not eat nuts. Which of the ten dishes can I have?"


@tool
def recipe(number: int) -> str:
    """Look up what is in a dish.

    Args:
        number: Its number on the menu.
    """
    return f"Dish {number}: no nuts. " + "Serve it on a warm plate. " * 30


class Waiter(Model):
    """A scripted model that prints how many messages it received, then calls the tool for the next dish."""

    def update_config(self, **model_config: Any) -> None:
        """Do nothing: there are no settings."""

    def get_config(self) -> Any:
        """Return the model's name."""
        return {"model_id": "gpt-4o"}

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        """Structured output is not supported."""
        raise NotImplementedError

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        """Yield the response as Bedrock stream events."""
        numbers = [
            block["toolUse"]["input"]["number"]
            for message in messages
            for block in message["content"]
            if "toolUse" in block
        ]
        number = numbers[-1] + 1 if numbers else 1
        print(f"{len(messages)} messages; it knows of the nuts: {'must not eat' in str(messages)}")
        yield {"messageStart": {"role": "assistant"}}
        if number <= 10:
            yield {"contentBlockStart": {"start": {"toolUse": {"name": "recipe", "toolUseId": f"look-up-{number}"}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps({"number": number})}}}}
        else:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": "All ten."}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if number <= 10 else "end_turn"}}


agent = Agent(
    model=Waiter(),
    name="waiter",
    system_prompt="You serve guests what suits them.",
    tools=[recipe],
    conversation_manager=AssemblyConversationManager([BudgetPolicy(window=1_000, output_reserve=200)]),
    callback_handler=None,
)


def main() -> None:
    """Ask the agent one question, and print its answer."""
    print(str(agent(REQUEST)).strip(), f"The agent holds {len(agent.messages)} messages.")


if __name__ == "__main__":
    main()
