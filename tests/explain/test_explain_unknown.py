"""What is not in the spans is said to be not known; what is, is told without the rest."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from explained import as_ledger, play

from otel_assembly import (
    AssemblyError,
    Context,
    ConversationPolicy,
    DecisionReason,
    ModelRequest,
    ObserverAlert,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    ToolCallEvent,
    Verdict,
)
from otel_assembly.decision import DecisionOutcome, Outcome
from otel_assembly.events import CompactionSummary
from otel_assembly.explain import Explainer, Limit, detail_lines, explain, headline
from otel_assembly.observe import ObservedAssembler
from otel_assembly.testing import RecordedTelemetry, conversation

ASKS = conversation("ask", "answer", "ask", "answer", "ask", "answer", "ask")
WINDOW = [{"sliding_window": {"max_events": 3}}]


def without(played, unwanted):
    """The ledger that is left where some spans, and what is below them, are lost."""
    gone = {span.span_id for span in played.spans if unwanted(span)}
    return as_ledger([s for s in played.spans if s.span_id not in gone and s.parent_id not in gone])


def is_turn(number):
    return lambda span: span.attributes.get("assembly.turn") == number


def text(answer):
    return "\n".join([headline(answer), *(f"{label}: {sentence}" for label, sentence in detail_lines(answer))])


def test_the_span_of_the_policy_is_missing():
    played = play(WINDOW, ASKS, [3, 5, 7])
    ledger = without(played, lambda span: span.name.startswith("apply_policy"))
    answer = explain(ledger, 2, "0")
    assert (answer.outcome, answer.reason, answer.policy, answer.raises) == ("dropped", None, None, ())
    assert "which policy dropped it" in answer.unknown[0]
    assert "not known: which policy dropped it" in text(answer)


def test_the_policy_of_an_earlier_turn_is_known_and_its_limit_on_this_turn_is_not():
    played = play(WINDOW, ASKS, [3, 5, 7])
    (last,) = [s for s in played.spans if s.name.startswith("apply_policy")][2:]
    ledger = without(played, lambda span: span is last)
    answer = explain(ledger, 2, "0")
    assert answer.reason is None or answer.limit is None
    assert answer.unknown
    assert answer.raises == ()


def test_the_turn_is_missing_and_its_neighbours_are_not():
    ledger = without(play(WINDOW, ASKS, [3, 5, 7]), is_turn(1))
    kept_then_dropped = explain(ledger, 1, "2")
    assert kept_then_dropped.outcome == "unknown"
    (sentence,) = kept_then_dropped.unknown
    assert "turn 1: it is not in the spans" in sentence
    assert "on turn 0 it was in the prompt" in sentence
    assert "on turn 2 it was not in the prompt" in sentence
    assert "on turn 0 it was not offered" in explain(ledger, 1, "5").unknown[0]
    assert headline(kept_then_dropped).startswith("What happened to item 2 (request")
    with pytest.raises(AssemblyError, match="turn 1 is not in the spans"):
        Explainer(ledger, 1).absent()


def test_an_arrival_that_is_missing_costs_the_counterfactual_and_nothing_else():
    ledger = without(play(WINDOW, ASKS, [3, 5, 7]), is_turn(0))
    answer = explain(ledger, 1, "3")
    assert answer.outcome == "kept"
    for item in ("0", "3"):
        answer = explain(ledger, 2, item)
        assert (answer.outcome, answer.reason, answer.policy) == ("dropped", "outside_window", "sliding_window")
        assert answer.raises == ()
        assert answer.unknown
    assert (explain(ledger, 2, "0").tokens, explain(ledger, 2, "3").tokens is None) == (None, False)


def test_an_item_in_a_prompt_whose_arrival_is_missing_has_no_kind():
    ledger = without(play(WINDOW, ASKS, [3, 5, 7]), is_turn(0))
    answer = explain(ledger, 1, "2")
    assert (answer.outcome, answer.kind, answer.tokens) == ("kept", None, None)
    assert "its kind and size" in answer.unknown[0]
    assert answer.standing.tokens_after is not None


def test_counts_that_do_not_match_the_lists_are_no_ground_for_a_counterfactual():
    played = play(WINDOW, ASKS)
    spans = [
        replace(s, attributes={**s.attributes, "assembly.events.in": 9}) if s.name == "assemble_context" else s
        for s in played.spans
    ]
    answer = explain(as_ledger(spans), 0, "0")
    assert answer.raises == ()
    assert "the input has 9 events, but the spans record 7" in answer.unknown[0]


def test_a_config_that_is_missing_or_false_is_no_ground_for_a_counterfactual():
    played = play(WINDOW, ASKS)
    for config in ('{"max_events":5,"stride":1,"transparent":false}', "{}", "not json", "[]"):
        spans = [
            replace(s, attributes={**s.attributes, "assembly.policy.config": config})
            if s.name.startswith("apply_policy")
            else s
            for s in played.spans
        ]
        answer = explain(as_ledger(spans), 0, "0")
        assert (answer.raises, answer.reason) == ((), "outside_window")
        assert answer.unknown


class DropOld:
    name = "drop_old"

    async def apply(self, prompts, events, context):
        return prompts, events[2:]


def test_of_a_policy_that_is_not_ours_only_its_name_is_known():
    played = play([], ASKS, policies=[DropOld()])
    answer = explain(played.ledger, 0, "0")
    assert (answer.policy, answer.reason, answer.raises, answer.limit) == ("drop_old", "policy", (), None)
    assert "drop_old is not a built-in policy" in answer.unknown[0]


@dataclass
class Memory:
    """A framework's reducer, whose limit the assembly has, and which keeps the last events."""

    name: str = "memory"
    limit: int | None = 50
    kept: int = 3
    said: dict = field(default_factory=dict)


def held(*memories, prompts=("Be kind.",), behind=()):
    """What a framework sends whose reducers these are, with what it adds behind them."""
    telemetry = RecordedTelemetry()
    assembly = ObservedAssembler("peer", recorder=telemetry.recorder).begin("c", [*ASKS, *behind], prompts=prompts)
    for memory in memories:
        config = {} if memory.limit is None else {"token_limit": memory.limit}
        with assembly.step(memory.name, config=config) as step:
            sent = [*ASKS[-memory.kept :], *behind]
            step.out(sent, budget=memory.limit, reason=DecisionReason.OVER_BUDGET, **memory.said)
            step.report = replace(step.report, beside=list(behind))
    assembly.end()
    return as_ledger(telemetry.spans), telemetry.span("assemble_context").attributes


def test_a_frameworks_limit_of_the_messages_is_told_with_who_has_the_room():
    ledger, told = held(Memory())
    answer = explain(ledger, 0, "0")
    used = told["assembly.budget.used"]
    assert answer.limit == Limit("tokens", "token_limit", 50, 50, None, used, of="messages")
    assert {competitor.item for competitor in answer.competitors} == {"4", "5", "6"}
    assert answer.competitors_tokens == used
    assert f"limit: 50 tokens of the messages alone, {used} used, {50 - used} left" in text(answer)
    assert "memory is not a built-in policy" in answer.unknown[0]


def test_what_stands_beside_a_frameworks_limit_has_none_of_its_room():
    ledger, told = held(Memory(), behind=[ModelRequest(content="And this, which the agent holds itself?")])
    answer = explain(ledger, 0, "0")
    assert (answer.limit.used, answer.competitors) == (told["assembly.budget.used"], ())
    assert "kept instead" not in text(answer)


def test_a_frameworks_limit_of_the_whole_prompt_is_told_as_such():
    ledger, told = held(Memory(said={"of_prompt": True}))
    limit = explain(ledger, 0, "0").limit
    assert (limit.of, limit.used) == (None, told["assembly.tokens.out"])


@pytest.mark.parametrize(("first", "known"), [(40, 40), (50, None), (60, None), (None, None)])
def test_which_of_several_held_a_frameworks_limit_has_to_be_known(first, known):
    ledger, _ = held(Memory("first", limit=first), Memory())
    answer = explain(ledger, 0, "0")
    assert answer.policy == "first"
    assert (answer.limit and answer.limit.limit) == known


def test_our_policy_behind_another_one_is_run_again_on_what_that_one_let_through():
    played = play([], ASKS, policies=[DropOld(), ConversationPolicy(), SlidingWindowPolicy(2)])
    answer = explain(played.ledger, 0, "3")
    (change,) = answer.raises
    assert (change.extra, answer.unknown) == (2, ())


def test_whether_a_later_policy_of_others_would_let_it_pass_is_not_known():
    played = play([], ASKS, policies=[SlidingWindowPolicy(4), DropOld()])
    answer = explain(played.ledger, 0, "2")
    assert [change.extra for change in answer.raises] == [1]
    assert "drop_old, which runs later" in answer.unknown[0]


def test_a_budget_that_counts_characters_is_not_run_again_on_tokens():
    played = play([], ASKS, policies=[TokenBudgetPolicy(60, chars_per_token=1.0)])
    exits = played.ledger.exits(0)
    answer = explain(played.ledger, 0, min(exits))
    assert answer.raises == ()
    assert answer.unknown


def test_what_is_no_conversation_no_limit_keeps():
    alert = ObserverAlert(source="monitor", severity="warning", message="slow")
    played = play([], [*ASKS, alert], policies=[ConversationPolicy()])
    answer = explain(played.ledger, 0, "7")
    assert (answer.reason, answer.raises, answer.unknown) == ("not_conversation", (), ())
    assert "not part of the conversation" in answer.never


def test_a_call_that_awaits_an_approval_is_known_by_its_place():
    call = ToolCallEvent(id="a", name="pay", arguments="{}", awaiting_approval=True)
    events = [ModelRequest(content="pay"), call, *ASKS]
    played = play(["conversation", {"sliding_window": {"max_events": 3}}], events)
    ledger = played.ledger
    assert "1" in ledger.turn(0).kept
    held = explain(ledger, 0, "1")
    assert (held.outcome, held.reason, held.policy) == ("kept", "pending_tool_call", "sliding_window")
    answer = explain(ledger, 0, "4")
    assert "4" in played.again(0, answer.raises)
    assert "4" not in played.again(0, answer.raises, less=1)


def test_the_newest_request_is_pinned():
    played = play(WINDOW, conversation("ask", "answer", "answer", "answer", "answer"))
    answer = explain(played.ledger, 0, "0")
    assert (answer.outcome, answer.reason) == ("kept", "pinned")
    assert "it must not be dropped" in text(answer)


def test_what_the_caller_no_longer_offers_is_not_of_that_turn():
    from otel_assembly import Assembler
    from otel_assembly.testing import RecordedTelemetry

    async def run():
        recorded = RecordedTelemetry()
        assembler, context = Assembler([SlidingWindowPolicy(9)], recorder=recorded.recorder), Context()
        events = list(ASKS)
        await assembler.assemble([], events, context)
        await assembler.assemble([], events[2:], context)
        recorded.shutdown()
        return recorded.spans

    import asyncio

    answer = explain(as_ledger(asyncio.run(run())), 1, "0")
    assert (answer.outcome, answer.policy, answer.unknown) == ("not_offered", None, ())
    assert "was not offered on turn 1" in headline(answer)


class Summarise:
    """Stands a summary in the place of all but the last two."""

    name = "summarise"

    async def decide(self, prompts, events, context):
        old = list(events)[:-2]
        if len(old) < 2:
            return Outcome(prompts, events)
        summary = CompactionSummary(id=f"s{len(events)}", summary=f"so far, of {len(old)}")
        verdict = Verdict(old, DecisionOutcome.COMPACTED, DecisionReason.COMPACTED, summary)
        return Outcome(prompts, [summary, *list(events)[-2:]], [verdict])

    async def apply(self, prompts, events, context):
        outcome = await self.decide(prompts, events, context)
        return list(outcome.prompts), list(outcome.events)


def test_a_compacted_item_is_followed_into_its_summary():
    played = play([], ASKS, policies=[Summarise()])
    answer = explain(played.ledger, 0, "0")
    holder = answer.holder
    assert (answer.outcome, answer.reason) == ("compacted", "compacted")
    assert (holder.item, holder.turn, holder.in_prompt, holder.leaves) == ("m0", 0, True, 5)
    assert "in the prompt of turn 0 only as part of a summary" in headline(answer)
    assert "item m0, made on turn 0 of 5 items, which is in this prompt" in text(answer)


def test_of_summaries_of_summaries_the_one_in_the_prompt_is_named_with_all_that_it_stands_for():
    played = play([], ASKS, [5, 7], policies=[Summarise()])
    first, second = [explain(played.ledger, turn, "1").holder for turn in (0, 1)]
    assert (first.item, first.turn, first.leaves, first.in_prompt) == ("m0", 0, 3, True)
    assert (second.item, second.turn, second.leaves, second.in_prompt) == ("m1", 1, 5, True)


def test_a_summary_that_nobody_names_is_not_known():
    played = play([], ASKS, policies=[Summarise()])
    spans = [
        replace(
            s,
            attributes={
                k: v
                for k, v in s.attributes.items()
                if k not in {"assembly.injected.items", "assembly.arrived.sources"}
            },
        )
        for s in played.spans
    ]
    answer = explain(as_ledger(spans), 0, "0")
    assert (answer.outcome, answer.holder) == ("compacted", None)
    assert "which summary covers it" in answer.unknown[-1]


def test_an_explanation_says_no_word_of_the_conversation_and_none_of_it_is_in_the_ledger():
    secret = "PATIENT-4711"
    events = conversation("ask: " + secret, "answer: " + secret, "ask: " + secret, "answer", "ask")
    ledger = play(WINDOW, events).ledger
    answers = [explain(ledger, 0, str(item)) for item in range(5)]
    assert secret not in "".join(map(text, answers)) + str([a.as_json() for a in answers])
