"""Which result answers which call; told through what a reducer keeps, and through the check that reports use."""

from __future__ import annotations

import pytest
from recount import pair

from otel_assembly import Context, ConversationPolicy, EventFacts, History, SlidingWindowPolicy, describe
from otel_assembly.messages import broken_pairs


class Message:
    """Says in a few words what it is: ``call a b!`` (b awaits an approval), ``answer a``, ``again a``, ``user``."""

    def __init__(self, words):
        self.words = words


@describe.register
def _(message: Message) -> EventFacts:
    word, *ids = message.words.split()
    names = [item_id.rstrip("!") for item_id in ids]
    if word in {"call", "recall"}:
        awaiting = [item_id.rstrip("!") for item_id in ids if item_id.endswith("!")]
        kind = "response" if word == "call" else "tool_call"
        return EventFacts(kind, opens=names, awaiting=awaiting, restates=word == "recall")
    if word in {"answer", "again"}:
        return EventFacts("tool_result", "x", closes=names, restates=word == "again")
    return EventFacts({"user": "request", "say": "response"}[word], word)


async def kept(*words, window=None):
    events = [Message(word) for word in words]
    policy = ConversationPolicy() if window is None else SlidingWindowPolicy(window)
    outcomes = [await policy.decide([], form, Context()) for form in (events, History(events))]
    first, second = ([event.words for event in outcome.events] for outcome in outcomes)
    assert first == second
    return first


CASES = {
    "a result stays with its call": (["user", "call a", "answer a", "say"], []),
    "a result without a call is an orphan": (["user", "answer a", "say"], [1]),
    "a second result of one call is an orphan": (["call a", "answer a", "answer a", "say"], [2]),
    "a call without a result is an orphan once the model went on": (["call a", "say"], [0]),
    "a call without a result is pending until then": (["user", "call a", "user"], []),
    "a call that awaits an approval is pending however old": (["call a!", "say", "user", "say"], []),
    "a call whose approval came is not": (["call a! b", "answer a", "say"], [0, 1]),
    "a call beside one that awaits waits with it": (["call a! b", "say", "user", "say"], []),
    "a repeated id is another call": (["call a", "answer a", "call a", "answer a", "say"], []),
    "a result answers the nearest earlier call of its id": (["call a", "call a", "answer a", "say"], [0]),
    "a late result makes its call whole": (["call a", "say", "user", "answer a"], []),
    "half an answer is none once the model went on": (["call a b", "answer a", "say"], [0, 1]),
    "half an answer is pending until then": (["call a b", "answer a"], []),
    "one result may answer two calls": (["call a", "call b", "answer a b", "say"], []),
    "a joint result with a stranger is an orphan and answers nothing": (["call a", "answer a z", "say"], [0, 1]),
    "a joint result of one id twice needs two calls": (["call a", "answer a a", "say"], [0, 1]),
    "a result that names no call is an orphan": (["call a", "answer a", "answer", "say"], [2]),
    "what restates a call and a result is part of them": (
        ["call a", "recall a", "again a", "again a", "say"],
        [],
    ),
    "what restates nothing is a call": (["user", "recall a", "say"], [1]),
    "a call restated as awaiting awaits": (["call a", "recall a!", "say", "user"], []),
    "two calls restated as one are one": (["call a", "call b", "recall a b", "answer b", "say"], [0, 1, 2, 3]),
    "a restated result of two whole calls joins them": (
        ["call a", "again a", "call b", "again b", "again a b", "say"],
        [],
    ),
    "a joined call that was given up takes the other along": (
        ["call a z", "call b", "answer a b", "user"],
        [0, 1, 2],
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_rule(case):
    words, lost = CASES[case]
    assert await kept(*words) == [word for place, word in enumerate(words) if place not in lost]


@pytest.mark.parametrize("case", CASES)
def test_the_check_for_reports_names_what_would_be_lost(case):
    words, lost = CASES[case]
    broken = broken_pairs([describe(Message(word)) for word in words])
    assert set(broken) <= set(lost)
    assert bool(broken) == bool(lost)


async def test_a_window_that_parts_a_joined_group_drops_all_of_it():
    words = ["user", "call a", "again a", "call b", "again b", "again a b", "say"]
    for most in range(1, 8):
        left = await kept(*words, window=most)
        assert left in (["user", "say"], words)


async def test_a_window_keeps_an_echo_of_an_incomplete_call_that_awaits():
    words = ["call a b!", "recall a", "again a", "again a", "say", "user"]
    assert await kept(*words, window=2) == ["call a b!", "recall a", "again a", "again a", "user"]


async def test_a_restated_result_is_known_after_thousands_of_other_answers():
    words = ["call a", "again a"]
    words += [word for n in range(2_000) for word in (f"call x{n}", f"again x{n}")]
    assert len(await kept(*words, "again a", "say")) == len(words) + 2


def test_the_independent_check_of_these_tests_knows_the_rules_of_our_own_events():
    from otel_assembly import ModelResponse, ToolCallEvent, ToolResultEvent
    from otel_assembly.events import ToolResultsEvent

    call, answer = ToolCallEvent(id="a", name="search"), ToolResultEvent(parent_id="a", content="")
    pairs = pair([ModelResponse(tool_calls=(call,)), call, answer, ToolResultsEvent(results=(answer,)), answer])
    assert pairs.echoes == {1: {0}, 3: {0}, 4: {0}}
    assert (pairs.calls[0].asked, pairs.calls[0].answered) == (0, 2)
