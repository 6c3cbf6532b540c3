"""An AutoGen agent with its client for OpenAI, which a script answers."""

from __future__ import annotations

import asyncio
import json
import warnings

import httpx
from autogen_agentchat.agents import AssistantAgent
from autogen_core.model_context import BufferedChatCompletionContext
from autogen_ext.models.openai import OpenAIChatCompletionClient

warnings.simplefilter("ignore")


def answered(request: httpx.Request) -> httpx.Response:
    said = json.loads(request.content)["messages"]
    answer = {"role": "assistant", "content": f"an answer to {said[-1]['content']!r}, behind {len(said) - 1} others"}
    choice = {"index": 0, "finish_reason": "stop", "message": answer}
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    body = {
        "id": "r",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-4o",
        "choices": [choice],
        "usage": usage,
    }
    return httpx.Response(200, json=body)


async def main() -> None:
    client = OpenAIChatCompletionClient(
        model="gpt-4o", api_key="none", http_client=httpx.AsyncClient(transport=httpx.MockTransport(answered))
    )
    agent = AssistantAgent("booking", client, model_context=BufferedChatCompletionContext(buffer_size=2))
    for ask in ("A table for six.", "At eight.", "Outside."):
        print((await agent.run(task=ask)).messages[-1].to_text())


if __name__ == "__main__":
    asyncio.run(main())
