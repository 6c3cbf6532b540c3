"""AutoGen's `TokenLimitedChatCompletionContext`, with a client that counts exactly, and with one that remembers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.peers.peer import Peer
from benchmarks.workload import BUDGET
from otel_assembly.tokens.vocabulary import shared_encoding

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.peers.peer import Driver, Message


def _autogen(*, memoized: bool) -> Driver:
    from autogen_core import FunctionCall
    from autogen_core.model_context import TokenLimitedChatCompletionContext
    from autogen_core.models import (
        AssistantMessage,
        FunctionExecutionResult,
        FunctionExecutionResultMessage,
        UserMessage,
    )

    encode = shared_encoding("o200k_base").encode_ordinary

    def of(message: Message) -> Any:
        text = message.get("content") or ""
        if message["role"] == "user":
            return UserMessage(content=text, source="user")
        if message["role"] == "tool":
            result = FunctionExecutionResult(content=text, name="lookup", call_id=message["tool_call_id"])
            return FunctionExecutionResultMessage(content=[result])
        calls = [
            FunctionCall(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
            for call in message.get("tool_calls") or []
        ]
        return AssistantMessage(content=calls or text, source="assistant")

    def count(message: Any) -> int:
        if isinstance(message.content, str):
            return 4 + len(encode(message.content))
        return 4 + sum(
            len(encode(item.content)) if hasattr(item, "content") else 3 + len(encode(item.name + item.arguments))
            for item in message.content
        )

    known: dict[int, int] = {}

    class Client:
        """What the context asks of its model client."""

        def count_tokens(self, some: Any, *, tools: Any = ()) -> int:
            if not memoized:
                return sum(map(count, some))
            return sum(known.get(id(item)) or known.setdefault(id(item), count(item)) for item in some)

    def start(held: list[Any]) -> Callable[[list[Any]], Any]:
        client: Any = Client()
        context = TokenLimitedChatCompletionContext(client, token_limit=BUDGET, initial_messages=held)

        async def turn(new: list[Any]) -> Any:
            for message in new:
                await context.add_message(message)
            return await context.get_messages()

        return turn

    return lambda events: list(map(of, events)), start


PEERS = (
    Peer("AutoGen TokenLimited, exact", "autogen-core", lambda: _autogen(memoized=False), "exact"),
    Peer("AutoGen TokenLimited, memoized by its user", "autogen-core", lambda: _autogen(memoized=True), "exact"),
)
