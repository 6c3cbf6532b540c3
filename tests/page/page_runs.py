"""Runs whose telemetry a page is made of."""

from __future__ import annotations

import json
import re
import string

from assembling import item_number

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


def embedded(page):
    """The data of a page, as a browser would read it, and its scripts."""
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1]
    return json.loads(data), re.findall(r"<script>(.*?)</script>", page, re.DOTALL)


def expanded(runs):
    """The ordinals of runs such as ``3`` and ``5-9``."""
    found = []
    for run in runs:
        assert set(run) <= {*string.digits, "-", "m"}
        first, _, last = run.partition("-")
        found += range(item_number(first), item_number(last or first) + 1)
    return found


def state(ledger, item, place):
    """Where an item was after a turn, from its history alone: True in the prompt, else why not; None before it came."""
    held = [cause for at, cause in item["h"] if at <= place]
    if not held:
        return None
    return True if held[-1] < 0 else tuple(ledger["causes"][held[-1]])
