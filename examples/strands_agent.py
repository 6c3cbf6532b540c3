"""An agent as Strands' own guides make one: a tool, a sliding window, and nothing of otel-assembly.

    opentelemetry-instrument python examples/strands_agent.py

It needs no network: the model is a class of Strands' own that serves a dish without nuts for as long as it can still
read who must not eat them. The window holds six messages. With the third order the guest's first sentence is gone, and
nuts are on the plate.
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
    """Looks the dish up, and then serves it."""

    def update_config(self, **model_config: Any) -> None:
        """There is nothing to set."""

    def get_config(self) -> Any:
        """What it calls itself."""
        return {"model_id": "gpt-4o"}

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        """It only talks."""
        raise NotImplementedError

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        """Answer in the form of Bedrock's stream."""
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
    """Order one dish after the other."""
    for number, dish in enumerate(DISHES):
        said = f"{GUEST} The {dish}, please." if number == 0 else f"And the {dish}, please."
        print("guest:", said)
        print("waiter:", str(agent(said)).strip())


if __name__ == "__main__":
    main()
