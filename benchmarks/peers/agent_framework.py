"""agent-framework's `TruncationStrategy`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.peers.peer import Peer
from benchmarks.workload import BUDGET
from otel_assembly.tokens.vocabulary import shared_encoding

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.peers.peer import Driver


def _agent_framework(*, exact: bool) -> Driver:
    from agent_framework import Content, Message
    from agent_framework._compaction import CharacterEstimatorTokenizer, TruncationStrategy, apply_compaction

    encode = shared_encoding("o200k_base").encode_ordinary

    class Exact:
        """Counts the text that the framework gives it."""

        def count_tokens(self, text: str) -> int:
            return len(encode(text))

    def of(message: dict[str, Any]) -> Any:
        text = message.get("content") or ""
        if message["role"] == "tool":
            return Message("tool", [Content.from_function_result(message["tool_call_id"], result=text)])
        calls = [
            Content.from_function_call(call["id"], call["function"]["name"], arguments=call["function"]["arguments"])
            for call in message.get("tool_calls") or []
        ]
        return Message(message["role"], calls or [text])

    def start(held: list[Any]) -> Callable[[list[Any]], Any]:
        tokenizer: Any = Exact() if exact else CharacterEstimatorTokenizer()
        strategy = TruncationStrategy(max_n=BUDGET, compact_to=BUDGET, tokenizer=tokenizer)

        async def turn(new: list[Any]) -> Any:
            held.extend(new)
            return await apply_compaction(held, strategy=strategy, tokenizer=tokenizer)

        return turn

    return lambda events: list(map(of, events)), start


PEERS = (
    Peer("agent-framework Truncation", "agent-framework-core", lambda: _agent_framework(exact=False), "characters"),
    Peer("agent-framework Truncation, exact", "agent-framework-core", lambda: _agent_framework(exact=True), "exact"),
)
