from __future__ import annotations

import asyncio

import pytest

from otel_assembly import ConfigurationError, Context, HaltEvent, ModelRequest, ObserverAlert
from otel_assembly.runtime import MAX_TIMEOUTS, Stream, attach

SECRET = "4111-1111-1111-1111"


class Watcher:
    """An observer whose behaviour a test chooses."""

    watches = ModelRequest

    def __init__(self, behave=None, name="watcher"):
        self.name = name
        self.seen = []
        self.contexts = []
        self.behave = behave

    async def process(self, event, context):
        self.seen.append(event)
        self.contexts.append(context)
        return await self.behave(event) if self.behave else None


def saying(severity, message="hm", source="watcher"):
    async def behave(event):
        return ObserverAlert(source=source, severity=severity, message=message)

    return behave


async def hang(event):
    await asyncio.Event().wait()


async def fail(event):
    raise ValueError(SECRET)


def types_of(stream):
    return [type(event).__name__ for event in stream.history]


async def test_an_observers_alert_is_on_the_stream_before_the_send_returns():
    stream = Stream()
    attach(stream, [Watcher(saying("warning"))], Context(stream=stream))
    await stream.send(ModelRequest(content="hello"))
    assert types_of(stream) == ["ModelRequest", "ObserverAlert"]


async def test_a_fatal_alert_of_an_observer_halts_once_however_many_observers_raise_one():
    stream = Stream()
    attach(stream, [Watcher(saying("fatal", "a")), Watcher(saying("FATAL", "b"))])
    await stream.send(ModelRequest(content="hello"))
    assert types_of(stream) == ["ModelRequest", "ObserverAlert", "HaltEvent", "ObserverAlert"]
    assert stream.guard.halt.reason == "FATAL: a"


async def test_observers_get_the_context_they_were_attached_with():
    stream, watcher, default = Stream(), Watcher(), Watcher()
    context = Context(stream=stream, variables={"tenant": "a"})
    attach(stream, [watcher], context)
    attach(stream, [default])
    await stream.send(ModelRequest(content="hello"))
    assert watcher.contexts == [context]
    assert default.contexts[0].conversation is stream.conversation


async def test_a_detached_observer_sees_nothing_more():
    stream, watcher = Stream(), Watcher()
    with attach(stream, [watcher]) as attachment:
        await stream.send(ModelRequest(content="one"))
    attachment.detach()
    await stream.send(ModelRequest(content="two"))
    assert [event.content for event in watcher.seen] == ["one"]
    assert stream.subscriptions == ()


async def test_an_observer_attached_twice_sees_each_event_once_until_both_let_go():
    stream, watcher = Stream(), Watcher()
    first, second = attach(stream, [watcher]), attach(stream, [watcher])
    await stream.send(ModelRequest(content="one"))
    first.detach()
    first.detach()
    await stream.send(ModelRequest(content="two"))
    second.detach()
    await stream.send(ModelRequest(content="three"))
    assert [event.content for event in watcher.seen] == ["one", "two"]


async def test_a_raising_observer_hurts_nobody_and_is_logged_by_its_types_name(caplog):
    stream, other = Stream(), Watcher()
    attachment = attach(stream, [Watcher(fail, name=SECRET), other])
    await stream.send(ModelRequest(content=SECRET))
    await stream.send(ModelRequest(content=SECRET))
    assert len(other.seen) == 2
    assert [subscription.errors for subscription in attachment.subscriptions] == [2, 0]
    [record] = caplog.records
    assert "Watcher raised ValueError on ModelRequest" in record.getMessage()
    assert SECRET not in caplog.text


async def test_an_observer_that_returns_something_else_is_an_error_of_its_own(caplog):
    async def nonsense(event):
        return "an alert"

    stream = Stream()
    attachment = attach(stream, [Watcher(nonsense)])
    await stream.send(ModelRequest(content="hello"))
    assert types_of(stream) == ["ModelRequest"]
    assert attachment.subscriptions[0].errors == 1


async def test_a_hanging_observer_is_left_and_in_the_end_detached(caplog):
    stream, other = Stream(), Watcher()
    attach(stream, [Watcher(hang), other], timeout=0.01)
    for _ in range(MAX_TIMEOUTS + 2):
        await stream.send(ModelRequest(content=SECRET))
    assert len(other.seen) == MAX_TIMEOUTS + 2
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert "TimeoutError" in messages[0]
    assert messages[1] == f"observer Watcher took more than 0.01 s {MAX_TIMEOUTS} times in a row; it is detached"
    assert len(stream.subscriptions) == 1


async def test_turns_that_wait_at_once_for_one_hiccup_do_not_detach_the_observer():
    stream, watcher = Stream(), Watcher(hang)
    attach(stream, [watcher], timeout=0.01)
    await asyncio.gather(*(stream.send(ModelRequest(content=str(turn))) for turn in range(50)))
    watcher.behave = None
    await stream.send(ModelRequest(content="last"))
    assert watcher.seen[-1].content == "last"


async def test_time_outs_count_in_a_row_only():
    stream, watcher = Stream(), Watcher()
    attach(stream, [watcher], timeout=0.01)
    for _ in range(MAX_TIMEOUTS * 2):
        watcher.behave = hang
        await stream.send(ModelRequest(content="slow"))
        watcher.behave = None
        await stream.send(ModelRequest(content="quick"))
    assert len(watcher.seen) == MAX_TIMEOUTS * 4


async def test_an_observer_is_not_shown_its_own_alerts():
    stream, watcher = Stream(), Watcher(saying("info"))
    watcher.watches = (ModelRequest, ObserverAlert)
    attach(stream, [watcher])
    await stream.send(ModelRequest(content="hello"))
    assert types_of(stream) == ["ModelRequest", "ObserverAlert"]


async def test_observers_that_answer_each_other_do_not_go_on_for_ever(caplog):
    stream = Stream()
    watchers = [Watcher(saying("info", source=name), name) for name in ("a", "b")]
    for watcher in watchers:
        watcher.watches = (ModelRequest, ObserverAlert)
    attach(stream, watchers)
    await stream.send(ModelRequest(content="hello"))
    assert 2 < len(stream.history) < 100
    assert "NestedSendError" in caplog.text


async def test_a_context_of_another_conversation_is_refused():
    with pytest.raises(ConfigurationError, match="another conversation"):
        attach(Stream(), [Watcher()], Context(stream=Stream()))


async def test_a_context_without_a_stream_joins_the_conversation():
    stream, context = Stream(), Context()
    attach(stream, [Watcher(saying("fatal"))], context)
    await stream.send(ModelRequest(content="hello"))
    assert context.guard.halted
    assert sum(isinstance(event, HaltEvent) for event in stream.history) == 1


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_time_out_must_be_positive(timeout):
    with pytest.raises(ConfigurationError, match="timeout"):
        attach(Stream(), [Watcher()], timeout=timeout)


@pytest.mark.parametrize("watches", [None, (), "ModelRequest", (ModelRequest, 1)])
def test_what_watches_no_types_is_refused_and_nothing_is_attached(watches):
    stream, wrong = Stream(), Watcher()
    wrong.watches = watches
    with pytest.raises(ConfigurationError, match="watches"):
        attach(stream, [Watcher(), wrong])
    assert stream.subscriptions == ()


def test_what_is_no_observer_is_refused():
    with pytest.raises(ConfigurationError, match="object is not an observer: it has no 'name'"):
        attach(Stream(), [object()])
