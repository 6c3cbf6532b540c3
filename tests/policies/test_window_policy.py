from __future__ import annotations

import pytest

from otel_assembly import (
    Assembler,
    ConfigurationError,
    Context,
    DecisionReason,
    History,
    ModelRequest,
    ModelResponse,
    SlidingWindowPolicy,
    ToolCallEvent,
    ToolResultEvent,
)
from otel_assembly.decision import DecisionOutcome
from otel_assembly.events import CompactionSummary, TurnStarted


def ask(text="ask"):
    return ModelRequest(content=text)


def say(text="say"):
    return ModelResponse(content=text)


def call(*ids, awaiting=()):
    calls = tuple(ToolCallEvent(id=item_id, name="search", awaiting_approval=item_id in awaiting) for item_id in ids)
    return ModelResponse(tool_calls=calls)


def result(value, text="found"):
    return ToolResultEvent(parent_id=value, name="search", content=text)


def conversation(*lines):
    """``"ask"``, ``"say"``, ``"call a b"``, ``"result a"``, ``"note"``, as a user would tell it."""
    told = []
    for line in lines:
        word, *ids = line.split()
        told.append({"ask": ask, "say": say, "note": lambda: TurnStarted(turn=0)}.get(word, lambda: None)())
        if word == "call":
            told[-1] = call(*ids)
        elif word == "result":
            told[-1] = result(*ids)
    return told


def said(events):
    words = []
    for event in events:
        if isinstance(event, ModelRequest):
            words.append("ask")
        elif isinstance(event, ModelResponse):
            words.append(" ".join(["call", *(call.id for call in event.tool_calls)]) if event.tool_calls else "say")
        elif isinstance(event, ToolResultEvent):
            words.append(f"result {event.parent_id}")
        else:
            words.append("note")
    return words


def reasons(verdicts, outcome):
    return [(verdict.reason, len(verdict.events)) for verdict in verdicts if verdict.outcome is outcome]


async def test_window_never_parts_a_call_from_its_result():
    events = conversation("ask", "call a", "result a", "ask")
    assembly = await Assembler([SlidingWindowPolicy(2)]).assemble([], events, Context())
    assert said(assembly.events) == ["ask"]
    assert {d.item: d.reason for d in assembly.dropped} == {
        "0": "outside_window",
        "1": "outside_window",
        "2": "orphaned_tool_result",
    }


async def test_what_a_window_keeps_are_the_very_objects():
    events = conversation("ask", "say", "ask")
    _, kept = await SlidingWindowPolicy(2).apply([], events, Context())
    assert all(message is other for message, other in zip(kept, events[1:], strict=True))
    assert type(kept) is list


async def test_nothing_is_dropped_and_nothing_noted_within_the_limit():
    events = conversation("ask", "say", "ask")
    prompts, kept = await SlidingWindowPolicy(3, transparent=True).apply(["be brief"], events, Context())
    assert prompts == ["be brief"]
    assert kept == events


async def test_a_window_that_cuts_nothing_notes_nothing_where_an_abandoned_call_is_left_out():
    events = conversation("ask", "call a", "ask", "say", "ask")
    prompts, kept = await SlidingWindowPolicy(5, transparent=True).apply(["be brief"], events, Context())
    assert prompts == ["be brief"]
    assert kept == [events[0], *events[2:]]


async def test_a_transparent_window_says_what_it_shows():
    prompts, _ = await SlidingWindowPolicy(2, transparent=True).apply(
        ["be brief"], conversation("ask", "say", "ask", "say", "ask"), Context()
    )
    assert prompts == ["be brief", "[sliding_window] Showing last 2 of 5 events."]


async def test_an_orphan_leaves_although_the_window_has_room():
    outcome = await SlidingWindowPolicy(10).decide([], conversation("ask", "result z", "say"), Context())
    assert said(outcome.events) == ["ask", "say"]
    assert reasons(outcome.decisions, DecisionOutcome.DROPPED) == [(DecisionReason.ORPHANED_TOOL_RESULT, 1)]


async def test_a_call_that_was_given_up_leaves_although_the_window_has_room():
    outcome = await SlidingWindowPolicy(10).decide([], conversation("ask", "call a", "say"), Context())
    assert said(outcome.events) == ["ask", "say"]
    assert reasons(outcome.decisions, DecisionOutcome.DROPPED) == [(DecisionReason.ORPHANED_TOOL_CALL, 1)]


async def test_a_call_whose_result_is_still_to_come_stays():
    outcome = await SlidingWindowPolicy(10).decide([], conversation("ask", "call a b", "result a"), Context())
    assert said(outcome.events) == ["ask", "call a b", "result a"]


async def test_the_newest_request_stays_however_long_the_tools_work():
    events = conversation("ask", *(line for n in range(60) for line in (f"call {n}", f"result {n}")))
    outcome = await SlidingWindowPolicy(6).decide([], events, Context())
    assert outcome.events[0] is events[0]
    assert len(outcome.events) <= 6
    assert reasons(outcome.decisions, DecisionOutcome.KEPT) == [(DecisionReason.PINNED, 1)]


async def test_the_newest_call_stays_whole_past_the_limit_and_nothing_is_raised():
    events = conversation("ask", "say", "ask", "call a b c", "result a", "result b", "result c")
    outcome = await SlidingWindowPolicy(2).decide([], events, Context())
    assert said(outcome.events) == ["ask", "call a b c", "result a", "result b", "result c"]
    assert (outcome.overflow.budget, outcome.overflow.needed) == (2, 5)
    assert (outcome.overflow.cause, outcome.overflow.unit) == ("newest_atom", "items")


async def test_notes_between_a_call_and_its_result_give_way_before_the_limit_does():
    events = conversation("ask", "call a", "note", "note", "note", "result a")
    outcome = await SlidingWindowPolicy(3).decide([], events, Context())
    assert said(outcome.events) == ["ask", "call a", "result a"]
    assert outcome.overflow is None


async def test_an_orphan_at_the_end_does_not_take_the_place_of_the_newest_call():
    events = conversation("ask", "call a", "result a", "result z")
    outcome = await SlidingWindowPolicy(1).decide([], events, Context())
    assert said(outcome.events) == ["ask", "call a", "result a"]


async def test_a_late_result_of_a_call_that_was_given_up_does_not_take_the_place_of_the_newest_answer():
    events = conversation("ask", "call a b", "say", "result a")
    outcome = await SlidingWindowPolicy(1).decide([], events, Context())
    assert said(outcome.events) == ["ask", "say"]


async def test_a_call_that_awaits_an_approval_stays_300_messages_later():
    waiting = call("a", awaiting=("a",))
    events = [ask(), waiting, *conversation(*["ask", "say"] * 150)]
    outcome = await SlidingWindowPolicy(10).decide([], events, Context())
    assert outcome.events[0] is waiting
    assert len(outcome.events) == 10
    assert reasons(outcome.decisions, DecisionOutcome.KEPT) == [(DecisionReason.PENDING_TOOL_CALL, 1)]


async def test_an_approved_call_no_longer_holds_its_unanswered_sisters():
    events = [ask(), call("a", "b", awaiting=("a",)), result("a"), say(), ask()]
    outcome = await SlidingWindowPolicy(10).decide([], events, Context())
    assert said(outcome.events) == ["ask", "say", "ask"]


@pytest.mark.parametrize("role", ["system", "developer"])
async def test_leading_system_messages_stay_and_do_not_count(role):
    rules = [{"role": role, "content": f"rule {n}"} for n in range(2)]
    outcome = await SlidingWindowPolicy(2).decide([], [*rules, *conversation("ask", "say", "ask")], Context())
    assert list(outcome.events[:2]) == rules
    assert said(outcome.events[2:]) == ["say", "ask"]


async def test_a_system_message_leads_also_behind_a_note_that_no_model_reads():
    rule = {"role": "system", "content": "rule"}
    events = [TurnStarted(turn=0), rule, *conversation("ask", "say", "ask")]
    outcome = await SlidingWindowPolicy(2).decide([], events, Context())
    assert rule in outcome.events


async def test_a_system_message_in_the_middle_is_trimmed_like_any_other():
    events = [ask(), {"role": "system", "content": "late rule"}, *conversation("say", "ask", "say")]
    outcome = await SlidingWindowPolicy(2).decide([], events, Context())
    assert said(outcome.events) == ["ask", "say"]


async def test_a_summary_is_conversation():
    summary = CompactionSummary(summary="earlier: a bag was lost")
    outcome = await SlidingWindowPolicy(2).decide([], [ask(), summary, ask()], Context())
    assert outcome.events[0] is summary


async def first_kept(policy, events):
    outcome = await policy.decide([], events, Context())
    return events.index(outcome.events[0]), len(outcome.events)


async def test_with_a_stride_the_cut_moves_in_jumps_and_the_window_stays_nearly_full():
    events = conversation(*["ask", "say"] * 100)
    cuts = []
    for turn in range(20, len(events)):
        cut, length = await first_kept(SlidingWindowPolicy(20, stride=8), events[:turn])
        cuts.append(cut)
        assert cut % 8 == 0
        assert 13 <= length <= 20 or cut == 0
    assert cuts == sorted(cuts)
    assert len(set(cuts)) <= len(cuts) // 8 + 2


async def test_a_cut_depends_on_nothing_but_the_events():
    events = conversation(*["ask", "say"] * 40)
    grown = History()
    policy = SlidingWindowPolicy(10, stride=4)
    for event in events:
        grown.append(event)
        await policy.decide([], grown, Context())
    on_grown = await policy.decide([], grown, Context())
    on_fresh = await SlidingWindowPolicy(10, stride=4).decide([], events, Context())
    assert list(on_grown.events) == list(on_fresh.events)


@pytest.mark.parametrize("wrong", [0, -1, True, 2.0, "5", None])
def test_a_window_that_is_no_whole_number_from_1_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="max_events"):
        SlidingWindowPolicy(wrong)


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, None])
def test_a_stride_that_is_no_whole_number_from_1_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="stride"):
        SlidingWindowPolicy(5, stride=wrong)


def test_a_stride_longer_than_the_window_is_refused():
    with pytest.raises(ConfigurationError, match="at most max_events"):
        SlidingWindowPolicy(5, stride=6)
