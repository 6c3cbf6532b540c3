"""One ask, one trace: runs around coroutines and generators, with nothing attached while the reader has control."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from opentelemetry import baggage, context, trace

from otel_assembly.instrumentation import (
    ContextBoundRun,
    Instrumentation,
    TrackedStream,
    awaited,
    run_hook,
    track_generator,
)


@pytest.fixture
def instrumentation(assembly_telemetry):
    return Instrumentation("pretend")


def current() -> int:
    return trace.get_current_span().get_span_context().span_id


async def words(seen, failing=None):
    got = None
    for word in ("one", "two", "three"):
        seen.append(current())
        try:
            got = yield (word, got)
        except KeyError as error:
            got = f"caught {error.args[0]}"
    if failing is not None:
        raise failing


async def test_a_coroutine_runs_in_its_run(instrumentation, assembly_telemetry):
    async def ask():
        return current()

    inside = await awaited(instrumentation.begin_run("clerk", conversation_id="c-1"), ask())
    [span] = assembly_telemetry.spans
    assert (span.name, int(span.span_id, 16)) == ("invoke_agent clerk", inside)
    assert span.attributes["gen_ai.conversation.id"] == "c-1"
    assert span.attributes["assembly.framework"] == "pretend"
    assert current() == 0


async def test_where_a_span_is_current_there_is_no_other(instrumentation, assembly_telemetry):
    async def ask():
        return current()

    with assembly_telemetry.tracer("theirs").start_as_current_span("theirs") as theirs:
        assert await awaited(instrumentation.begin_run("clerk"), ask()) == theirs.get_span_context().span_id
    assert [span.name for span in assembly_telemetry.spans] == ["theirs"]


async def test_a_failure_is_the_runs_and_comes_through(instrumentation, assembly_telemetry):
    async def ask():
        raise ValueError("secret")

    with pytest.raises(ValueError, match="secret"):
        await awaited(instrumentation.begin_run("clerk"), ask())
    [span] = assembly_telemetry.spans
    assert span.status == "ERROR"
    assert span.attributes["error.type"] == "ValueError"
    assert "secret" not in str(span)


async def test_each_step_of_a_stream_is_in_the_run_and_its_reader_is_not(instrumentation, assembly_telemetry):
    seen = []
    outside = [current() async for _ in TrackedStream(instrumentation.begin_run("clerk"), words(seen))]
    [span] = assembly_telemetry.spans
    assert seen == [int(span.span_id, 16)] * 3
    assert outside == [0, 0, 0]
    assert span.status == "UNSET"


async def test_what_a_stream_leaves_attached_is_there_again_at_its_next_step(instrumentation, assembly_telemetry):
    seen = []

    async def attaches():
        seen.append(current())
        token = context.attach(baggage.set_baggage("tenant", "acme"))
        for _ in range(3):
            seen.append((baggage.get_baggage("tenant"), current()))
            yield
        context.detach(token)
        seen.append((baggage.get_baggage("tenant"), current()))
        yield

    outside = [
        baggage.get_baggage("tenant") async for _ in TrackedStream(instrumentation.begin_run("clerk"), attaches())
    ]
    [span] = assembly_telemetry.spans
    run = int(span.span_id, 16)
    assert seen == [run, *[("acme", run)] * 3, (None, run)]
    assert outside == [None] * 4
    with assembly_telemetry.tracer().start_as_current_span("theirs") as theirs:
        seen.clear()
        outside = [
            baggage.get_baggage("tenant") async for _ in TrackedStream(instrumentation.begin_run("clerk"), attaches())
        ]
    run = theirs.get_span_context().span_id
    assert seen == [run, *[("acme", run)] * 3, (None, run)]
    assert outside == ["acme"] * 3 + [None], "where we attach nothing, nothing is another than without us"


async def test_what_a_reader_sends_and_throws_gets_to_the_stream(instrumentation):
    stream = TrackedStream(instrumentation.begin_run("clerk"), words([]))
    assert await stream.asend(None) == ("one", None)
    assert await stream.asend("sent") == ("two", "sent")
    assert await stream.athrow(KeyError("thrown")) == ("three", "caught thrown")
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_a_stream_that_fails_says_so_and_one_that_is_left_does_not(instrumentation, assembly_telemetry):
    with pytest.raises(RuntimeError, match="broken"):
        async for _ in TrackedStream(instrumentation.begin_run("clerk"), words([], RuntimeError("broken"))):
            pass
    left = TrackedStream(instrumentation.begin_run("clerk"), words([]))
    await anext(left)
    await left.aclose()
    assert [span.status for span in assembly_telemetry.spans] == ["ERROR", "UNSET"]


async def test_a_stream_that_is_closed_by_another_task_ends_its_run(instrumentation, assembly_telemetry):
    left = TrackedStream(instrumentation.begin_run("clerk"), words([]))
    await anext(left)
    await asyncio.create_task(left.aclose())
    assert [span.name for span in assembly_telemetry.spans] == ["invoke_agent clerk"]
    assert current() == 0


async def test_two_streams_read_in_turn_keep_to_their_own_runs(instrumentation, assembly_telemetry):
    one, other = [], []
    streams = [
        TrackedStream(instrumentation.begin_run("a"), words(one)),
        TrackedStream(instrumentation.begin_run("b"), words(other)),
    ]
    for _ in range(3):
        for stream in streams:
            await anext(stream)
    for stream in streams:
        await stream.aclose()
    assert len(set(one)) == len(set(other)) == 1
    assert set(one).isdisjoint(other)


def test_a_plain_generator_is_followed_the_same_way(instrumentation, assembly_telemetry):
    def numbers():
        got = yield current()
        assert got == "sent"
        yield current()
        return "the end"

    steps = track_generator(instrumentation.begin_run("clerk"), numbers())
    first = next(steps)
    assert current() == 0
    assert steps.send("sent") == first != 0
    with pytest.raises(StopIteration) as ended:
        next(steps)
    assert ended.value.value == "the end"
    assert [span.status for span in assembly_telemetry.spans] == ["UNSET"]


async def test_an_async_generator_that_a_coroutine_returns_gets_what_its_reader_sends_and_throws(instrumentation):
    async def answer():
        return words([])

    hook = run_hook(lambda instrumentation: instrumentation.begin_run("clerk"))
    stream = await hook(answer, instrumentation)()
    assert inspect.isasyncgen(stream)
    assert await stream.asend(None) == ("one", None)
    assert await stream.asend("sent") == ("two", "sent")
    assert await stream.athrow(KeyError("thrown")) == ("three", "caught thrown")
    assert [item async for item in stream] == []


@pytest.mark.parametrize("is_async", [False, True])
def test_the_run_of_a_stream_that_is_never_read_opens_no_span(instrumentation, monkeypatch, is_async):
    monkeypatch.setattr(Instrumentation, "begin_run", lambda *_, **__: pytest.fail("a span was opened"))

    def numbers():
        yield current()

    async def async_numbers():
        yield current()

    hook = run_hook(lambda instrumentation: ContextBoundRun(instrumentation, "clerk", {}))
    stream = hook(async_numbers if is_async else numbers, instrumentation)
    stream()


def test_a_run_in_anothers_span_goes_on_in_its_trace_once_that_is_over(instrumentation, assembly_telemetry):
    tracer = assembly_telemetry.tracer_provider.get_tracer("theirs")
    with tracer.start_as_current_span("theirs") as span:
        run = instrumentation.begin_run("clerk")
    with run.current(), tracer.start_as_current_span("later") as later:
        assert later.get_span_context().trace_id == span.get_span_context().trace_id
    with tracer.start_as_current_span("beside") as beside, run.current():
        assert current() == beside.get_span_context().span_id
