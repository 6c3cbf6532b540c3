"""A turn is a user request with what follows. No older turn stays if a newer one is dropped, whatever else competes."""

from __future__ import annotations

import random

import pytest

from otel_assembly import (
    Assembler,
    Block,
    BlockItem,
    BudgetPolicy,
    Context,
    ContextAssembler,
    ContextOverflowError,
    History,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    allocate,
)
from otel_assembly.budget import Compactors
from otel_assembly.context_assembler import Candidate, Task
from otel_assembly.model_context import BufferedChatCompletionContext, TokenLimitedChatCompletionContext

WORDS = ("order", "lamp", "refund", "carrier", "depot", "parcel", "customer", "shade", "green")
FAILS = Compactors(lambda text, target_tokens: "", fallback=None)
SEEDS = range(120)


def words(chance, most=60):
    return " ".join(chance.choice(WORDS) for _ in range(chance.randint(3, most)))


def turns(chance, form):
    """Turns, each a list of its messages, oldest first."""
    found = []
    for number in range(chance.randint(4, 14)):
        if form == "text":
            found.append([f"turn {number}: {words(chance)}"])
            continue
        turn = [{"role": "user", "content": f"question {number}: {words(chance)}"}]
        if chance.random() < 0.4:
            call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            turn.append({"role": "assistant", "content": None, "tool_calls": [call]})
            turn.append({"role": "tool", "tool_call_id": f"c{number}", "content": words(chance)})
        turn.append({"role": "assistant", "content": f"answer {number}: {words(chance)}"})
        found.append(turn)
    return found


def flat(several):
    return [message for turn in several for message in turn]


def assert_no_hole(messages, stays):
    """What stays is the end of the conversation."""
    flags = [stays(message) for message in messages]
    first = flags.index(True) if True in flags else len(flags)
    assert all(flags[first:]), "".join("x" if flag else "." for flag in flags)


def kept_of(allocation):
    kept = [
        item.item.content
        for decision in allocation.decisions
        if decision.block.name in ("recent", "older")
        for item in decision.items
        if item.outcome != "dropped"
    ]
    return lambda message: any(message is content for content in kept)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_allocation_drops_older_turns_first(seed):
    chance = random.Random(seed)
    conversation = turns(chance, chance.choice(["text", "chat"]))
    border = chance.randint(0, len(conversation))
    older, recent = flat(conversation[:border]), flat(conversation[border:])
    blocks = [
        Block("system", 1, "Be brief.", cuttable=False),
        Block("query", 3, "What now?", cuttable=False),
        Block("older", 9, older, cuttable=True, min_tokens=chance.choice([0, 0, 20, 60])),
        Block("recent", 8, recent, cuttable=True, min_tokens=chance.choice([0, 0, 20, 60])),
    ]
    if chance.random() < 0.5:
        passages = [BlockItem(words(chance), id=f"e{n % 4}", rank=n + 1, version=n) for n in range(6)]
        blocks.append(Block("evidence", 5, passages, cuttable=True, min_tokens=chance.choice([0, 50])))
    if chance.random() < 0.5:
        memories = [BlockItem(words(chance), score=chance.random()) for _ in range(3)]
        blocks.append(Block("memory", 6, memories, cuttable=True))
    if chance.random() < 0.3:
        blocks.append(Block("summary", 7, words(chance), cuttable=True, min_tokens=chance.choice([0, 30])))
    allocation = allocate(blocks, chance.randint(120, 700), 0, compact=chance.choice([None, FAILS]))
    assert_no_hole([*older, *recent], kept_of(allocation))


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_context_assembler_drops_older_turns_first(seed):
    chance = random.Random(seed)
    conversation = turns(chance, chance.choice(["text", "chat"]))
    messages, border = flat(conversation), chance.randint(0, len(flat(conversation)))  # also through a tool call

    class Index:
        async def search(self, query, *, scopes, k):
            return [Candidate(f"e{n % 4}", words(chance), "team", version=n) for n in range(chance.randint(0, 5))]

    desk = ContextAssembler(
        system="Be brief.",
        window=chance.randint(150, 900),
        output_reserve=0,
        scopes=lambda user, task: {"team"},
        retrievers=[Index()],
        floors={
            "evidence": chance.choice([0, 50]),
            "recent": chance.choice([0, 0, 30, 60]),
            "older": chance.choice([0, 0, 30, 60]),
        },
        order=chance.choice(["attention", "cache"]),
        step_tokens=chance.choice([0, 20, 50]),
        compact=chance.choice([None, FAILS]),
    )
    summary = words(chance) if chance.random() < 0.4 else None
    task = Task("What now?", older=messages[:border], recent=messages[border:], summary=summary)
    context = await desk.assemble(task, "user")
    assert_no_hole(messages, kept_of(context.allocation))


@pytest.mark.parametrize("seed", SEEDS[:60])
async def test_a_chain_drops_older_turns_first(seed):
    chance = random.Random(seed)
    messages = flat(turns(chance, "chat"))
    messages = messages[: chance.randint(1, len(messages))]
    policy = chance.choice(
        [
            BudgetPolicy(chance.randint(120, 500), 0, chance.choice([0, 30])),
            BudgetPolicy(chance.randint(120, 500), 0, chance.choice([0, 30]), compact="extractive", summary_tokens=40),
            TokenBudgetPolicy(chance.randint(120, 500), step_tokens=chance.choice([0, 30])),
            SlidingWindowPolicy(chance.randint(1, 9), stride=1),
        ]
    )
    history = History(messages)
    try:
        assembly = await Assembler([policy]).assemble(["Be brief."], history, Context())
    except ContextOverflowError:
        return
    request = max((at for at, message in enumerate(messages) if message["role"] == "user"), default=-1)
    sent = {id(event) for event in assembly.events}
    assert request < 0 or id(messages[request]) in sent
    # The newest request is fixed: it may stay in front of what is cut.
    rest = [message for at, message in enumerate(messages) if at != request]
    called = {message["tool_call_id"] for message in rest if message["role"] == "tool"}
    answered = [m for m in rest if not m.get("tool_calls") or m["tool_calls"][0]["id"] in called]
    assert_no_hole(answered, lambda message: id(message) in sent)


@pytest.mark.parametrize("seed", SEEDS[:40])
async def test_a_model_context_drops_older_turns_first(seed):
    chance = random.Random(seed)
    messages = [message for message in flat(turns(chance, "chat")) if message.get("content")]
    messages = [message for message in messages if message["role"] != "tool"]
    context = chance.choice(
        [BufferedChatCompletionContext(chance.randint(2, 8)), TokenLimitedChatCompletionContext(token_limit=300)]
    )
    for message in messages:
        await context.add_message(message)
    sent = {id(event) for event in await context.get_messages()}
    assert_no_hole(messages[-max(2, len(sent)) :], lambda message: id(message) in sent)


def test_a_newer_turn_takes_the_floor_of_older_turns():
    recent = ["newer turn: " + "word " * 40, "newest turn: " + "word " * 40]
    blocks = [
        Block("recent", 8, recent, cuttable=True),
        Block("older", 9, ["older turn: " + "word " * 40], cuttable=True, min_tokens=40),
        Block("summary", 7, "so far " * 30, cuttable=True),
    ]
    allocation = allocate(blocks, 115, 0, compact=FAILS)
    decided = {decision.block.name: decision for decision in allocation.decisions}
    # The summary may not take the floor; the newer turns may.
    assert decided["summary"].outcome == "kept"
    allocation = allocate(blocks[:2], 100, 0, compact=FAILS)
    assert [block.name for block in allocation.blocks] == ["recent"]
    assert [item.outcome.value for item in allocation.decisions[0].items] == ["kept", "kept"]
    assert allocation.decisions[1].reason == "over_budget"
