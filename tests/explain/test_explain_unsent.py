"""A turn that sent nothing: why, what an item was to it, and what would have let a prompt be sent, found true."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest
from explained import as_ledger, play, sent
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_assembly import (
    Assembler,
    Context,
    ContextAssembler,
    ContextOverflowError,
    ConversationPolicy,
    History,
    ModelRequest,
    Task,
    TokenBudgetPolicy,
    ToolCallEvent,
)
from otel_assembly.explain import Explainer, detail_lines, explain, headline
from otel_assembly.testing import RecordedTelemetry, conversation

LONG = "answer: " + "word " * 90
EVENTS = conversation("ask", "answer", "ask", LONG, "ask", "answer")


def text(answer):
    return "\n".join([headline(answer), *(f"{label}: {sentence}" for label, sentence in detail_lines(answer))])


def test_what_may_not_be_dropped_is_said_to_be_larger_than_the_budget():
    played = play([{"token_budget": {"max_tokens": 12}}], EVENTS, [1, 3])
    answer = explain(played.ledger, 1, "2")
    why = answer.unsent
    assert (answer.outcome, answer.part, why.error, why.cause) == (
        *("not_sent", "newest_request"),
        *("context_overflow", "fixed"),
    )
    assert why.needed == why.fixed == sum(part.tokens for part in why.parts) > why.budget == 12
    assert headline(answer).endswith("was in no prompt on turn 1: nothing was sent.")
    assert f"nothing sent: token_budget (policy 0): fixed content takes {why.needed} of 12 tokens" in text(answer)
    assert "newer items used the budget" not in text(answer)
    (change,) = why.raises
    assert sent([{"token_budget": {"max_tokens": change.to}}], EVENTS[:3])
    with pytest.raises(ContextOverflowError):
        sent([{"token_budget": {"max_tokens": change.to - 1}}], EVENTS[:3])


def test_the_newest_message_that_does_not_fit_can_be_left_out_as_well():
    chain = [{"token_budget": {"max_tokens": 60}}]
    played = play(chain, EVENTS, [1, 3, 4])
    answer = explain(played.ledger, 2, "3")
    why = answer.unsent
    assert (answer.part, why.cause, why.without) == ("newest_atom", "newest_atom", ("3",))
    assert why.fixed < why.budget < why.needed
    assert sent([{"token_budget": {"max_tokens": 60, "on_overflow": "drop"}}], EVENTS[:4]) == ["0", "1", "2"]
    assert "or token_budget with on_overflow='drop', which drops item 3" in text(answer)
    assert explain(played.ledger, 2, "2").part == "newest_request"


def test_what_lets_a_prompt_be_sent_does_not_claim_to_keep_the_item():
    played = play([{"token_budget": {"max_tokens": 60}}], EVENTS, [1, 3, 4])
    answer = explain(played.ledger, 2, "0")
    (send,), (keep,) = answer.unsent.raises, answer.raises
    assert (answer.part, send.to < keep.to) == ("older", True)
    for change, inside in ((send, False), (keep, True)):
        assert ("0" in sent([{"token_budget": {"max_tokens": change.to}}], EVENTS[:4])) is inside
    assert "0" not in sent([{"token_budget": {"max_tokens": keep.to - 1}}], EVENTS[:4])


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.sampled_from(["ask", "answer", LONG, "call", "ask: " + "why " * 40]), min_size=2, max_size=7),
    st.sampled_from([[], ["conversation"], [{"sliding_window": {"max_events": 3}}]]),
    st.integers(8, 160),
    st.sampled_from(["raise", "drop"]),
    st.booleans(),
)
def test_a_limit_that_is_said_to_do_it_does_and_one_less_does_not(says, before, tokens, on_overflow, blocks):
    says = [
        word for at, span in enumerate(says) for word in ((f"call {at}", f"result {at}") if span == "call" else (span,))
    ]
    events = conversation(*says)
    budget = {"window": tokens + 5, "output_reserve": 5, "step_tokens": 0} if blocks else {"max_tokens": tokens}
    chain = [*before, {"budget" if blocks else "token_budget": {**budget, "on_overflow": on_overflow}}]
    played = play(chain, events, range(1, len(events) + 1))
    ledger = played.ledger
    for turn in ledger.turns:
        explainer = Explainer(ledger, turn.number)
        assert (explainer.unsent is None) is turn.sent
        if turn.sent:
            continue
        why = explainer.unsent
        assert (why.unknown, len(why.raises)) == ((), 1)
        assert why.needed == sum(part.tokens for part in why.parts)
        assert played.again(turn.number, why.raises) is not None
        with pytest.raises(ContextOverflowError):
            played.again(turn.number, why.raises, less=1)
        came = [item for group in explainer.absent() for item in group.items]
        assert sorted(came, key=int) == [str(at) for at in range(played.cuts[turn.number])]
        for item in came:
            answer = explainer.explain(item)
            assert answer.outcome == "not_sent"
            assert answer.part is not None
            for change in answer.raises:
                assert item in played.again(turn.number, [change])
                with suppress(ContextOverflowError):
                    assert item not in played.again(turn.number, [change], less=1)


def test_a_call_that_awaits_an_approval_is_fixed_content():
    call = ToolCallEvent(id="a", name="pay", arguments='{"why": "' + "word " * 60 + '"}', awaiting_approval=True)
    events = [ModelRequest(content="pay"), call, ModelRequest(content="well?")]
    played = play(["conversation", {"token_budget": {"max_tokens": 40}}], events)
    answer = explain(played.ledger, 0, "1")
    assert (answer.part, answer.unsent.cause, len(answer.unsent.raises)) == ("pending_calls", "fixed", 1)
    assert played.again(0, answer.unsent.raises)


def test_a_halt_is_said_with_whose_it_was_and_that_no_limit_would_have_helped():
    events = conversation("ask", "answer", "ask", "fatal", "ask")
    played = play(["alert", "conversation"], events, [3, 4, 5])
    for turn, item in ((1, "0"), (2, "4")):
        answer = explain(played.ledger, turn, item)
        assert (answer.outcome, answer.part, answer.unsent.error) == ("not_sent", "offered", "assembly_halt")
        assert "the conversation was halted by observer: FATAL: fatal 3" in text(answer)
        assert "nothing would: a halted conversation stays halted" in text(answer)
        assert answer.unknown == ()


class Broken:
    name = "broken"

    async def apply(self, prompts, events, context):
        if len(events) > 2:
            raise LookupError("secret")
        return prompts, events


def test_a_policy_that_failed_is_named_with_what_it_failed_of():
    played = play([], EVENTS, [1, 3], policies=[ConversationPolicy(), Broken(), TokenBudgetPolicy(900)])
    answer = explain(played.ledger, 1, "0")
    assert "nothing sent: broken (policy 1) failed: LookupError" in text(answer)
    assert "on_policy_error='skip'" in text(answer)
    assert (answer.part, answer.unsent.unknown) == ("offered", ())
    narrow = play([], EVENTS, [1, 4], policies=[Broken(), TokenBudgetPolicy(40)])
    (unknown,) = explain(narrow.ledger, 1, "0").unsent.unknown
    assert "whether token_budget, which runs later, would have allowed a prompt" in unknown


def test_what_an_earlier_policy_took_is_not_what_did_not_fit():
    chain = [{"sliding_window": {"max_events": 2}}, {"token_budget": {"max_tokens": 30}}]
    answer = explain(play(chain, EVENTS, [1, 4]).ledger, 1, "0")
    assert (answer.part, answer.policy, answer.reason) == ("taken", "sliding_window", "outside_window")
    assert answer.raises == ()
    assert answer.unsent.policy == "token_budget"


def test_without_the_span_of_the_policy_that_is_said():
    played = play([{"token_budget": {"max_tokens": 12}}], EVENTS, [1])
    ledger = as_ledger([span for span in played.spans if not span.name.startswith("apply_policy")])
    answer = explain(ledger, 0, "0")
    assert (answer.outcome, answer.unsent.raises, answer.part) == ("not_sent", (), None)
    assert "which policy failed: its span is missing" in text(answer)


def test_a_policy_of_others_that_could_not_hold_is_named_and_no_limit_is_made_up():
    class Tight:
        name = "tight"

        async def apply(self, prompts, events, context):
            raise ContextOverflowError(10, 17, {"all": 17})

    answer = explain(play([], EVENTS, [1], policies=[Tight()]).ledger, 0, "0")
    assert (answer.unsent.policy, answer.unsent.raises) == ("tight", ())
    assert "tight is not a built-in policy" in text(answer)


def test_what_the_spans_state_otherwise_is_no_ground_for_a_limit():
    played = play([{"token_budget": {"max_tokens": 12}}], EVENTS, [1])
    spans = [
        replace(span, attributes={**span.attributes, "assembly.overflow.tokens": 3})
        if "assembly.overflow.tokens" in span.attributes
        else span
        for span in played.spans
    ]
    answer = explain(as_ledger(spans), 0, "0")
    assert answer.unsent.raises == ()
    assert "does not fail in the same way" in text(answer)


def test_an_input_that_could_not_be_known_is_not_said_to_have_arrived_later():
    played = play([{"token_budget": {"max_tokens": 12}}], EVENTS, [1, 3])
    spans = [
        replace(
            span, attributes={k: v for k, v in span.attributes.items() if "offered" not in k and "arrived" not in k}
        )
        if span.attributes.get("assembly.turn") == 0
        else span
        for span in played.spans
    ]
    spans = [
        replace(s, attributes={**s.attributes, "assembly.input.unknown": True})
        if s.name == "assemble_context" and s.attributes["assembly.turn"] == 0
        else s
        for s in spans
    ]
    answer = explain(as_ledger(spans), 0, "0")
    assert answer.outcome == "not_sent"
    assert "whether it was in the input" in text(answer)


def test_the_allocators_window_that_holds_what_is_fixed():
    def turn(window, query):
        telemetry = RecordedTelemetry()
        assembler = ContextAssembler(
            system="be kind and brief",
            window=window,
            output_reserve=20,
            floors={"evidence": 0, "memory": 0, "summary": 0},
            scopes=lambda user, task: {"public"},
            recorder=telemetry.recorder,
        )
        context = Context()
        for item in ("hi", query):
            with suppress(ContextOverflowError):
                asyncio.run(assembler.assemble(Task(query=item), None, context))
        telemetry.shutdown()
        return as_ledger(telemetry.spans)

    query = "where " * 90
    answer = explain(turn(60, query), 1, "2")
    why = answer.unsent
    assert (why.policy, why.needed, answer.part) == ("allocator", sum(part.tokens for part in why.parts), "fixed_block")
    (change,) = why.raises
    assert turn(change.to, query).turn(1).sent
    assert not turn(change.to - 1, query).turn(1).sent


def test_a_turn_that_was_cancelled_says_so():
    started, telemetry = asyncio.Event(), RecordedTelemetry()

    class Slow:
        name = "slow"

        async def apply(self, prompts, events, context):
            started.set()
            await asyncio.sleep(60)

    async def run():
        assembler = Assembler([Slow()], recorder=telemetry.recorder)
        task = asyncio.ensure_future(assembler.assemble([], History(EVENTS[:1]), Context()))
        await started.wait()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())
    telemetry.shutdown()
    assert "nothing sent: the turn was cancelled" in text(explain(as_ledger(telemetry.spans), 0, "0"))


def test_the_command_says_why_nothing_was_sent_and_what_had_come_in(run, transcript, tmp_path):
    path = tmp_path / "tight.jsonl"
    assert run(
        "replay", transcript, "--policies", "conversation,token_budget:max_tokens=60", "--export", path, "--json"
    )
    told = run("explain", "--traces", path, "--conversation", "talk-1", "--turn", 2)
    assert told.status == 0
    assert told.out.startswith(
        "Nothing was sent on turn 2.\n  nothing sent      token_budget (policy 1): fixed content takes"
    )
    assert "No item is missing" not in told.out
    assert all(len(line) <= 80 for line in told.out.splitlines())
    groups = run("explain", "--traces", path, "--conversation", "talk-1", "--turn", 2, "--json").json
    assert {group["part"]: group["items"] for group in groups} == {
        "older": ["0", "1", "2", "3"],
        "newest_request": ["4"],
    }
    assert {group["outcome"] for group in groups} == {"not_sent"}


def test_an_unsent_answer_is_json(run, transcript, tmp_path):
    path = tmp_path / "tight.jsonl"
    run("replay", transcript, "--policies", "conversation,token_budget:max_tokens=60", "--export", path, "--json")
    answer = run("explain", "--traces", path, "--conversation", "talk-1", "--turn", 0, "--item", 0, "--json").json
    assert (answer["outcome"], answer["unsent"]["needed"], answer["unsent"]["budget"]) == ("not_sent", 75, 60)
    assert [change["to"] for change in answer["unsent"]["raises"]] == [75]
