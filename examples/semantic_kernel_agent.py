"""An agent on Semantic Kernel with a plugin and a truncated history, without any code for otel-assembly.

    opentelemetry-instrument python examples/semantic_kernel_agent.py

A scripted model replaces the provider. It books a suitable table while the prompt contains the guest's first message.
The history keeps the newest six messages, so the third booking is a table next to the smokers.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

from semantic_kernel.agents import ChatCompletionAgent, ChatHistoryAgentThread
from semantic_kernel.connectors.ai.chat_completion_client_base import ChatCompletionClientBase
from semantic_kernel.connectors.ai.function_calling_utils import update_settings_from_function_call_configuration
from semantic_kernel.connectors.ai.prompt_execution_settings import PromptExecutionSettings
from semantic_kernel.contents import (
    AuthorRole,
    ChatHistory,
    ChatHistoryTruncationReducer,
    ChatMessageContent,
    FunctionCallContent,
    FunctionResultContent,
    TextContent,
)
from semantic_kernel.functions import kernel_function

if TYPE_CHECKING:
    from collections.abc import Callable

GUEST = "I have asthma. Book me a table where nobody smokes, please."
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday")


class Tables:
    """The agent's tools."""

    @kernel_function
    def free_on(self, day: str) -> str:
        """Look up which tables are free on a day."""
        return f"On {day}: the table by the smokers' terrace, or the one in the winter garden. " + "No dogs. " * 12


class ScriptedSettings(PromptExecutionSettings):
    """The settings of a request."""

    tools: list[dict[str, Any]] | None = None
    tool_choice: str | None = None


class ScriptedService(ChatCompletionClientBase):
    """A scripted model that calls the tool, then books a table."""

    SUPPORTS_FUNCTION_CALLING: ClassVar[bool] = True

    def get_prompt_execution_settings_class(self) -> type[PromptExecutionSettings]:
        """Return the class of this service's settings."""
        return ScriptedSettings

    def _update_function_choice_settings_callback(self) -> Callable[..., None]:
        return update_settings_from_function_call_configuration

    async def _inner_get_chat_message_contents(
        self, chat_history: ChatHistory, settings: PromptExecutionSettings
    ) -> list[ChatMessageContent]:
        newest = chat_history.messages[-1]
        if not any(isinstance(item, FunctionResultContent) for item in newest.items):
            day = next(day for day in DAYS if day in newest.content)
            call = FunctionCallContent(id=f"free-{day}", name="Tables-free_on", arguments={"day": day})
            return [ChatMessageContent(role=AuthorRole.ASSISTANT, items=[call])]
        knows = any("asthma" in message.content for message in chat_history.messages)
        said = "Booked: the winter garden." if knows else "Booked: by the smokers' terrace."
        return [ChatMessageContent(role=AuthorRole.ASSISTANT, items=[TextContent(text=said)])]


agent = ChatCompletionAgent(
    service=ScriptedService(ai_model_id="gpt-4o"),
    name="waiter",
    instructions="You book tables that suit the guest.",
    plugins=[Tables()],
)


async def main() -> None:
    """Ask for several days, one after the other, in one thread."""
    thread = ChatHistoryAgentThread(chat_history=ChatHistoryTruncationReducer(target_count=6))
    for number, day in enumerate(DAYS):
        said = f"{GUEST} First for {day}." if number == 0 else f"And for {day}?"
        print("guest:", said)
        response = await agent.get_response(said, thread=thread)
        print("waiter:", response)
        await thread.reduce()


if __name__ == "__main__":
    asyncio.run(main())
