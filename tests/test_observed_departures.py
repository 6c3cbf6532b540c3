"""What somebody else's reducer takes out is counted as it leaves, once, and never without bound."""

from __future__ import annotations

import pytest
from counting import WordCounter

from otel_assembly import DecisionReason
from otel_assembly.observe import ObservedAssembler
from otel_assembly.telemetry import read_ledgers


class SpyCounter(WordCounter):
    def __init__(self):
        self.texts = []

    def count(self, text):
        self.texts.append(text)
        return super().count(text)


@pytest.fixture
def counter():
    return SpyCounter()


@pytest.fixture
def observed(recorder, counter):
    return ObservedAssembler("pretend", counter=counter)


def message(number, text="how are you"):
    return {"role": "user" if number % 2 == 0 else "assistant", "content": f"{number} {text}"}


def reduce(observed, events, keep, conversation="talk"):
    assembly = observed.begin(conversation, events)
    with assembly.step("window", kind="reduction") as step:
        step.out(events[-keep:], reason=DecisionReason.OUTSIDE_WINDOW)
    assembly.end()


def test_what_leaves_at_first_sight_has_its_tokens_on_spans_and_in_the_metric(observed, recorder):
    reduce(observed, [message(number) for number in range(10)], 2)
    step, assembly = recorder.span("apply_policy window"), recorder.span("assemble_context")
    one = assembly.attributes["assembly.dropped.tokens"] / 8
    assert one > 4
    assert step.attributes["assembly.dropped.tokens"] == 8 * one
    assert assembly.attributes["assembly.tokens.in"] - assembly.attributes["assembly.tokens.out"] == 8 * one
    assert assembly.attributes["assembly.resumed.count"] == 8
    assert "assembly.tokens.dropped" not in recorder.metrics  # they had left before: the input contains responses


def test_it_is_counted_once(observed, recorder, counter):
    events = [message(number) for number in range(10)]
    reduce(observed, events, 2)
    counter.texts.clear()
    reduce(observed, [*events, message(10)], 2)
    assert counter.texts == [message(10)["content"]]
    assert recorder.violations() == []


def test_of_very_much_at_once_the_oldest_is_estimated_and_that_is_said(observed, recorder, counter):
    events = [message(number, "word " * 100_000) for number in range(12)]
    reduce(observed, events, 1)
    (assembly,) = recorder.spans_named("assemble_context")
    assert assembly.attributes["assembly.dropped.count"] == 11
    assert assembly.attributes["assembly.tokens.estimated.items"] == ["0-3"]
    assert len(counter.texts) == 8
    one = assembly.arrived["11"].tokens
    assert one > 100_000
    assert all(abs(arrived.tokens - one) < 10 for arrived in assembly.arrived.values())


@pytest.mark.parametrize(
    ("stays", "kept"),
    [((0, 9), []), ((9, 9), ["0-8"]), ((0, 4), ["4-8"]), ((5, 9), ["0-4"]), ((2, 6), ["0-1", "6-8"])],
    ids=str,
)
def test_of_messages_that_say_the_same_the_very_ones_that_came_out_are_kept(observed, recorder, stays, kept):
    events = [message(0) for _ in range(9)]
    front, back = stays
    assembly = observed.begin("talk", events)
    with assembly.step("window") as step:
        step.out(events[:front] + events[back:])
    assembly.end()
    assert list(recorder.span("assemble_context").attributes.get("assembly.kept.items", ())) == kept
    assert recorder.violations() == []


@pytest.mark.parametrize("second", [[], ["window"], ["window", "clear"]], ids=str)
def test_what_a_step_made_is_gone_where_the_chain_is_another_one(observed, recorder, second):
    """A framework's chain is not the same in each turn: what stood in the prompt has left, whoever made it."""
    events = [message(number) for number in range(4)]

    def assemble(chain):
        assembly = observed.begin("talk", events)
        for policy in chain:
            with assembly.step(policy) as step:
                given = list(assembly.events)
                if policy == "clear":
                    step.out([{"role": "user", "content": f"cleared with {len(chain)}"}, *given[1:]])
                else:
                    step.out(given[:2])
        assembly.end()

    assemble(["clear"])
    assemble(second)
    first, last = recorder.spans_named("assemble_context")
    made = recorder.span("apply_policy clear").injected if "clear" in second else []
    assert first.kept[0] == "m0"
    assert "m0" not in {*last.kept, *last.whole["assembly.offered.items"]}
    assert set(last.kept) <= {"0", "1", "2", "3", *made}
    (ledger,) = read_ledgers(recorder.spans).values()
    assert ledger.problems == []
    assert recorder.violations() == []
