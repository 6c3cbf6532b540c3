"""A token budget for an AutoGen agent, which keeps the newest request and complete tool calls.

python examples/autogen_budget_policy.py
"""

from __future__ import annotations

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import AssistantMessage, UserMessage
from autogen_ext.models.replay import ReplayChatCompletionClient

from otel_assembly import AlertPolicy, BudgetPolicy, HaltedError, ObserverAlert, Severity
from otel_assembly.instrumentation.autogen import AssembledChatCompletionContext

SYSTEM = "You keep the minutes of a long meeting."


async def main() -> None:
    context = AssembledChatCompletionContext(
        [AlertPolicy(), BudgetPolicy(window=600, output_reserve=200)],
        model="gpt-4o",
        agent_name="minutes",
    )
    for number in range(60):
        await context.add_message(UserMessage(content=f"Point {number}: we talked about it at length.", source="chair"))
        await context.add_message(AssistantMessage(content=f"Noted, point {number}.", source="minutes"))

    model = ReplayChatCompletionClient(["Everything is in the minutes."] * 2)
    agent = AssistantAgent("minutes", model, model_context=context, system_message=SYSTEM)
    await context.context_of().send(
        ObserverAlert(source="clock", severity=Severity.WARNING, message="The meeting ends in five minutes.")
    )
    await agent.run(task="Is everything noted?")
    sent = model.create_calls[-1]["messages"]
    messages = (await context.save_state())["messages"]  # the answer is the last of them
    print(f"of {len(messages) - 1} messages the model saw {len(sent)}:")
    for message in (*sent[:3], *sent[-2:]):
        print(f"  {type(message).__name__:16} {' '.join(message.content.split())[:70]}")

    await context.context_of().send(
        ObserverAlert(source="chair", severity=Severity.FATAL, message="The meeting was called off.")
    )
    try:
        await agent.run(task="Go on.")
    except HaltedError as halted:
        print(f"halted before the model was called: {halted}")


if __name__ == "__main__":
    asyncio.run(main())
