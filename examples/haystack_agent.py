"""An agent on Haystack with a tool and compaction, without any code for otel-assembly.

    opentelemetry-instrument python examples/haystack_agent.py

A scripted generator replaces the provider. It recommends a suitable paint while the prompt contains the customer's
first message. Haystack's sliding window drops messages when the conversation fills its small context, so the fourth
answer recommends a paint that the customer cannot use.
"""

from __future__ import annotations

import os

os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "False")  # Haystack reads it on import

from typing import Any

from haystack import component
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.hooks.compaction import CompactionHook, SlidingWindowCompactor
from haystack.tools import tool

CUSTOMER = "My daughter has asthma, so nothing with solvents, please."
ROOMS = ("the nursery", "the kitchen", "the hall", "the bathroom")


@tool
def paints_for(room: str) -> str:
    """Look up which paints there are for a room."""
    return f"For {room}: Alba, water-based, or Durolack, with solvents. " + "Stir well and keep from frost. " * 12


@component
class AdvisingGenerator:
    """A scripted model that calls the tool, then recommends a paint."""

    model = "gpt-4o"

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage], tools: Any = None) -> dict[str, list[ChatMessage]]:
        """Return the scripted response to the messages."""
        newest = messages[-1]
        if newest.tool_call_result is None:
            room = next((room for room in ROOMS if room in (newest.text or "")), ROOMS[0])
            return {"replies": [ChatMessage.from_assistant(tool_calls=[ToolCall("paints_for", {"room": room}, room)])]}
        suits = any("asthma" in (message.text or "") for message in messages)
        return {"replies": [ChatMessage.from_assistant("Take Alba." if suits else "Take Durolack, it lasts longer.")]}


def main() -> None:
    """Ask for several rooms, one after the other, in one conversation."""
    compaction = CompactionHook(SlidingWindowCompactor(), context_window=900, compact_at=0.7, compact_to=0.5)
    adviser = Agent(
        chat_generator=AdvisingGenerator(),
        system_prompt="You work in a paint shop. Advise what suits the customer.",
        tools=[paints_for],
        hooks={"before_llm": [compaction]},
    )
    messages: list[ChatMessage] = []
    for number, room in enumerate(ROOMS):
        said = f"{CUSTOMER} Which paint for {room}?" if number == 0 else f"And for {room}?"
        print("customer:", said)
        result = adviser.run(messages=[*messages, ChatMessage.from_user(said)])
        messages = [message for message in result["messages"] if not message.is_from("system")]
        print("adviser:", result["last_message"].text)


if __name__ == "__main__":
    main()
