"""A limit that a framework's reducer is given, and lets pass."""

from __future__ import annotations

import pytest

from otel_assembly import OverflowCause
from otel_assembly.observe import ObservedAssembler


@pytest.fixture
def observed(recorder, words):
    return ObservedAssembler("peer", recorder=recorder.recorder, counter=words)


def user(words):
    return {"role": "user", "content": "word " * words}


def reduced(observed, sent, *, budget, prompts=(), **said):
    """An assembly whose one reducer is given a limit, and lets so many words out."""
    assembly = observed.begin("c", [user(500), user(sent)], prompts=prompts)
    with assembly.step("token_limited") as step:
        step.out([assembly.events[1]], budget=budget, **said)
    assembly.end()


#: One message of so many words has four tokens more, and the reply three.
@pytest.mark.parametrize(("sent", "overflows"), [(56, False), (116, False), (117, True), (209, True)])
def test_more_than_twice_its_limit_is_an_overflow_of_the_framework(sent, overflows, observed, recorder):
    reduced(observed, sent, budget=60)
    for span in (recorder.span("assemble_context"), recorder.span("apply_policy token_limited")):
        told = span.attributes
        assert told["assembly.overflowed"] is overflows
        if overflows:
            assert (told["assembly.overflow.cause"], told["assembly.overflow.tokens"]) == ("framework", sent + 4 - 60)
            assert (span.status, told["error.type"]) == ("ERROR", "context_overflow")
            assert [event.name for event in span.events] == ["assembly.overflow"]
    assert recorder.span("assemble_context").attributes["assembly.budget.tokens"] == 60
    assert recorder.span("assemble_context").attributes["assembly.budget.utilization"] == (sent + 7) / 60
    assert recorder.metric("assembly.budget.overflows", framework="peer") == overflows
    assert recorder.violations() == []


def test_prompts_are_not_what_a_limit_of_messages_is_of(observed, recorder):
    reduced(observed, 56, budget=60, prompts=["word " * 200])
    assert recorder.span("assemble_context").attributes["assembly.overflowed"] is False


def test_they_are_where_the_limit_is_of_the_whole_prompt(observed, recorder):
    reduced(observed, 56, budget=60, prompts=["word " * 200], of_prompt=True)
    told = recorder.span("assemble_context").attributes
    assert told["assembly.overflow.tokens"] == told["assembly.tokens.out"] - 60


@pytest.mark.parametrize("first", [False, True])
def test_what_the_framework_says_goes_before_what_is_counted(first, observed, recorder):
    assembly = observed.begin("c", [user(500)])
    with assembly.step("token_limited") as step:
        if first:
            step.overflow(budget=60, needed=61, cause=OverflowCause.NEWEST_ATOM)
        step.out(budget=60)
        if not first:
            step.overflow(budget=60, needed=61, cause=OverflowCause.NEWEST_ATOM)
    assembly.end()
    told = recorder.span("assemble_context").attributes
    assert (told["assembly.overflow.cause"], told["assembly.overflow.tokens"]) == ("newest_atom", 1)
    assert recorder.metric("assembly.budget.overflows", framework="peer") == 1


def test_a_step_that_ran_before_anything_was_known_is_held_to_its_limit_too(observed, recorder):
    assembly = observed.prepare()
    messages = [user(500), user(200)]
    with assembly.step("token_limited") as step:
        step.out(messages[1:], budget=60)
    assert observed.open(assembly, "c", messages)
    assembly.end()
    assert recorder.span("assemble_context").attributes["assembly.overflow.tokens"] == 144


def test_a_step_without_a_limit_or_that_failed_has_nothing_to_hold(observed, recorder):
    assembly = observed.begin("c", [user(500)])
    with assembly.step("anything") as step:
        step.out()
    step = assembly.step("broken")
    with step:
        step.out(budget=1)
    step.failed(LookupError())
    assembly.end()
    assert recorder.span("assemble_context").attributes["assembly.overflowed"] is False


def test_the_window_is_not_said_beside_it(observed, recorder):
    assembly = observed.begin("c", [user(500)], window=100)
    with assembly.step("token_limited") as step:
        step.out(budget=60)
    assembly.end()
    told = recorder.span("assemble_context")
    assert told.attributes["assembly.overflow.cause"] == "framework"
    assert len(told.events) == 1
