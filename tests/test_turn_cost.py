"""What a turn costs: counted, never timed."""

from __future__ import annotations

import logging
import sys

import pytest
from assembling import Custom, Recorder, SpyCounter, requests, warning

from otel_assembly import (
    AlertPolicy,
    Assembler,
    Context,
    ConversationPolicy,
    History,
    ModelRequest,
    ModelResponse,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    ToolCallEvent,
    ToolResultEvent,
    TurnStarted,
    event_to_json,
)
from otel_assembly.ledger.ledger_diff import arrivals, counted, exits_from_the_prompt, step_delta
from otel_assembly.ledger.totals import prefix_hash
from otel_assembly.tokens import CharacterCounter


async def test_where_nobody_listens_a_window_counts_no_token():
    spy = SpyCounter()
    assembler, history = Assembler([ConversationPolicy(), SlidingWindowPolicy(5)], counter=spy), History()
    for number in range(30):
        history.append(ModelRequest(content=f"{number}"))
        assembly = await assembler.assemble(["p"], history)
        assert len(assembly.events) <= 5
        assert assembly.items[-1] == number
    assert spy.asked == []
    assert assembly.totals.tokens_out == 3 + (4 + 1) * 6
    assert len(spy.asked) == 6


async def test_each_event_is_counted_once_and_only_those_near_the_window_are():
    spy = SpyCounter()
    history = History(requests(*(f"event {number}" for number in range(500))))
    assembler = Assembler([TokenBudgetPolicy(100)], counter=spy, recorder=Recorder())
    for number in range(500, 520):
        history.append(ModelRequest(content=f"event {number}"))
        await assembler.assemble([], history)
    events = [text for text in spy.asked if text.startswith("event")]
    assert len(events) == len(set(events))
    assert len(events) < 60


class Steps:
    """Lines that the engine runs, counted."""

    def __enter__(self):
        self.lines, self.before = 0, sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_):
        sys.settrace(self.before)

    def _call(self, frame, what, argument):
        return self._line if "otel_assembly" in frame.f_code.co_filename else None

    def _line(self, frame, what, argument):
        self.lines += 1
        return self._line


def mixed(number):
    """Every kind of event, and pairs that some answers are missing of."""
    call = f"call {number}"
    return {
        0: [ModelRequest(content=f"question {number}")],
        1: [
            ModelResponse(tool_calls=(ToolCallEvent(id=call, name="f"),)),
            ToolResultEvent(parent_id=call, content="r"),
        ],
        2: [TurnStarted(turn=number), warning(f"alert {number % 7}")],
        3: [ModelResponse(content="answer")],
    }[number % 4]


@pytest.fixture(scope="module")
def histories():
    """A short one and a long one: some 1,000 events and 100,000."""
    return [History(event for number in range(length) for event in mixed(number)) for length in (666, 66_666)]


async def steps_of_a_turn(chain, history, *, read):
    assembler = Assembler(chain(), recorder=Recorder(), counter=CharacterCounter(4))
    await assembler.assemble(["p"], history)
    most = 0
    for number in range(24):
        for event in mixed(number):
            history.append(event)
        with Steps() as steps:
            assembly = await assembler.assemble(["p"], history)
            record = assembly._record
            if read:
                assembly.decisions, assembly.totals, assembly.prefix, assembly.events  # noqa: B018
                prefix_hash(record, assembly.prefix)
                counted(record, record.baseline, arrivals(record, record.baseline))
                for step in record.steps:
                    step_delta(record, step, record.baseline)
                    exits_from_the_prompt(record, step)
        most = max(most, steps.lines)
    return most


@pytest.mark.parametrize(
    "chain",
    [
        lambda: [SlidingWindowPolicy(12)],
        lambda: [ConversationPolicy(), SlidingWindowPolicy(12, stride=4)],
        lambda: [AlertPolicy(), ConversationPolicy(), TokenBudgetPolicy(200)],
        lambda: [TokenBudgetPolicy(200, step_tokens=20)],
    ],
)
@pytest.mark.parametrize("read", [False, True])
async def test_a_turn_at_a_hundred_thousand_events_takes_the_steps_of_a_turn_at_a_thousand(chain, read, histories):
    short, long = [await steps_of_a_turn(chain, history, read=read) for history in histories]
    assert 100 < long <= short * 1.1 + 50


async def test_a_foreign_filter_that_parts_thousands_of_pieces_takes_steps_in_proportion():
    chain = [Custom(lambda p, e: (p, [one for n, one in enumerate(e) if n % 2]))]
    steps = []
    for length in (500, 2_000):
        history = History(requests(*map(str, range(length))))
        assembler = Assembler(chain)
        await assembler.assemble([], history)
        history.append(ModelRequest(content="new"))
        with Steps() as counted_steps:
            assembly = await assembler.assemble([], history)
            assert len(assembly.decisions) == 1
            assembly.prefix  # noqa: B018
        steps.append(counted_steps.lines)
    assert steps[1] < steps[0] * 6


async def test_an_assembler_with_ever_new_models_remembers_a_bounded_number_of_them():
    assembler = Assembler([])
    for number in range(100):
        await assembler.assemble([], [], Context(model=f"tune-{number}"))
    assert len(assembler._meters) <= 32


async def test_events_are_ours_in_json_after_a_turn_as_before():
    events = [ModelRequest(content="a"), ModelResponse(content="b")]
    before = [event_to_json(event) for event in events]
    await Assembler([SlidingWindowPolicy(1)]).assemble([], events)
    assert [event_to_json(event) for event in events] == before


async def test_nothing_of_a_message_is_logged(caplog):
    with caplog.at_level(logging.DEBUG):
        await Assembler([SlidingWindowPolicy(1)]).assemble(["canary"], requests("canary", "canary"))
    assert "canary" not in caplog.text
