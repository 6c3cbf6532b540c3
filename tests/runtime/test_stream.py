from __future__ import annotations

import asyncio
import enum
import functools
import gc
import weakref

import pytest

from otel_assembly import (
    AssemblyError,
    ConfigurationError,
    Context,
    EventFacts,
    HaltedError,
    HaltEvent,
    History,
    ModelRequest,
    ModelResponse,
    ObserverAlert,
    Severity,
    ToolResultEvent,
    describe,
)
from otel_assembly.errors import DescribeError
from otel_assembly.events import Event, TurnCompleted, TurnStarted
from otel_assembly.messages import EventKind
from otel_assembly.runtime import MAX_NESTED_SENDS, NestedSendError, Stream

SECRET = "4111-1111-1111-1111"


def request(text="hello"):
    return ModelRequest(content=text)


def alert(severity="fatal", message="disk full", source="watchdog"):
    return ObserverAlert(source=source, severity=severity, message=message)


def halts(stream):
    return [event for event in stream.history if isinstance(event, HaltEvent)]


# recording and delivery


async def test_an_event_is_recorded_before_it_is_delivered():
    stream, seen = Stream(), []
    stream.subscribe(object, lambda event: seen.append(list(stream.history)))
    event = request()
    await stream.send(event)
    assert seen == [[event]]


async def test_an_empty_history_that_is_given_is_used():
    history = History()
    stream = Stream(history)
    await stream.send(request())
    assert stream.history is history
    assert len(history) == 1
    assert stream.conversation is history.conversation
    assert stream.guard is history.conversation.guard


async def test_subscribers_are_called_in_the_order_of_subscription_whether_sync_or_async():
    stream, order = Stream(), []

    async def slow(event):
        await asyncio.sleep(0.01)
        order.append("slow")

    stream.subscribe(ModelRequest, slow)
    stream.subscribe(ModelRequest, lambda event: order.append("sync"))
    stream.subscribe(ModelRequest, functools.partial(slow))
    await stream.send(request())
    assert order == ["slow", "sync", "slow"]


async def test_only_the_asked_for_types_and_their_subclasses_are_delivered():
    stream, ours, both = Stream(), [], []
    stream.subscribe(TurnStarted, ours.append)
    stream.subscribe((TurnCompleted, ModelRequest), both.append)
    stream.subscribe(Event, lambda event: everything.append(event))
    everything = []
    sent = [request(), TurnStarted(turn=0), ModelResponse(content="hi"), TurnCompleted(turn=0)]
    for event in sent:
        await stream.send(event)
    assert ours == [sent[1]]
    assert both == [sent[0], sent[3]]
    assert everything == sent


@pytest.mark.parametrize("wrong", [None, "ModelRequest", ObserverAlert | HaltEvent, (ModelRequest, None)])
def test_what_is_no_type_is_refused_when_subscribing(wrong):
    with pytest.raises(ConfigurationError, match="must be a class"):
        Stream().subscribe(wrong, print)


def test_what_is_not_callable_is_refused_when_subscribing():
    with pytest.raises(ConfigurationError, match="callable"):
        Stream().subscribe(ModelRequest, "print")


async def test_a_cancelled_subscription_gets_nothing_more():
    stream, seen = Stream(), []
    with stream.subscribe(ModelRequest, seen.append) as subscription:
        await stream.send(request("one"))
        assert subscription.active
    subscription.cancel()
    await stream.send(request("two"))
    assert [event.content for event in seen] == ["one"]
    assert not subscription.active
    assert stream.subscriptions == ()


async def test_a_subscription_cancelled_during_a_delivery_does_not_get_that_event():
    stream, seen = Stream(), []
    stream.subscribe(ModelRequest, lambda event: later.cancel())
    later = stream.subscribe(ModelRequest, seen.append)
    stream.subscribe(ModelRequest, seen.append)
    await stream.send(request())
    assert len(seen) == 1


async def test_who_subscribes_during_a_delivery_gets_the_next_event():
    stream, seen = Stream(), []

    def invite(event):
        if not seen and event.content == "one":
            stream.subscribe(ModelRequest, seen.append)

    stream.subscribe(ModelRequest, invite)
    await stream.send(request("one"))
    await stream.send(request("two"))
    assert [event.content for event in seen] == ["two"]


async def test_an_event_that_nobody_can_describe_is_neither_recorded_nor_delivered():
    stream, seen = Stream(), []
    stream.subscribe(object, seen.append)
    with pytest.raises(DescribeError):
        await stream.send(object())
    assert seen == []
    assert len(stream.history) == 0


# subscribers that fail


async def test_a_raising_subscriber_hurts_neither_the_sender_nor_the_others(caplog):
    stream, seen = Stream(), []

    async def broken(event):
        raise ValueError(SECRET)

    subscription = stream.subscribe(ModelRequest, broken)
    stream.subscribe(ModelRequest, seen.append)
    for _ in range(3):
        await stream.send(request(SECRET))
    assert len(seen) == 3
    assert subscription.errors == 3
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "broken" in record.getMessage()
    assert "ValueError" in record.getMessage()
    assert "ModelRequest" in record.getMessage()
    assert record.exc_info is None
    assert SECRET not in caplog.text


async def test_a_callable_object_is_logged_by_its_type_or_its_label(caplog):
    class Pager:
        def __call__(self, event):
            raise KeyError(SECRET)

    stream = Stream()
    stream.subscribe(ModelRequest, Pager())
    stream.subscribe(ModelRequest, Pager(), label="the pager")
    await stream.send(request())
    assert [record.args[0].split(".")[-1] for record in caplog.records] == ["Pager", "the pager"]


async def test_a_cancellation_passes_through_and_the_halt_is_still_told():
    stream, seen = Stream(), []
    started = asyncio.Event()

    async def hang(event):
        started.set()
        await asyncio.Event().wait()

    stream.subscribe(ObserverAlert, hang)
    stream.subscribe(HaltEvent, seen.append)
    task = asyncio.create_task(stream.send(alert()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(seen) == 1
    assert seen == halts(stream)


# sends within sends


async def test_a_subscriber_may_send_and_its_event_comes_before_the_rest_of_the_delivery():
    stream, seen = Stream(), []

    async def answer(event):
        await stream.send(ModelResponse(content="hi"))

    stream.subscribe(ModelRequest, answer)
    stream.subscribe(object, lambda event: seen.append(type(event)))
    await stream.send(request())
    assert [type(event) for event in stream.history] == [ModelRequest, ModelResponse]
    assert seen == [ModelResponse, ModelRequest]


async def test_subscribers_that_answer_each_other_without_end_are_stopped_soon(caplog):
    stream = Stream()

    async def answer(event):
        await stream.send(request())

    subscriptions = [stream.subscribe(ModelRequest, answer) for _ in range(3)]
    await stream.send(request())
    # Each of the three unwinds once: no branching at every level.
    assert len(stream.history) == 1 + 3 * MAX_NESTED_SENDS
    assert [subscription.errors for subscription in subscriptions] == [1, 1, 1]
    assert {record.args[1] for record in caplog.records} == {NestedSendError.__qualname__}
    assert stream.nesting == 0


async def test_sends_of_other_tasks_are_not_nested():
    stream, depths = Stream(), []

    async def look(event):
        await asyncio.sleep(0)
        depths.append(stream.nesting)

    stream.subscribe(ModelRequest, look)
    await asyncio.gather(*(stream.send(request()) for _ in range(100)))
    assert set(depths) == {1}


async def test_a_stream_does_not_hold_on_to_the_tasks_that_sent():
    stream = Stream()
    stream.subscribe(ModelRequest, lambda event: None)
    task = asyncio.create_task(stream.send(request()))
    await task
    gone = weakref.ref(task)
    del task
    await asyncio.sleep(0)  # the loop's own step still holds it
    gc.collect()
    assert gone() is None


async def test_a_fatal_alert_at_the_deepest_send_still_halts():
    stream, told = Stream(), []
    stream.subscribe(HaltEvent, told.append)

    async def answer(event):
        await stream.send(alert() if stream.nesting == MAX_NESTED_SENDS else request())

    stream.subscribe(ModelRequest, answer)
    await stream.send(request())
    assert stream.guard.halted
    assert told == halts(stream)
    assert len(told) == 1


# halting


class Shade(enum.Enum):
    FATAL = "fatal"


@pytest.mark.parametrize("severity", [Severity.FATAL, "fatal", "FATAL", "Fatal"])
async def test_a_fatal_alert_closes_the_guard_and_emits_one_halt_right_after_it(severity):
    stream = Stream()
    fatal = alert(severity)
    await stream.send(fatal)
    assert [type(event) for event in stream.history] == [ObserverAlert, HaltEvent]
    [halt] = halts(stream)
    assert halt.reason == "FATAL: disk full"
    assert halt.source == "watchdog"
    assert [each.message for each in halt.alerts] == ["disk full"]
    with pytest.raises(HaltedError, match="halted by watchdog: FATAL: disk full"):
        stream.guard.check()


@pytest.mark.parametrize("severity", ["FATAL", Shade.FATAL])
async def test_a_fatal_alert_of_a_framework_halts_whatever_its_severity_is(severity):
    class TheirAlert:
        source, message = "theirs", "enough"

        def __init__(self, severity):
            self.severity = severity

    describe.register(TheirAlert)(lambda event: EventFacts(EventKind.ALERT))
    stream = Stream()
    await stream.send(TheirAlert(severity))
    assert stream.guard.halted
    assert [halt.source for halt in halts(stream)] == ["theirs"]


@pytest.mark.parametrize("severity", ["info", Severity.WARNING, "CRITICAL"])
async def test_other_alerts_do_not_halt(severity):
    stream = Stream()
    await stream.send(alert(severity))
    stream.guard.check()
    assert halts(stream) == []


async def test_the_guard_is_closed_before_the_send_gets_to_run_anything_else():
    stream = Stream()
    closed = []
    stream.subscribe(ObserverAlert, lambda event: closed.append(stream.guard.halted))
    sending = stream.send(alert())
    with pytest.raises(StopIteration):
        sending.send(None)
    assert closed == [True]


async def test_a_halt_of_somebody_else_halts_and_no_second_one_is_made():
    stream = Stream()
    theirs = HaltEvent(reason="quota", source="billing")
    await stream.send(theirs)
    await stream.send(alert())
    assert halts(stream) == [theirs]
    with pytest.raises(HaltedError, match="halted by billing: quota"):
        stream.guard.check()


async def test_events_can_be_sent_after_the_halt():
    stream, seen = Stream(), []
    stream.subscribe(ToolResultEvent, seen.append)
    await stream.send(alert())
    await stream.send(ToolResultEvent(parent_id="c1", content="done"))
    assert len(seen) == 1


async def test_one_halt_over_the_context_and_the_stream_together():
    stream = Stream()
    first, second = Context(stream=stream), Context(stream=stream)
    assert first.guard is stream.guard
    await asyncio.gather(
        first.send(alert(message="a")), stream.send(alert(message="b")), second.send(alert(message="c"))
    )
    await first.send(alert(message="d"))
    assert len(halts(stream)) == 1
    assert first.guard.halted


async def test_a_halt_that_a_policy_asked_for_is_the_only_one():
    stream = Stream()
    fatal = alert()
    stream.history.append(fatal)
    context = Context(stream=stream)
    halt = context.guard.observe(fatal)
    await context.halt(halt)
    await context.send(alert(message="again"))
    assert halts(stream) == [halt]


async def test_streams_of_other_conversations_are_not_halted():
    one, other = Stream(), Stream()
    await one.send(alert())
    other.guard.check()


async def test_no_call_starts_after_the_alert_with_fifty_turns_at_once():
    stream, log, busy = Stream(), [], asyncio.Event()

    async def slow(event):
        await asyncio.sleep(0.002)

    stream.subscribe(object, slow)
    stream.subscribe(HaltEvent, lambda event: log.append("halt told"))

    async def call(what, turn):
        stream.guard.check()
        log.append(what)
        if log.count("model call") > 100:
            busy.set()
        await asyncio.sleep(0.001 * (turn % 7))

    async def agent(turn):
        try:
            while True:
                await call("model call", turn)
                await stream.send(ModelResponse(content="…"))
                await call("tool call", turn)
                await stream.send(ToolResultEvent(parent_id="c", content="…"))
        except HaltedError:
            return "halted"

    async def watchdog(number):
        await busy.wait()
        log.append("alert sent")
        await stream.send(alert(message=f"enough {number}"))

    ends = await asyncio.gather(*(agent(turn) for turn in range(50)), *(watchdog(number) for number in range(5)))
    assert ends[:50] == ["halted"] * 50
    after = log[log.index("alert sent") :]
    assert "model call" not in after
    assert "tool call" not in after
    assert log.count("model call") > 50
    assert len(halts(stream)) == log.count("halt told") == 1


# iteration


async def test_events_are_iterated_from_the_call_on_until_the_block_ends():
    stream = Stream()
    await stream.send(request("before"))

    async def read(events):
        return [event.content async for event in events]

    async with stream.events(ModelRequest) as events:
        reader = asyncio.create_task(read(events))
        for text in ("one", "two"):
            await stream.send(request(text))
            await stream.send(TurnStarted(turn=0))
        await asyncio.sleep(0)
    assert await reader == ["one", "two"]
    assert stream.subscriptions == ()


async def test_an_iterator_that_nobody_reads_is_bounded_and_says_so_once(caplog):
    stream = Stream()
    events = stream.events(ModelRequest, limit=2)
    for number in range(5):
        await stream.send(request(str(number)))
    events.cancel()
    assert [event.content async for event in events] == ["3", "4"]
    assert events.missed == 3
    assert len(caplog.records) == 1


def test_an_iterator_needs_room():
    with pytest.raises(ConfigurationError):
        Stream().events(ModelRequest, limit=0)


def test_nested_send_errors_are_errors_of_recursion():
    assert issubclass(NestedSendError, RecursionError)
    assert not issubclass(NestedSendError, AssemblyError)


async def test_a_stream_that_records_nothing_delivers_and_halts_all_the_same():
    stream, seen = Stream(records=False), []
    stream.subscribe(object, seen.append)
    await stream.send(ModelRequest(content="one"))
    await stream.send(ObserverAlert(source="a", severity=Severity.FATAL, message="stop"))
    assert [type(event).__name__ for event in seen] == ["ModelRequest", "ObserverAlert", "HaltEvent"]
    assert len(stream.history) == 0
    assert stream.guard.halted
