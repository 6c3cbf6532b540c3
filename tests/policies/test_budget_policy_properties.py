"""What no conversation may make a `BudgetPolicy` do, checked against `recount` and nothing of ours."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from recount import (
    assert_sendable,
    awaiting,
    count,
    leading_systems,
    newest_atom,
    newest_request,
    positions_of,
    prompt_tokens,
    read,
)
from strategies import TOOLS, conversations, prompt_lists

from otel_assembly import (
    Assembler,
    BudgetPolicy,
    Context,
    ContextOverflowError,
    ConversationPolicy,
    History,
    SlidingWindowPolicy,
)
from otel_assembly.testing import RecordedTelemetry
from otel_assembly.tokens import MessageFraming

QUICK = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
LONG = settings(QUICK, max_examples=10_000, derandomize=False)

steps = st.sampled_from([0, 0, 5, 40, 2_000])
overflow_choices = st.sampled_from(["raise", "drop"])
budgets = st.builds(
    lambda budget, reserve, step, overflow: BudgetPolicy(budget + reserve, reserve, step, overflow),
    st.integers(20, 700),
    st.integers(0, 300),
    steps,
    overflow_choices,
)
before = st.sampled_from([(), (ConversationPolicy(),), (ConversationPolicy(), SlidingWindowPolicy(6))])


def must_stay(events, policy):
    request = newest_request(events)
    stay = awaiting(events) | set(leading_systems(events)) | ({request} if request is not None else set())
    return stay | (newest_atom(events) if policy.on_overflow == "raise" else set())


def explains_itself(overflow, budget):
    assert sum(overflow.costs.values()) == overflow.needed > overflow.budget == budget


async def holds(events, policy, earlier, prompts, whole, tools):
    tools = TOOLS if tools else ()
    chain = [*earlier, policy]
    try:
        assembly = await Assembler(chain).assemble(prompts, History(events) if whole else events, Context(tools=tools))
    except ContextOverflowError as overflow:
        explains_itself(overflow, policy.max_tokens)
        return
    assert_sendable(events, assembly.events)
    needed = prompt_tokens(assembly.prompts, assembly.events, MessageFraming().tool_schemas(tools, count))
    assert needed == assembly.totals.tokens_out <= policy.max_tokens
    assert must_stay(events, policy) <= set(positions_of(events, assembly.events))


@QUICK
@given(conversations(), budgets, before, prompt_lists, st.booleans(), st.booleans())
async def test_what_it_sends_is_sendable_within_the_budget_and_has_all_that_must_stay(
    events, policy, earlier, prompts, whole, tools
):
    await holds(events, policy, earlier, prompts, whole, tools)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@LONG
@given(conversations(max_blocks=16), budgets, before, prompt_lists, st.booleans(), st.booleans())
async def test_ten_thousand_conversations_are_sendable_within_the_budget(
    events, policy, earlier, prompts, whole, tools
):
    await holds(events, policy, earlier, prompts, whole, tools)


async def kept_by(policy, events):
    try:
        return await policy.decide(["be brief"], events, Context())
    except ContextOverflowError:
        return None


@QUICK
@given(conversations(), budgets, st.integers(0, 15), st.integers(0, 30))
async def test_list_history_and_view_are_cut_at_the_same_place(events, policy, start, stop):
    history = History(events)

    async def ids(some):
        outcome = await kept_by(policy, some)
        return None if outcome is None else list(map(id, outcome.events))

    assert await ids(history) == await ids(list(events)) == await ids(history[:])
    assert await ids(history[start:stop]) == await ids(events[start:stop])


@QUICK
@given(conversations(), st.integers(20, 600), st.integers(0, 200), steps, overflow_choices)
async def test_more_budget_never_keeps_fewer_items(events, budget, more, step, overflow):
    # A summary that there is room for with more budget takes the place of several older turns.
    if any(read(event).kind == "summary" for event in events):
        return
    small, large = [await kept_by(BudgetPolicy(most, 0, step, overflow), events) for most in (budget, budget + more)]
    if small is None:
        return
    assert large is not None
    # Where the newest atom is left out only of the smaller one, its room goes to others: the larger one holds it.
    if small.overflow is None or large.overflow is not None:
        assert len(large.events) >= len(small.events)


async def blocks_add_up(events, policy, prompts, tools):
    telemetry = RecordedTelemetry()
    try:
        tools = TOOLS if tools else ()
        assembler = Assembler([policy], recorder=telemetry.recorder)
        try:
            sent = await assembler.assemble(prompts, events, Context(tools=tools))
        except ContextOverflowError:
            sent = None
        budget = telemetry.span("allocate_budget").attributes
        lines = [span.attributes for span in telemetry.spans if span.name.startswith("allocate_block")]
        used = sum(line["assembly.tokens.out"] for line in lines)
        out = 0 if sent is None else sent.totals.tokens_out
        assert budget["assembly.budget.used"] == out == used + (3 if sent is not None else 0)
        assert sum(line["assembly.items.out"] for line in lines) == (0 if sent is None else len(sent.events))
        if sent is not None:
            assert sum(line["assembly.items.in"] for line in lines) == len(events)
        for line in lines:
            assert 0 <= line["assembly.tokens.out"] <= line["assembly.tokens.in"]
            assert 0 <= line["assembly.items.out"] <= line["assembly.items.in"]
            assert line["assembly.budget.remaining"] >= 0
        assert telemetry.violations() == []
    finally:
        telemetry.shutdown()


@settings(QUICK, max_examples=50)
@given(conversations(), budgets, prompt_lists, st.booleans())
@example([], BudgetPolicy(20, 0), [], False)
async def test_its_blocks_add_up_to_the_prompt(events, policy, prompts, tools):
    await blocks_add_up(events, policy, prompts, tools)
