"""A model's reasoning and the item behind it are kept or dropped together, because providers refuse either alone."""

from __future__ import annotations

import pytest

from otel_assembly import (
    Assembler,
    BudgetPolicy,
    ContextOverflowError,
    ConversationPolicy,
    HeadAndTailPolicy,
    History,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    describe,
)

POLICIES = [
    ConversationPolicy(),
    SlidingWindowPolicy(2),
    SlidingWindowPolicy(5),
    HeadAndTailPolicy(2, 3),
    HeadAndTailPolicy(3, 2),
    TokenBudgetPolicy(120, on_overflow="drop"),
    TokenBudgetPolicy(190, on_overflow="drop"),
    BudgetPolicy(180, 20, step_tokens=0, on_overflow="drop"),
    BudgetPolicy(240, 20, step_tokens=30, on_overflow="drop"),
]


def ask(text):
    return {"role": "user", "content": f"{text} {'word ' * 6}"}


def thought(name):
    return {"type": "reasoning", "id": name, "summary": [{"type": "summary_text", "text": f"Thinking {name}. " * 3}]}


def call(name):
    return {"type": "function_call", "call_id": name, "name": "look", "arguments": "{}"}


def result(name):
    return {"type": "function_call_output", "call_id": name, "output": "found " * 8}


def answer(text):
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": f"{text} " * 6}]}


def search(name):
    return {"type": "web_search_call", "id": name, "status": "completed", "action": {"type": "search", "query": "x"}}


#: Conversations, each with the groups of items that belong together, by place.
TALKS = {
    "a thought in front of each item": (
        [
            *(ask("one"), thought("r0"), call("c0"), result("c0"), thought("r1"), answer("yes")),
            *(ask("two"), thought("r2"), call("c1"), result("c1"), thought("r3"), answer("no"), ask("three")),
        ],
        [{1, 2, 3}, {4, 5}, {7, 8, 9}, {10, 11}],
    ),
    "several thoughts in a row": (
        [
            *(ask("one"), thought("r0"), thought("r1"), answer("yes")),
            *(ask("two"), thought("r2"), thought("r3"), call("c0"), result("c0"), answer("done"), ask("three")),
        ],
        [{1, 2, 3}, {5, 6, 7, 8}],
    ),
    "parallel calls with a thought between": (
        [
            *(ask("one"), thought("r0"), call("c0"), thought("r1"), call("c1"), call("c2")),
            *(result("c1"), result("c2"), result("c0"), thought("r2"), answer("done")),
            *(ask("two"), answer("so"), ask("three")),
        ],
        [{1, 2, 8}, {3, 4, 6}, {5, 7}, {9, 10}],
    ),
    "a built-in tool": (
        [
            *(ask("one"), thought("r0"), search("w0"), thought("r1"), search("w1"), answer("found")),
            *(ask("two"), answer("so"), ask("three")),
        ],
        [{1, 2}, {3, 4}],
    ),
}


def places(items, sent):
    at = {id(item): place for place, item in enumerate(items)}
    return {at[id(item)] for item in sent}


@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("as_history", [False, True])
async def test_no_policy_separates_reasoning_from_the_item_behind_it(talk, policy, as_history):
    items, groups = TALKS[talk]
    for end in range(1, len(items) + 1):
        events = items[:end]
        try:
            assembly = await Assembler([policy]).assemble([], History(events) if as_history else events)
        except ContextOverflowError:
            continue
        kept = places(items, assembly.events)
        for group in groups:
            there = {place for place in group if place < end}
            assert kept & there in (set(), there), f"of {end} items {sorted(kept)} are sent; {there} belong together"


async def test_a_thought_between_calls_of_one_answer_leaves_them_running():
    items = [ask("one"), thought("r0"), call("c0"), thought("r1"), call("c1")]
    for policy in (ConversationPolicy(), SlidingWindowPolicy(9), TokenBudgetPolicy(900)):
        assembly = await Assembler([policy]).assemble([], items)
        assert list(assembly.events) == items
        history = History(items)
        assert list((await Assembler([policy]).assemble([], history)).events) == items
        history.extend([result("c1"), result("c0")])
        assert list((await Assembler([policy]).assemble([], history)).events) == [*items, result("c1"), result("c0")]


async def test_an_abandoned_call_leaves_with_its_reasoning():
    items = [ask("one"), thought("r0"), call("c0"), ask("stop"), thought("r1"), answer("fine"), ask("two")]
    for given in (items, History(items)):
        assembly = await Assembler([ConversationPolicy()]).assemble([], given)
        assert places(items, assembly.events) == {0, 3, 4, 5, 6}
        reasons = {decision.item: decision.reason for decision in assembly.decisions}
        assert (reasons["1"], reasons["2"]) == ("orphaned_reasoning", "orphaned_tool_call")


async def test_reasoning_that_nothing_follows_leaves():
    items = [ask("one"), thought("r0"), ask("go on"), answer("yes")]
    history = History()
    for item in items:
        history.append(item)
        await Assembler([ConversationPolicy()]).assemble([], history)
    for given in (items, history):
        for policy in (ConversationPolicy(), SlidingWindowPolicy(9), TokenBudgetPolicy(900), BudgetPolicy(900, 9)):
            assembly = await Assembler([policy]).assemble([], given)
            assert places(items, assembly.events) == {0, 2, 3}
            assert (
                assembly.totals.tokens_out
                == (await Assembler([]).assemble([], [*items[:1], *items[2:]])).totals.tokens_out
            )


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}]},
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "abcd" * 8}]},
        {"role": "assistant", "content": [{"reasoningContent": {"reasoningText": {"text": "Hm."}}}]},
        {"role": "model", "parts": [{"text": "Hm.", "thought": True, "thoughtSignature": "s"}]},
    ],
)
async def test_thoughts_that_are_messages_of_their_own_belong_to_the_message_behind(message):
    assert describe(message).is_reasoning
    form = {"parts": [{"text": "x"}]} if "parts" in message else {"content": "x"}
    role = "model" if "parts" in message else "assistant"
    events = [{"role": "user", **form}, message, {"role": role, **form}, {"role": "user", **form}]
    assembly = await Assembler([SlidingWindowPolicy(2)]).assemble([], events)
    assert message not in list(assembly.events)
    assert len(assembly.events) == 1
    assert list((await Assembler([SlidingWindowPolicy(4)]).assemble([], events)).events) == events


def test_a_message_that_also_says_something_is_no_reasoning():
    said = [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "text", "text": "Yes."}]
    assert not describe({"role": "assistant", "content": said}).is_reasoning
    called = [said[0], {"type": "tool_use", "id": "t", "name": "look", "input": {}}]
    assert not describe({"role": "assistant", "content": called}).is_reasoning


async def test_a_part_of_gemini_s_with_only_a_signature_is_read():
    contents = [
        {"role": "user", "parts": [{"text": "hi"}]},
        {"role": "model", "parts": [{"text": "hello"}, {"thoughtSignature": "Eq=="}]},
        {"role": "user", "parts": [{"text": "go on"}]},
    ]
    assembly = await Assembler([TokenBudgetPolicy(900)]).assemble([], contents)
    assert list(assembly.events) == contents
    assert not describe(contents[1]).unknown


class Drops:
    """A user's policy, which drops items wherever they are."""

    name = "drops"

    def __init__(self, drops):
        self.drops = drops

    async def apply(self, prompts, events, context):
        return prompts, [event for at, event in enumerate(events) if not self.drops(at, event)]


async def test_the_answer_stays_where_the_user_s_policy_has_dropped_all_reasoning():
    items = [ask("one"), thought("r0"), answer("yes"), thought("r1"), call("c0"), result("c0"), ask("two")]
    chain = [Drops(lambda _, item: item.get("type") == "reasoning"), ConversationPolicy(), TokenBudgetPolicy(900)]
    assembly = await Assembler(chain).assemble([], items)
    assert places(items, assembly.events) == {0, 2, 4, 5, 6}
