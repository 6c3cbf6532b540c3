"""What a prompt begins with in common with the one before, and why no more."""

from __future__ import annotations

import subprocess
import sys

import pytest
from assembling import Custom, SpyCounter, requests, user

from otel_assembly import (
    Assembler,
    Context,
    ConversationPolicy,
    History,
    ModelRequest,
    ModelResponse,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    describe,
)
from otel_assembly.events import CompactionSummary, TurnStarted


def rendered(assembly):
    """The prompt by item: what kind of message, and every text in it."""
    facts = [describe(event) for event in assembly.events]
    return [("prompt", (text,)) for text in assembly.prompts] + [(str(fact.kind), fact.texts) for fact in facts]


def size(items):
    return sum(len(text.encode("utf-8", "surrogatepass")) for _, texts in items for text in texts)


def common_length(value, other):
    shorter = min(len(value), len(other))
    return next((index for index in range(shorter) if value[index] != other[index]), shorter)


def check_prefix(before, after):
    old, new, prefix = rendered(before), rendered(after), after.prefix
    same = common_length(old, new)
    assert prefix.prompts + prefix.events == (same if after.prompts == before.prompts else min(same, prefix.prompts))
    joined, other = ("".join(t for _, texts in items for t in texts).encode() for items in (old, new))
    assert size(new[: prefix.prompts + prefix.events]) <= prefix.bytes <= common_length(joined, other)
    assert prefix.previous_bytes == size(old)
    assert prefix.reuse == (prefix.bytes / size(old) if size(old) else None)
    return prefix.cause


def summarise(prompts, events):
    """One summary stands for the events up to the third, the seventh, the eleventh …"""
    upto = len(events) // 4 * 4
    return prompts, [CompactionSummary(summary=f"{upto}"), *events[upto - 1 :]] if upto else events


SUMMARIES = Custom(summarise)
SWAPS = Custom(lambda p, e: (p, e if len(e) == 3 else [e[1], e[0], *e[2:]]))
COUNTS = Custom(lambda p, e: (p, [{**e[0], "content": f"{len(e)}"}, *e[1:]]))


@pytest.mark.parametrize(
    ("cause", "chain", "first", "second"),
    [
        (None, [], (["p"], "abc"), (["p"], "abcd")),
        (None, [], (["p"], "abc"), (["p"], "abc")),
        (None, [SlidingWindowPolicy(9)], (["p"], "abc"), (["p"], "abcd")),
        ("prompt_changed", [], (["pad"], "abc"), (["pap"], "abc")),
        ("prompt_changed", [], (["p"], "abc"), (["p", "q"], "abc")),
        ("prompt_changed", [], (["p", "q"], "abc"), (["p"], "abc")),
        ("cut_moved", [SlidingWindowPolicy(3)], (["p"], "abc"), (["p"], "abcd")),
        ("cut_moved", [Custom(lambda p, e: (p, e[1:] if len(e) > 3 else e))], (["p"], "abc"), (["p"], "abcd")),
        ("compacted", [SUMMARIES], (["p"], "abc"), (["p"], "abcd")),
        ("compacted", [SUMMARIES], (["p"], "abcdefg"), (["p"], "abcdefgh")),
        ("reordered", [SWAPS], ([], "abc"), ([], "abcd")),
        ("event_changed", [], (["p"], "abc"), (["p"], "aXc")),
        ("event_changed", [], (["p"], "abc"), (["p"], "bc")),
        ("event_changed", [], (["p"], "abc"), (["p"], "aXbc")),
        ("event_changed", [COUNTS], ([], "abc"), ([], "abcd")),
    ],
)
async def test_the_prefix_says_how_much_of_the_last_prompt_begins_this_one_and_what_broke_it(
    cause, chain, first, second
):
    assembler, context, known = Assembler(chain), Context(), {}

    def events(letters):
        return [known.setdefault(letter, {**user(f"{letter}-"), "id": letter}) for letter in letters]

    one = await assembler.assemble(first[0], events(first[1]), context)
    assert (one.prefix.cause, one.prefix.reuse, one.prefix.bytes) == ("first", None, 0)
    two = await assembler.assemble(second[0], events(second[1]), context)
    assert check_prefix(one, two) == cause


async def test_an_item_that_comes_back_into_the_window_moves_the_cut():
    room = iter([2, 3])
    chain = [Custom(lambda p, e: (p, e[-next(room) :]))]
    assembler, history = Assembler(chain), History(requests("a", "b", "c"))
    one = await assembler.assemble([], history)
    assert check_prefix(one, await assembler.assemble([], history)) == "cut_moved"


async def test_other_events_that_read_the_same_leave_the_prefix_whole():
    assembler, context = Assembler([]), Context()
    one = await assembler.assemble(["p"], [user("yes"), user("yes"), user("no")], context)
    two = await assembler.assemble(["p"], [user("yes"), user("no"), user("and")], context)
    check_prefix(one, two)
    assert two.prefix.events == 1


async def test_prefixes_of_a_long_conversation_are_those_of_its_bytes():
    assembler, history = Assembler([ConversationPolicy(), TokenBudgetPolicy(90, step_tokens=16)]), History()
    last, causes = None, set()
    for number in range(60):
        history.append(ModelRequest(content=f"질문 {number}: where is it?"))
        if number % 3 == 0:
            history.append(TurnStarted(turn=number))
            history.append(ModelResponse(content="naïve " * (number % 5)))
        prompts = ["système"] if number % 20 else ["système", "once"]
        assembly = await assembler.assemble(prompts, history)
        causes.add(check_prefix(last, assembly) if last is not None else "first")
        last = assembly
    assert causes == {"first", None, "cut_moved", "prompt_changed"}


async def test_the_prefix_counts_its_own_tokens_though_nobody_asked_for_the_totals():
    assembler, history = Assembler([], counter=SpyCounter()), History(requests("one two", "three"))
    await assembler.assemble(["be kind"], history)
    assert (await assembler.assemble(["be kind"], history)).prefix.tokens == (4 + 2) + (4 + 2) + (4 + 1)


HASH_SCRIPT = """
import asyncio
from otel_assembly import Assembler, Context, History, ModelRequest, SlidingWindowPolicy
from otel_assembly.testing import RecordedTelemetry

async def main():
    history = History(ModelRequest(content=f"{n} \\u00e9") for n in range(5))
    history.append({"role": "user", "content": "x", "name": "y"})
    telemetry = RecordedTelemetry()
    assembler = Assembler([SlidingWindowPolicy(9)], recorder=telemetry.recorder)
    await assembler.assemble(["a", "b"], history)
    history.append(ModelRequest(content="more"))
    await assembler.assemble(["a", "b"], history)
    print(telemetry.span("assemble_context").attributes["assembly.prefix.hash"], hash("x"))

asyncio.run(main())
"""


def test_the_hash_of_a_prefix_is_equal_in_every_process():
    def run(seed):
        environment = {"PYTHONHASHSEED": seed, "PATH": ""}
        output = subprocess.run(
            [sys.executable, "-c", HASH_SCRIPT], env=environment, capture_output=True, text=True, check=True
        ).stdout
        return output.split()

    one, other = run("1"), run("2")
    assert one[-1] != other[-1]
    assert one[0] == other[0]
    assert len(one[0]) == 16


async def test_the_hash_changes_with_the_prefix_and_with_nothing_else(recorder):
    async def hash_of(prompts, texts, more):
        assembler, history = Assembler([], recorder=recorder.recorder), History(requests(*texts))
        await assembler.assemble(prompts, history)
        history.append(ModelRequest(content=more))
        await assembler.assemble(prompts, history)
        return recorder.span("assemble_context").attributes["assembly.prefix.hash"]

    base = await hash_of(["p"], ["a", "b"], "c")
    assert await hash_of(["p"], ["a", "b"], "d") == base
    others = {
        await hash_of(*item, "c")
        for item in ((["q"], ["a", "b"]), (["p"], ["ab"]), (["p", "a"], ["b"]), (["p"], ["a"]))
    }
    assert base not in others
    assert len(others) == 4


async def test_other_tools_make_another_prompt_from_its_very_beginning():
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
    assembler, history = Assembler([ConversationPolicy()]), History([ModelRequest(content="one")])
    await assembler.assemble(["p"], history, Context())
    same = await assembler.assemble(["p"], history, Context())
    other = await assembler.assemble(["p"], history, Context(tools=tools))
    assert (same.prefix.reuse, same.prefix.cause) == (1.0, None)
    assert (other.prefix.reuse, other.prefix.tokens, other.prefix.cause) == (0.0, 0, "prompt_changed")


async def test_breakpoints_mark_what_is_cached_already_and_what_the_next_turn_will_read():
    history, context = History([user("a")]), Context()
    assembler = Assembler([ConversationPolicy()])
    first = await assembler.assemble(["rules", "today"], history, context)
    assert (first.breakpoints.prompt, first.breakpoints.events) == (1, (0,))
    history.extend([{"role": "assistant", "content": "b"}, user("c")])
    second = await assembler.assemble(["rules", "today"], history, context)
    assert (second.breakpoints.prompt, second.breakpoints.events) == (1, (0, 2))
    third = await assembler.assemble(["rules", "tomorrow"], history, context)
    assert (third.breakpoints.prompt, third.breakpoints.events) == (0, (2,))
    nothing = await assembler.assemble([], [], Context())
    assert (nothing.breakpoints.prompt, nothing.breakpoints.events) == (None, ())
