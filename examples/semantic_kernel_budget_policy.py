"""A token budget for a Semantic Kernel agent, which keeps the question and complete tool calls.

A scripted model calls a tool ten times in one run, so the example needs no network. The thread keeps all messages.

    python examples/semantic_kernel_budget_policy.py
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.chat_completion_client_base import ChatCompletionClientBase
from semantic_kernel.connectors.ai.function_calling_utils import update_settings_from_function_call_configuration
from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.prompt_execution_settings import PromptExecutionSettings
from semantic_kernel.contents import AuthorRole, ChatHistory, ChatMessageContent, FunctionCallContent, TextContent
from semantic_kernel.functions import kernel_function

from otel_assembly import BudgetPolicy
from otel_assembly.instrumentation.semantic_kernel import AssemblyChatCompletion

if TYPE_CHECKING:
    from collections.abc import Callable

REQUEST = "I have asthma. At which of the ten tables does nobody smoke?"


class Tables:
    """The agent's tools."""

    @kernel_function
    def look(self, number: int) -> str:
        """Look a table up."""
        return f"Table {number}: in the winter garden. " + "No dogs. " * 30


class ScriptedSettings(PromptExecutionSettings):
    """The settings of a request."""

    tools: list[dict[str, Any]] | None = None
    tool_choice: str | None = None


class ScriptedService(ChatCompletionClientBase):
    """A scripted model that prints how many messages it received, then calls the tool for the next table."""

    SUPPORTS_FUNCTION_CALLING: ClassVar[bool] = True

    def get_prompt_execution_settings_class(self) -> type[PromptExecutionSettings]:
        """Return the class of this service's settings."""
        return ScriptedSettings

    def _update_function_choice_settings_callback(self) -> Callable[..., None]:
        return update_settings_from_function_call_configuration

    async def _inner_get_chat_message_contents(
        self, chat_history: ChatHistory, settings: PromptExecutionSettings
    ) -> list[ChatMessageContent]:
        calls = [item for one in chat_history.messages for item in one.items if isinstance(item, FunctionCallContent)]
        knows = any("asthma" in message.content for message in chat_history.messages)
        print(f"{len(chat_history)} messages; it knows of the asthma: {knows}")
        last = int((calls[-1].parse_arguments() or {})["number"]) if calls else 0
        items: list[Any] = [TextContent(text="All ten.")]
        if last < 10:
            items = [FunctionCallContent(id=f"look-{last}", name="Tables-look", arguments={"number": last + 1})]
        return [ChatMessageContent(role=AuthorRole.ASSISTANT, items=items)]


service = ScriptedService(ai_model_id="gpt-4o")
agent = ChatCompletionAgent(
    service=AssemblyChatCompletion(service, [BudgetPolicy(window=1_000, output_reserve=200)]),
    name="waiter",
    instructions="You know the tables.",
    plugins=[Tables()],
    function_choice_behavior=FunctionChoiceBehavior.Auto(maximum_auto_invoke_attempts=12),
)


async def main() -> None:
    """Ask the agent one question, and print its answer."""
    response = await agent.get_response(REQUEST)
    print(response, f"The thread has {len(response.thread)} messages.")


if __name__ == "__main__":
    asyncio.run(main())
