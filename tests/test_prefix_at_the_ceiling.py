"""What `BudgetPolicy` promises to who pays for prompts: at the ceiling, most of each prompt is in the provider's cache.

Prefixes are worked out anew from the texts of what would be sent; no ratio here is taken from the package.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from recount import assert_sendable, prompt_tokens

from otel_assembly import Assembler, BudgetPolicy, Context, ConversationPolicy, History, TokenBudgetPolicy, describe

CEILING = 8_000
REAL_DATA = Path(__file__).parents[2] / "shared" / "data" / "airline_support_dev.jsonl"
WORDS = (
    "the",
    "order",
    "was",
    "shipped",
    "from",
    "a",
    "depot",
    "near",
    "customs",
    "please",
    "confirm",
    "open",
    "closed",
)


def rendered(assembly):
    """The prompt's text, message by message, in bytes."""
    events = [text for event in assembly.events for text in describe(event).texts]
    return [text.encode("utf-8", "surrogatepass") for text in [*assembly.prompts, *events]]


def shared(old, new):
    """The share of the one prompt's bytes that stands at the beginning of the other, message by message."""
    same = 0
    for item, other in zip(old, new, strict=False):
        if item != other:
            break
        same += len(item)
    return same / sum(map(len, old))


class Turns:
    """The turns of conversations, as they would have been sent."""

    def __init__(self):
        self.reuse, self.used, self.causes = [], [], []

    async def play(self, policy, prompt, messages, recorder, *, ceiling=CEILING):
        assembler = Assembler([ConversationPolicy(), policy], recorder=recorder.recorder)
        history, context, before = History(), Context(), None
        for number, message in enumerate(messages):
            if message["role"] == "assistant":
                assembly = await assembler.assemble([prompt], history, context)
                now = rendered(assembly)
                told = recorder.span("assemble_context").attributes
                recorder.clear()
                if before is not None:
                    self._compare(before, now, told, full=assembly.totals.tokens_in > ceiling)
                if number % 25 == 0:
                    self._check(messages[:number], prompt, assembly)
                assert assembly.totals.tokens_out <= ceiling
                before = now
            history.append(message)

    def _compare(self, before, now, told, *, full):
        whole = now[: len(before)] == before
        assert (told.get("assembly.prefix.break") is None) == whole
        if not whole:
            self.causes.append(told["assembly.prefix.break"])
        if full:
            self.reuse.append(shared(before, now))
            self.used.append(told["assembly.budget.utilization"])

    @staticmethod
    def _check(messages, prompt, assembly):
        assert prompt_tokens(assembly.prompts, assembly.events) == assembly.totals.tokens_out
        assert_sendable(messages, assembly.events)

    @property
    def steady(self):
        return sum(reuse >= 0.9 for reuse in self.reuse) / len(self.reuse)

    @property
    def utilization(self):
        return sum(self.used) / len(self.used)


def words(rng, least, most):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(least, most)))


def rows(rng, most):
    """What a tool answers."""
    found = [
        {"id": rng.randrange(10**6), "state": rng.choice(WORDS), "open": None} for _ in range(rng.randint(0, most))
    ]
    return json.dumps(found)


def synthetic(seed, turns, *, most_rows):
    """Asks that take one to five steps."""
    rng = random.Random(seed)
    messages, number = [], 0
    while number < turns:
        messages.append({"role": "user", "content": words(rng, 5, 60)})
        for _ in range(rng.randint(0, 4)):
            call = {"id": f"c{rng.randint(0, 9)}", "type": "function"}
            call["function"] = {"name": "look", "arguments": json.dumps({"q": words(rng, 1, 8)})}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": rows(rng, most_rows)})
            number += 1
        messages.append({"role": "assistant", "content": words(rng, 5, 60)})
        number += 1
    return messages


def growth(messages):
    """Bytes of text that a turn adds, on average."""
    texts = [text for message in messages for text in describe(message).texts]
    return sum(len(text.encode()) for text in texts) / sum(message["role"] == "assistant" for message in messages)


PROMPT = words(random.Random(0), 900, 900)


@pytest.mark.parametrize("seed", [1, *(pytest.param(index, marks=pytest.mark.slow) for index in range(2, 6))])
async def test_two_hundred_turns_at_the_ceiling_reuse_nine_tenths_of_the_prompt_in_nine_turns_of_ten(seed, recorder):
    messages = synthetic(seed, 320, most_rows=28)
    assert 550 < growth(messages) < 700  # recorded agents: 600
    turns = Turns()
    await turns.play(BudgetPolicy(CEILING + 1_000, 1_000), PROMPT, messages, recorder)
    assert len(turns.reuse) >= 200
    assert turns.steady >= 0.9
    assert set(turns.causes) == {"cut_moved"}
    assert turns.utilization >= 0.75


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_where_turns_are_larger_a_step_of_a_dozen_turns_does_it(seed, recorder):
    messages = synthetic(seed, 320, most_rows=60)
    step = round(12 * growth(messages) / 4)
    assert step > 3_000
    default, larger = Turns(), Turns()
    await default.play(BudgetPolicy(2 * CEILING, 0), PROMPT, messages, recorder, ceiling=2 * CEILING)
    await larger.play(BudgetPolicy(2 * CEILING, 0, step_tokens=step), PROMPT, messages, recorder, ceiling=2 * CEILING)
    assert default.steady < 0.9 <= larger.steady
    assert default.utilization > larger.utilization >= 0.8


async def test_a_cut_at_any_message_reuses_less(recorder):
    turns = Turns()
    await turns.play(TokenBudgetPolicy(CEILING), PROMPT, synthetic(1, 320, most_rows=28), recorder)
    assert len(turns.reuse) >= 200
    assert turns.steady < 0.6
    assert set(turns.causes) == {"cut_moved"}


def joined(least=400):
    """Recorded conversations, one after the other, as long ones."""
    messages, prompt = [], ""
    for line in REAL_DATA.read_text(encoding="utf-8").splitlines():
        system, *rest = json.loads(line)["messages"]
        prompt = system["content"]
        messages += rest
        if len(messages) >= least:
            yield prompt, messages
            messages = []


@pytest.mark.realdata
async def test_recorded_conversations_at_the_ceiling_are_steady_sendable_and_each_break_has_its_cause(recorder):
    if not REAL_DATA.is_file():
        pytest.skip("the recorded transcripts are not beside this checkout")
    turns, played = Turns(), 0
    for prompt, messages in joined():
        assert len(messages) >= 400
        await turns.play(BudgetPolicy(CEILING, 0), prompt, messages, recorder)
        played += 1
    assert played == 6
    assert len(turns.reuse) > 900
    assert turns.steady >= 0.9
    assert set(turns.causes) == {"cut_moved"}
    assert turns.utilization >= 0.8
