"""A share of a budget: what is held, and what the spans say of it."""

from __future__ import annotations

import json
import math

import pytest
from recount import prompt_tokens

from otel_assembly import (
    Assembler,
    BudgetPolicy,
    ConfigurationError,
    Context,
    ContextOverflowError,
    History,
    TokenBudgetPolicy,
)
from otel_assembly.explain import explain
from otel_assembly.telemetry import read_ledgers
from otel_assembly.testing import conversation

TALK = ["ask", "answer"] * 60 + ["ask"]
POLICIES = {
    "token_budget": lambda: TokenBudgetPolicy(400),
    "budget": lambda: BudgetPolicy(450, 50, step_tokens=0),
}
each = pytest.mark.parametrize("name", POLICIES)


@pytest.mark.parametrize("wrong", [0, -0.1, 1.01, 2, True, "0.8", None, math.nan, math.inf])
def test_what_is_no_share_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="budget_ratio must be a number above 0, at most 1"):
        Context(budget_ratio=wrong)
    with pytest.raises(ConfigurationError, match="budget_ratio"):
        Context().with_budget_ratio(wrong)


@pytest.mark.parametrize(
    ("ratio", "budget", "held"), [(1, 400, 400), (0.8, 400, 320), (0.29, 100, 29), (0.5, 3, 1), (0.001, 5, 1)]
)
def test_a_share_is_rounded_down_and_never_nothing(ratio, budget, held):
    assert Context(budget_ratio=ratio).apply_budget_ratio(budget) == held


@each
async def test_that_share_is_held_and_told(recorder, name):
    assembler = Assembler([POLICIES[name]()], recorder=recorder.recorder)
    history, context = History(conversation(*TALK)), Context(budget_ratio=0.8)
    assembly = await assembler.assemble(["Be brief."], history, context)
    assert 300 < assembly.totals.tokens_out == prompt_tokens(assembly.prompts, assembly.events) <= 320
    assert assembly.totals.budget == 320
    assert recorder.span("assemble_context").attributes["assembly.budget.limit"] == 320
    config = json.loads(recorder.span(f"apply_policy {name}").attributes["assembly.policy.config"])
    assert config.get("max_tokens", config.get("window", 0) - config.get("output_reserve", 0)) == 320
    if name == "budget":
        told = recorder.span("allocate_budget").attributes
        assert [told[f"assembly.budget.{text}"] for text in ("window", "output_reserve", "limit")] == [450, 130, 320]


@each
async def test_the_next_assembly_of_the_conversation_holds_less_and_the_one_after_it_all(name):
    assembler, history, context = Assembler([POLICIES[name]()]), History(conversation(*TALK)), Context()
    whole = await assembler.assemble([], history, context)
    less = await assembler.assemble([], history, context.with_budget_ratio(0.5))
    again = await assembler.assemble([], history, context)
    assert [assembly.totals.budget for assembly in (whole, less, again)] == [400, 200, 400]
    assert [item.turn for item in (whole, less, again)] == [0, 1, 2]
    assert len(less.events) < len(whole.events) == len(again.events)
    assert context.with_budget_ratio(0.5).guard is context.guard


@each
async def test_what_is_fixed_and_over_the_share_is_an_overflow_of_it(name):
    with pytest.raises(ContextOverflowError) as over:
        await Assembler([POLICIES[name]()]).assemble(["word " * 300], conversation("ask"), Context(budget_ratio=0.5))
    assert over.value.budget == 200


@pytest.mark.parametrize("step", [0, 100])
@pytest.mark.parametrize("talk", [TALK, TALK[:31]])
async def test_less_than_what_was_sent_is_less_also_where_the_cut_moves_in_steps(step, talk):
    assembler, context = Assembler([BudgetPolicy(450, 50, step_tokens=step)]), Context()
    history = History(conversation(*talk))
    before = await assembler.assemble([], history, context)
    for share in (0.8, 0.5):
        context = context.with_budget_ratio(before.ratio_for_less(share))
        less = await assembler.assemble([], history, context)
        assert less.totals.tokens_out <= share * before.totals.tokens_out
        before = less


async def test_without_a_budget_a_share_is_a_share():
    assembly = await Assembler([]).assemble([], conversation("ask"))
    assert assembly.ratio_for_less() == 0.8
    with pytest.raises(ConfigurationError, match="share must be a number above 0"):
        assembly.ratio_for_less(0)


@each
async def test_explain_goes_by_what_was_held(recorder, name):
    assembler, history = Assembler([POLICIES[name]()], recorder=recorder.recorder), History(conversation(*TALK))
    assembly = await assembler.assemble([], history, Context(budget_ratio=0.8))
    newest_out = len(history) - len(assembly.events) - 1
    (ledger,) = read_ledgers(recorder.spans).values()
    (raised,) = explain(ledger, turn=0, item=str(newest_out)).raises
    held = Context(budget_ratio=(320 + raised.extra) / 400)
    again = await Assembler([POLICIES[name]()]).assemble([], list(history), held)
    assert len(again.events) == len(assembly.events) + 1
    assert raised.extra > 0


async def test_another_assembly_with_a_share_is_the_next_turn_of_the_conversation_also_of_a_list_without_an_id():
    messages, assembler, context = [{"role": "user", "content": "Hello"}], Assembler([POLICIES["budget"]()]), Context()
    first, again = context.with_budget_ratio(0.9), context.with_budget_ratio(0.5)
    assert (await assembler.assemble([], messages, first)).turn == 0
    assembly = await assembler.assemble([], messages, again)
    assert (assembly.turn, assembly.prefix.cause) == (1, None)
    assert first.conversation is again.conversation is context.conversation
