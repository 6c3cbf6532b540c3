"""A desk of a framework, as `python desks.py NAME`: an agent that knows nothing of us, offline, which is asked twice.

The model is one of 8,192 tokens; the second question alone has more. Each desk has the name of its framework.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

MODEL = "gpt-4"
ANSWER = "It is on its way."
QUESTIONS = (
    "Where is my parcel?",
    "Read what I wrote to you, please. " + "The lamp came broken, and the box wet. " * 1_200,
)
INSTRUCTIONS = "You look after parcels."


async def ag2(name: str) -> None:
    from ag2 import Agent
    from ag2.testing import TestConfig

    agent = Agent(name, INSTRUCTIONS, config=TestConfig(ANSWER, ANSWER, model=MODEL))
    reply = await agent.ask(QUESTIONS[0])
    await reply.ask(QUESTIONS[1])


async def autogen(name: str) -> None:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_core.models import ModelInfo
    from autogen_ext.models.replay import ReplayChatCompletionClient

    info = ModelInfo(vision=False, function_calling=True, json_output=False, family=MODEL, structured_output=False)
    client = ReplayChatCompletionClient([ANSWER, ANSWER], model_info=info)
    agent = AssistantAgent(name, client, system_message=INSTRUCTIONS)
    for question in QUESTIONS:
        await agent.run(task=question)


async def agentscope(name: str) -> None:
    from agentscope.agent import Agent
    from agentscope.credential import CredentialBase
    from agentscope.formatter import OpenAIChatFormatter
    from agentscope.message import TextBlock, UserMsg
    from agentscope.model import ChatModelBase, ChatResponse, ChatUsage
    from pydantic import BaseModel

    class Model(ChatModelBase):
        class Parameters(BaseModel):
            pass

        def __init__(self) -> None:
            super().__init__(
                CredentialBase(), MODEL, self.Parameters(), stream=False, max_retries=0, context_size=8_192
            )
            self.formatter = OpenAIChatFormatter()

        async def count_tokens(self, *_: Any, **__: Any) -> int:
            return 0  # else what does not fit is taken out before it is sent

        async def _call_api(self, *_: Any, **__: Any) -> Any:
            usage = ChatUsage(input_tokens=9, output_tokens=8, time=0.0)
            return ChatResponse(content=[TextBlock(text=ANSWER)], is_last=True, usage=usage)

    agent = Agent(name, INSTRUCTIONS, Model())
    for question in QUESTIONS:
        await agent.reply(UserMsg("customer", question))


async def langchain(name: str) -> None:
    from langchain.agents import create_agent
    from langchain_core.language_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage

    class Model(GenericFakeChatModel):
        model: str = MODEL

    agent = create_agent(Model(messages=iter([AIMessage(ANSWER)] * 2)), system_prompt=INSTRUCTIONS, name=name)
    messages: list[Any] = []
    for question in QUESTIONS:
        messages = (await agent.ainvoke({"messages": [*messages, ("user", question)]}))["messages"]


async def pydantic_ai(name: str) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelResponse, TextPart
    from pydantic_ai.models.function import FunctionModel

    model = FunctionModel(lambda _, __: ModelResponse([TextPart(ANSWER)]), model_name=MODEL)
    agent = Agent(model, name=name, instructions=INSTRUCTIONS)
    result = await agent.run(QUESTIONS[0])
    await agent.run(QUESTIONS[1], message_history=result.all_messages())


async def agent_framework(name: str) -> None:
    from agent_framework import Agent, BaseChatClient, ChatResponse, Message

    class Model(BaseChatClient):
        model = MODEL

        async def _inner_get_response(self, **_: Any) -> ChatResponse:
            return ChatResponse(messages=[Message("assistant", [ANSWER])])

    agent = Agent(Model(), INSTRUCTIONS, name=name)
    session = agent.create_session()
    for question in QUESTIONS:
        await agent.run(question, session=session)


if __name__ == "__main__":
    framework = sys.argv[1]
    asyncio.run(globals()[framework](framework))
