"""A session of several agents is one connected story: each turn a trace of its own, linked to what it answers."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from opentelemetry.sdk.trace import SpanProcessor
from sessions.talk import Talk, opened, said, text
from telemetry.test_unheard import calls_into_opentelemetry

from otel_assembly import Agent, ConversationPolicy, ObserverAlert, OpenTelemetryRecorder
from otel_assembly.errors import ProtocolError
from otel_assembly.recorder import using_recorder
from otel_assembly.sessions import (
    EV_TEXT,
    ConversationAdapter,
    DiscussionAdapter,
    Envelope,
    Hub,
    LogPosition,
    LogRow,
    MemorySessionLog,
    SqliteSessionLog,
    serve,
)
from otel_assembly.testing import RecordedTelemetry, ScriptedModel

SAID = "post_envelope ag2.msg.text"
WHO = ("ann", "bob", "cid")


@pytest.fixture
def recorder():
    """Everything is told to this one, and keeps the contract."""
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        yield telemetry
    assert telemetry.violations() == []
    telemetry.shutdown()


@pytest.fixture
async def logs(tmp_path):
    """One log, opened twice."""
    logs = [SqliteSessionLog(tmp_path / "s.db", poll_seconds=0.005) for _ in range(2)]
    yield logs
    for log in logs:
        await log.close()


@pytest.fixture
def hubs(logs):
    """Two hubs on one log."""
    return [Hub(log, [DiscussionAdapter(), ConversationAdapter(), Talk(in_turns=False)]) for log in logs]


@asynccontextmanager
async def served(*who):
    """Agents that are served, each by a hub, for as long as the block lasts."""
    tasks = [asyncio.create_task(serve(hub, agent, name, pause=0.01)) for hub, agent, name in who]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(check):
    while not await check():
        await asyncio.sleep(0.002)


def saying(word):
    async def answer(events):
        return word

    return answer


def links(span):
    return [(link.trace_id, link.span_id) for link in span.links]


def place(span):
    return span.trace_id, span.span_id


def carried(envelope):
    """The trace and the span that an envelope says it was posted in."""
    _, trace_id, span_id, _ = envelope.trace["traceparent"].split("-")
    return trace_id, span_id


async def test_a_discussion_of_three_in_two_hubs_is_turns_that_are_linked(hubs, recorder, quiet_sdk):
    one, other = hubs
    bob = Agent("bob", "You test.", ScriptedModel("two"), assembly=[ConversationPolicy()])
    with recorder.tracer().start_as_current_span("main"):
        serving = served((other, bob, "bob"), (one, saying("three"), "cid"))
    async with serving:
        with recorder.tracer().start_as_current_span("request"):
            name = (await one.create("discussion", "ann", WHO)).session_id

            async def is_open():
                return (await one.folded(name)).state == "active"

            await until(is_open)
            await one.post(text(name, "ann", "one"))

        async def all_said():
            return await said(one, name) == ["one", "two", "three"]

        await until(all_said)
    asked, answered, closing = recorder.spans_named(SAID)
    turns = {who: recorder.span(f"serve_turn {who}") for who in ("bob", "cid")}
    assert asked.parent.name == "request"
    # Each turn is a trace of its own, linked to the post that it answers; its post is in it, and linked back.
    assert [turn.parent_id for turn in turns.values()] == [None, None]
    assert len({asked.trace_id, *(turn.trace_id for turn in turns.values())}) == 3
    assert links(turns["bob"]) == [place(asked)] == links(answered)
    assert links(turns["cid"]) == [place(answered)] == links(closing)
    assert (answered.parent, closing.parent) == (turns["bob"], turns["cid"])
    # What the participant saw, and what was assembled of it, stand in its turn.
    for who, turn in turns.items():
        names = {s.name for s in recorder.spans if s.trace_id == turn.trace_id}
        assert {"project_view named_windowed_summary", "assemble_context", SAID} <= names, who
        keys = "assembly.session.type", "assembly.envelope.type", "assembly.session.sequence"
        found = [turn.attributes[key] for key in keys]
        assert found[:2] == ["discussion", EV_TEXT]
        assert turn.attributes["gen_ai.conversation.id"] == name
    assert turns["cid"].attributes["assembly.session.sequence"] == answered.attributes["assembly.session.sequence"]
    # The log says it too, for whoever reads it elsewhere.
    kept = [carried(e) for e in await other.envelopes(name) if e.event_type == EV_TEXT]
    assert kept == [place(asked), place(answered), place(closing)]


async def test_who_joins_is_linked_to_the_invitation_and_is_in_nobody_s_trace(hubs, recorder):
    one, other = hubs
    with recorder.tracer().start_as_current_span("main"):
        serving = asyncio.create_task(serve(other, saying(""), "bob"))
        name = (await one.create("conversation", "ann", ["ann", "bob"])).session_id

        async def is_open():
            return (await one.folded(name)).state == "active"

        await until(is_open)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    joined = recorder.span("post_envelope ag2.session.invite.ack")
    invited = recorder.span("post_envelope ag2.session.invite")
    assert invited.parent.name == "main"
    assert joined.parent_id is None
    assert joined.trace_id != invited.trace_id
    assert links(joined) == [place(invited)]
    main = recorder.span("main")
    assert [s.name for s in main.children] == ["post_envelope ag2.session.invite", "hydrate"]


async def test_what_a_post_causes_carries_its_trace(hubs, recorder):
    one, _ = hubs
    name = await opened(one, "ann", "bob")
    await one.post(text(name, "ann", "bye"))
    found = {e.event_type: carried(e) for e in await one.envelopes(name)}
    joined = place(recorder.span("post_envelope ag2.session.invite.ack"))
    assert found["ag2.session.opened"] == found["ag2.session.invite.ack"] == joined
    assert found["ag2.session.closed"] == found[EV_TEXT] == place(recorder.span(SAID))


async def test_the_same_from_another_trace_is_the_same(hubs, recorder):
    one, other = hubs
    name = await opened(one, "ann", "bob")
    with recorder.tracer().start_as_current_span("first"):
        first = await one.post(text(name, "ann", "one", idempotency_key="k"))
    with recorder.tracer().start_as_current_span("second"):
        assert await other.post(text(name, "ann", "one", idempotency_key="k")) == first
    assert carried(first)[0] == recorder.span("first").trace_id
    assert recorder.span(SAID).attributes["assembly.post.outcome"] == "repeated"


async def test_a_trace_that_is_given_goes_on_where_no_span_is_current(hubs, recorder):
    one, _ = hubs
    name = await opened(one, "ann", "bob")
    given = {"traceparent": f"00-{7:032x}-{9:016x}-01", "tracestate": "vendor=1"}
    accepted = await one.post(text(name, "ann", "one", trace=given))
    span = recorder.span(SAID)
    assert (span.trace_id, span.parent_id) == (f"{7:032x}", f"{9:016x}")
    assert carried(accepted) == place(span)
    assert accepted.trace["tracestate"] == "vendor=1"
    with recorder.tracer().start_as_current_span("here"):
        await one.post(text(name, "ann", "two", trace=given))
    assert recorder.span(SAID).parent.name == "here"


@pytest.mark.parametrize("trace", [{"traceparent": "garbage"}, {"traceparent": 7}, ["no", "mapping"], 7, None])
async def test_a_log_with_an_odd_trace_is_read_and_served(logs, hubs, recorder, trace):
    one, other = hubs
    name = (await one.create("conversation", "ann", ["ann", "bob"])).session_id
    await one.join(name, "bob")
    newest = (await one.envelopes(name))[-1]
    odd = replace(text(name, "ann", "one"), envelope_id="f" * 32, seq=newest.seq + 1, created_at=newest.created_at)
    row = LogRow.of(replace(odd, trace=trace))
    await logs[0].append([row], LogPosition(newest.seq, newest.envelope_id))
    async with served((other, saying("two"), "bob")):

        async def answered():
            return bool(recorder.spans_named("serve_turn bob"))

        await until(answered)
    assert recorder.span("serve_turn bob").links == []


async def test_a_log_from_before_envelopes_had_a_trace_is_read():
    envelope = json.loads(text("s", "ann", "one").to_json())
    del envelope["trace"]
    assert Envelope.from_dict(envelope) == text("s", "ann", "one")


async def test_where_nobody_listens_an_envelope_carries_what_it_was_given():
    hub = Hub(MemorySessionLog(), [Talk(in_turns=False)])
    name = await opened(hub, "ann", "bob")
    assert (await hub.post(text(name, "ann", "one"))).trace == {}
    assert (await hub.post(text(name, "ann", "two", trace={"traceparent": "mine"}))).trace == {"traceparent": "mine"}


async def test_with_nothing_configured_a_session_calls_nothing_of_opentelemetry():
    log = MemorySessionLog()

    async def talk():
        hub = Hub(log, [Talk(in_turns=False)])
        name = await opened(hub, "ann", "bob")
        await hub.post(text(name, "ann", "one"))
        await Hub(log, [Talk(in_turns=False)]).inbox(name, "bob")
        await hub.sweep()

    with using_recorder(OpenTelemetryRecorder()):
        assert await calls_into_opentelemetry(talk) == {}


async def test_a_turn_that_comes_to_no_answer_says_why(hubs, recorder, caplog):
    one, other = hubs

    async def raises(events):
        raise ZeroDivisionError("a secret")

    name = await opened(one, "ann", "bob", session_id="s")
    async with served((other, raises, "bob")):
        await one.post(text(name, "ann", "one"))

        async def told():
            return bool(recorder.spans_named("serve_turn bob"))

        await until(told)
    span = recorder.span("serve_turn bob")
    assert (span.status, span.status_message) == ("ERROR", "the turn produced no answer")
    assert (span.attributes["error.type"], span.attributes["exception.type"]) == ("ZeroDivisionError",) * 2
    assert "secret" not in str(recorder.spans)


async def test_a_turn_that_is_halted_says_so(hubs, recorder, caplog):
    one, other = hubs

    async def alarm(prompts, events):
        await asked.stream.send(ObserverAlert(source="fire", severity="fatal", message="burning"))
        return "too late"

    bob = Agent("bob", "You test.", ScriptedModel(alarm), assembly=[ConversationPolicy()])
    asked, open_session = None, bob.open_session

    def opened_for(*given, **more):
        nonlocal asked
        own = open_session(*given, **more)
        asked = own.session
        return own

    bob.open_session = opened_for
    name = await opened(one, "ann", "bob")
    async with served((other, bob, "bob")):
        await one.post(text(name, "ann", "one"))

        async def told():
            return bool(recorder.spans_named("serve_turn bob"))

        await until(told)
    span = recorder.span("serve_turn bob")
    assert (span.status, span.attributes["error.type"]) == ("ERROR", "assembly_halt")
    assert span.attributes["assembly.halts.emitted"] == 1


class Raising(SpanProcessor):
    def __init__(self, point):
        self._point = point

    def on_start(self, span, parent_context=None):
        if self._point == "on_start":
            raise RuntimeError("broken")

    def on_end(self, span):
        if self._point == "on_end":
            raise RuntimeError("broken")


@pytest.mark.parametrize("point", ["on_start", "on_end"])
async def test_telemetry_that_is_broken_costs_a_warning_and_no_post(point, hubs, caplog):
    one, other = hubs
    telemetry = RecordedTelemetry()
    telemetry.tracer_provider.add_span_processor(Raising(point))
    with telemetry.as_default(), caplog.at_level(logging.WARNING, "otel_assembly"):
        name = await opened(one, "ann", "bob")
        async with served((other, saying("two"), "bob")):
            await one.post(text(name, "ann", "one"))

            async def answered():
                return await said(one, name) >= ["one", "two"]

            await until(answered)
        with pytest.raises(ProtocolError):
            await one.post(text(name, "ann", "three", audience=("eve",)))
    warnings = [r.getMessage() for r in caplog.records if "telemetry of context assembly failed" in r.getMessage()]
    assert len(warnings) == 1
    assert telemetry.metric("assembly.telemetry.errors", component="span") > 1
    assert telemetry.metric("assembly.session.posts", post_outcome="refused") == 1
