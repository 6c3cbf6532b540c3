"""An agent without a framework: a tool, an approval, a halt, and a session that is saved and loaded.

python examples/agent.py
"""

from __future__ import annotations

import asyncio

from otel_assembly import Agent, AlertPolicy, BudgetPolicy, ConversationPolicy, ModelResponse, Tool, ToolCallEvent
from otel_assembly.events import ConfirmResult, UserConfirmResultEvent
from otel_assembly.runtime import LoopDetector
from otel_assembly.testing import ScriptedModel


async def weather(city: str) -> dict[str, str]:
    """The weather of a town today."""
    return {"city": city, "weather": "sunny"}


def book(train: str, seats: int = 1) -> str:
    """Book seats on a train. It costs money, so a person has to agree."""
    return f"booked {seats} on {train}"


def calls(name: str, arguments: str) -> ModelResponse:
    return ModelResponse(tool_calls=(ToolCallEvent(name=name, arguments=arguments),))


#: Replaces `OpenAIModel("gpt-4o")`, so the example needs no API key.
MODEL = ScriptedModel(
    calls("weather", '{"city": "Bonn"}'),
    "It is sunny in Bonn. Shall I book the 9:14?",
    calls("book", '{"train": "9:14"}'),
    "Your seat is booked.",
    *[calls("weather", '{"city": "Bonn"}')] * 5,
)


def clerk() -> Agent:
    return Agent(
        "clerk",
        "You help travellers. Be brief.",
        MODEL,
        [weather, Tool(book, needs_approval=True)],
        assembly=[AlertPolicy(), ConversationPolicy(), BudgetPolicy(window=8_000, output_reserve=1_000)],
        observers=[LoopDetector(repeat_threshold=3, severity="fatal")],
    )


async def main() -> None:
    agent = clerk()
    print((await agent.ask("What is the weather in Bonn?")).content)

    waiting = await agent.ask("Yes, please.")
    for call in waiting.tool_calls:
        print(f"may it run? {call.name} {call.arguments}")
    saved = agent.session.save()

    # Another process can load the session later; the call is still pending.
    later = clerk().load_session(saved)
    agreed = [ConfirmResult(tool_call=call, confirmed=True) for call in later.session.pending.values()]
    print((await later.ask(UserConfirmResultEvent(confirm_results=tuple(agreed)))).content)

    print((await later.ask("And the weather, again and again?")).content)
    await later.session.resume("the loop was looked at")
    print("goes on:", later.session.halt is None)


if __name__ == "__main__":
    asyncio.run(main())
