"""cendor-contextkit and promptbudget, which pack a prompt anew each turn."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from benchmarks.peers.peer import Peer
from benchmarks.workload import BUDGET, MODEL, SYSTEM
from otel_assembly.tokens.vocabulary import shared_encoding

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.peers.peer import Driver, Message


def _plain(message: Message) -> Message:
    text = message.get("content") or json.dumps(message.get("tool_calls"))
    return {"role": message["role"], "content": text}


def _contextkit() -> Driver:
    from cendor.contextkit import Block, Context

    def start(held: list[Any]) -> Callable[[list[Any]], Any]:
        def turn(new: list[Any]) -> Any:
            held.extend(new)
            context = Context(budget_tokens=BUDGET, model=MODEL)
            context.add(Block(SYSTEM, priority=10, pin=True, role="system"))
            context.add(Block(messages=held))
            return context.assemble()

        return turn

    return lambda events: list(map(_plain, events)), start


def _promptbudget() -> Driver:
    from promptbudget import Message as Packed
    from promptbudget import pack_chat

    encode = shared_encoding("o200k_base").encode_ordinary

    def start(held: list[Any]) -> Callable[[list[Any]], Any]:
        def turn(new: list[Any]) -> Any:
            held.extend(new)
            return pack_chat(
                held, BUDGET, system=SYSTEM, tokenizer=lambda text: len(encode(text)), tokens_per_message=4
            )

        return turn

    return lambda events: [Packed(**_plain(event)) for event in events], start


PEERS = (
    Peer("cendor-contextkit", "cendor-contextkit", _contextkit, "exact"),
    Peer("promptbudget pack_chat", "promptbudget", _promptbudget, "exact"),
)
