"""Runs whose telemetry a page is made of."""

from __future__ import annotations

import json
import re

from otel_assembly import (
    Assembler,
    Context,
    ContextOverflowError,
    ConversationPolicy,
    History,
    ModelRequest,
    ModelResponse,
    TokenBudgetPolicy,
)
from otel_assembly.observe import ObservedAssembler

WORDS = ("storm", "parcel", "refund", "ticket", "depot", "morning", "customer", "order")


def words(count, start=0):
    return " ".join(WORDS[(start + index) % len(WORDS)] for index in range(count))


def messages(turns, size=30):
    """A request before, and a response after, each of so many assemblies."""
    return [
        (ModelRequest(content=f"Question {turn}: {words(size + turn % 7, turn)}?"), ModelResponse(content=words(12)))
        for turn in range(turns)
    ]


async def play(recorder, turns, policies=None, *, name="short", conversation="talk", budget=400, prompts=("Be kind.",)):
    """Assemble before every response; an overflow that raises is a turn like others."""
    chain = policies or [ConversationPolicy(), TokenBudgetPolicy(budget)]
    assembler = Assembler(chain, name=name, recorder=recorder)
    history, context = History(), Context(conversation_id=conversation, agent_name="support")
    assemblies = []
    for request, response in turns:
        history.append(request)
        try:
            assemblies.append(await assembler.assemble(list(prompts), history, context))
        except ContextOverflowError:
            assemblies.append(None)
        history.append(response)
    return assemblies


def limited(recorder, turns, *, budget, prompts=("Be kind. " * 100,)):
    """What a framework sends whose reducer keeps the last message, and whose limit is of the messages alone."""
    observed = ObservedAssembler("peer", recorder=recorder)
    for turn in range(turns):
        talk = [event for pair in messages(turn + 1) for event in pair]
        assembly = observed.begin("talk", talk, prompts=list(prompts), agent_name="support")
        with assembly.step("newest") as step:
            step.out(talk[-1:], budget=budget)
        assembly.end()


def embedded(page):
    """The data of a page, as a browser would read it, and its scripts."""
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1]
    return json.loads(data), re.findall(r"<script>(.*?)</script>", page, re.DOTALL)


def expanded(runs):
    """The ids of runs such as ``3``, ``5-9`` and ``m0-m2``."""
    found = []
    for run in runs:
        first, _, last = (part.removeprefix("m") for part in run.partition("-"))
        mark = "m" * run.startswith("m")
        found += (f"{mark}{number}" for number in range(int(first), int(last or first) + 1))
    return found


def state(ledger, item, place):
    """Where an item was on a turn, from that turn's row alone: True in the prompt, else why not; None if not there."""
    turn = ledger["turns"][place]
    if item in expanded(turn.get("kept", [])):
        return True
    for step in reversed(turn.get("steps", [])):
        for reason, runs in step.get("drops", []):
            if item in expanded(runs):
                return reason, step["policy"], step["index"], "dropped"
        if item in expanded(step.get("gone", [])):
            return "compacted", step["policy"], step["index"], "compacted"
    return (None, None, None, "dropped") if item in expanded(turn.get("offered", [])) else None
