"""Seeded conversations in the message forms of providers, with tool calls, orphaned results and mixed messages."""

from __future__ import annotations

import random

FORMS = ("openai", "anthropic", "bedrock", "gemini", "responses")
WORDS = ("order", "lamp", "refund", "carrier", "depot", "parcel", "customer", "shade", "green")


def words(chance, least=2, most=40):
    return " ".join(chance.choice(WORDS) for _ in range(chance.randint(least, most)))


class _OpenAI:
    def user(self, text, results):
        return [*({"role": "tool", "tool_call_id": call, "content": said} for call, said in results), *self._say(text)]

    def _say(self, text):
        return [{"role": "user", "content": text}] if text else []

    def calls(self, calls):
        function = {"name": "look", "arguments": "{}"}
        asked = [{"id": call, "type": "function", "function": function} for call in calls]
        return [{"role": "assistant", "content": None, "tool_calls": asked}]

    def answer(self, text):
        return [{"role": "assistant", "content": text}]


class _Responses(_OpenAI):
    def user(self, text, results):
        outputs = ({"type": "function_call_output", "call_id": call, "output": said} for call, said in results)
        return [*outputs, *self._say(text)]

    def calls(self, calls):
        return [{"type": "function_call", "call_id": call, "name": "look", "arguments": "{}"} for call in calls]


class _Anthropic:
    def user(self, text, results):
        parts = [{"type": "tool_result", "tool_use_id": call, "content": said} for call, said in results]
        return [{"role": "user", "content": [*parts, *([{"type": "text", "text": text}] if text else [])]}]

    def calls(self, calls):
        uses = [{"type": "tool_use", "id": call, "name": "look", "input": {}} for call in calls]
        return [{"role": "assistant", "content": [{"type": "text", "text": "let me see"}, *uses]}]

    def answer(self, text):
        return [{"role": "assistant", "content": [{"type": "text", "text": text}]}]


class _Bedrock:
    def user(self, text, results):
        parts = [{"toolResult": {"toolUseId": call, "content": [{"text": said}]}} for call, said in results]
        return [{"role": "user", "content": [*parts, *([{"text": text}] if text else [])]}]

    def calls(self, calls):
        uses = [{"toolUse": {"toolUseId": call, "name": "look", "input": {}}} for call in calls]
        return [{"role": "assistant", "content": uses}]

    def answer(self, text):
        return [{"role": "assistant", "content": [{"text": text}]}]


class _Gemini:
    def user(self, text, results):
        parts = [{"functionResponse": {"id": call, "name": "look", "response": {"r": said}}} for call, said in results]
        return [{"role": "user", "parts": [*parts, *([{"text": text}] if text else [])]}]

    def calls(self, calls):
        return [
            {"role": "model", "parts": [{"functionCall": {"id": call, "name": "look", "args": {}}} for call in calls]}
        ]

    def answer(self, text):
        return [{"role": "model", "parts": [{"text": text}]}]


_FORMS = {
    "openai": _OpenAI(),
    "anthropic": _Anthropic(),
    "bedrock": _Bedrock(),
    "gemini": _Gemini(),
    "responses": _Responses(),
}


def talk(seed, form):
    """The messages of a conversation, and where its agent calls the model."""
    chance, made = random.Random(seed), _FORMS[form]
    messages, cuts = [], []
    for turn in range(chance.randint(3, 9)):
        orphans = [(f"lost{turn}", words(chance))] if chance.random() < 0.15 else []
        messages += made.user(f"question {turn}: {words(chance)}", orphans)
        cuts.append(len(messages))
        if chance.random() < 0.5:
            calls = [f"c{turn}.{number}" for number in range(chance.randint(1, 2))]
            messages += made.calls(calls)
            beside = words(chance) if form in ("anthropic", "bedrock", "gemini") and chance.random() < 0.3 else ""
            messages += made.user(beside, [(call, words(chance)) for call in calls])
            cuts.append(len(messages))
        messages += made.answer(f"answer {turn}: {words(chance)}")
    return messages, cuts


def limit(chance):
    """A policy with a limit, as a configuration names it."""
    kind = chance.choice(["sliding_window", "head_and_tail", "token_budget", "budget", "compact", "compact"])
    note = chance.random() < 0.3
    if kind == "sliding_window":
        most = chance.randint(1, 8)
        return {kind: {"max_events": most, "stride": chance.randint(1, min(3, most)), "transparent": note}}
    if kind == "head_and_tail":
        return {kind: {"head": chance.randint(1, 3), "tail": chance.randint(1, 6), "transparent": note}}
    step = chance.choice([0, 0, 10, 40])
    if kind == "token_budget":
        most = chance.randint(60, 400)
        return {kind: {"max_tokens": most, "step_tokens": step, "transparent": note, "on_overflow": "drop"}}
    settings = {"window": chance.randint(60, 420), "output_reserve": 0, "step_tokens": step}
    settings["on_overflow"] = chance.choice(["drop", "raise"])
    if kind == "compact":
        settings |= {"compact": "extractive", "summary_tokens": chance.choice([20, 40, 80, 150])}
    return {"budget": settings}


def chain(seed):
    """A chain with memories, alerts, a filter, and one or two limits."""
    chance = random.Random(f"chain {seed}")
    likely = (("working_memory", 0.3), ("episodic_memory", 0.2), ("alert", 0.4), ("conversation", 0.5))
    first = [name for name, probability in likely if chance.random() < probability]
    return [*first, *(limit(chance) for _ in range(chance.choice([1, 1, 1, 2])))]
