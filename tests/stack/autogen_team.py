"""A team on AutoGen that knows nothing of us; whatever is said in it has the word `canary` in it."""

from __future__ import annotations

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import FunctionCall
from autogen_core.models import CreateResult, ModelInfo, RequestUsage
from autogen_ext.models.replay import ReplayChatCompletionClient


async def weather(day: str) -> str:
    """The weather on a day."""
    return f"{day}: the canary sings"


def agent(name, answers, **more):
    info = ModelInfo(vision=False, function_calling=True, json_output=False, family="unknown", structured_output=False)
    client = ReplayChatCompletionClient(answers, model_info=info)
    return AssistantAgent(name, client, system_message="You are a canary.", **more)


async def main() -> None:
    asked = CreateResult(
        finish_reason="function_calls",
        content=[FunctionCall(id="1", name="weather", arguments='{"day": "canary day"}')],
        usage=RequestUsage(prompt_tokens=0, completion_tokens=0),
        cached=False,
    )
    writer = agent("writer", ["canary one", "canary three"])
    critic = agent("critic", [asked, "canary two"], tools=[weather])
    team = RoundRobinGroupChat([writer, critic], termination_condition=MaxMessageTermination(4))
    await team.run(task="Book a table for the canary.")


asyncio.run(main())
