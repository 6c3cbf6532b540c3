"""An agent on LlamaIndex with a tool and a memory with a limit, without any code for otel-assembly.

    opentelemetry-instrument python examples/llama_index_agent.py

A scripted model replaces the provider. It describes a way without stairs while the prompt contains the guest's first
message. The memory keeps the newest messages that fit its limit, so the third answer leads up the stairs.
"""

from __future__ import annotations

import asyncio
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LLMMetadata, ToolCallBlock
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.memory import ChatMemoryBuffer

GUEST = "I use a wheelchair. Guide me through the museum, please."
ROOMS = ("the hall", "the portraits", "the sculptures", "the tower")


class Guide(FunctionCallingLLM):
    """A scripted model that calls the tool, then describes the way."""

    model: str = "gpt-4o"

    @property
    def metadata(self) -> LLMMetadata:
        """Return the model's capabilities."""
        return LLMMetadata(model_name=self.model, is_chat_model=True, is_function_calling_model=True)

    def chat(self, messages: Any, **kwargs: Any) -> ChatResponse:
        """Return the scripted response to the messages."""
        newest = messages[-1]
        if newest.role == "user":
            room = next((room for room in reversed(ROOMS) if room in str(newest)), ROOMS[0])
            call = ToolCallBlock(tool_call_id=room, tool_name="way_to", tool_kwargs={"room": room})
            return ChatResponse(message=ChatMessage(role="assistant", blocks=[call]))
        wheels = any("wheelchair" in str(message) for message in messages)
        said = "Take the lift behind the desk." if wheels else "Take the stairs on the left."
        return ChatResponse(message=ChatMessage(role="assistant", content=said))

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


def way_to(room: str) -> str:
    """Look up how to get to a room."""
    return f"To {room}: the stairs on the left, or the lift behind the desk. " + "Do not touch the frames. " * 12


agent = FunctionAgent(
    name="guide",
    llm=Guide(),
    tools=[way_to],
    system_prompt="You guide guests through a museum. Say the way that suits them.",
    streaming=False,
)


async def main() -> None:
    """Ask for several rooms, one after the other, in one conversation."""
    memory = ChatMemoryBuffer.from_defaults(token_limit=220)
    for number, room in enumerate(ROOMS):
        said = f"{GUEST} First to {room}." if number == 0 else f"And now to {room}?"
        print("guest:", said)
        print("guide:", await agent.run(said, memory=memory))


if __name__ == "__main__":
    asyncio.run(main())
