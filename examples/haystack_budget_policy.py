"""A token budget for a Haystack agent, which keeps the newest request and complete tool calls.

A scripted generator calls a tool ten times in one run, so the example needs no network. The history keeps all messages.

    python examples/haystack_budget_policy.py
"""

from __future__ import annotations

import os

os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "False")  # Haystack reads it on import

from typing import Any

from haystack import component
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import tool

from otel_assembly import BudgetPolicy
from otel_assembly.instrumentation.haystack import AssemblyHook

REQUEST = "My daughter has asthma. Which of the ten paints can we have?"


@tool
def paint(number: int) -> str:
    """Look up a paint."""
    return f"Paint {number}: water-based. " + "Stir well and keep from frost. " * 30


@component
class AdvisingGenerator:
    """A scripted model that prints how many messages it received, then calls the tool for the next paint."""

    model = "gpt-4o"

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage], tools: Any = None) -> dict[str, list[ChatMessage]]:
        """Return the scripted response to the messages."""
        last = max((call.arguments["number"] for message in messages for call in message.tool_calls), default=0)
        knows = any("asthma" in (message.text or "") for message in messages)
        print(f"{len(messages)} messages; it knows of the asthma: {knows}")
        if last < 10:
            call = ToolCall("paint", {"number": last + 1}, str(last + 1))
            return {"replies": [ChatMessage.from_assistant(tool_calls=[call])]}
        return {"replies": [ChatMessage.from_assistant("All ten.")]}


def main() -> None:
    """Ask the agent one question, and print its answer."""
    plugin = AssemblyHook([BudgetPolicy(window=1_000, output_reserve=200)], model="gpt-4o")
    adviser = Agent(
        chat_generator=AdvisingGenerator(),
        system_prompt="You work in a paint shop.",
        tools=[paint],
        hooks={"before_llm": [plugin], "before_tool": [plugin.tools]},
    )
    result = adviser.run(messages=[ChatMessage.from_user(REQUEST)])
    print(result["last_message"].text, f"The history has {len(result['messages'])} messages.")


if __name__ == "__main__":
    main()
