"""A token budget for a LlamaIndex agent, which keeps the newest request and complete tool calls.

A scripted model calls a tool ten times in one run, so the example needs no network. The memory keeps all messages.

    python examples/llama_index_budget_policy.py
"""

from __future__ import annotations

import asyncio
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LLMMetadata, ToolCallBlock
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection

from otel_assembly import BudgetPolicy
from otel_assembly.instrumentation.llama_index import AssemblyMemory

REQUEST = "I use a wheelchair. Which of the ten rooms can I visit?"


class Guide(FunctionCallingLLM):
    """A scripted model that prints how many messages it received, then calls the tool for the next room."""

    model: str = "gpt-4o"

    @property
    def metadata(self) -> LLMMetadata:
        """Return the model's capabilities."""
        return LLMMetadata(model_name=self.model, is_chat_model=True, is_function_calling_model=True)

    def chat(self, messages: Any, **kwargs: Any) -> ChatResponse:
        """Return the scripted response to the messages."""
        asked = [block for message in messages for block in message.blocks if isinstance(block, ToolCallBlock)]
        last = int(asked[-1].tool_kwargs["number"]) if asked else 0
        print(f"{len(messages)} messages; it knows of the wheelchair: {'wheelchair' in str(messages)}")
        if last == 10:
            return ChatResponse(message=ChatMessage(role="assistant", content="All ten."))
        call = ToolCallBlock(tool_call_id=str(last + 1), tool_name="room", tool_kwargs={"number": last + 1})
        return ChatResponse(message=ChatMessage(role="assistant", blocks=[call]))

    async def achat(self, messages: Any, **kwargs: Any) -> ChatResponse:
        """Return the scripted response; LlamaIndex calls this method in async code."""
        return self.chat(messages, **kwargs)

    def _prepare_chat_with_tools(self, tools: Any, chat_history: Any = None, **kwargs: Any) -> dict[str, Any]:
        return {"messages": list(chat_history or []), "tools": [tool.metadata.to_openai_tool() for tool in tools]}

    def get_tool_calls_from_response(self, response: ChatResponse, **kwargs: Any) -> list[ToolSelection]:
        """Return the tool calls of the response."""
        return [
            ToolSelection(tool_id=block.tool_call_id or "", tool_name=block.tool_name, tool_kwargs=block.tool_kwargs)
            for block in response.message.blocks
            if isinstance(block, ToolCallBlock)
        ]

    stream_chat = astream_chat = complete = acomplete = stream_complete = astream_complete = chat


def room(number: int) -> str:
    """Look up a room."""
    return f"Room {number}: by the lift. " + "Do not touch the frames. " * 30


memory = AssemblyMemory([BudgetPolicy(window=1_000, output_reserve=200)])
agent = FunctionAgent(
    name="guide",
    llm=memory.llm(Guide()),
    tools=[room],
    system_prompt="You guide guests through a museum.",
    streaming=False,
)


async def main() -> None:
    """Ask the agent one question, and print its answer."""
    answer = await agent.run(REQUEST, memory=memory)
    print(answer, f"The memory has {len(memory.get_all())} messages.")


if __name__ == "__main__":
    asyncio.run(main())
