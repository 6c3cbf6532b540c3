"""`BudgetPolicy` and `TokenBudgetPolicy` keep what `allocate` keeps of the blocks that a chain consists of."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from recount import awaiting, event_tokens, leading_systems, newest_atom, newest_request, pair, positions_of, read
from strategies import conversations, prompt_lists

from otel_assembly import (
    Block,
    BlockItem,
    BudgetPolicy,
    Context,
    ContextOverflowError,
    History,
    TokenBudgetPolicy,
    allocate,
)
from otel_assembly.budget import Cut

QUICK = settings(
    max_examples=75,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
LONG = settings(QUICK, max_examples=5_000, derandomize=False)
#: More than any of these conversations takes.
ENOUGH = 1_000_000

prompts_of_text = prompt_lists.map(lambda prompts: [prompt for prompt in prompts if prompt])
reserves = st.integers(0, 300)
overflows = st.sampled_from(["raise", "drop"])


def parts(events, apart):
    """The positions of each part of a conversation, as the policies' documentation names them.

    Of the summaries, those in `apart` are a part of their own; the others are turns.
    """
    pairs, places = pair(events), range(len(events))
    lead = max(leading_systems(events), default=-1) + 1
    request = newest_request(events)
    found = {"leading": set(range(lead)), "pending": set(awaiting(events)) - set(range(lead))}
    found["request"] = {request} - found["pending"] if request is not None else set()
    fixed = set().union(*found.values())
    found["newest"] = set(newest_atom(events)) - fixed
    taken = fixed | found["newest"] | pairs.unsendable(len(events))
    summaries = {at for at in places if read(events[at]).kind == "summary" and at in apart} - taken
    return {**found, "summaries": summaries, "older": set(places) - taken - summaries}


def blocks_of(events, prompts, drops, apart, newest=8):
    """Those parts as blocks, and the positions of each block's items; `newest` is the priority of the newest atom."""
    echoes = pair(events).echoes
    found = {name: sorted(places) for name, places in parts(events, apart).items() if places}
    settings_of = {
        "leading": {"priority": 1, "cuttable": False},
        "request": {"priority": 3, "cuttable": False},
        "pending": {"priority": 4, "cuttable": False},
        "newest": {"priority": newest, "rank": 1 if newest == 8 else 3, "cuttable": drops, "cut": Cut.WHOLE},
        "summaries": {"priority": 8, "rank": 2, "cuttable": True, "cut": Cut.OLDEST},
        "older": {"priority": 9, "rank": 1, "cuttable": True, "cut": Cut.OLDEST},
    }
    blocks = [Block(f"prompt {at}", 1, prompt, cuttable=False) for at, prompt in enumerate(prompts)]
    for name, places in found.items():
        items = [BlockItem(events[at], echo=at in echoes) for at in places]
        blocks.append(Block(name, content=items, **settings_of[name]))
    return blocks, found


def kept_by_allocate(events, prompts, budget, reserve, drops, apart, newest=8):
    """The positions that the allocator keeps; where the budget cannot hold, the error."""
    blocks, places = blocks_of(events, prompts, drops, apart, newest)
    try:
        allocation = allocate(blocks, budget + reserve, reserve)
    except ContextOverflowError as overflow:
        return overflow
    kept = {
        places[item.block][item.index] for item in allocation.items if item.outcome == "kept" and item.block in places
    }
    if drops and newest == 8 and not kept.issuperset(places.get("newest", ())):
        # Blocks drop no newer turn before an older one. A chain that may leave its newest atom out does so by setting.
        return kept_by_allocate(events, prompts, budget, reserve, drops, apart, newest=9)
    lacking = set(places.get("summaries", ())) - kept
    # A summary that does not fit is a turn among others: nothing older than it is kept in its place.
    return kept_by_allocate(events, prompts, budget, reserve, drops, apart - lacking, newest) if lacking else kept


async def kept_by_policy(policy, events, prompts):
    """The positions that a policy keeps; where the budget cannot hold, the error."""
    try:
        outcome = await policy.decide(prompts, History(events), Context())
    except ContextOverflowError as overflow:
        return overflow
    return set(positions_of(events, outcome.events))


async def keep_the_same(policy, events, prompts, reserve):
    apart = set(range(len(events))) if isinstance(policy, BudgetPolicy) else set()
    drops = policy.on_overflow == "drop"
    # A block is decided on the tool calls that are in it: now and then, others are pairs there.
    everything = await kept_by_policy(BudgetPolicy(ENOUGH, 0, 0, "drop"), events, prompts)
    assume(kept_by_allocate(events, prompts, ENOUGH, 0, drops, apart) == everything)
    kept = await kept_by_policy(policy, events, prompts)
    allocated = kept_by_allocate(events, prompts, policy.max_tokens, reserve, drops, apart)
    if isinstance(kept, ContextOverflowError):
        assert isinstance(allocated, ContextOverflowError)
        # A newest atom that must not be left out is as fixed a block as others, but is asked last.
        assert allocated.needed == kept.needed or (kept.cause == "fixed" and not drops)
    else:
        # What takes no tokens stays in a chain that has none left; a block that finds none is out as a whole.
        weigh = {at for at, event in enumerate(events) if event_tokens(event)}
        assert kept & weigh == allocated & weigh


def policy_of(blocks, percent, reserve, overflow):
    """A policy with so much of the budget that all of these blocks take; None for the reserve: one that has none."""
    everything = allocate(blocks, ENOUGH, 0).used
    budget = max(4, everything * percent // 100)
    if reserve is None:
        return TokenBudgetPolicy(budget, on_overflow=overflow)
    return BudgetPolicy(budget + reserve, reserve, 0, overflow)


settings_of_a_policy = st.tuples(st.integers(30, 100), st.one_of(st.none(), reserves), overflows)


@QUICK
@given(conversations(), settings_of_a_policy, prompts_of_text)
async def test_a_chain_keeps_what_the_allocator_keeps_of_its_parts_as_blocks(events, policy, prompts):
    blocks, _ = blocks_of(events, prompts, True, set())
    await keep_the_same(policy_of(blocks, *policy), events, prompts, policy[1] or 0)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@LONG
@given(conversations(max_blocks=16), settings_of_a_policy, prompts_of_text)
async def test_thousands_of_chains_keep_what_the_allocator_keeps(events, policy, prompts):
    blocks, _ = blocks_of(events, prompts, True, set())
    await keep_the_same(policy_of(blocks, *policy), events, prompts, policy[1] or 0)


@QUICK
@given(conversations(), st.integers(20, 700), st.integers(1, 60), overflows, prompts_of_text)
async def test_a_cut_in_steps_keeps_the_newest_of_what_a_cut_at_any_atom_keeps(events, budget, step, overflow, prompts):
    everywhere = await kept_by_policy(BudgetPolicy(budget, 0, 0, overflow), events, prompts)
    stepped = await kept_by_policy(BudgetPolicy(budget, 0, step, overflow), events, prompts)
    if isinstance(everywhere, ContextOverflowError):
        assert isinstance(stepped, ContextOverflowError)
        return
    first = [min(atom) for atom in pair(events).atoms(len(events))]
    older = parts(events, range(len(events)))["older"]
    assert stepped <= everywhere
    assert everywhere - stepped <= older
    last = max((first[at] for at in everywhere - stepped), default=-1)
    assert all(first[at] > last for at in stepped & older)
