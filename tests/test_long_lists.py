"""Lists of more than 1,024 messages: which changes in place an assembly notices, and when."""

from __future__ import annotations

import random

import pytest
from counting import WordCounter

from otel_assembly import (
    Assembler,
    BudgetPolicy,
    Context,
    ContextAssembler,
    ConversationPolicy,
    SlidingWindowPolicy,
    Task,
)

LENGTH = 1_500
#: Assemblies after which the rotation of 256 messages has seen all of them.
ROTATION = LENGTH // 256 + 2


def messages(count, start=0):
    return [
        {"role": "user" if number % 2 == 0 else "assistant", "content": f"message {number}"}
        for number in range(start, start + count)
    ]


def assembler(policy=None, **settings):
    return Assembler([ConversationPolicy(), policy or SlidingWindowPolicy(20)], counter=WordCounter(), **settings)


def next_turn(events):
    events += messages(2, len(events))


def all_tokens(assembly):
    return assembly.totals.tokens_in


def test_a_sent_message_that_was_changed_in_place_is_counted_as_it_is_sent():
    events, own, context = messages(LENGTH), assembler(), Context()
    own.assemble_sync([], events, context)
    next_turn(events)
    events[-5]["content"] = "now it has a lot more words than before"
    assert own.assemble_sync([], events, context).totals == assembler().assemble_sync([], events).totals


def test_a_dropped_message_that_was_changed_in_place_is_counted_after_one_rotation():
    events, own, context = messages(LENGTH), assembler(), Context()
    before = all_tokens(own.assemble_sync([], events, context))
    events[700]["content"] = "eight words are six more than it had"
    counts = [all_tokens(own.assemble_sync([], events, context)) for _ in range(ROTATION)]
    assert counts == sorted(counts)
    assert counts[-1] == before + 6


def test_recheck_messages_counts_a_dropped_message_at_once():
    events, own, context = messages(LENGTH), assembler(), Context()
    before = all_tokens(own.assemble_sync([], events, context))
    events[700]["content"] = "eight words are six more than it had"
    own.recheck_messages(context)
    assert all_tokens(own.assemble_sync([], events, context)) == before + 6


def test_a_message_that_is_sent_again_after_a_change_in_place_is_decided_on_anew():
    events, context = messages(LENGTH), Context(conversation_id="long")
    own = assembler(BudgetPolicy(600, 0, step_tokens=0))
    own.assemble_sync([], events, context.with_budget_ratio(0.2))
    events[LENGTH - 60]["content"] = "so many words that it does not fit " * 60
    wide = own.assemble_sync([], events, context)
    assert wide.totals.tokens_out <= 600
    assert events[LENGTH - 60] not in wide.events
    assert wide.turn == 1


def test_the_unit_in_front_of_the_cut_is_compared():
    events, context = messages(LENGTH), Context(conversation_id="long")
    own = assembler(BudgetPolicy(600, 0, step_tokens=0))
    sent = own.assemble_sync([], events, context).events
    cut = events.index(sent[0])
    for event in events[cut : cut + 8]:
        event["content"] = "shorter"
    next_turn(events)
    events[cut - 1]["content"] = "one " * 400
    assert (
        own.assemble_sync([], events, context).events
        == assembler(BudgetPolicy(600, 0, step_tokens=0)).assemble_sync([], events).events
    )


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_what_is_sent_is_what_a_new_conversation_would_send(seed):
    r = random.Random(seed)
    events, context, budget = messages(LENGTH), Context(), r.choice((300, 900))
    own = assembler(BudgetPolicy(budget, 0, step_tokens=0, on_overflow="drop"))
    for _ in range(12):
        next_turn(events)
        for _ in range(r.randint(0, 3)):
            event = events[r.randrange(LENGTH - 300, len(events))]
            event["content"] = r.choice((event["content"] + " and more", "[truncated]", "word " * 30))
        context.budget_ratio = r.choice((1.0, 0.5))
        here = own.assemble_sync(["Be brief."], events, context)
        new = assembler(BudgetPolicy(budget, 0, step_tokens=0, on_overflow="drop"))
        there = new.assemble_sync(["Be brief."], events, Context(budget_ratio=context.budget_ratio))
        assert here.totals.tokens_out == there.totals.tokens_out <= budget
        assert [id(event) for event in here.events] == [id(event) for event in there.events]


def test_copies_of_messages_with_another_field_continue_the_list():
    """Agno stores a message again with fields that no model reads."""
    own, context, events, offered = assembler(), Context(conversation_id="copies"), [], []
    for turn in range(4):
        next_turn(events)
        events = [events[0], *({**event, "metadata": {"turn": turn}} for event in events[1:])]
        assembly = own.assemble_sync([], events, context)
        offered.append((assembly.turn, assembly.items))
    assert offered == [(turn, [str(item) for item in range(2 * turn + 2)]) for turn in range(4)]


@pytest.mark.parametrize("order", ["attention", pytest.param("cache", marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
async def test_a_context_assembler_sends_what_it_would_send_in_a_new_conversation(seed, order):
    r = random.Random(seed)
    events, context = messages(LENGTH), Context(conversation_id=f"tasks {seed} {order}")

    def built():
        return ContextAssembler(
            system="Be brief.",
            window=1_200,
            output_reserve=200,
            scopes=lambda user, task: {"all"},
            order=order,
            step_tokens=0,
            counter=WordCounter(),
        )

    own = built()
    for _ in range(8):
        next_turn(events)
        for _ in range(r.randint(0, 3)):
            event = events[r.randrange(LENGTH - 300, len(events))]
            event["content"] = r.choice((event["content"] + " and more", "[truncated]", "word " * 30))
        task = Task("now " * r.choice((2, 700)), recent=events)
        here = await own.assemble(task, user="ada", context=context)
        there = await built().assemble(task, user="ada")
        assert here.messages == there.messages
        assert here.allocation.used == there.allocation.used <= 1_000
