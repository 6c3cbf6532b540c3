"""A desk of a framework, as `python desks.py NAME`: an agent that knows nothing of us, offline, which is asked twice.

The model is one of 8,192 tokens; the second question alone has more. Each desk has the name of its framework.
"""

from __future__ import annotations

import asyncio
import os
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


async def openai_agents(name: str) -> None:
    from agents import Agent, Model, ModelResponse, Runner, SQLiteSession, Usage, set_tracing_disabled
    from openai.types.responses import ResponseOutputMessage, ResponseOutputText

    class Scripted(Model):
        model = MODEL

        async def get_response(self, *_: Any, **__: Any) -> ModelResponse:
            said = ResponseOutputText(text=ANSWER, type="output_text", annotations=[])
            item = ResponseOutputMessage(id="1", content=[said], role="assistant", status="completed", type="message")
            return ModelResponse(output=[item], usage=Usage(), response_id=None)

        def stream_response(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

    set_tracing_disabled(True)
    agent, session = Agent(name, instructions=INSTRUCTIONS, model=Scripted()), SQLiteSession("desk")
    for question in QUESTIONS:
        await Runner.run(agent, question, session=session)


async def google_adk(name: str) -> None:
    from google.adk.agents import Agent
    from google.adk.models import BaseLlm, LlmResponse
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    class Scripted(BaseLlm):
        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=ANSWER)]))

    runner = InMemoryRunner(Agent(name=name, model=Scripted(model=MODEL), instruction=INSTRUCTIONS), app_name="desk")
    session = await runner.session_service.create_session(app_name="desk", user_id="customer")
    for question in QUESTIONS:
        message = types.UserContent(parts=[types.Part(text=question)])
        async for _ in runner.run_async(user_id="customer", session_id=session.id, new_message=message):
            pass


async def strands(name: str) -> None:
    from strands import Agent
    from strands.models.model import Model

    class Scripted(Model):
        def update_config(self, **_: Any) -> None:
            pass

        def get_config(self) -> Any:
            return {"model_id": MODEL}

        def structured_output(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

        async def stream(self, *_: Any, **__: Any) -> Any:
            yield {"messageStart": {"role": "assistant"}}
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": ANSWER}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "end_turn"}}

    agent = Agent(model=Scripted(), name=name, system_prompt=INSTRUCTIONS, callback_handler=None)
    for question in QUESTIONS:
        await agent.invoke_async(question)


async def llama_index(name: str) -> None:
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LLMMetadata
    from llama_index.core.llms.function_calling import FunctionCallingLLM
    from llama_index.core.memory import ChatMemoryBuffer

    class Scripted(FunctionCallingLLM):
        @property
        def metadata(self) -> LLMMetadata:
            return LLMMetadata(model_name=MODEL, is_chat_model=True, is_function_calling_model=True)

        def chat(self, messages: Any, **_: Any) -> ChatResponse:
            return ChatResponse(message=ChatMessage(role="assistant", content=ANSWER))

        async def achat(self, messages: Any, **_: Any) -> ChatResponse:
            return self.chat(messages)

        def _prepare_chat_with_tools(self, tools: Any, chat_history: Any = None, **_: Any) -> dict[str, Any]:
            return {"messages": list(chat_history or [])}

        def get_tool_calls_from_response(self, response: Any, **_: Any) -> list[Any]:
            return []

        stream_chat = astream_chat = complete = acomplete = stream_complete = astream_complete = chat

    agent = FunctionAgent(name=name, llm=Scripted(), system_prompt=INSTRUCTIONS, streaming=False)
    memory = ChatMemoryBuffer.from_defaults(token_limit=100_000)
    for question in QUESTIONS:
        await agent.run(question, memory=memory)


async def haystack(name: str) -> None:
    os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
    from haystack import Pipeline, component
    from haystack.components.agents import Agent
    from haystack.dataclasses import ChatMessage

    @component
    class Scripted:
        model = MODEL

        @component.output_types(replies=list[ChatMessage])
        def run(self, messages: list[ChatMessage], tools: Any = None) -> dict[str, list[ChatMessage]]:
            return {"replies": [ChatMessage.from_assistant(ANSWER)]}

    desk = Pipeline()
    desk.add_component(name, Agent(chat_generator=Scripted(), system_prompt=INSTRUCTIONS))
    messages: list[Any] = []
    for question in QUESTIONS:
        result = desk.run({name: {"messages": [*messages, ChatMessage.from_user(question)]}})
        messages = [message for message in result[name]["messages"] if not message.is_from("system")]


async def semantic_kernel(name: str) -> None:
    from semantic_kernel.agents import ChatCompletionAgent
    from semantic_kernel.connectors.ai.chat_completion_client_base import ChatCompletionClientBase
    from semantic_kernel.contents import AuthorRole, ChatMessageContent

    class Scripted(ChatCompletionClientBase):
        async def _inner_get_chat_message_contents(self, chat_history: Any, settings: Any) -> list[Any]:
            return [ChatMessageContent(role=AuthorRole.ASSISTANT, content=ANSWER)]

    agent = ChatCompletionAgent(service=Scripted(ai_model_id=MODEL), name=name, instructions=INSTRUCTIONS)
    thread = None
    for question in QUESTIONS:
        thread = (await agent.get_response(question, thread=thread)).thread


if __name__ == "__main__":
    framework = sys.argv[1]
    asyncio.run(globals()[framework](framework))
