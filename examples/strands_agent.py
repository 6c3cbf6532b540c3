"""An agent on Strands with a tool and a sliding window, without any code for otel-assembly.

    opentelemetry-instrument python examples/strands_agent.py

A scripted model replaces the provider. It serves a dish without nuts while the prompt contains the guest's first
message. The window holds six messages, so the third dish contains nuts.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from strands import Agent, tool
from strands.agent.conversation_manager import SlidingWindowConversationManager
from strands.models.model import Model

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

GUEST = "I must not eat nuts."
DISHES = ("soup", "salad", "pasta", "cake")


@tool
def recipe(dish: str) -> str:
    """Look up what is in a dish.

    Args:
        dish: What was ordered.
    """
    return f"The {dish} is made with nuts, which can be left out. " + "Serve it on a warm plate. " * 12


class Waiter(Model):
    """A scripted model that calls the tool, then serves a dish."""

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
        yield {"messageStart": {"role": "assistant"}}
        knows = any("toolResult" in block for block in messages[-1]["content"])
        if knows:
            said = "Here it is, without nuts." if GUEST in str(messages) else "Here it is, with plenty of nuts."
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": said}}}
        else:
            dish = next(dish for dish in DISHES if dish in messages[-1]["content"][0]["text"])
            yield {"contentBlockStart": {"start": {"toolUse": {"name": "recipe", "toolUseId": f"look-up-{dish}"}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps({"dish": dish})}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if knows else "tool_use"}}


agent = Agent(
    model=Waiter(),
    name="waiter",
    system_prompt="You serve guests what suits them.",
    tools=[recipe],
    conversation_manager=SlidingWindowConversationManager(window_size=6),
    callback_handler=None,
)


def main() -> None:
    """Order several dishes, one after the other, in one conversation."""
    for number, dish in enumerate(DISHES):
        said = f"{GUEST} The {dish}, please." if number == 0 else f"And the {dish}, please."
        print("guest:", said)
        print("waiter:", str(agent(said)).strip())


if __name__ == "__main__":
    main()
