"""A limit that a framework's reducer is given, and lets pass."""

from __future__ import annotations

import pytest

from otel_assembly.decision import OverflowCause
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


def filled(recorder):
    """The limit that is met first, what counts against it where that is not the whole prompt, and how full it is."""
    told = recorder.span("assemble_context").attributes
    return tuple(told.get(f"assembly.budget.{name}") for name in ("limit", "used", "utilization"))


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
    assert filled(recorder) == (60, sent + 4, (sent + 4) / 60)
    assert recorder.metric("assembly.budget.overflows", framework="peer") == overflows
    assert recorder.violations() == []


def test_prompts_are_not_what_a_limit_of_messages_is_of(observed, recorder):
    reduced(observed, 56, budget=60, prompts=["word " * 200])
    assert recorder.span("assemble_context").attributes["assembly.overflowed"] is False
    assert filled(recorder) == (60, 60, 1)
    assert recorder.metric("assembly.budget.utilization").sum == 1
    assert recorder.violations() == []


def test_they_are_where_the_limit_is_of_the_whole_prompt(observed, recorder):
    reduced(observed, 56, budget=60, prompts=["word " * 200], of_prompt=True)
    told = recorder.span("assemble_context").attributes
    assert told["assembly.overflow.tokens"] == told["assembly.tokens.out"] - 60
    assert filled(recorder) == (60, None, told["assembly.tokens.out"] / 60)


def test_what_comes_behind_a_reducer_does_not_fill_its_limit(observed, recorder):
    assembly = observed.begin("c", [user(500), user(6)])
    with assembly.step("token_limited") as step:
        step.out([assembly.events[1]], budget=60)
    with assembly.step("notes", kind="injection") as step:
        step.out([user(90), *assembly.events])
    assembly.end()
    assert filled(recorder) == (60, 10, 10 / 60)


@pytest.mark.parametrize(
    ("window", "limits", "filled_first"),
    [
        # 60 tokens of messages, 204 more of a prompt and 3 of the reply.
        (None, [(100, False), (300, True)], (300, None, 267 / 300)),
        (None, [(60, False), (300, True)], (60, 60, 1)),
        (None, [(100, False), (80, False), (90, False)], (80, 60, 60 / 80)),
        (300, [(100, False)], (100, 60, 267 / 300)),
        (1000, [(100, False)], (100, 60, 60 / 100)),
        (300, [], (None, None, 267 / 300)),
        (300, [(0, False)], (0, 60, 267 / 300)),
    ],
)
def test_of_several_limits_the_fullest_is_told(window, limits, filled_first, observed, recorder):
    assembly = observed.begin("c", [user(56)], prompts=["word " * 200], window=window)
    for number, (budget, of_prompt) in enumerate(limits):
        with assembly.step(f"limit_{number}") as step:
            step.out(budget=budget, of_prompt=of_prompt)
    assembly.end()
    assert filled(recorder) == filled_first


def test_the_limit_that_could_not_hold_is_told_before_a_fuller_one(observed, recorder):
    assembly = observed.begin("c", [user(56)])
    with assembly.step("token_limited") as step:
        step.overflow(budget=50, needed=60, cause=OverflowCause.NEWEST_ATOM)
        step.out([], budget=50)
    with assembly.step("notes", kind="injection") as step:
        step.out([user(86)], budget=100)
    assembly.end()
    assert filled(recorder) == (50, 0, 60 / 50)
    assert recorder.span("assemble_context").attributes["assembly.overflow.tokens"] == 10


def test_a_prompt_that_is_not_sent_fills_no_limit(observed, recorder):
    assembly = observed.begin("c", [user(56)])
    with assembly.step("token_limited") as step:
        step.out(budget=60)
    assembly.end(LookupError("no model"))
    assert filled(recorder) == (60, None, None)


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
