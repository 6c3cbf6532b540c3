"""AG2's chain of policies, which estimates from characters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.peers.peer import Peer
from benchmarks.workload import BUDGET, SYSTEM

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.peers.peer import Driver, Message


def ag2_events(events: list[Message]) -> list[Any]:
    """AG2's events of ours, one a message."""
    from ag2.events import (
        ModelMessage,
        ModelRequest,
        ModelResponse,
        TextInput,
        ToolCallEvent,
        ToolCallsEvent,
        ToolResultEvent,
        ToolResultsEvent,
    )
    from ag2.tools import ToolResult

    def of(message: Message) -> Any:
        text = message.get("content") or ""
        if message["role"] == "user":
            return ModelRequest([TextInput(text)])
        if message["role"] == "tool":
            name = message.get("name")
            result = ToolResultEvent(parent_id=message["tool_call_id"], name=name, result=ToolResult(text))
            return ToolResultsEvent([result])
        calls = [
            ToolCallEvent(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
            for call in message.get("tool_calls") or []
        ]
        return ModelResponse(ModelMessage(text), tool_calls=ToolCallsEvent(calls))

    return list(map(of, events))


def _ag2() -> Driver:
    from ag2.policies import ConversationPolicy, TokenBudgetPolicy

    chain = [ConversationPolicy(), TokenBudgetPolicy(BUDGET)]

    def start(held: list[Any]) -> Callable[[list[Any]], Any]:
        async def turn(new: list[Any]) -> Any:
            held.extend(new)
            prompts, events = [SYSTEM], held
            for policy in chain:
                prompts, events = await policy.apply(prompts, events, None)
            return events

        return turn

    return ag2_events, start


PEERS = (Peer("AG2 ConversationPolicy, TokenBudgetPolicy", "ag2", _ag2, "characters"),)
