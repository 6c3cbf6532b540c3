"""What no conversation may make a policy of ours do: checked on random ones, against `recount` and nothing of ours."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recount import (
    assert_sendable,
    awaiting,
    count,
    leading_systems,
    newest_atom,
    newest_request,
    pair,
    positions_of,
    prompt_tokens,
)
from strategies import TOOLS, conversations, prompt_lists

from otel_assembly import (
    Assembler,
    BudgetPolicy,
    Context,
    ContextOverflowError,
    ConversationPolicy,
    HeadAndTailPolicy,
    History,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    describe,
)
from otel_assembly.messages import broken_pairs
from otel_assembly.tokens import MessageFraming

QUICK = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
LONG = settings(QUICK, max_examples=10_000, derandomize=False)

windows = st.integers(1, 12).flatmap(
    lambda most: st.builds(SlidingWindowPolicy, st.just(most), transparent=st.booleans(), stride=st.integers(1, most))
)
ends = st.builds(HeadAndTailPolicy, st.integers(1, 6), st.integers(1, 8), transparent=st.booleans())
overflow_choices = st.sampled_from(["raise", "drop"])
steps = st.sampled_from([0, 0, 5, 40])
budgets = st.builds(
    TokenBudgetPolicy,
    st.integers(20, 700),
    transparent=st.booleans(),
    step_tokens=steps,
    on_overflow=overflow_choices,
)
allocators = st.builds(
    BudgetPolicy,
    st.integers(60, 700),
    st.integers(0, 40),
    step_tokens=steps,
    on_overflow=overflow_choices,
)
reducers = st.one_of(st.builds(ConversationPolicy), windows, ends, budgets, allocators)
chains = st.lists(reducers, min_size=1, max_size=3)


async def kept_by(policy, events, prompts=("be brief",)):
    """What a policy keeps; None where it says that its budget cannot hold."""
    try:
        return (await policy.decide(list(prompts), events, Context())).events
    except ContextOverflowError as overflow:
        explains_itself(overflow, policy.max_tokens)
        return None


def explains_itself(overflow, budget):
    assert sum(overflow.costs.values()) == overflow.needed > overflow.budget == budget


def must_stay(events):
    """What every reducer keeps: the newest request, calls that await an approval, leading system messages."""
    request = newest_request(events)
    return awaiting(events) | set(leading_systems(events)) | ({request} if request is not None else set())


# pairs


async def pairs_stay_whole(events, policy):
    kept = await kept_by(policy, events)
    if kept is not None:
        assert_sendable(events, kept)


@QUICK
@given(conversations(), reducers)
async def test_a_policy_never_parts_a_call_from_its_result(events, policy):
    await pairs_stay_whole(events, policy)


@pytest.mark.slow
@pytest.mark.timeout(900)
@LONG
@given(conversations(max_blocks=16), reducers)
async def test_a_policy_never_parts_a_call_from_its_result_in_ten_thousand_conversations(events, policy):
    await pairs_stay_whole(events, policy)


async def chain_output_is_sendable_and_counted(events, policies, prompts, as_history, has_tools):
    tools = TOOLS if has_tools else ()
    try:
        assembly = await Assembler(policies).assemble(
            prompts, History(events) if as_history else events, Context(tools=tools)
        )
    except ContextOverflowError:
        return
    assert_sendable(events, assembly.events)
    assert broken_pairs(list(map(describe, assembly.events))) == []
    tool_tokens = MessageFraming().tool_schemas(tools, count)
    needed = prompt_tokens(assembly.prompts, assembly.events, tool_tokens)
    assert assembly.totals.tokens_out == needed
    if isinstance(policies[-1], TokenBudgetPolicy | BudgetPolicy):
        assert needed <= policies[-1].max_tokens
    assert must_stay(events) <= set(positions_of(events, assembly.events))


@QUICK
@given(conversations(), chains, prompt_lists, st.booleans(), st.booleans())
async def test_what_a_chain_sends_is_sendable_within_budget_and_as_long_as_it_says(
    events, chain, prompts, whole, tools
):
    await chain_output_is_sendable_and_counted(events, chain, prompts, whole, tools)


@pytest.mark.slow
@pytest.mark.timeout(900)
@LONG
@given(conversations(max_blocks=16), chains, prompt_lists, st.booleans(), st.booleans())
async def test_ten_thousand_chains_send_what_is_sendable_within_budget(events, chain, prompts, whole, tools):
    await chain_output_is_sendable_and_counted(events, chain, prompts, whole, tools)


@QUICK
@given(conversations())
def test_the_packages_own_check_of_pairs_finds_what_an_independent_one_finds(events):
    pairs = pair(events)
    assert broken_pairs(list(map(describe, events))) == sorted(pairs.orphans | pairs.dead_calls())


@QUICK
@given(conversations())
async def test_orphans_leave_also_where_nothing_is_trimmed(events):
    sendable = [e for p, e in enumerate(events) if p not in pair(events).unsendable(len(events))]
    for policy in (SlidingWindowPolicy(10_000), TokenBudgetPolicy(1_000_000)):
        kept = list(await kept_by(policy, events))
        assert list(map(id, kept)) == list(map(id, sendable))


# what always stays


@QUICK
@given(conversations(), windows)
async def test_a_window_keeps_what_must_stay_and_no_more_than_its_limit_where_that_is_possible(events, policy):
    outcome = await policy.decide([], events, Context())
    kept = set(positions_of(events, outcome.events))
    newest = newest_atom(events)
    must = must_stay(events) | newest
    assert must <= kept
    leading = set(range(max(leading_systems(events), default=-1) + 1))
    assert len(kept - leading) <= max(policy.max_events, len(must - leading))
    assert (outcome.overflow is not None) == (len(kept - leading) > policy.max_events)


@QUICK
@given(conversations(), budgets)
async def test_a_budget_keeps_what_must_stay_or_says_that_it_cannot(events, policy):
    kept = await kept_by(policy, events)
    if kept is None:
        return
    must = must_stay(events) | (newest_atom(events) if policy.on_overflow == "raise" else set())
    assert must <= set(positions_of(events, kept))


# the same answer, whatever the events come in


@QUICK
@given(conversations(), reducers, st.integers(0, 15), st.integers(0, 30))
async def test_list_history_and_view_are_cut_at_the_same_place(events, policy, start, stop):
    history = History(events)

    async def ids(some):
        kept = await kept_by(policy, some)
        return kept if kept is None else list(map(id, kept))

    assert await ids(history) == await ids(list(events)) == await ids(history[:])
    assert await ids(history[start:stop]) == await ids(events[start:stop])


@QUICK
@given(conversations(), reducers, st.integers(0, 20))
async def test_what_arrives_after_a_turn_began_changes_nothing_of_it(events, policy, before):
    history = History(events[:before])
    view = history.view()
    history.extend(events[before:])
    kept, alone = await kept_by(policy, view), await kept_by(policy, events[:before])
    assert (kept is None) == (alone is None)
    assert kept is None or list(map(id, kept)) == list(map(id, alone))


@QUICK
@given(conversations(), reducers, chains)
async def test_a_policy_cuts_a_view_of_another_policy_as_it_cuts_the_list(events, policy, chain):
    view = History(events).view()
    for earlier in chain:
        view = await kept_by(earlier, view)
        if view is None:
            return
    once, again = await kept_by(policy, view), await kept_by(policy, list(view))
    if policy.config.get("step_tokens"):  # the steps of a list are counted from its own start
        return
    assert (once is None) == (again is None)
    assert once is None or list(map(id, once)) == list(map(id, again))


@QUICK
@given(conversations(), reducers)
async def test_a_reducer_takes_nothing_more_from_what_it_let_out(events, policy):
    kept = await kept_by(policy, events, ())
    if kept is not None and not policy.config.get("transparent"):
        again = await kept_by(policy, kept, ())
        assert again is None or len(again) <= len(kept)
        if isinstance(policy, ConversationPolicy) or policy.config.get("stride") == 1:
            assert list(map(id, again)) == list(map(id, kept))


# more room never keeps less


@QUICK
@given(conversations(), st.integers(20, 600), st.integers(0, 200), steps, overflow_choices, st.booleans())
async def test_more_budget_never_keeps_fewer_items(events, budget, more, step, overflow, transparent):
    async def outcome(most):
        policy = TokenBudgetPolicy(most, transparent=transparent, step_tokens=step, on_overflow=overflow)
        try:
            return await policy.decide(["be brief"], events, Context())
        except ContextOverflowError:
            return None

    small, large = await outcome(budget), await outcome(budget + more)
    if small is None:
        return
    assert large is not None
    # Where the newest atom is left out only of the smaller one, its room goes to others: the larger one holds it.
    if small.overflow is None or large.overflow is not None:
        assert len(large.events) >= len(small.events)


@QUICK
@given(conversations(), st.integers(20, 400), st.integers(0, 300))
async def test_more_budget_keeps_all_that_less_budget_kept(events, budget, more):
    small, large = [await kept_by(TokenBudgetPolicy(most), events) for most in (budget, budget + more)]
    if small is not None:
        assert set(map(id, small)) <= set(map(id, large))
