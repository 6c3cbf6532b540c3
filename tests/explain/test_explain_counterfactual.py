"""What an explanation says would have kept an item keeps it, and less does not."""

from __future__ import annotations

import json

import pytest
from explained import REAL_DATA, play
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import as_events, as_messages, scripts

from otel_assembly import describe
from otel_assembly.explain import Explainer, explain
from otel_assembly.testing import conversation

QUICK = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
LONG = settings(QUICK, max_examples=240)

windows = st.builds(
    lambda n, stride, note: {"sliding_window": {"max_events": n, "stride": min(stride, n), "transparent": note}},
    st.integers(1, 8),
    st.integers(1, 3),
    st.booleans(),
)
budgets = st.builds(
    lambda n, step, note: {
        "token_budget": {"max_tokens": n, "step_tokens": step, "transparent": note, "on_overflow": "drop"}
    },
    st.integers(20, 260),
    st.sampled_from([0, 0, 10, 40]),
    st.booleans(),
)
allocators = st.builds(
    lambda n, step: {"budget": {"window": n + 16, "output_reserve": 16, "step_tokens": step, "on_overflow": "drop"}},
    st.integers(20, 260),
    st.sampled_from([0, 10, 40]),
)
ends = st.builds(
    lambda head, tail, note: {"head_and_tail": {"head": head, "tail": tail, "transparent": note}},
    st.integers(1, 4),
    st.integers(1, 6),
    st.booleans(),
)
limits = st.one_of(windows, budgets, allocators, ends)
chains = st.lists(st.one_of(limits, st.just("conversation")), min_size=1, max_size=3)


@st.composite
def in_turns(draw, events):
    events = draw(events)
    cuts = sorted(draw(st.lists(st.integers(0, len(events)), min_size=1, max_size=4)))
    return events, cuts


wild = in_turns(st.one_of(scripts(max_blocks=8).map(as_events), scripts(max_blocks=8).map(as_messages)))

SAYINGS = ["ok", "where is my bag", "the flight was moved to gate fourteen " * 3, "lorem ipsum dolor " * 12]


@st.composite
def tidy_messages(draw):
    """Chat messages as a well-behaved agent keeps them: every call is answered at once."""
    said = st.sampled_from(SAYINGS)
    messages = []
    for number in range(draw(st.integers(1, 6))):
        messages.append({"role": "user", "content": draw(said)})
        for step in range(draw(st.integers(0, 2))):
            ids = [f"{number}.{step}.{at}" for at in range(draw(st.integers(1, 3)))]
            calls = [
                {"id": item_id, "type": "function", "function": {"name": "look", "arguments": "{}"}} for item_id in ids
            ]
            messages.append({"role": "assistant", "content": None, "tool_calls": calls})
            messages += [{"role": "tool", "tool_call_id": item_id, "content": draw(said)} for item_id in ids]
        messages.append({"role": "assistant", "content": draw(said)})
    return messages


tidy = in_turns(tidy_messages())
few_limits = st.lists(limits, min_size=1, max_size=2)


def explained(played):
    """Every absent item of every turn, with what is said of it."""
    ledger = played.ledger
    for turn in ledger.turns if ledger is not None else ():
        explainer = Explainer(ledger, turn.number)
        for item in ledger.exits(turn.number) if turn.sent else ():
            yield turn.number, item, explainer.explain(item)


def check(played, turn, item, answer):
    assert item not in played.again(turn, answer.raises, less=1)
    assert item in played.again(turn, answer.raises)


def the_extra_keeps_it_and_one_less_does_not(chain, events_and_cuts):
    played = play(chain, *events_and_cuts)
    for turn, item, answer in explained(played):
        assert answer.outcome == "dropped"
        assert answer.raises or answer.never or answer.unknown
        if answer.raises and not answer.unknown:
            check(played, turn, item, answer)
        if answer.never and not answer.unknown:
            assert item not in played.without_limits(turn)


def nothing_is_unknown(chain, events_and_cuts):
    played = play(["conversation", *chain], *events_and_cuts)
    for turn, item, answer in explained(played):
        assert not answer.unknown, answer
        check(played, turn, item, answer)


def no_smaller_extra_keeps_it(limit, messages):
    played = play(["conversation", limit], messages)
    for turn, item, answer in explained(played):
        (change,) = answer.raises
        if change.extra <= 60:
            for less in range(1, change.extra + 1):
                assert item not in played.again(turn, answer.raises, less=less)


@QUICK
@given(chain=chains, events_and_cuts=wild)
def test_the_extra_that_is_named_keeps_the_item_and_one_less_does_not(chain, events_and_cuts):
    the_extra_keeps_it_and_one_less_does_not(chain, events_and_cuts)


@QUICK
@given(chain=few_limits, events_and_cuts=tidy)
def test_of_a_well_behaved_conversation_nothing_is_unknown(chain, events_and_cuts):
    nothing_is_unknown(chain, events_and_cuts)


@QUICK
@given(limit=limits, messages=tidy_messages())
def test_no_smaller_extra_keeps_it_either(limit, messages):
    no_smaller_extra_keeps_it(limit, messages)


@pytest.mark.slow
@LONG
@given(chain=chains, events_and_cuts=wild)
def test_the_extra_that_is_named_keeps_the_item_in_many_more_conversations(chain, events_and_cuts):
    the_extra_keeps_it_and_one_less_does_not(chain, events_and_cuts)


@pytest.mark.slow
@LONG
@given(chain=few_limits, events_and_cuts=tidy)
def test_nothing_is_unknown_of_many_more_well_behaved_conversations(chain, events_and_cuts):
    nothing_is_unknown(chain, events_and_cuts)


@pytest.mark.slow
@LONG
@given(limit=limits, messages=tidy_messages())
def test_no_smaller_extra_keeps_it_in_many_more_conversations(limit, messages):
    no_smaller_extra_keeps_it(limit, messages)


def test_where_a_summary_and_then_an_older_item_would_fit_the_smallest_extra_is_found():
    from otel_assembly import ModelRequest
    from otel_assembly.events import CompactionSummary

    events = [
        ModelRequest(content="older " * 10),
        CompactionSummary(summary="so far " * 30),
        ModelRequest(content="new"),
    ]
    chain = [{"budget": {"window": 30, "output_reserve": 10, "step_tokens": 0}}]
    played = play(chain, events)
    answer = explain(played.ledger, 0, "0")
    check(played, 0, "0", answer)
    assert not any("0" in played.again(0, answer.raises, less=less) for less in range(1, answer.raises[0].extra))


def test_a_window_and_a_budget_behind_it_are_both_raised():
    events = conversation("ask", "answer: " + "word " * 40, "ask", "answer", "ask")
    played = play([{"sliding_window": {"max_events": 2}}, {"token_budget": {"max_tokens": 66}}], events, [2, 5])
    answer = explain(played.ledger, 1, "1")
    assert [(raised.policy, raised.parameter, raised.unit) for raised in answer.raises] == [
        ("sliding_window", "max_events", "events"),
        ("token_budget", "max_tokens", "tokens"),
    ]
    assert answer.raises[0].extra == 2
    check(played, 1, "1", answer)


@pytest.mark.realdata
@pytest.mark.parametrize(
    "limit",
    [
        {"token_budget": {"max_tokens": 2000, "on_overflow": "drop"}},
        {"budget": {"window": 3000, "output_reserve": 1000, "step_tokens": 200, "on_overflow": "drop"}},
        {"sliding_window": {"max_events": 9, "stride": 4}},
    ],
    ids=lambda limit: next(iter(limit)),
)
def test_ten_items_of_a_real_transcript_are_kept_by_the_limit_that_is_named(limit):
    if not REAL_DATA.is_file():
        pytest.skip("the recorded transcripts are not beside this checkout")
    rows = REAL_DATA.read_text(encoding="utf-8").splitlines()
    row = max(map(json.loads, rows), key=lambda row: len(row["messages"]))
    system, *messages = row["messages"]
    assert system["role"] == "system"
    at = [index for index, message in enumerate(messages) if describe(message).kind == "response"]
    played = play(["conversation", limit], messages, at, prompts=[system["content"]])
    turn = played.ledger.turns[-1].number
    exits = list(played.ledger.exits(turn))
    assert len(exits) >= 10
    for item in exits[:: max(1, len(exits) // 10)][:10]:
        answer = explain(played.ledger, turn, item)
        assert answer.unknown == ()
        check(played, turn, item, answer)
        (change,) = answer.raises
        assert change.extra > 0


FIRST_MESSAGES = [
    {"role": role, "content": [{"text": f"{role} {turn} " + "words " * 9}]}
    for turn in range(6)
    for role in (("assistant", "user") if turn == 0 else ("user", "assistant"))
]
REASONED = [
    item
    for turn in range(4)
    for item in (
        {"role": "user", "content": f"question {turn} " + "words " * 9},
        {"type": "reasoning", "id": f"r{turn}", "summary": [{"type": "summary_text", "text": "thinking " * 5}]},
        {"type": "function_call", "call_id": f"c{turn}", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": f"c{turn}", "output": "found " * 9},
        {"type": "reasoning", "id": f"s{turn}", "summary": [{"type": "summary_text", "text": "thinking " * 5}]},
        {"role": "assistant", "content": f"answer {turn}"},
    )
]


@pytest.mark.parametrize("items", [FIRST_MESSAGES, REASONED], ids=["a user's message first", "reasoning"])
@pytest.mark.parametrize(
    "limit",
    [
        {"sliding_window": {"max_events": 4}},
        {"head_and_tail": {"head": 1, "tail": 3}},
        {"token_budget": {"max_tokens": 120, "on_overflow": "drop"}},
        {"budget": {"window": 140, "output_reserve": 16, "step_tokens": 0, "on_overflow": "drop"}},
    ],
    ids=lambda limit: next(iter(limit)),
)
def test_what_a_provider_refuses_apart_or_in_front_is_explained_truly(items, limit):
    played = play([limit], items)
    answers = list(explained(played))
    assert answers
    for turn, item, answer in answers:
        assert not answer.unknown, answer
        if answer.raises:
            check(played, turn, item, answer)
        else:
            assert answer.never
            assert item not in played.without_limits(turn)
