"""Haystack's `SlidingWindowCompactor`, which replaces the conversation by what is left."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from benchmarks.peers.peer import Peer
from benchmarks.workload import BUDGET

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.peers.peer import Driver, Message


def _haystack(*, exact: bool) -> Driver:
    from haystack.dataclasses import ChatMessage, ToolCall
    from haystack.hooks.compaction import SlidingWindowCompactor
    from haystack.token_counters import ApproximateTokenCounter, TiktokenCounter

    def of(message: Message) -> Any:
        text = message.get("content") or ""
        if message["role"] == "user":
            return ChatMessage.from_user(text)
        if message["role"] == "tool":
            origin = ToolCall(tool_name="lookup", arguments={}, id=message["tool_call_id"])
            return ChatMessage.from_tool(text, origin)
        calls = [
            ToolCall(
                tool_name=call["function"]["name"],
                arguments=json.loads(call["function"]["arguments"]),
                id=call["id"],
            )
            for call in message.get("tool_calls") or []
        ]
        return ChatMessage.from_assistant(text or None, tool_calls=calls)

    def start(held: list[Any]) -> Callable[[list[Any]], Any]:
        counter = TiktokenCounter() if exact else ApproximateTokenCounter()
        compactor = SlidingWindowCompactor()
        kept = held

        def turn(new: list[Any]) -> Any:
            nonlocal kept
            kept = [*kept, *new]
            kept = compactor.compact(kept, BUDGET, counter) or kept
            return kept

        return turn

    return lambda events: list(map(of, events)), start


PEERS = (
    Peer("Haystack SlidingWindow", "haystack-ai", lambda: _haystack(exact=False), "characters", "replaced"),
    Peer("Haystack SlidingWindow, exact", "haystack-ai", lambda: _haystack(exact=True), "exact", "replaced"),
)
