"""Continue a conversation that AutoGen saved, without AutoGen, with model contexts that keep complete tool calls.

python examples/model_context.py
"""

from __future__ import annotations

import asyncio
import json

from otel_assembly.model_context import (
    AssistantMessage,
    BufferedChatCompletionContext,
    FunctionCall,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    HeadAndTailChatCompletionContext,
    TokenLimitedChatCompletionContext,
    UserMessage,
)

#: The output of `await agent.save_state()`.
SAVED = json.dumps(
    {
        "type": "AssistantAgentState",
        "version": "1.0.0",
        "llm_context": {
            "messages": [
                {"content": "I need the weather of some towns.", "source": "user", "type": "UserMessage"},
                {"content": "Which ones?", "thought": None, "source": "clerk", "type": "AssistantMessage"},
            ]
        },
    }
)


def shown(messages: list) -> str:
    said = (one.content if isinstance(one.content, str) else type(one).__name__ for one in messages)
    return " | ".join(said)


async def main() -> None:
    contexts = {
        "the last two": BufferedChatCompletionContext(2),
        "both ends": HeadAndTailChatCompletionContext(1, 2),
        "sixty tokens": TokenLimitedChatCompletionContext(model="gpt-4o", token_limit=60),
        "as AutoGen does": BufferedChatCompletionContext(2, compat=True),
    }
    for name, context in contexts.items():
        await context.load_state(json.loads(SAVED))
        await context.add_message(UserMessage(content="Bonn and Ulm.", source="user"))
        calls = [FunctionCall(id=town, name="weather", arguments=f'{{"town": "{town}"}}') for town in ("Bonn", "Ulm")]
        await context.add_message(AssistantMessage(content=calls, source="clerk"))
        for call in calls:
            result = FunctionExecutionResult(content="rain", name="weather", call_id=call.id, is_error=False)
            await context.add_message(FunctionExecutionResultMessage(content=[result]))
        print(f"{name}: {shown(await context.get_messages())}")
    state = await contexts["both ends"].save_state()
    print(f"AutoGen loads it as well: {len(state['messages'])} messages")


if __name__ == "__main__":
    asyncio.run(main())
