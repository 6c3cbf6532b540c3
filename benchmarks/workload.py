"""The conversation that engines are measured on, seeded: a user, an assistant that calls a tool, the tool, the answer.

Beside it the floor, which is what no exact engine can be without: each new message is tokenized once, and remembered
integers are scanned backwards until the budget is full. It needs nothing but tiktoken, so it runs beside any peer.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from otel_assembly.tokens.vocabulary import shared_encoding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BUDGET = 8_000
SYSTEM = "You are helpful."
MODEL = "gpt-4o"

WORDS = """
the order was shipped from a depot near harbour and will arrive once customs has cleared it please confirm address
refund ticket invoice chain bicycle carrier window today never again status open closed pending
""".split()  # noqa: SIM905  # easier to read

_PRIMING = 3


def fixed_tokens() -> int:
    """The tokens of the system prompt, and of the beginning of the reply."""
    return 4 + len(shared_encoding("o200k_base").encode_ordinary(SYSTEM)) + _PRIMING


def messages(count: int, seed: int = 7, *, abandon_every: int = 0) -> list[dict[str, Any]]:
    """So many OpenAI-style chat messages.

    Args:
        count: How many.
        seed: Another one gives other texts.
        abandon_every: The tool never answers in each so-manieth turn; 0 for never.
    """
    rng = random.Random(seed)
    made: list[dict[str, Any]] = []
    turn = 0
    while len(made) < count:
        call = f"call_{seed}_{turn}"
        rows = ", ".join(f'{{"id": {rng.randrange(10**6)}, "state": "{word}"}}' for word in rng.choices(WORDS, k=12))
        function = {"name": "lookup", "arguments": f'{{"q": "{rng.choice(WORDS)}"}}'}
        made.append({"role": "user", "content": _text(rng, 40)})
        made.append(
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": call, "type": "function", "function": function}],
            }
        )
        if not abandon_every or turn % abandon_every:
            made.append({"role": "tool", "tool_call_id": call, "content": f"[{rows}]"})
        made.append({"role": "assistant", "content": _text(rng, 60)})
        turn += 1
    return made[:count]


def _text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(WORDS, k=words))


def pairs(name: str, rounds: int, seed: int = 11) -> list[list[dict[str, Any]]]:
    """Two new messages for every round; nobody else's have the same texts, so that no memory of counts is shared."""
    fresh = messages(2 * rounds, seed)
    for message in fresh:
        if message["content"]:
            message["content"] = f"{name}: {message['content']}"
    return [fresh[at : at + 2] for at in range(0, len(fresh), 2)]


def counting() -> Callable[[dict[str, Any]], int]:
    """What counts a message's tokens: 3 each and 1 for its role, 3 around a call, every text alone.

    The name of a tool counts in its call, and not beside its result.
    """
    encode = shared_encoding("o200k_base").encode_ordinary

    def count(message: dict[str, Any]) -> int:
        calls = message.get("tool_calls") or ()
        tokens = 4 + 3 * len(calls)
        for call in calls:
            function = call["function"]
            tokens += len(encode(function["name"])) + len(encode(function["arguments"]))
        if message.get("content"):
            tokens += len(encode(message["content"]))
        if message.get("name") and message["role"] != "tool":
            tokens += 1 + len(encode(message["name"]))
        return tokens

    return count


class Floor:
    """Exact counts, remembered; a backward scan.

    Args:
        events: What was there before.
        lazily: Count only as many of them as a first scan can come to, so that making one takes no time.
    """

    def __init__(self, events: Sequence[dict[str, Any]], *, lazily: bool = True) -> None:
        self._count = counting()
        near = min(len(events), 400) if lazily else len(events)
        self._tokens = [0] * (len(events) - near) + [self._count(event) for event in events[len(events) - near :]]
        self._around = fixed_tokens()

    def turn(self, new: Sequence[dict[str, Any]]) -> int:
        """How many messages fit."""
        tokens = self._tokens
        tokens += map(self._count, new)
        room = BUDGET - self._around
        kept = 0
        for token in reversed(tokens):
            room -= token
            if room < 0:
                break
            kept += 1
        return kept
