"""LlamaIndex's `ChatMemoryBuffer`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from benchmarks.peers.peer import Peer
from benchmarks.workload import BUDGET
from otel_assembly.tokens.vocabulary import shared_encoding

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.peers.peer import Driver, Message


def _llama_index() -> Driver:
    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.core.memory import ChatMemoryBuffer

    encode = shared_encoding("o200k_base").encode_ordinary

    def of(message: Message) -> Any:
        text = message.get("content") or json.dumps(message.get("tool_calls"))
        return ChatMessage(role=message["role"], content=text)

    def start(held: list[Any]) -> Callable[[list[Any]], Any]:
        buffer = ChatMemoryBuffer.from_defaults(chat_history=held, token_limit=BUDGET, tokenizer_fn=encode)

        def turn(new: list[Any]) -> Any:
            for message in new:
                buffer.put(message)
            return buffer.get()

        return turn

    return lambda events: list(map(of, events)), start


PEERS = (Peer("LlamaIndex ChatMemoryBuffer", "llama-index-core", _llama_index, "exact"),)
