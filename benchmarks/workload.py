"""The conversation that is measured on: turns of a user, a tool-calling assistant, a tool, an assistant; seeded."""

from __future__ import annotations

import random

WORDS = """
the order was shipped from a depot near harbour and will arrive once customs has cleared it please confirm address
refund ticket invoice chain bicycle carrier window today never again status open closed pending
""".split()  # noqa: SIM905  # easier to read


def _text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def messages(count: int, seed: int = 7) -> list[dict]:
    """So many OpenAI-style chat messages."""
    rng = random.Random(seed)
    made: list[dict] = []
    turn = 0
    while len(made) < count:
        call = f"call_{turn}"
        rows = ", ".join(f'{{"id": {rng.randrange(10**6)}, "state": "{rng.choice(WORDS)}"}}' for _ in range(12))
        made += [
            {"role": "user", "content": _text(rng, 40)},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": call,
                        "type": "function",
                        "function": {"name": "lookup", "arguments": f'{{"q": "{rng.choice(WORDS)}"}}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": call, "content": f"[{rows}]"},
            {"role": "assistant", "content": _text(rng, 60)},
        ]
        turn += 1
    return made[:count]
