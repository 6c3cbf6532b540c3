"""An agent whose run is one trace by GenAI's conventions, offline; the spans are printed as a tree.

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


#: In place of `OpenAIModel("gpt-4o")`, so that this runs without a key.
MODEL = ScriptedModel(
    ModelResponse(tool_calls=(ToolCallEvent(name="weather", arguments='{"city": "Bonn"}'),)),
    "It is sunny.",
    model="gpt-4o",
)


async def main() -> None:
    # In place of `opentelemetry-instrument`, or of providers that you have set.
    with RecordedTelemetry().as_default() as telemetry:
        chain = AssemblerMiddleware([ConversationPolicy(), SlidingWindowPolicy(20)])
        agent = Agent("clerk", "Be brief.", MODEL, [weather], middlewares=[chain, TracingMiddleware()])
        print((await agent.ask("What is the weather in Bonn?")).content)
        print(telemetry.tree())


if __name__ == "__main__":
    asyncio.run(main())
