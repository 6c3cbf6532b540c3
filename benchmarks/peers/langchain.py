"""LangChain's `trim_messages`: estimated, exact, and exact with a memory that its user wrote."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from benchmarks.peers.peer import Peer
from benchmarks.workload import BUDGET
from otel_assembly.tokens.vocabulary import shared_encoding

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.peers.peer import Driver, Message


def langchain_messages(events: list[Message]) -> list[Any]:
    """LangChain's messages of ours."""
    from langchain_core.messages import convert_to_messages

    return convert_to_messages(events)


def _langchain(counter: Callable[[Any], Any]) -> Driver:
    from langchain_core.messages import trim_messages

    def start(held: list[Any]) -> Callable[[list[Any]], Any]:
        def turn(new: list[Any]) -> Any:
            held.extend(new)
            return trim_messages(held, max_tokens=BUDGET, token_counter=counter, strategy="last", start_on="human")

        return turn

    return langchain_messages, start


def _langchain_approximate() -> Driver:
    from langchain_core.messages.utils import count_tokens_approximately

    return _langchain(count_tokens_approximately)


def _of_langchain() -> Callable[[Any], int]:
    encode = shared_encoding("o200k_base").encode_ordinary

    def count(message: Any) -> int:
        calls = getattr(message, "tool_calls", ())
        spelled = [text for call in calls for text in (call["name"], json.dumps(call["args"]))]
        return 4 + 3 * len(calls) + sum(len(encode(text)) for text in (message.content, *spelled) if text)

    return count


def _langchain_exact() -> Driver:
    count = _of_langchain()
    return _langchain(lambda some: sum(map(count, some)))


def _langchain_memoized() -> Driver:
    count = _of_langchain()
    known: dict[int, tuple[int, Any]] = {}  # by identity, and the message kept, so that no other gets its identity

    def memoized(some: list[Any]) -> int:
        total = 0
        for message in some:
            found = known.get(id(message))
            if found is None:
                found = known[id(message)] = (count(message), message)
            total += found[0]
        return total

    return _langchain(memoized)


PEERS = (
    Peer("LangChain trim_messages", "langchain-core", _langchain_approximate, "characters"),
    Peer("LangChain trim_messages, exact", "langchain-core", _langchain_exact, "exact"),
    Peer("LangChain trim_messages, exact, memoized by its user", "langchain-core", _langchain_memoized, "exact"),
)
