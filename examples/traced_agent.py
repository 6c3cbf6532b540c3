"""Trace an agent's run by OpenTelemetry's GenAI conventions, and print the spans as a tree. It needs no network.

python examples/traced_agent.py
"""

from __future__ import annotations

import asyncio

from otel_assembly import Agent, ConversationPolicy, ModelResponse, SlidingWindowPolicy, ToolCallEvent
from otel_assembly.runtime import AssemblerMiddleware
from otel_assembly.telemetry import TracingMiddleware
from otel_assembly.testing import RecordedTelemetry, ScriptedModel


def weather(city: str) -> str:
    """The weather of a town today."""
    return f"sunny in {city}"


#: Replaces `OpenAIModel("gpt-4o")`, so the example needs no API key.
MODEL = ScriptedModel(
    ModelResponse(tool_calls=(ToolCallEvent(name="weather", arguments='{"city": "Bonn"}'),)),
    "It is sunny.",
    model="gpt-4o",
)


async def main() -> None:
    # Replaces `opentelemetry-instrument`, or your own providers.
    with RecordedTelemetry().as_default() as telemetry:
        chain = AssemblerMiddleware([ConversationPolicy(), SlidingWindowPolicy(20)])
        agent = Agent("clerk", "Be brief.", MODEL, [weather], middlewares=[chain, TracingMiddleware()])
        print((await agent.ask("What is the weather in Bonn?")).content)
        print(telemetry.tree())


if __name__ == "__main__":
    asyncio.run(main())
