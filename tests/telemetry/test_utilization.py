"""Utilization is the tokens needed ÷ the limit, also if the limit was exceeded and nothing was sent."""

from __future__ import annotations

import pytest

from otel_assembly import (
    Assembler,
    Block,
    BudgetPolicy,
    Context,
    ContextOverflowError,
    ModelRequest,
    ModelResponse,
    TokenBudgetPolicy,
    ToolCallEvent,
    ToolResultEvent,
    allocate,
)
from otel_assembly.decision import OverflowCause
from otel_assembly.observe import ObservedAssembler
from otel_assembly.testing import conversation

LONG_CALL = [
    ModelRequest(content="ask"),
    ModelResponse(tool_calls=(ToolCallEvent(id="c", name="f"),)),
    ToolResultEvent(parent_id="c", content="word " * 90),
]


def told(recorder, span="assemble_context"):
    attributes = recorder.span(span).attributes
    return {name: attributes.get(f"assembly.budget.{name}") for name in ("utilization", "fixed", "limit")}


@pytest.mark.parametrize("policy", [BudgetPolicy(50, 10), TokenBudgetPolicy(40)], ids=lambda policy: policy.name)
@pytest.mark.parametrize("ratio", [1.0, 0.5])
async def test_fixed_content_over_the_budget(policy, ratio, recorder, words):
    context = Context(agent_name="desk", budget_ratio=ratio)
    with pytest.raises(ContextOverflowError) as raised:
        await Assembler([policy], counter=words).assemble(["word " * 60], conversation("ask"), context)
    needed, budget = raised.value.needed, 40 * ratio
    assert told(recorder) == {"utilization": needed / budget, "fixed": needed, "limit": budget}
    assert needed / budget > 1
    utilization = recorder.metric("assembly.budget.utilization", agent_name="desk")
    assert (utilization.count, utilization.max) == (1, needed / budget)
    assert recorder.metric("assembly.budget.fixed_utilization", agent_name="desk").max == needed / budget
    assert raised.value.assembly.totals.utilization == needed / budget


@pytest.mark.parametrize("policy", [BudgetPolicy, TokenBudgetPolicy])
@pytest.mark.parametrize("on_overflow", ["raise", "drop"])
async def test_a_newest_atom_over_the_budget_raised_or_dropped(policy, on_overflow, recorder, words):
    made = policy(40, **({"output_reserve": 0} if policy is BudgetPolicy else {}), on_overflow=on_overflow)
    try:
        await Assembler([made], counter=words).assemble(["be kind"], LONG_CALL, Context(agent_name="desk"))
    except ContextOverflowError:
        assert on_overflow == "raise"
    span = recorder.span("assemble_context").attributes
    needed = 40 + span["assembly.overflow.tokens"]
    assert span["assembly.overflow.cause"] == "newest_atom"
    assert told(recorder)["utilization"] == needed / 40 > 2
    assert 0 < told(recorder)["fixed"] < 40
    assert recorder.metric("assembly.budget.utilization").max == needed / 40
    assert recorder.metric("assembly.budget.fixed_utilization").max == told(recorder)["fixed"] / 40


async def test_an_error_that_is_no_overflow_has_no_utilization(recorder, words):
    class Broken:
        name = "broken"

        async def apply(self, prompts, events, context):
            raise ValueError("no")

    assembler = Assembler([TokenBudgetPolicy(40), Broken()], model_window=100, counter=words)
    with pytest.raises(Exception, match="broken"):
        await assembler.assemble([], conversation("ask"), Context())
    assert told(recorder)["utilization"] is None
    assert "assembly.budget.utilization" not in recorder.metrics


@pytest.mark.parametrize("raised", [True, False])
def test_the_overflow_of_an_observed_framework(raised, recorder, words):
    observed = ObservedAssembler("peer", recorder=recorder.recorder, counter=words)
    assembly = observed.begin("c", [{"role": "user", "content": "ask"}])
    error = RuntimeError("too long") if raised else None
    with assembly.step("limit") as step:
        step.overflow(budget=60, needed=90, cause=OverflowCause.FRAMEWORK)
    assembly.end(error)
    assert told(recorder)["utilization"] == 1.5
    assert recorder.metric("assembly.budget.utilization").max == 1.5


def test_an_allocator_over_its_budget(recorder, words):
    blocks = [Block("system", 1, ["word " * 6], cuttable=False), Block("facts", 5, ["word " * 9], cuttable=True)]
    with pytest.raises(ContextOverflowError) as raised:
        allocate(blocks, 5, 0, words.count)
    needed = raised.value.needed
    assert told(recorder, "allocate_budget") == {"utilization": needed / 5, "fixed": needed, "limit": 5}
    assert recorder.metric("assembly.budget.utilization").max == needed / 5
