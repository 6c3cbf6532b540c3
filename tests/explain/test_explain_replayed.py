"""What an explanation says would have kept an item is replayed on the conversation itself, in each provider's form."""

from __future__ import annotations

import json
import random

import pytest
from explained import as_ledger
from provider_talks import FORMS, chain, talk

from otel_assembly import Assembler, AssemblyError, BudgetPolicy, Context, History
from otel_assembly.chain import chain_from_config
from otel_assembly.explain import Explainer
from otel_assembly.knowledge import KnowledgeStore, MemoryKnowledgeStore
from otel_assembly.testing import RecordedTelemetry

PROMPTS = ("Be brief.",)
#: The items of one turn that are explained.
MOST = 5
#: The setting of each policy that bounds it.
LIMITS = {"budget": "window", "token_budget": "max_tokens", "sliding_window": "max_events", "head_and_tail": "tail"}


async def memories():
    store = MemoryKnowledgeStore()
    await store.write("/memory/working.md", "remember the lamp and the depot")
    await store.write("/memory/conversations/1.md", "once there was a refund")
    return store


class Talk:
    """A conversation under a chain, and the same conversation with another limit."""

    def __init__(self, policies, messages, cuts):
        self.policies, self.messages, self.cuts = policies, messages, cuts
        self._prompts = {}

    async def play(self, policies, recorder, last):
        """The messages in each prompt, by identity, up to a turn; None of a turn that sent nothing."""
        assembler = Assembler(chain_from_config({"policies": policies}).policies, recorder=recorder, model="gpt-4o")
        history, context = History(), Context(dependencies={KnowledgeStore: await memories()})
        prompts = []
        for cut in self.cuts[: last + 1]:
            history.extend(self.messages[len(history) : cut])
            try:
                assembly = await assembler.assemble(list(PROMPTS), history, context)
            except AssemblyError:
                prompts.append(None)
            else:
                prompts.append({id(event) for event in assembly.events})
        return prompts

    async def recorded(self):
        telemetry = RecordedTelemetry()
        await self.play(self.policies, telemetry.recorder, len(self.cuts))
        spans = telemetry.spans
        telemetry.shutdown()
        return as_ledger(spans)

    async def has(self, item, turn, changes):
        """Whether an item is in the prompt of a turn, with other limits on every turn: ``(index, setting, value)``."""
        policies = list(self.policies)
        for index, setting, value in changes:
            ((name, settings),) = policies[index].items()
            policies[index] = {name: {**settings, setting: value}}
        key = json.dumps(policies), turn
        if key not in self._prompts:
            self._prompts[key] = (await self.play(policies, None, turn))[turn]
        return id(self.messages[int(item)]) in (self._prompts[key] or ())


async def verify(seed, form):
    """Verify each answer about an absent item; the number of verified answers and of unknown ones."""
    messages, cuts = talk(seed, form)
    chance = random.Random(f"turns {seed}")
    played = Talk(chain(seed), messages, sorted(chance.sample(cuts, min(3, len(cuts)))))
    ledger = await played.recorded()
    verified = unknown = 0
    for turn in ledger.turns if ledger is not None else ():
        explainer = Explainer(ledger, turn.number)
        absent = [item for item in ledger.exits(turn.number) if not item.startswith("m")] if turn.sent else []
        for item in random.Random(turn.number).sample(absent, min(MOST, len(absent))):
            answer = explainer.explain(item)
            if answer.unknown:
                unknown += 1
                continue
            verified += 1
            asked = (seed, form, played.policies, turn.number, item, answer)
            changes = [(raised.index, raised.parameter, raised.to) for raised in answer.raises]
            if answer.never is not None:
                wide = [(at, LIMITS[name], 10**6) for at, name in _limits(played.policies)]
                assert not await played.has(item, turn.number, wide), asked
                continue
            assert changes, asked
            assert await played.has(item, turn.number, changes), asked
            if not any(raised.at_most for raised in answer.raises):
                index, setting, value = changes[-1]
                assert not await played.has(item, turn.number, [*changes[:-1], (index, setting, value - 1)]), asked
    return verified, unknown


def _limits(policies):
    return [(at, next(iter(policy))) for at, policy in enumerate(policies) if isinstance(policy, dict)]


@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=[] if form in ("openai", "bedrock") else [pytest.mark.slow]) for form in FORMS]
)
async def test_each_answer_is_true_when_the_conversation_is_replayed(form):
    counts = [await verify(seed, form) for seed in range(12)]
    verified, unknown = map(sum, zip(*counts, strict=True))
    assert verified > 50
    assert unknown <= verified // 10


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("first", range(12, 112, 25))
async def test_each_of_thousands_of_answers_is_true(form, first):
    for seed in range(first, first + 25):
        await verify(seed, form)


@pytest.mark.parametrize("summary_tokens", [30, 60, 100])
@pytest.mark.parametrize("window", [120, 200, 300])
async def test_room_for_a_summary_is_part_of_the_answer(window, summary_tokens):
    messages = []
    for number in range(12):
        messages.append({"role": "user", "content": f"Question {number}: " + "alpha beta gamma " * 8})
        messages.append({"role": "assistant", "content": f"Answer {number}: " + "delta epsilon zeta " * 8})
    settings = {"window": window, "output_reserve": 0, "step_tokens": 0, "on_overflow": "drop"}
    budget = {"budget": {**settings, "compact": "extractive", "summary_tokens": summary_tokens}}
    played = Talk(["conversation", budget], messages, [15, 23])
    ledger = await played.recorded()
    for turn in ledger.turns:
        explainer = Explainer(ledger, turn.number)
        for item in list(ledger.exits(turn.number))[::4]:
            answer = explainer.explain(item)
            assert answer.unknown == ()
            (raised,) = answer.raises
            assert not raised.at_most
            assert await played.has(item, turn.number, [(1, "window", raised.to)])
            assert not await played.has(item, turn.number, [(1, "window", raised.to - 1)])


async def test_a_message_with_an_orphaned_result_and_text_is_never_kept():
    lost = {"type": "tool_result", "tool_use_id": "lost", "content": "word " * 10}
    messages = [
        {"role": "user", "content": "first " * 30},
        {"role": "assistant", "content": "answer " * 30},
        {"role": "user", "content": [lost, {"type": "text", "text": "second " * 30}]},
        {"role": "assistant", "content": "answer " * 30},
        {"role": "user", "content": "third"},
    ]
    settings = {"max_tokens": 80, "on_overflow": "drop"}
    played = Talk([{"token_budget": settings}], messages, [5])
    ledger = await played.recorded()
    explainer = Explainer(ledger, 0)
    answer = explainer.explain("2")
    assert answer.unknown == ()
    assert answer.never is not None
    assert not await played.has("2", 0, [(0, "max_tokens", 10_000)])
    for item in ("0", "1"):
        (raised,) = explainer.explain(item).raises
        assert await played.has(item, 0, [(0, "max_tokens", raised.to)])
        assert not await played.has(item, 0, [(0, "max_tokens", raised.to - 1)])


async def test_a_compactor_that_may_fail_makes_the_answer_an_upper_bound():
    def shorter(text, target_tokens):
        return "so far"

    messages = [
        {"role": "user" if number % 2 == 0 else "assistant", "content": f"{number} " + "word " * 30}
        for number in range(13)
    ]

    async def prompt(window, recorder):
        policy = BudgetPolicy(window, 0, step_tokens=0, compact=shorter, summary_tokens=60)
        assembler = Assembler([policy], recorder=recorder)
        return {id(event) for event in (await assembler.assemble([], History(messages), Context())).events}

    telemetry = RecordedTelemetry()
    await prompt(200, telemetry.recorder)
    ledger = as_ledger(telemetry.spans)
    telemetry.shutdown()
    answers = [Explainer(ledger, 0).explain(item) for item in ledger.exits(0)]
    assert answers
    for answer in answers:
        (raised,) = answer.raises
        assert id(messages[int(answer.item)]) in await prompt(raised.to, None)
    assert any(answer.raises[0].at_most for answer in answers)
