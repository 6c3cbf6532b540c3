"""A policy in a user's own file costs what is new and what it looks at: counted in calls, reads and texts."""

from __future__ import annotations

from functools import cache

import pytest
from counting import Calls, Reads, counted_texts

from otel_assembly import (
    Assembler,
    BudgetPolicy,
    Context,
    ConversationPolicy,
    DecidingPolicy,
    DecisionReason,
    History,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    Verdict,
)
from otel_assembly.decision import DecisionOutcome, Outcome

SHORT, LONG, LONGEST = 1_000, 10_000, 50_000


class OwnBudget(BudgetPolicy):
    name = "own_budget"


class NotingBudget(BudgetPolicy):
    async def decide(self, prompts, events, context):
        outcome = await super().decide(prompts, events, context)
        return Outcome([*outcome.prompts, "noted"], outcome.events, outcome.decisions, budget=outcome.budget)


class OwnTokens(TokenBudgetPolicy):
    pass


class OwnWindow(SlidingWindowPolicy):
    pass


class OwnConversation(ConversationPolicy):
    pass


class Newest(DecidingPolicy):
    """Written anew, with its reasons."""

    name = "newest"

    async def decide(self, prompts, events, context):
        left = Verdict(events[:-30], DecisionOutcome.DROPPED, DecisionReason.OUTSIDE_WINDOW)
        return Outcome(prompts, events[-30:], [left])


class Silent:
    """Written anew, without a base and without a reason; it cuts at a whole exchange."""

    name = "silent"

    async def apply(self, prompts, events, context):
        raise AssertionError("decide() was there")

    async def decide(self, prompts, events, context):
        return Outcome(prompts, events[8:])


class Loud(DecidingPolicy):
    """Looks at a few events and leaves all where they are."""

    name = "loud"

    async def decide(self, prompts, events, context):
        assert all(event["content"] for event in events[-5:])
        return Outcome([*prompts, f"{len(events)} events"], events)


CHAINS = {
    "budget": lambda: [OwnBudget(500, 100, step_tokens=20)],
    "budget that notes": lambda: [NotingBudget(500, 100)],
    "token budget": lambda: [OwnTokens(400)],
    "window": lambda: [OwnWindow(40, stride=5)],
    "conversation > budget": lambda: [OwnConversation(), OwnBudget(500, 100)],
    "written anew": lambda: [Newest()],
    "without a reason": lambda: [Silent(), BudgetPolicy(500, 100)],
    "that looks": lambda: [Loud(), SlidingWindowPolicy(40)],
    "one after the other": lambda: [OwnConversation(), OwnWindow(60), Newest(), OwnTokens(400)],
}


def exchange(number):
    call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return [
        {"role": "user", "content": f"question {number}"},
        {"role": "assistant", "content": "one moment", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": f"row {number}"},
        {"role": "assistant", "content": f"answer {number}"},
    ]


@pytest.fixture(scope="module")
def talks():
    """Each conversation is made once: the turns go on where the test before has left it."""
    return cache(lambda length: History(m for n in range(length // 4) for m in exchange(n)))


async def work_of_a_turn(policies, history, recorder):
    """The most that one of several turns does: calls of the library's functions, events read, texts counted."""
    assembler, context = Assembler(policies, recorder=recorder.recorder), Context()
    most = [0, 0, 0]

    async def turn():
        history.extend(exchange(len(history)))
        recorder.clear()
        assembly = await assembler.assemble(["be brief"], history, context)
        assert len(assembly.events) == assembly.totals.events_out

    for _ in range(3):
        await turn()  # the first one tells of all that has come in
    for _ in range(6):
        with counted_texts() as texts, Reads(dict) as reads, Calls() as calls:
            await turn()
        most = list(map(max, most, (calls.made, reads.made, len(texts))))
    return most


@pytest.mark.parametrize("length", [LONG, pytest.param(LONGEST, marks=pytest.mark.slow)])
@pytest.mark.parametrize("chain", CHAINS)
async def test_a_turn_of_a_long_conversation_does_what_one_at_1_000_events_does(chain, length, talks, recorder):
    short, long = [await work_of_a_turn(CHAINS[chain](), talks(item), recorder) for item in (SHORT, length)]
    assert long[0] <= short[0] * 1.1 + 50, f"{short[0]} calls at 1,000 events, {long[0]} at {length:,}"
    assert long[1:] == short[1:]


@pytest.mark.parametrize(
    ("own", "ours"),
    [
        (OwnBudget(500, 100), BudgetPolicy(500, 100)),
        (OwnTokens(400), TokenBudgetPolicy(400)),
        (OwnWindow(40), SlidingWindowPolicy(40)),
        (OwnConversation(), ConversationPolicy()),
    ],
    ids=lambda policy: type(policy).__name__,
)
async def test_a_subclass_does_the_work_of_its_base(own, ours, recorder):
    done = []
    for policy in (own, ours):
        history = History(m for n in range(200) for m in exchange(n))
        done.append(await work_of_a_turn([policy], history, recorder))
    assert done[0] == done[1]
