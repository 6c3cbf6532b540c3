from __future__ import annotations

import base64
import os

import pytest
from recount import assert_sendable, count, event_tokens, prompt_tokens
from strategies import TOOLS

from otel_assembly import (
    AlertPolicy,
    Assembler,
    ConfigurationError,
    Context,
    ContextOverflowError,
    ConversationPolicy,
    History,
    ModelRequest,
    ModelResponse,
    ObserverAlert,
    TokenBudgetPolicy,
    ToolCallEvent,
    ToolResultEvent,
)
from otel_assembly.decision import DecisionOutcome
from otel_assembly.events import ToolResultsEvent
from otel_assembly.tokens import MessageFraming

PROMPTS = ["You are a travel agent.", "Be brief."]


def ask(text="Where is my bag?"):
    return ModelRequest(content=text)


def say(text="It is in Seoul."):
    return ModelResponse(content=text)


def call(*ids, awaiting=()):
    calls = (ToolCallEvent(id=i, name="search", arguments='{"q":1}', awaiting_approval=i in awaiting) for i in ids)
    return ModelResponse(tool_calls=tuple(calls))


def result(value, text="found"):
    return ToolResultEvent(parent_id=value, name="search", content=text)


def small_talk(turns):
    return [event for n in range(turns) for event in (ask(f"question number {n}"), say(f"answer number {n} " * 3))]


def tools_tokens(encoding="o200k_base"):
    return MessageFraming().tool_schemas(TOOLS, lambda text: count(text, encoding), encoding=encoding)


async def assemble(budget, events, prompts=PROMPTS, *, context=None, model=None, **settings):
    policies = [TokenBudgetPolicy(budget, **settings)]
    return await Assembler(policies, model=model).assemble(prompts, events, context or Context())


@pytest.mark.parametrize(("model", "encoding"), [("gpt-4o", "o200k_base"), ("gpt-4", "cl100k_base")])
@pytest.mark.parametrize("settings", [{}, {"transparent": True}, {"step_tokens": 20}, {"on_overflow": "drop"}])
async def test_the_rendered_prompt_recounted_is_within_the_budget_and_what_the_assembly_says(model, encoding, settings):
    events = [*small_talk(30), call("a", "b"), result("a"), result("b"), ask()]
    for budget in (150, 400, 1_000, 5_000):
        assembly = await assemble(budget, events, context=Context(tools=TOOLS), model=model, **settings)
        needed = prompt_tokens(assembly.prompts, assembly.events, tools_tokens(encoding), encoding)
        assert needed == assembly.totals.tokens_out <= budget
        assert (assembly.totals.encoding, assembly.totals.method) == (encoding, "exact")


async def test_a_prompt_of_exactly_the_budget_passes_whole():
    events = [*small_talk(5), ask()]
    needed = prompt_tokens(PROMPTS, events, tools_tokens())
    assembly = await assemble(needed, events, context=Context(tools=TOOLS))
    assert assembly.events == events
    assert assembly.totals.tokens_out == needed == assembly.totals.budget


async def test_one_token_less_drops_the_oldest():
    events = [*small_talk(5), ask()]
    assembly = await assemble(prompt_tokens(PROMPTS, events) - 1, events)
    assert assembly.events == events[1:]
    assert [(d.item, d.reason) for d in assembly.dropped] == [("0", "over_budget")]


async def test_fixed_content_of_exactly_the_budget_passes_and_one_token_more_raises_with_the_costs():
    rule = {"role": "system", "content": "Never promise a refund."}
    waiting = call("a", awaiting=("a",))
    events = [rule, waiting, *small_talk(4), ask("And my second bag?")]
    fixed = prompt_tokens(PROMPTS, [rule, waiting, events[-1]], tools_tokens())
    context = Context(tools=TOOLS)
    assembly = await assemble(fixed, events, context=context)
    assert assembly.events == [rule, waiting, events[-1]]
    assert assembly.totals.fixed == assembly.totals.tokens_out == fixed
    with pytest.raises(ContextOverflowError) as caught:
        await assemble(fixed - 1, events, context=context)
    error = caught.value
    assert (error.budget, error.needed, error.cause, error.policy) == (fixed - 1, fixed, "fixed", "token_budget")
    assert error.costs == {
        "prompt[0]": 4 + count(PROMPTS[0]),
        "prompt[1]": 4 + count(PROMPTS[1]),
        "tool_schemas": tools_tokens(),
        "reply_priming": 3,
        "leading_system": event_tokens(rule),
        "pending_tool_calls": event_tokens(waiting),
        "newest_request": event_tokens(events[-1]),
    }
    assert sum(error.costs.values()) == fixed


@pytest.mark.parametrize("on_overflow", ["raise", "drop"])
async def test_fixed_content_over_the_budget_raises_whatever_on_overflow_says(on_overflow):
    with pytest.raises(ContextOverflowError, match="prompt"):
        await assemble(10, [ask()], on_overflow=on_overflow)


async def test_the_newest_call_that_does_not_fit_raises_with_its_cost():
    events = [ask(), call("a", "b"), result("a", "x " * 200), result("b")]
    fixed = prompt_tokens(PROMPTS, events[:1])
    needed = prompt_tokens(PROMPTS, events)
    with pytest.raises(ContextOverflowError) as caught:
        await assemble(needed - 1, events)
    assert (caught.value.cause, caught.value.needed) == ("newest_atom", needed)
    assert caught.value.costs["newest_atom"] == needed - fixed
    assert sum(caught.value.costs.values()) == needed
    assert (await assemble(needed, events)).events == events


async def test_the_newest_call_that_does_not_fit_is_left_out_whole_where_that_was_chosen():
    events = [ask("first"), say("hm"), ask(), call("a", "b"), result("a", "x " * 200), result("b")]
    assembly = await assemble(100, events, on_overflow="drop")
    assert assembly.events == events[:3]
    assert {d.item: d.reason for d in assembly.dropped} == dict.fromkeys(("3", "4", "5"), "over_budget")
    assert assembly.totals.overflow.cause == "newest_atom"
    assert assembly.totals.tokens_out == prompt_tokens(PROMPTS, assembly.events) <= 100


async def test_a_call_that_was_given_up_does_not_come_back_when_the_newest_one_is_left_out():
    events = [ask(), call("a"), call("b"), result("b", "x " * 200)]
    assembly = await assemble(100, events, on_overflow="drop")
    assert assembly.events == [events[0]]


async def test_three_parallel_calls_stay_or_go_together():
    group = [call("a", "b", "c"), result("a", "x " * 30), result("b", "x " * 30), result("c", "x " * 30)]
    events = [ask("first"), *group, say(), ask()]
    for budget in range(40, 260, 7):
        kept = (await assemble(budget, events)).events
        assert sum(event in kept for event in group) in {0, 4}


async def test_results_that_come_back_in_another_order_stay_with_their_call():
    events = [ask(), call("a"), call("b"), result("b"), result("a"), ask()]
    for budget in range(40, 140, 3):
        assembly = await assemble(budget, events)
        assert_sendable(events, assembly.events)


async def test_a_late_result_that_does_not_fit_leaves_its_room_to_what_stands_before_it():
    events = [ask("first"), call("a"), say("still looking"), result("a", "row " * 500), ask()]
    assembly = await assemble(100, events)
    assert assembly.events == [events[2], events[4]]


async def test_the_newest_request_outlives_sixty_tool_calls():
    work = [event for n in range(60) for event in (call(f"c{n}"), result(f"c{n}", "row " * 20))]
    events = [ask(), *work]
    assembly = await assemble(300, events)
    assert assembly.events[0] is events[0]
    assert len(assembly.events) > 3
    assert (await TokenBudgetPolicy(300).decide(PROMPTS, events, Context())).decisions[-1].reason == "pinned"


async def test_a_call_that_awaits_an_approval_is_kept_and_the_reason_is_given():
    waiting = call("a", awaiting=("a",))
    events = [ask(), waiting, *small_talk(150), ask()]
    outcome = await TokenBudgetPolicy(200).decide(PROMPTS, events, Context())
    assert outcome.events[0] is waiting
    held = [v for v in outcome.decisions if v.outcome is DecisionOutcome.KEPT]
    assert [(v.reason, list(v.events)) for v in held] == [("pending_tool_call", [waiting])]


async def test_a_call_and_its_echoes_cost_once():
    asked = call("a")
    answer = result("a", "gate 14 " * 10)
    events = [ask(), asked, asked.tool_calls[0], answer, ToolResultsEvent(results=(answer,)), ask()]
    assembly = await assemble(5_000, events)
    once = prompt_tokens(PROMPTS, [ask(), asked, answer, ask()])
    assert assembly.totals.tokens_out == once
    assert (await assemble(once, events)).events == events


class OnlyJointResults:
    """A user's policy that takes out what AG2 carries twice, and leaves the joint results."""

    name = "only_joint_results"

    async def apply(self, prompts, events, context):
        return prompts, [event for event in events if not isinstance(event, ToolResultEvent)]


@pytest.mark.parametrize("make", [list, History])
async def test_a_restated_result_counts_in_full_where_another_policy_took_the_original(make):
    answer = result("a", "gate 14 " * 20)
    events = [ask(), call("a"), answer, ToolResultsEvent(results=(answer,)), ask()]
    for chain in ([OnlyJointResults()], [OnlyJointResults(), ConversationPolicy(), TokenBudgetPolicy(5_000)]):
        assembly = await Assembler(chain).assemble(PROMPTS, make(events), Context())
        assert assembly.events == [*events[:2], *events[3:]]
        assert assembly.totals.tokens_out == prompt_tokens(PROMPTS, assembly.events)
    with pytest.raises(ContextOverflowError):
        await Assembler([OnlyJointResults(), TokenBudgetPolicy(60)]).assemble([], make(events[:-1]), Context())


async def test_joint_results_that_restate_results_of_two_calls_never_outlive_either():
    first, second = result("a"), result("b")
    both = ToolResultsEvent(results=(first, second))
    events = [ask(), call("a"), first, call("b"), second, both, ask()]
    for budget in range(40, 150, 3):
        kept = (await assemble(budget, events)).events
        assert_sendable(events, kept)


async def test_as_many_as_a_thousand_parallel_calls_are_restated_as_one():
    ids = [f"call-{n}" for n in range(1_000)]
    results = tuple(result(item_id, "ok") for item_id in ids)
    events = [ask(), call(*ids), *results, ToolResultsEvent(results=results), say()]
    outcome = await TokenBudgetPolicy(1_000_000).decide([], events, Context())
    assert len(outcome.events) == len(events)


async def test_orphans_take_no_room():
    events = [ask("first"), say("kept"), result("z", "x " * 500), ask()]
    assembly = await assemble(prompt_tokens(PROMPTS, [*events[:2], events[3]]), events)
    assert assembly.events == [*events[:2], events[3]]


async def test_a_transparent_budget_says_what_it_shows_within_the_budget():
    events = [*small_talk(30), ask()]
    assembly = await assemble(300, events, transparent=True)
    assert assembly.prompts[:-1] == PROMPTS
    assert assembly.prompts[-1] == (
        f"[token_budget] Showing {len(assembly.events)} of {len(events)} events (token budget)."
    )
    assert prompt_tokens(assembly.prompts, assembly.events) == assembly.totals.tokens_out <= 300


async def test_a_note_for_which_there_is_no_room_is_left_out():
    events = [*small_talk(3), ask()]
    fixed = prompt_tokens(PROMPTS, events[-1:])
    assembly = await assemble(fixed + 2, events, transparent=True)
    assert assembly.prompts == PROMPTS
    assert assembly.events == events[-1:]


@pytest.mark.parametrize("settings", [{}, {"transparent": True}, {"step_tokens": 3}, {"on_overflow": "drop"}])
async def test_each_token_more_keeps_at_least_as_many(settings):
    events = [*[event for _ in range(8) for event in (ask("a"), say("b"))], ask()]
    least = prompt_tokens(PROMPTS, events[-1:])
    counts = [len((await assemble(least + more, events, **settings)).events) for more in range(120)]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, len(events))


async def test_nothing_is_noted_where_nothing_was_dropped():
    events = [*small_talk(3), ask()]
    assembly = await assemble(prompt_tokens(PROMPTS, events), events, transparent=True)
    assert assembly.prompts == PROMPTS


async def test_what_was_injected_before_counts():
    alert = ObserverAlert(source="monitor", severity="critical", message="the disk is full, stop writing to it")
    events = [*small_talk(10), alert, ask()]
    budget = 200
    chain = [AlertPolicy(), ConversationPolicy(), TokenBudgetPolicy(budget)]
    assembly = await Assembler(chain).assemble(PROMPTS, events, Context())
    assert "disk is full" in assembly.prompts[-1]
    assert prompt_tokens(assembly.prompts, assembly.events) == assembly.totals.tokens_out <= budget


async def test_by_characters_the_budget_is_an_estimate_with_the_full_text_counted():
    events = [ask("x" * 400), say("y" * 400), ask("z" * 40)]
    kept = (await TokenBudgetPolicy(130, chars_per_token=4).decide([], events, Context())).events
    assert list(kept) == events[1:]  # 3 + (4 + 100) + (4 + 10)


# steps


async def cuts(events, first_turn, **settings):
    found = []
    for turn in range(first_turn, len(events) + 1, 2):
        outcome = await TokenBudgetPolicy(400, **settings).decide(PROMPTS, events[:turn], Context())
        found.append(events.index(outcome.events[0]))
    return found


async def test_with_steps_the_cut_moves_in_jumps_and_never_back():
    events = small_talk(120)
    stepped, every_turn = await cuts(events, 60, step_tokens=100), await cuts(events, 60)
    assert stepped == sorted(stepped)
    assert len(set(every_turn)) > 80
    assert len(set(stepped)) <= len(set(every_turn)) // 4
    assert all(step >= each for step, each in zip(stepped, every_turn, strict=True))


async def test_a_stepped_cut_depends_on_nothing_but_the_input():
    events = small_talk(60)
    grown, policy = History(), TokenBudgetPolicy(400, step_tokens=100)
    for event in events:
        grown.append(event)
        if isinstance(event, ModelRequest):
            await policy.decide(PROMPTS, grown, Context())
    outcome = await policy.decide(PROMPTS, grown, Context())
    fresh = await TokenBudgetPolicy(400, step_tokens=100).decide(PROMPTS, events, Context())
    assert list(outcome.events) == list(fresh.events)


async def test_where_no_step_fits_the_oldest_atom_that_fits_is_the_cut():
    events = [*small_talk(30), ask()]
    stepped = await TokenBudgetPolicy(150, step_tokens=100_000).decide(PROMPTS, events, Context())
    plain = await TokenBudgetPolicy(150).decide(PROMPTS, events, Context())
    assert list(stepped.events) == list(plain.events)


# content that is out to break something


HOSTILE = {
    "korean": "수하물이 어디에 있습니까? " * 40,
    "base64": base64.b64encode(bytes(range(256)) * 8).decode(),
    "minified": '{"a":[1,2,{"b":null}],"c":"' + "z" * 400 + '"}',
    "special": "<|endoftext|><|im_start|>system<|endofprompt|>" * 10,
    "surrogates": "\ud83d alone, \udc00 alone, 😀 " * 20,
    "empty": "",
    "spaces": " \n\t" * 300,
    "nul": "\0" * 100,
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_text_is_counted_to_the_token(name):
    text = HOSTILE[name]
    events = [ask(text), call("a"), result("a", text), {"role": "assistant", "content": text}, ask("and now?")]
    needed = prompt_tokens([text], events)
    assembly = await assemble(needed, events, prompts=[text])
    assert assembly.events == events
    assert assembly.totals.tokens_out == needed
    assembly = await assemble(max(60, prompt_tokens([text], events[-1:])), events, prompts=[text], on_overflow="drop")
    assert assembly.totals.tokens_out == prompt_tokens([text], assembly.events)


@pytest.mark.parametrize("on_overflow", ["raise", "drop"])
async def test_a_tool_result_of_a_megabyte_never_passes_a_budget_of_2000(on_overflow):
    megabyte = base64.b64encode(os.urandom(750_000)).decode()
    events = [ask(), call("a"), result("a", megabyte)]
    if on_overflow == "raise":
        with pytest.raises(ContextOverflowError) as caught:
            await assemble(2_000, events)
        assert caught.value.needed > 500_000
        return
    assembly = await assemble(2_000, events, on_overflow="drop")
    assert assembly.events == events[:1]
    assert assembly.totals.tokens_out <= 2_000


async def test_a_megabyte_further_back_is_dropped_with_its_call():
    megabyte = "row, " * 200_000
    events = [ask(), call("a"), result("a", megabyte), say(), ask("and now?")]
    assembly = await assemble(2_000, events)
    assert assembly.events == events[3:]


async def test_a_conversation_of_nothing_costs_the_framing():
    assembly = await assemble(3, [], prompts=[])
    assert (assembly.events, assembly.totals.tokens_out) == ([], 3)


# settings


@pytest.mark.parametrize("wrong", [0, -1, True, 100.0, "100", None])
def test_a_budget_that_is_no_whole_number_from_1_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="max_tokens"):
        TokenBudgetPolicy(wrong)


@pytest.mark.parametrize("wrong", [-1, True, 0.5, "2", None])
def test_a_step_that_is_no_whole_number_from_0_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="step_tokens"):
        TokenBudgetPolicy(100, step_tokens=wrong)


@pytest.mark.parametrize("wrong", [0, -4, True, float("nan"), float("inf"), "4"])
def test_characters_a_token_that_are_no_number_above_0_are_refused(wrong):
    with pytest.raises(ConfigurationError, match="chars_per_token"):
        TokenBudgetPolicy(100, chars_per_token=wrong)


@pytest.mark.parametrize("wrong", ["", "ignore", "RAISE", None, True, ["raise"]])
def test_an_overflow_choice_that_is_none_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="on_overflow"):
        TokenBudgetPolicy(100, on_overflow=wrong)
