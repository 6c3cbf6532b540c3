"""What a turn costs: counted, never timed."""

from __future__ import annotations

import logging
from functools import cache

import pytest
from assembling import Custom, SpyCounter, requests, warning
from counting import Calls, Rounds, held_by

from otel_assembly import (
    AlertPolicy,
    Assembler,
    BudgetPolicy,
    Context,
    ConversationPolicy,
    HeadAndTailPolicy,
    History,
    ModelRequest,
    ModelResponse,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    ToolCallEvent,
    ToolResultEvent,
)
from otel_assembly.events import TurnStarted, event_to_json
from otel_assembly.recorder import NullRecorder
from otel_assembly.tokens import CharacterCounter


async def test_each_event_is_counted_once_when_it_arrives_whoever_listens():
    spy = SpyCounter()
    assembler, history = Assembler([ConversationPolicy(), SlidingWindowPolicy(5)], counter=spy), History()
    for number in range(30):
        history.append(ModelRequest(content=f"{number}"))
        assembly = await assembler.assemble(["p"], history)
        assert len(assembly.events) <= 5
        assert assembly.items[-1] == str(number)
    assert spy.asked == [str(number) for number in range(30)]
    assert assembly.totals.tokens_out == 3 + (4 + 1) * 6
    assert spy.asked[30:] == ["p"]


async def test_each_event_is_counted_once_by_a_budget(recorder):
    spy = SpyCounter()
    history = History(requests(*(f"event {number}" for number in range(500))))
    assembler = Assembler([TokenBudgetPolicy(100)], counter=spy, recorder=recorder.recorder)
    for number in range(500, 520):
        history.append(ModelRequest(content=f"event {number}"))
        await assembler.assemble([], history)
    events = [text for text in spy.asked if text.startswith("event")]
    assert events == [f"event {number}" for number in range(520)]


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


@cache
def events_of(length):
    """A conversation's events, made once: only the turns behind them are of interest."""
    return [event for number in range(length) for event in mixed(number)]


def abandoning(number):
    """Half a turn: a question and a call; then what the tool says, in nine turns of ten, and the answer."""
    turn, answered = divmod(number, 2)
    call = f"call {turn}"
    if not answered:
        return [ModelRequest(content=f"question {turn}"), ModelResponse(tool_calls=(ToolCallEvent(id=call, name="f"),))]
    return [*([ToolResultEvent(parent_id=call, content="r")] if turn % 10 else []), ModelResponse(content="answer")]


async def most_of_a_turn(chain, history, telemetry, more=mixed, turns=24):
    """The most that the library does in one of its turns, whose numbers are read where somebody looks on."""
    recorder = NullRecorder() if telemetry is None else telemetry.recorder
    assembler = Assembler(chain(), recorder=recorder, counter=CharacterCounter(4))
    await assembler.assemble(["p"], history)
    most = 0
    for number in range(turns):
        for event in more(number):
            history.append(event)
        with Rounds() as rounds:
            assembly = await assembler.assemble(["p"], history)
            if telemetry is not None:
                assembly.decisions, assembly.totals, assembly.prefix, assembly.events  # noqa: B018
        if number > 3:  # then every alert has been shown, and answered
            most = max(most, rounds.made)
    return most


@pytest.mark.parametrize(("recorded", "most"), [(False, 170), (True, 450)])
async def test_the_calls_of_a_turn_of_a_filter_and_a_budget(recorded, most, recorder):
    assembler = Assembler(
        [ConversationPolicy(), TokenBudgetPolicy(200)],
        counter=CharacterCounter(4),
        recorder=recorder.recorder if recorded else NullRecorder(),
    )
    history, made = History(), []
    for number in range(424):
        with Calls() as calls:
            history.append(ModelRequest(content=f"question {number}"))
            history.append(ModelResponse(content=f"answer {number}"))
            assembly = await assembler.assemble(["p"], history)
            assert assembly.events
        made.append(calls.made)
    assert sum(made[-16:]) / 16 <= most


#: A cut that moves in steps has met every kind of event by then, and so has its costliest turn behind it.
IN_STEPS = 112


@pytest.mark.parametrize("length", [6_666, pytest.param(66_666, marks=pytest.mark.slow)])  # 100,000 events
@pytest.mark.parametrize(
    ("chain", "turns"),
    [
        (lambda: [SlidingWindowPolicy(12)], 24),
        pytest.param(
            lambda: [ConversationPolicy(), SlidingWindowPolicy(12, stride=4)], IN_STEPS, marks=pytest.mark.slow
        ),
        (lambda: [AlertPolicy(), ConversationPolicy(), TokenBudgetPolicy(200)], IN_STEPS),
        pytest.param(lambda: [TokenBudgetPolicy(200, step_tokens=20)], IN_STEPS, marks=pytest.mark.slow),
        pytest.param(lambda: [HeadAndTailPolicy(6, 12)], 24, marks=pytest.mark.slow),
        (lambda: [HeadAndTailPolicy(6, 12, note=lambda skipped: ModelRequest(content=f"{skipped} are left out"))], 24),
    ],
)
@pytest.mark.parametrize("observed", [False, True])
async def test_a_turn_of_a_long_conversation_takes_what_a_turn_of_a_short_one_takes(
    chain, turns, observed, length, recorder
):
    telemetry = recorder if observed else None
    short, long = [
        await most_of_a_turn(chain, History(events_of(item)), telemetry, turns=turns) for item in (666, length)
    ]
    assert 50 < long <= short * 1.1 + 50


@pytest.mark.parametrize(
    "chain",
    [
        lambda: [ConversationPolicy(), TokenBudgetPolicy(200)],
        lambda: [ConversationPolicy(), BudgetPolicy(200, 0, step_tokens=20)],
        lambda: [ConversationPolicy(), SlidingWindowPolicy(12, stride=4)],
        lambda: [TokenBudgetPolicy(200)],
    ],
)
@pytest.mark.parametrize(
    ("observed", "short", "long"),
    [
        (False, 1_000, 10_000),
        pytest.param(True, 5_000, 10_000, marks=pytest.mark.slow),  # a step lists 64 ranges, and no more
        pytest.param(False, 1_000, 50_000, marks=pytest.mark.slow),
        pytest.param(True, 10_000, 50_000, marks=pytest.mark.slow),
    ],
)
async def test_a_turn_takes_the_same_however_many_calls_were_abandoned(chain, observed, short, long, recorder):
    made = []
    for length in (short, long):
        history = History(event for number in range(length // 2) for event in abandoning(number))
        made.append(await most_of_a_turn(chain, history, recorder if observed else None, abandoning))
    assert 50 < made[1] <= made[0] * 1.1 + 50


@pytest.mark.parametrize("length", [1_000, 10_000, pytest.param(50_000, marks=pytest.mark.slow)])
async def test_a_conversation_without_its_abandoned_calls_is_one_interval(length):
    history = History(event for number in range(length // 2) for event in abandoning(number))
    late = [ToolResultEvent(parent_id="call 0", content="late"), ModelResponse(content="thanks")]
    for new in (abandoning(20), abandoning(21), late[:1], late[1:]):
        history.extend(new)
        outcome = await ConversationPolicy().decide([], history, Context())
        assert [
            len(view.ranges) for view in (outcome.events, *(decision.events for decision in outcome.decisions))
        ] == [
            1,
            1,
        ]
        given_up = sum(bool(event.tool_calls) for event in outcome.decisions[0].events)
        assert len(outcome.events) + given_up == len(history)
    assert history[1] in list(outcome.events)


async def test_a_foreign_filter_that_parts_thousands_of_pieces_takes_steps_in_proportion():
    chain = [Custom(lambda p, e: (p, [event for n, event in enumerate(e) if n % 2]))]
    taken = []
    for length in (500, 2_000):
        history = History(requests(*map(str, range(length))))
        assembler = Assembler(chain)
        await assembler.assemble([], history)
        history.append(ModelRequest(content="new"))
        with Rounds() as rounds:
            assembly = await assembler.assemble([], history)
            assert len(assembly.decisions) == 1
            assembly.prefix  # noqa: B018
        taken.append(rounds.made)
    assert taken[1] < taken[0] * 6


async def test_an_assembler_with_ever_new_models_remembers_a_bounded_number_of_them():
    assembler, held = Assembler([]), []
    for number in range(60):
        await assembler.assemble([], [], Context(model=f"tune-{number}"))
        if number % 20 == 19:
            held.append(held_by(assembler))
    assert held[2] <= held[1] + 9


async def test_events_are_ours_in_json_after_a_turn_as_before():
    events = [ModelRequest(content="a"), ModelResponse(content="b")]
    before = [event_to_json(event) for event in events]
    await Assembler([SlidingWindowPolicy(1)]).assemble([], events)
    assert [event_to_json(event) for event in events] == before


async def test_nothing_of_a_message_is_logged(caplog):
    with caplog.at_level(logging.DEBUG):
        await Assembler([SlidingWindowPolicy(1)]).assemble(["canary"], requests("canary", "canary"))
    assert "canary" not in caplog.text
