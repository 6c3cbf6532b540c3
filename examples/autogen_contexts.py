"""An AutoGen team whose model contexts keep complete tool calls and enforce a token limit for the whole prompt.

Only the import of the contexts differs from a program for AutoGen.

python examples/autogen_contexts.py
"""

from __future__ import annotations

import asyncio
import logging

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import EVENT_LOGGER_NAME, FunctionCall
from autogen_core.models import CreateResult, ModelInfo, RequestUsage
from autogen_ext.models.replay import ReplayChatCompletionClient

from otel_assembly.instrumentation.autogen import HeadAndTailChatCompletionContext, TokenLimitedChatCompletionContext

LIMIT = 40


def timetable(day: str) -> str:
    """The trains of a day."""
    return f"On {day} at 8, 10 and 12."


def scripted(*answers: CreateResult | str) -> ReplayChatCompletionClient:
    info = ModelInfo(vision=False, function_calling=True, json_output=False, family="unknown", structured_output=False)
    return ReplayChatCompletionClient(list(answers), model_info=info)


def asks(day: str) -> CreateResult:
    call = FunctionCall(id=day, name="timetable", arguments=f'{{"day": "{day}"}}')
    return CreateResult(finish_reason="function_calls", content=[call], usage=RequestUsage(10, 10), cached=False)


async def main() -> None:
    # AutoGen's scripted client logs a warning for each tool call, because it counts texts only.
    logging.getLogger(EVENT_LOGGER_NAME).setLevel(logging.ERROR)
    days = ("Monday", "Tuesday", "Wednesday", "Thursday")
    clerk_client = scripted(*(answer for day in days for answer in (asks(day), f"There are three trains on {day}.")))
    guide_client = scripted(*(f"And what about the day after {day}?" for day in days))
    clerk = AssistantAgent(
        "clerk",
        clerk_client,
        tools=[timetable],
        reflect_on_tool_use=True,
        system_message="You know the trains.",
        model_context=TokenLimitedChatCompletionContext(clerk_client, token_limit=LIMIT),
    )
    guide = AssistantAgent(
        "guide",
        guide_client,
        system_message="You plan a journey.",
        model_context=HeadAndTailChatCompletionContext(1, 2),
    )
    team = RoundRobinGroupChat([clerk, guide], termination_condition=MaxMessageTermination(9))
    await team.run(task="Plan a journey by train.")
    for name, client in (("clerk", clerk_client), ("guide", guide_client)):
        for number, call in enumerate(client.create_calls):
            kinds = [type(message).__name__.removesuffix("Message") for message in call["messages"]]
            print(f"{name} {number}: {client.count_tokens(call['messages']):2} tokens of text: {' '.join(kinds)}")


if __name__ == "__main__":
    asyncio.run(main())
