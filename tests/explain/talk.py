"""The conversations that Jaeger's recorded answers (``recorded_jaeger.json``) tell of, replayed at 500 tokens."""

from __future__ import annotations

SYSTEM = "You are terse."
CHAIN = ["conversation", {"token_budget": {"max_tokens": 500, "on_overflow": "drop"}}]


def messages(questions=4):
    made = []
    for n in range(questions):
        call = {"id": f"c{n}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        made += [
            {"role": "user", "content": f"Question {n}, 주문은 어디에: " + "how does it work? " * 10},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{n}", "content": f"Fact {n}. " * 30},
            {"role": "assistant", "content": f"Answer {n}."},
        ]
    return made


def as_row(questions=4, name="talk-1"):
    """A line of a transcript file."""
    return {"id": name, "messages": [{"role": "system", "content": SYSTEM}, *messages(questions)]}


def cuts(said):
    """Where an agent calls its model: before every response."""
    return [at for at, message in enumerate(said) if message["role"] == "assistant"]


def policies(tokens):
    """The chain on one line."""
    return f"conversation,token_budget:max_tokens={tokens}"
