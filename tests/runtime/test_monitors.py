from __future__ import annotations

import pytest

from otel_assembly import (
    ConfigurationError,
    HaltedError,
    HaltEvent,
    ModelResponse,
    ObserverAlert,
    Severity,
    ToolCallEvent,
)
from otel_assembly.errors import UnknownNameError
from otel_assembly.events import AssemblyCompleted, Usage, UsageEvent
from otel_assembly.runtime import BudgetMonitor, LoopDetector, Stream, TokenMonitor, attach

SECRET = "4111-1111-1111-1111"


def alerts(stream):
    return [event for event in stream.history if isinstance(event, ObserverAlert)]


def severities(stream):
    return [alert.severity.value for alert in alerts(stream)]


async def sent(observer, *events):
    stream = Stream()
    attach(stream, [observer])
    for event in events:
        await stream.send(event)
    return stream


def usage(tokens_in, tokens_out=0):
    return UsageEvent(usage=Usage(input_tokens=tokens_in, output_tokens=tokens_out))


def response(tokens_in=None, tokens_out=0, calls=()):
    billed = None if tokens_in is None else Usage(input_tokens=tokens_in, output_tokens=tokens_out)
    return ModelResponse(usage=billed, tool_calls=calls)


def call(name="search", arguments="{}", call_id=None):
    return ToolCallEvent(name=name, arguments=arguments, **({"id": call_id} if call_id else {}))


def assembled(turn=0, tokens=0, budget=1_000, fixed=None, over=0, cause=""):
    return AssemblyCompleted(
        assembly="a",
        turn=turn,
        tokens=tokens,
        budget=budget,
        fixed=fixed,
        overflow_tokens=over,
        overflow_cause=cause,
    )


# TokenMonitor


async def test_tokens_warn_then_alert_each_once():
    stream = await sent(TokenMonitor(100, 200), *(usage(40, 10) for _ in range(10)))
    assert severities(stream) == ["warning", "critical"]
    warning, critical = alerts(stream)
    assert warning.source == "token_monitor"
    assert warning.message == "100 tokens used in this conversation; the warning threshold is 100"
    assert critical.data == {"tokens": 200, "threshold": 200}


async def test_one_call_that_crosses_both_thresholds_raises_the_graver_alert():
    stream = await sent(TokenMonitor(100, 200), usage(500), usage(500))
    assert severities(stream) == ["critical"]


async def test_the_defaults_are_fifty_and_a_hundred_thousand():
    stream = await sent(TokenMonitor(), usage(49_999), usage(1), usage(49_999), usage(1))
    assert [alert.data["tokens"] for alert in alerts(stream)] == [50_000, 100_000]


@pytest.mark.parametrize(
    ("events", "tokens"),
    [
        ([usage(60), usage(60)], 120),
        ([response(60), response(60)], 120),
        ([response(60), usage(60), usage(60), response(60)], 120),
        ([response(60), response(60), usage(60), usage(60)], 120),
        ([response(60, 1), usage(60, 2)], 123),
        ([response(), usage(110)], 110),
    ],
    ids=["events", "responses", "both ways", "both ways, at once", "two calls", "no usage in the response"],
)
async def test_a_call_that_is_told_in_both_ways_counts_once(events, tokens):
    stream = await sent(TokenMonitor(1, tokens), *events)
    assert alerts(stream)[-1].data == {"tokens": tokens, "threshold": tokens}
    stream = await sent(TokenMonitor(1, tokens + 1), *events)
    assert severities(stream) == ["warning"]


@pytest.mark.parametrize("severity", [Severity.FATAL, "fatal", "FATAL"])
async def test_a_token_monitor_can_halt(severity):
    stream = await sent(TokenMonitor(50, 100, alert_severity=severity), usage(60), usage(60), usage(60))
    with pytest.raises(HaltedError, match="token_monitor"):
        stream.guard.check()
    assert sum(isinstance(event, HaltEvent) for event in stream.history) == 1


async def test_one_monitor_on_two_streams_counts_each_conversation_alone():
    monitor, one, other = TokenMonitor(100, 200, name="mine"), Stream(), Stream()
    attach(one, [monitor])
    attach(other, [monitor])
    await one.send(usage(90))
    await other.send(usage(90))
    assert alerts(one) == alerts(other) == []
    await one.send(usage(90))
    assert [alert.source for alert in alerts(one)] == ["mine"]
    assert alerts(other) == []


async def test_a_monitor_that_is_attached_anew_for_every_turn_goes_on_counting():
    monitor, stream = TokenMonitor(100, 200), Stream()
    for _ in range(4):
        with attach(stream, [monitor]):
            await stream.send(usage(50))
    assert severities(stream) == ["warning", "critical"]


async def test_what_is_remembered_of_conversations_is_bounded(monkeypatch):
    monkeypatch.setattr("otel_assembly.runtime.monitors.REMEMBERED_CONVERSATIONS", 2)
    monitor, streams = TokenMonitor(150, 300), [Stream() for _ in range(3)]
    for stream in streams:
        attach(stream, [monitor])
    for place in (0, 1, 0, 2, 0, 1):
        await streams[place].send(usage(50))
    assert [len(alerts(stream)) for stream in streams] == [1, 0, 0]


@pytest.mark.parametrize(
    "arguments",
    [
        {"warn_threshold": 0},
        {"warn_threshold": -1},
        {"alert_threshold": 0},
        {"warn_threshold": 200, "alert_threshold": 100},
        {"warn_severity": "fatal"},
        {"alert_severity": "info"},
    ],
)
def test_thresholds_that_cannot_work_are_refused(arguments):
    with pytest.raises(ConfigurationError):
        TokenMonitor(**arguments)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TokenMonitor(alert_severity="fatel"),
        lambda: LoopDetector(severity="fatel"),
        lambda: BudgetMonitor(overflow_severity="fatel"),
    ],
)
def test_a_severity_that_nobody_knows_names_the_nearest(make):
    with pytest.raises(UnknownNameError, match="did you mean 'fatal'"):
        make()


# LoopDetector


async def test_a_repeated_call_alerts_once_with_its_name_and_count_and_without_its_arguments():
    stream = await sent(LoopDetector(), *(call("search", f'{{"card": "{SECRET}"}}') for _ in range(6)))
    [alert] = alerts(stream)
    assert alert.severity is Severity.WARNING
    assert alert.source == "loop_detector"
    assert alert.message == "loop 1: tool 'search' was called 3 times with the same arguments within the last 10 calls"
    assert alert.data == {"loops": [{"tool": "search", "count": 3}], "window_size": 10}
    assert SECRET not in alert.model_dump_json()


@pytest.mark.parametrize(
    "arguments",
    [
        ('{"a": 1, "b": [2, 3]}', '{"b":[2,3],"a":1}', '{"a": 1.0, "b": [2, 3]}'),
        ("not json", "not json", "not json"),
        ('{"a": "\\u00e9"}', '{"a": "é"}', '{ "a":"é" }'),
        ("[" * 100_000, "[" * 100_000, "[" * 100_000),
        ("\ud800", "\ud800", "\ud800"),
    ],
    ids=["keys and spaces", "no json", "escapes", "too deep", "lone surrogate"],
)
async def test_arguments_are_the_same_when_their_json_is(arguments):
    events = [ToolCallEvent.model_construct(id=str(i), name="t", arguments=text) for i, text in enumerate(arguments)]
    detector = LoopDetector()
    stream = Stream()
    attachment = attach(stream, [detector])
    for event in events:
        await stream.send(event)
    assert len(alerts(stream)) == 1
    assert attachment.subscriptions[0].errors == 0


@pytest.mark.parametrize(
    "calls",
    [
        [call(arguments='{"n": 1}'), call(arguments='{"n": 2}'), call(arguments='{"n": 3}')],
        [call("a"), response(), call("b"), response(), call("c"), response()],
        [call(arguments='{"n": 1}'), call(arguments='{"n": "1"}'), call(arguments='{"n": true}')],
    ],
    ids=["other arguments", "other tools", "other types"],
)
async def test_different_calls_are_no_loop(calls):
    assert alerts(await sent(LoopDetector(), *calls)) == []


async def test_calls_outside_the_window_are_forgotten():
    others = [call(f"other{number}") for number in range(3)]
    stream = await sent(LoopDetector(window_size=5, repeat_threshold=2), call("a"), *others, call("a"))
    assert alerts(stream)[0].data["loops"] == [{"tool": "a", "count": 2}]
    stream = await sent(LoopDetector(window_size=4, repeat_threshold=2), call("a"), *others, call("a"))
    assert alerts(stream) == []


async def test_a_loop_that_was_broken_alerts_again_and_says_that_it_is_another():
    loop = [call("a") for _ in range(4)]
    others = [call(f"other{number}") for number in range(5)]
    stream = await sent(LoopDetector(window_size=5), *loop, *others, *loop)
    assert [alert.message.partition(":")[0] for alert in alerts(stream)] == ["loop 1", "loop 2"]


async def test_an_interrupted_loop_within_the_window_is_the_same_loop():
    stream = await sent(LoopDetector(), *(call(name) for name in "aaabaca"))
    assert len(alerts(stream)) == 1


async def test_two_loops_alert_each():
    stream = await sent(LoopDetector(), *(call(name) for name in "ababab"))
    assert [alert.data["loops"][0]["tool"] for alert in alerts(stream)] == ["a", "b"]


async def test_calls_of_one_response_are_looked_at_together():
    calls = tuple(call(name) for name in "aaaabbb")
    [alert] = alerts(await sent(LoopDetector(), response(calls=calls)))
    assert alert.data["loops"] == [{"tool": "a", "count": 4}, {"tool": "b", "count": 3}]
    assert "tool 'a' was called 4 times and tool 'b' was called 3 times" in alert.message


@pytest.mark.parametrize("same_ids", [False, True], ids=["own ids", "ids that repeat"])
@pytest.mark.parametrize("call_first", [False, True])
async def test_a_call_that_is_told_in_both_ways_is_one_call(same_ids, call_first):
    events = []
    for turn in range(3):
        one = call("a", call_id="c" if same_ids else f"c{turn}")
        events += [one, response(calls=(one,))] if call_first else [response(calls=(one,)), one]
    stream = await sent(LoopDetector(), *events[:4])
    assert alerts(stream) == []
    stream = await sent(LoopDetector(), *events)
    assert [alert.data["loops"][0]["count"] for alert in alerts(stream)] == [3]


async def test_a_tools_name_is_cut_and_quoted():
    [alert] = alerts(await sent(LoopDetector(), *(call("x\n" * 500) for _ in range(3))))
    assert "\n" not in alert.message
    assert len(alert.message) < 256


async def test_a_loop_detector_can_halt_and_keeps_conversations_apart():
    detector, one, other = LoopDetector(severity="FATAL", name="mine"), Stream(), Stream()
    for stream in (one, other):
        attach(stream, [detector])
    for stream in (one, other, one, other, one):
        await stream.send(call("a"))
    assert one.guard.halted
    assert not other.guard.halted


@pytest.mark.parametrize(("window", "threshold"), [(10, 1), (10, 0), (2, 3), (0, 0)])
def test_a_window_that_cannot_hold_a_loop_is_refused(window, threshold):
    with pytest.raises(ConfigurationError):
        LoopDetector(window, threshold)


# BudgetMonitor


async def test_every_overflow_alerts_with_its_numbers():
    stream = await sent(
        BudgetMonitor(),
        assembled(4, budget=1_000, over=250, cause="fixed"),
        assembled(5, budget=1_000, over=250, cause="fixed"),
    )
    assert severities(stream) == ["critical", "critical"]
    first, second = alerts(stream)
    assert first.message == "turn 4: the context overflows its budget by 250 tokens, it needs 1250 of 1000"
    assert first.data == {"turn": 4, "overflow_tokens": 250, "cause": "fixed", "tokens": 1_250, "budget": 1_000}
    assert first.message != second.message


async def test_an_overflow_of_an_unknown_budget_alerts_too():
    [alert] = alerts(await sent(BudgetMonitor(), assembled(1, budget=None, over=7)))
    assert alert.message == "turn 1: the context overflows its budget by 7 tokens"


async def test_fixed_content_alerts_when_it_reaches_the_threshold_and_again_after_it_fell():
    fixed = [100, 899, 900, 950, 1_000, 899, 900]
    stream = await sent(BudgetMonitor(), *(assembled(turn, 990, fixed=part) for turn, part in enumerate(fixed)))
    assert severities(stream) == ["warning", "warning"]
    assert [alert.data["turn"] for alert in alerts(stream)] == [2, 6]
    assert alerts(stream)[0].message == "turn 2: fixed content takes 900 of 1000 tokens, 90% of the budget"


async def test_all_content_counts_where_the_fixed_is_not_known():
    stream = await sent(BudgetMonitor(0.5), assembled(0, 499), assembled(1, 500))
    assert alerts(stream)[0].message == "turn 1: content takes 500 of 1000 tokens, 50% of the budget"


async def test_an_overflow_that_sent_nothing_is_no_fall_below_the_threshold():
    stream = await sent(
        BudgetMonitor(), assembled(0, 950), assembled(1, 0, over=10, cause="newest_atom"), assembled(2, 950)
    )
    assert severities(stream) == ["warning", "critical"]


async def test_without_a_budget_nothing_is_said():
    stream = await sent(BudgetMonitor(), assembled(budget=None, tokens=10**9), assembled(budget=0, tokens=5))
    assert alerts(stream) == []


async def test_severities_of_a_budget_monitor_are_the_users():
    stream = await sent(
        BudgetMonitor(utilization_severity="INFO", overflow_severity="fatal", name="mine"),
        assembled(0, 950),
        assembled(1, over=1),
    )
    assert severities(stream) == ["info", "fatal"]
    assert {alert.source for alert in alerts(stream)} == {"mine"}
    assert stream.guard.halted


@pytest.mark.parametrize("threshold", [0, -0.1, 1.1, float("nan")])
def test_a_utilization_that_cannot_be_is_refused(threshold):
    with pytest.raises(ConfigurationError):
        BudgetMonitor(threshold)


# Messages of others


def said(tokens_in, tokens_out, call_id="1", arguments='{"q": 1}'):
    """A response in the form of chat dicts, whose usage a program puts beside it."""
    function = {"name": "search", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": call_id, "function": function}]}


async def test_a_loop_in_chat_dicts_is_found_and_a_results_echo_is_none():
    stream = await sent(
        LoopDetector(10, 3),
        *(
            event
            for n in range(3)
            for event in (said(1, 1, str(n)), {"role": "tool", "tool_call_id": str(n), "content": "x"})
        ),
    )
    (alert,) = alerts(stream)
    assert alert.data["loops"] == [{"tool": "search", "count": 3}]
    assert "q" not in alert.message


async def test_a_type_of_the_programs_own_is_watched_once_it_has_a_row():
    from otel_assembly import EventFacts, describe
    from otel_assembly.messages import ToolCallFacts

    class Mine:
        pass

    @describe.register(Mine)
    def _(event):
        return EventFacts("response", billed_tokens=90, output_tokens=10, calls=[ToolCallFacts("1", "f", "{}")])

    stream = await sent(TokenMonitor(100, 200), Mine(), Mine())
    assert severities(stream) == ["warning", "critical"]
    stream = await sent(LoopDetector(3, 3), Mine(), Mine(), Mine())
    assert severities(stream) == ["warning"]


async def test_nobody_who_reads_messages_is_shown_the_note_on_an_assembly():
    shown = []

    class Watches(LoopDetector):
        async def process(self, event, context):
            shown.append(event)

    await sent(Watches(), assembled(), usage(1), response(1), said(1, 1))
    assert [type(event).__name__ for event in shown] == ["ModelResponse", "dict"]


ARGUMENTS = {"q": 1}
FORMS = {
    "openai": lambda value: said(1, 1, value),
    "anthropic": lambda value: {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": value, "name": "search", "input": ARGUMENTS}],
    },
    "responses": lambda value: {"type": "function_call", "call_id": value, "name": "search", "arguments": '{"q": 1}'},
    "bedrock": lambda value: {
        "role": "assistant",
        "content": [{"toolUse": {"toolUseId": value, "name": "search", "input": ARGUMENTS}}],
    },
    "gemini": lambda value: {
        "role": "model",
        "parts": [{"functionCall": {"id": value, "name": "search", "args": ARGUMENTS}}],
    },
}


@pytest.mark.parametrize("form", FORMS)
async def test_a_loop_is_found_in_every_providers_form(form):
    stream = await sent(LoopDetector(10, 3), *(FORMS[form](str(n)) for n in range(3)))
    (alert,) = alerts(stream)
    assert alert.data["loops"] == [{"tool": "search", "count": 3}]
