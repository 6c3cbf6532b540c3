"""An agent of each framework that answers every request with one word: what a call costs beside the model's time.

Each function makes an agent that knows nothing of us, offline, and returns what asks it: a conversation goes on as that
framework keeps it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast
from uuid import uuid4

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PROMPT, ANSWER = "You take notes.", "Noted."


class Role(NamedTuple):
    """The name of an agent, its model with the model's window in tokens, and the start of its conversation.

    Attributes:
        turns: The number of questions and answers with which the conversation starts.
    """

    name: str = "clerk"
    model: str = "gpt-4o"
    window: int = 10**7
    turns: int = 0

    @property
    def notes(self) -> list[str]:
        """The questions with which the conversation starts; each has the same answer."""
        return [f"Note {number}." for number in range(self.turns)]


def ag2(role: Role) -> Callable[[str], Awaitable[object]]:
    from ag2 import Agent, MemoryStream
    from ag2.events import ModelMessage, ModelRequest, ModelResponse, TextInput
    from ag2.testing import TestConfig

    agent = Agent(role.name, prompt=PROMPT, config=TestConfig(*[ANSWER] * 10_000, model=role.model))
    reply: Any = None

    async def ask(text: str) -> None:
        nonlocal reply
        if reply is None:
            stream = MemoryStream()
            await stream.history.replace(
                event
                for note in role.notes
                for event in (ModelRequest([TextInput(note)]), ModelResponse(ModelMessage(ANSWER)))
            )
            reply = await agent.ask(text, stream=stream)
        else:
            reply = await reply.ask(text)

    return ask


def agent_framework(role: Role) -> Callable[[str], Awaitable[object]]:
    from agent_framework import (
        Agent,
        BaseChatClient,
        ChatMiddlewareLayer,
        ChatResponse,
        FunctionInvocationLayer,
        InMemoryHistoryProvider,
        Message,
    )

    class Model(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
        model = role.model

        async def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **_: Any) -> ChatResponse:
            return ChatResponse(messages=[Message("assistant", [ANSWER])])

    agent = Agent(Model(), PROMPT, name=role.name)
    session = agent.create_session()
    history = [message for note in role.notes for message in (Message("user", [note]), Message("assistant", [ANSWER]))]
    session.state[InMemoryHistoryProvider.DEFAULT_SOURCE_ID] = {"messages": history}
    return lambda text: agent.run(text, session=session)


def agentscope(role: Role) -> Callable[[str], Awaitable[object]]:
    from agentscope.agent import Agent
    from agentscope.credential import CredentialBase
    from agentscope.formatter import OpenAIChatFormatter
    from agentscope.message import AssistantMsg, TextBlock, UserMsg
    from agentscope.model import ChatModelBase, ChatResponse, ChatUsage
    from pydantic import BaseModel

    class Model(ChatModelBase):
        class Parameters(BaseModel):
            """It has none."""

        async def count_tokens(self, *_: Any, **__: Any) -> int:
            return 0  # else what does not fit is taken out before it is sent

        async def _call_api(self, *_: Any, **__: Any) -> ChatResponse:
            usage = ChatUsage(input_tokens=1, output_tokens=1, time=0.0)
            return ChatResponse(content=[TextBlock(text=ANSWER)], is_last=True, usage=usage)

    model = Model(
        CredentialBase(), role.model, Model.Parameters(), stream=False, max_retries=0, context_size=role.window
    )
    model.formatter = OpenAIChatFormatter()
    agent = Agent(role.name, PROMPT, model)
    for note in role.notes:
        agent.state.context += [UserMsg("user", note), AssistantMsg(role.name, ANSWER)]
    return lambda text: agent.reply(UserMsg("user", text))


def autogen(role: Role) -> Callable[[str], Awaitable[object]]:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_core.model_context import UnboundedChatCompletionContext
    from autogen_core.models import AssistantMessage, ChatCompletionClient, CreateResult, RequestUsage, UserMessage

    class Model(ChatCompletionClient):
        model_info: ClassVar[Any] = {
            "vision": False,
            "function_calling": True,
            "json_output": False,
            "structured_output": False,
            "family": role.model,
        }
        capabilities = model_info

        async def create(self, messages: Any, **_: Any) -> CreateResult:
            return CreateResult(finish_reason="stop", content=ANSWER, usage=RequestUsage(1, 1), cached=False)

        def create_stream(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError("nobody asks this agent for it")

        async def close(self) -> None:
            """Nothing is open."""

        def actual_usage(self) -> RequestUsage:
            return RequestUsage(1, 1)

        total_usage = actual_usage

        def count_tokens(self, messages: Any, **_: Any) -> int:
            return 1

        remaining_tokens = count_tokens

    history = [
        message
        for note in role.notes
        for message in (UserMessage(content=note, source="user"), AssistantMessage(content=ANSWER, source=role.name))
    ]
    context = UnboundedChatCompletionContext(history)
    agent = AssistantAgent(role.name, Model(), system_message=PROMPT, model_context=context)
    return lambda text: agent.run(task=text)


def google_adk(role: Role) -> Callable[[str], Awaitable[object]]:
    from google.adk.agents import LlmAgent
    from google.adk.apps import App
    from google.adk.events import Event
    from google.adk.models import BaseLlm, LlmResponse
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    class Model(BaseLlm):
        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=ANSWER)]))

    agent = LlmAgent(name=role.name, model=Model(model=role.model), instruction=PROMPT)
    runner = InMemoryRunner(app=App(name="notes", root_agent=agent))
    service: Any = runner.session_service
    session: Any = None

    async def ask(text: str) -> None:
        nonlocal session
        if session is None:
            session = await service.create_session(app_name="notes", user_id="user", session_id="one")
            for note in role.notes:
                for author, content in (
                    ("user", types.UserContent(note)),
                    (role.name, types.ModelContent(ANSWER)),
                ):
                    await service.append_event(session, Event(author=author, content=content))
        message = types.UserContent(parts=[types.Part(text=text)])
        async for _ in runner.run_async(user_id="user", session_id="one", new_message=message):
            pass

    return ask


def haystack(role: Role) -> Callable[[str], Awaitable[object]]:
    os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
    from haystack import Pipeline, component
    from haystack.components.agents import Agent
    from haystack.dataclasses import ChatMessage

    @component
    class Model:
        model = role.model

        @component.output_types(replies=list[ChatMessage])
        def run(self, messages: list[ChatMessage], tools: Any = None) -> dict[str, list[ChatMessage]]:
            return {"replies": [ChatMessage.from_assistant(ANSWER)]}

    desk = Pipeline()  # in which an agent has a name
    desk.add_component(role.name, Agent(chat_generator=Model(), system_prompt=PROMPT))
    held = [
        message for note in role.notes for message in (ChatMessage.from_user(note), ChatMessage.from_assistant(ANSWER))
    ]

    async def ask(text: str) -> None:
        messages = desk.run({role.name: {"messages": [*held, ChatMessage.from_user(text)]}})[role.name]["messages"]
        held[:] = [message for message in messages if not message.is_from("system")]

    return ask


def langchain(role: Role) -> Callable[[str], Awaitable[object]]:
    from langchain.agents import create_agent
    from langchain_core.language_models.fake_chat_models import FakeListChatModel
    from langgraph.checkpoint.memory import InMemorySaver

    class Model(FakeListChatModel):
        model_name: str = role.model

        def bind_tools(self, tools: Any, **_: Any) -> Any:
            return self

    agent = create_agent(
        Model(responses=[ANSWER]), [], system_prompt=PROMPT, name=role.name, checkpointer=InMemorySaver()
    )
    config: Any = {"configurable": {"thread_id": "one"}}
    if role.turns:
        history = [message for note in role.notes for message in (("user", note), ("assistant", ANSWER))]
        agent.update_state(config, {"messages": history}, as_node="model")
    return lambda text: agent.ainvoke({"messages": [("user", text)]}, config)


def llama_index(role: Role) -> Callable[[str], Awaitable[object]]:
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LLMMetadata
    from llama_index.core.llms.function_calling import FunctionCallingLLM
    from llama_index.core.memory import ChatMemoryBuffer

    class Model(FunctionCallingLLM):
        model: str = role.model

        @property
        def metadata(self) -> LLMMetadata:
            return LLMMetadata(model_name=self.model, is_chat_model=True, is_function_calling_model=True)

        async def achat(self, messages: Any, **_: Any) -> ChatResponse:
            return ChatResponse(message=ChatMessage(role="assistant", content=ANSWER))

        def _prepare_chat_with_tools(self, tools: Any, chat_history: Any = None, **_: Any) -> dict[str, Any]:
            return {"messages": list(chat_history or [])}

        def get_tool_calls_from_response(self, response: ChatResponse, **_: Any) -> list[Any]:
            return []

        chat = stream_chat = astream_chat = complete = acomplete = stream_complete = astream_complete = achat

    def note(text: str) -> str:
        """Take a note."""
        return text

    history = [
        ChatMessage(role=speaker, content=text)
        for note in role.notes
        for speaker, text in (("user", note), ("assistant", ANSWER))
    ]
    memory = ChatMemoryBuffer.from_defaults(chat_history=history, token_limit=10**7)
    agent = FunctionAgent(name=role.name, llm=Model(), tools=[note], system_prompt=PROMPT, streaming=False)

    async def ask(text: str) -> None:
        await agent.run(text, memory=memory)

    return ask


def openai_agents(role: Role) -> Callable[[str], Awaitable[object]]:
    from agents import Agent, Model, ModelResponse, Runner, Usage, set_tracing_disabled
    from agents.memory import SQLiteSession
    from openai.types.responses import ResponseOutputMessage, ResponseOutputText

    class Clerk(Model):
        model = role.model

        async def get_response(self, *_: Any, **__: Any) -> ModelResponse:
            return ModelResponse(output=[answer], usage=Usage(), response_id=None)

        def stream_response(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError("nobody asks this agent for it")

    set_tracing_disabled(True)  # nothing is sent to the SDK's maker
    said = ResponseOutputText(text=ANSWER, type="output_text", annotations=[], logprobs=[])
    answer = ResponseOutputMessage(id="message", content=[said], role="assistant", status="completed", type="message")
    agent, session = Agent(role.name, instructions=PROMPT, model=Clerk()), SQLiteSession(f"{uuid4()}")
    history = [item for note in role.notes for item in ({"role": "user", "content": note}, answer.model_dump())]

    async def ask(text: str) -> None:
        await session.add_items(cast("Any", history))
        history.clear()
        await Runner.run(agent, text, session=session)

    return ask


def pydantic_ai(role: Role) -> Callable[[str], Awaitable[object]]:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart
    from pydantic_ai.models.function import FunctionModel

    model = FunctionModel(lambda messages, info: ModelResponse([TextPart(ANSWER)]), model_name=role.model)
    agent = Agent(model, name=role.name, instructions=PROMPT)
    held: list[ModelMessage] = []
    for note in role.notes:
        held += [ModelRequest.user_text_prompt(note), ModelResponse([TextPart(ANSWER)])]

    async def ask(text: str) -> None:
        held[:] = (await agent.run(text, message_history=[*held])).all_messages()

    return ask


def semantic_kernel(role: Role) -> Callable[[str], Awaitable[object]]:
    from semantic_kernel.agents import ChatCompletionAgent, ChatHistoryAgentThread
    from semantic_kernel.connectors.ai.chat_completion_client_base import ChatCompletionClientBase
    from semantic_kernel.connectors.ai.prompt_execution_settings import PromptExecutionSettings
    from semantic_kernel.contents import AuthorRole, ChatHistory, ChatMessageContent

    class Model(ChatCompletionClientBase):
        def get_prompt_execution_settings_class(self) -> type[PromptExecutionSettings]:
            return PromptExecutionSettings

        async def _inner_get_chat_message_contents(self, *_: Any, **__: Any) -> list[ChatMessageContent]:
            return [ChatMessageContent(role=AuthorRole.ASSISTANT, content=ANSWER)]

    agent = ChatCompletionAgent(service=Model(ai_model_id=role.model), name=role.name, instructions=PROMPT)
    history = ChatHistory()
    for note in role.notes:
        history.add_user_message(note)
        history.add_assistant_message(ANSWER)
    thread = ChatHistoryAgentThread(history)
    return lambda text: agent.get_response(text, thread=thread)


def strands(role: Role) -> Callable[[str], Awaitable[object]]:
    from strands import Agent
    from strands.agent.conversation_manager import NullConversationManager
    from strands.models import Model

    class Clerk(Model):
        def update_config(self, **_: Any) -> None:
            """There is nothing to set."""

        def get_config(self) -> Any:
            return {"model_id": role.model}

        def structured_output(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError("nobody asks this agent for it")

        async def stream(self, *_: Any, **__: Any) -> Any:
            yield {"messageStart": {"role": "assistant"}}
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": ANSWER}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "end_turn"}}

    history: Any = [
        {"role": speaker, "content": [{"text": text}]}
        for note in role.notes
        for speaker, text in (("user", note), ("assistant", ANSWER))
    ]
    agent = Agent(model=Clerk(), name=role.name, system_prompt=PROMPT, callback_handler=None, messages=history,
                  conversation_manager=NullConversationManager())  # fmt: skip
    return agent.invoke_async


AGENTS: dict[str, Callable[[Role], Callable[[str], Awaitable[object]]]] = {
    function.__name__: function
    for function in (
        ag2, agent_framework, agentscope, autogen, google_adk, haystack, langchain, llama_index, openai_agents,
        pydantic_ai, semantic_kernel, strands,
    )
}  # fmt: skip
