"""`BudgetPolicy`: what it keeps, what it says of it, and what it refuses."""

from __future__ import annotations

import json

import pytest
from assembling import SpyCounter
from recount import assert_sendable, count, event_tokens, prompt_tokens
from strategies import TOOLS

from otel_assembly import (
    Assembler,
    BudgetPolicy,
    ConfigurationError,
    Context,
    ContextOverflowError,
    ConversationPolicy,
    History,
    ModelRequest,
    ModelResponse,
    TokenBudgetPolicy,
    ToolCallEvent,
    ToolResultEvent,
)
from otel_assembly.chain import chain_from_spec
from otel_assembly.decision import DecisionOutcome
from otel_assembly.events import CompactionSummary
from otel_assembly.tokens import MessageFraming

PROMPTS = ["You are a travel agent.", "Be brief."]
PRIMING = 3


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


async def assemble(window, events, prompts=PROMPTS, *, reserve=0, context=None, model=None, **settings):
    policies = [BudgetPolicy(window, reserve, **settings)]
    return await Assembler(policies, model=model).assemble(prompts, events, context or Context())


# as easy as that


async def test_a_window_and_a_reserve_are_all_it_takes():
    assembler = Assembler([ConversationPolicy(), BudgetPolicy(window=128_000, output_reserve=4_000)])
    history = History(small_talk(40))
    history.append(ask())
    prompts, events = await assembler.assemble(PROMPTS, history, Context())
    assert prompts == PROMPTS
    assert events == list(history)


async def test_what_it_keeps_are_the_very_objects_that_went_in():
    messages = [
        {"role": "system", "content": "rule"},
        *({"role": role, "content": f"{role} {n} " * 9} for n in range(20) for role in ("user", "assistant")),
        {"role": "user", "content": "and now?"},
    ]
    kept = (await assemble(300, messages, prompts=[], step_tokens=20)).events
    assert 3 < len(kept) < len(messages)
    at = [next(n for n, message in enumerate(messages) if message is event) for event in kept]
    assert at == sorted(at)
    assert (at[0], at[-1]) == (0, len(messages) - 1)


# the budget


@pytest.mark.parametrize(("model", "encoding"), [("gpt-4o", "o200k_base"), ("gpt-4", "cl100k_base")])
@pytest.mark.parametrize("settings", [{}, {"step_tokens": 0}, {"step_tokens": 25}, {"on_overflow": "drop"}])
async def test_the_prompt_recounted_is_within_the_window_less_the_reserve(model, encoding, settings):
    events = [*small_talk(30), call("a", "b"), result("a"), result("b"), ask()]
    for budget in (150, 400, 1_000, 5_000):
        context = Context(tools=TOOLS)
        assembly = await assemble(budget + 90, events, reserve=90, context=context, model=model, **settings)
        needed = prompt_tokens(assembly.prompts, assembly.events, tools_tokens(encoding), encoding)
        assert needed == assembly.totals.tokens_out <= budget == assembly.totals.budget
        assert (assembly.totals.encoding, assembly.totals.method) == (encoding, "exact")


async def test_exactly_the_budget_passes_whole_and_one_token_less_drops_the_oldest():
    events = [*small_talk(5), ask()]
    needed = prompt_tokens(PROMPTS, events, tools_tokens())
    context = Context(tools=TOOLS)
    whole = await assemble(needed + 7, events, reserve=7, context=context)
    assert whole.events == events
    less = await assemble(needed + 7, events, reserve=8, context=context)
    assert less.events == events[1:]
    assert [(d.item, d.reason, d.policy) for d in less.dropped] == [("0", "over_budget", "budget")]


async def test_fixed_content_one_token_over_raises_with_the_cost_of_each_part():
    rule = {"role": "system", "content": "Never promise a refund."}
    waiting = call("a", awaiting=("a",))
    events = [rule, waiting, *small_talk(4), ask("And my second bag?")]
    fixed = prompt_tokens(PROMPTS, [rule, waiting, events[-1]], tools_tokens())
    context = Context(tools=TOOLS)
    assembly = await assemble(fixed, events, context=context)
    assert assembly.events == [rule, waiting, events[-1]]
    assert assembly.totals.fixed == assembly.totals.tokens_out == fixed
    for on_overflow in ("raise", "drop"):
        with pytest.raises(ContextOverflowError) as caught:
            await assemble(fixed + 99, events, reserve=100, context=context, on_overflow=on_overflow)
        error = caught.value
        assert (error.budget, error.needed, error.cause, error.policy) == (fixed - 1, fixed, "fixed", "budget")
        assert error.costs == {
            "prompt[0]": 4 + count(PROMPTS[0]),
            "prompt[1]": 4 + count(PROMPTS[1]),
            "tool_schemas": tools_tokens(),
            "reply_priming": PRIMING,
            "leading_system": event_tokens(rule),
            "pending_tool_calls": event_tokens(waiting),
            "newest_request": event_tokens(events[-1]),
        }


async def test_the_newest_call_that_does_not_fit_raises_or_is_left_out_whole():
    events = [ask("first"), say("hm"), ask(), call("a", "b"), result("a", "x " * 200), result("b")]
    needed = prompt_tokens(PROMPTS, events[2:])
    with pytest.raises(ContextOverflowError) as caught:
        await assemble(needed - 1, events)
    assert (caught.value.cause, caught.value.needed) == ("newest_atom", needed)
    assert sum(caught.value.costs.values()) == needed
    assert (await assemble(needed, events)).events == events[2:]
    assembly = await assemble(needed - 1, events, on_overflow="drop")
    assert assembly.events == events[:3]
    assert {d.item: d.reason for d in assembly.dropped} == dict.fromkeys(("3", "4", "5"), "over_budget")
    assert assembly.totals.overflow.cause == "newest_atom"
    assert assembly.totals.tokens_out == prompt_tokens(PROMPTS, assembly.events)


async def test_a_megabyte_never_passes_a_budget_of_2000():
    events = [ask(), call("a"), result("a", "row, " * 200_000)]
    with pytest.raises(ContextOverflowError) as caught:
        await assemble(2_000, events)
    assert caught.value.cause == "newest_atom"
    assembly = await assemble(2_000, events, on_overflow="drop")
    assert assembly.events == events[:1]
    assert assembly.totals.tokens_out <= 2_000
    later = await assemble(2_000, [*events, say(), ask("and now?")])
    assert said(later) == ["It is in Seoul.", "and now?"]


def said(assembly):
    return [event.content for event in assembly.events]


# what stays


async def test_one_request_and_sixty_tool_calls_keep_the_request():
    work = [event for n in range(60) for event in (call(f"c{n}"), result(f"c{n}", "row " * 20))]
    events = [ask("Find all my bags."), *work]
    for window in (200, 500, 1_000):
        kept = (await assemble(window, events)).events
        assert kept[0] is events[0]
        assert kept[-2:] == events[-2:]
        assert_sendable(events, kept)


async def test_a_call_that_awaits_an_approval_300_messages_back_survives_and_says_why():
    waiting = call("a", awaiting=("a",))
    events = [ask(), waiting, *small_talk(150), ask()]
    outcome = await BudgetPolicy(200, 0).decide(PROMPTS, events, Context())
    assert outcome.events[0] is waiting
    held = [v for v in outcome.decisions if v.outcome is DecisionOutcome.KEPT]
    assert [(v.reason, list(v.events)) for v in held] == [("pending_tool_call", [waiting])]


async def test_system_messages_that_lead_stay_at_the_front():
    rules = [{"role": "system", "content": "Never promise a refund."}, {"role": "system", "content": "Be kind."}]
    events = [*rules, *small_talk(60), ask()]
    for step in (0, 20, 2_000):
        kept = (await assemble(200, events, step_tokens=step)).events
        assert kept[:2] == rules
        assert 3 < len(kept) < 30


async def test_a_summary_is_kept_before_older_turns_and_the_newest_one_first():
    old, newer = CompactionSummary(summary="they lost a bag " * 4), CompactionSummary(summary="it is in Seoul " * 4)
    events = [old, *small_talk(10), newer, *small_talk(30), ask()]
    one = prompt_tokens(PROMPTS, [newer, *events[-2:]])
    both = prompt_tokens(PROMPTS, [old, newer, *events[-2:]])
    assert (await assemble(one, events, step_tokens=0)).events == [newer, *events[-2:]]
    assert (await assemble(both, events, step_tokens=0)).events == [old, newer, *events[-2:]]
    roomy = (await assemble(both + 60, events, step_tokens=0)).events
    assert roomy[:2] == [old, newer]
    assert len(roomy) > 5
    plain = await Assembler([TokenBudgetPolicy(both)]).assemble(PROMPTS, events, Context())
    assert newer not in plain.events


async def test_a_summary_never_takes_the_place_of_the_newest_exchange():
    summary = CompactionSummary(summary="they lost a bag " * 40)
    events = [summary, *small_talk(3), ask(), call("a"), result("a", "found it " * 20)]
    assembly = await assemble(prompt_tokens(PROMPTS, events[-3:]), events)
    assert assembly.events == events[-3:]
    assert {d.item: d.reason for d in assembly.dropped}["0"] == "over_budget"


async def test_a_newest_message_that_is_left_out_takes_no_other_summary_with_it():
    summary = CompactionSummary(summary="they lost a bag")
    events = [*small_talk(2), summary, say(), ask(), CompactionSummary(summary="it is in Seoul " * 40)]
    kept = [summary, events[-2]]
    assembly = await assemble(prompt_tokens(PROMPTS, kept), events, step_tokens=0, on_overflow="drop")
    assert assembly.events == kept
    assert assembly.totals.overflow.cause == "newest_atom"


async def test_a_call_and_its_results_stay_or_go_together():
    group = [call("a", "b", "c"), result("a", "x " * 30), result("b", "x " * 30), result("c", "x " * 30)]
    events = [ask("first"), *group, say(), ask()]
    for budget in range(40, 260, 7):
        kept = (await assemble(budget, events)).events
        assert sum(event in kept for event in group) in {0, 4}


async def test_by_the_same_rule_as_a_token_budget_where_there_are_no_summaries():
    events = [*small_talk(40), call("a"), result("a"), ask()]
    for step in (0, 30, 2_000):
        ours = await assemble(400, events, step_tokens=step)
        other = await Assembler([TokenBudgetPolicy(400, step_tokens=step)]).assemble(PROMPTS, events, Context())
        assert ours.events == other.events


async def test_the_cut_moves_in_steps_unless_told_otherwise():
    events = small_talk(120)

    async def cuts(**settings):
        found = []
        for turn in range(60, len(events), 2):
            outcome = await BudgetPolicy(400, 0, **settings).decide(PROMPTS, events[:turn], Context())
            found.append(events.index(outcome.events[0]))
        assert found == sorted(found)
        return set(found)

    assert len(await cuts(step_tokens=100)) <= len(await cuts(step_tokens=0)) // 4


# telemetry


def blocks(recorder):
    return {
        span.attributes["assembly.block.kind"]: span.attributes
        for span in recorder.spans
        if span.name.startswith("allocate_block ")
    }


async def everything(recorder, window=200, **settings):
    """Something of each block."""
    rule = {"role": "system", "content": "Never promise a refund."}
    events = [
        rule,
        call("w", awaiting=("w",)),
        *small_talk(20),
        CompactionSummary(summary="they lost a bag"),
        ask(),
        call("a"),
        result("a", "row " * 6),
    ]
    assembler = Assembler([ConversationPolicy(), BudgetPolicy(window + 50, 50, **settings)], recorder=recorder.recorder)
    return events, await assembler.assemble(PROMPTS, events, Context(tools=TOOLS))


async def test_the_allocation_is_told_under_the_policy_in_numbers_that_add_up(recorder):
    events, assembly = await everything(recorder)
    budget = recorder.span("allocate_budget")
    policy = recorder.span("apply_policy budget")
    assert budget.parent == policy
    assert policy.parent == recorder.span("assemble_context")
    lines = blocks(recorder)
    assert [span.name for span in budget.children] == [f"allocate_block {kind}" for kind in lines]
    assert set(lines) == {"system", "schema", "query", "state", "recent", "summary", "older"}
    used = budget.attributes["assembly.budget.used"]
    assert sum(line["assembly.tokens.out"] for line in lines.values()) + PRIMING == used
    needed = prompt_tokens(assembly.prompts, assembly.events, tools_tokens())
    assert used == assembly.totals.tokens_out == needed
    for span in (policy, recorder.span("assemble_context")):
        assert span.attributes["assembly.tokens.out"] == used
    told = {name.removeprefix("assembly.budget."): value for name, value in budget.attributes.items()}
    assert (told["window"], told["output_reserve"], told["limit"]) == (250, 50, 200)
    assert (told["remaining"], told["utilization"]) == (200 - used, used / 200)
    fixed = sum(lines[kind]["assembly.tokens.out"] for kind in ("system", "schema", "query", "state")) + PRIMING
    assert told["fixed"] == fixed == assembly.totals.fixed
    assert lines["schema"]["assembly.tokens.out"] == tools_tokens()
    assert lines["query"]["assembly.tokens.out"] == event_tokens(events[-3])
    assert lines["recent"]["assembly.tokens.out"] == sum(map(event_tokens, events[-2:]))
    assert recorder.violations() == []


async def test_the_blocks_hold_every_item_and_say_how_many_stay(recorder):
    events, assembly = await everything(recorder)
    lines = blocks(recorder)
    assert sum(line["assembly.items.in"] for line in lines.values()) == len(events)
    assert sum(line["assembly.items.out"] for line in lines.values()) == len(assembly.events)
    older = lines["older"]
    assert 0 < older["assembly.items.out"] < older["assembly.items.in"] == 40
    assert older["assembly.decision.reason"] == "over_budget"
    assert older["assembly.budget.remaining"] >= older["assembly.tokens.out"]
    assert {lines[kind]["assembly.block.cuttable"] for kind in ("system", "schema", "query", "state")} == {False}
    assert (older["assembly.block.cuttable"], lines["summary"]["assembly.block.cuttable"]) == (True, True)


async def test_its_settings_are_on_its_span(recorder):
    await everything(recorder, step_tokens=40)
    config = json.loads(recorder.span("apply_policy budget").attributes["assembly.policy.config"])
    assert config == {"window": 250, "output_reserve": 50, "step_tokens": 40, "on_overflow": "raise"}


@pytest.mark.parametrize("cause", ["fixed", "newest_atom"])
@pytest.mark.parametrize("on_overflow", ["raise", "drop"])
async def test_an_overflow_is_on_all_three_spans_raised_or_not(recorder, cause, on_overflow):
    events = [ask(), call("a"), result("a", "row " * 300)]
    fixed, needed = prompt_tokens(PROMPTS, events[:1]), prompt_tokens(PROMPTS, events)
    budget, need = (fixed - 1, fixed) if cause == "fixed" else (needed - 1, needed)
    assembler = Assembler([BudgetPolicy(budget, 0, on_overflow=on_overflow)], recorder=recorder.recorder)
    sent = cause == "newest_atom" and on_overflow == "drop"
    if sent:
        assert (await assembler.assemble(PROMPTS, events, Context())).events == events[:1]
    else:
        with pytest.raises(ContextOverflowError):
            await assembler.assemble(PROMPTS, events, Context())
    for name in ("assemble_context", "apply_policy budget", "allocate_budget"):
        span = recorder.span(name)
        assert span.status == "ERROR"
        assert span.attributes["error.type"] == "context_overflow"
        assert span.attributes["assembly.overflowed"] is True
        assert span.attributes["assembly.overflow.tokens"] == need - budget
        assert span.attributes["assembly.overflow.cause"] == cause
        assert span.events_named("assembly.overflow")
    lines = blocks(recorder)
    used = recorder.span("allocate_budget").attributes["assembly.budget.used"]
    assert used == (fixed if sent else 0)
    assert sum(line["assembly.tokens.out"] for line in lines.values()) == (fixed - PRIMING if sent else 0)
    assert lines["recent"]["assembly.decision.outcome"] == "dropped"
    assert lines["recent"]["assembly.tokens.in"] == needed - fixed
    assert recorder.metric("assembly.budget.overflows") == 1
    assert recorder.violations() == []


async def test_nothing_is_told_of_blocks_that_are_not_there(recorder):
    await Assembler([BudgetPolicy(100, 0)], recorder=recorder.recorder).assemble([], [ask()], Context())
    assert list(blocks(recorder)) == ["query"]
    assert recorder.violations() == []


# cost


async def test_a_turn_tokenises_what_is_new_and_nothing_far_back():
    spy = SpyCounter()
    history = History(ModelRequest(content=f"event {number}") for number in range(5_000))
    assembler = Assembler([BudgetPolicy(100, 0, step_tokens=20)], counter=spy)
    await assembler.assemble([], history)
    assert len(spy.asked) == 5_000
    for number in range(5_000, 5_020):
        history.append(ModelRequest(content=f"event {number}"))
        spy.asked.clear()
        await assembler.assemble([], history)
        assert [text for text in spy.asked if text.startswith("event")] == [f"event {number}"]


# settings


def test_it_is_made_of_a_mapping_and_of_a_line_and_written_down_again():
    written = {"window": 8_000, "output_reserve": 500, "step_tokens": 400, "on_overflow": "drop"}
    assembler = Assembler.from_config({"policies": ["conversation", {"budget": written}]})
    assert assembler.to_config()["policies"] == ["conversation", {"budget": written}]
    spec = "conversation,budget:window=8000:output_reserve=500:step_tokens=400:on_overflow=drop"
    (_, policy) = chain_from_spec(spec)
    assert isinstance(policy, BudgetPolicy)
    assert (policy.config, policy.max_tokens) == (written, 7_500)


def test_what_is_left_out_is_the_default():
    policy = BudgetPolicy(window=128_000, output_reserve=4_000)
    assert policy.config == {
        "window": 128_000,
        "output_reserve": 4_000,
        "step_tokens": 2_000,
        "on_overflow": "raise",
    }


def test_a_configuration_without_a_reserve_says_what_is_missing():
    with pytest.raises(ConfigurationError, match=r"policies\[0\].budget.output_reserve"):
        chain_from_spec("budget:window=8000")


@pytest.mark.parametrize("wrong", [0, -1, True, 0.5, "2", None])
def test_a_window_that_is_no_whole_number_from_1_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="window"):
        BudgetPolicy(wrong, 0)


@pytest.mark.parametrize("wrong", [-1, True, 0.5, "2", None, 100, 101])
def test_a_reserve_that_is_negative_or_leaves_nothing_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="output_reserve"):
        BudgetPolicy(100, wrong)


@pytest.mark.parametrize("wrong", [-1, True, 0.5, "2", None])
def test_a_step_that_is_no_whole_number_from_0_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="step_tokens"):
        BudgetPolicy(100, 0, step_tokens=wrong)


@pytest.mark.parametrize("wrong", ["", "ignore", "RAISE", None, True, ["raise"]])
def test_an_overflow_choice_that_is_none_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="on_overflow"):
        BudgetPolicy(100, 0, on_overflow=wrong)
