"""What sessions tell: each post and its outcome, each first reading, what waits, and what was waited for in vain."""

from __future__ import annotations

import asyncio
import logging

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from sessions.talk import Talk, opened, text

from otel_assembly.errors import (
    AccessDeniedError,
    AdapterError,
    InboxFull,
    LogConflictError,
    LogDamagedError,
    LogRegressed,
    LogUnavailableError,
    LogUnsureError,
    NotFoundError,
    ProtocolError,
)
from otel_assembly.sessions import (
    EV_EXPECTATION_VIOLATED,
    ConversationAdapter,
    Envelope,
    Expectation,
    Hub,
    MemorySessionLog,
    SqliteSessionLog,
)
from otel_assembly.testing import RecordedTelemetry

SAID = "post_envelope ag2.msg.text"


class Faulty(MemorySessionLog):
    """A log that fails in one method when it is told to."""

    method, error = "", None

    def fail(self, method, error):
        self.method, self.error = method, error

    def _fails(self, method):
        if self.method == method:
            raise self.error

    async def append(self, rows, on):
        self._fails("append")
        await super().append(rows, on)

    async def rows_from(self, session_id, first_seq, limit=None):
        self._fails("rows_from")
        return await super().rows_from(session_id, first_seq, limit)

    async def by_id(self, session_id, envelope_id):
        if isinstance(self.error, LogUnsureError):
            raise LogUnavailableError("no answer")
        return await super().by_id(session_id, envelope_id)


class Clock:
    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def recorder():
    """Everything is told to this one, and keeps the contract."""
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        yield telemetry
    assert telemetry.violations() == []
    telemetry.shutdown()


@pytest.fixture
def log():
    return Faulty()


@pytest.fixture
def hub(log):
    return Hub(log, [Talk()], inbox_limit=5)


def told(span, *keys):
    return tuple(span.attributes.get(f"assembly.{key}") for key in keys)


async def test_a_post_is_a_span_in_the_callers_and_a_count_and_a_time(hub, recorder, quiet_sdk):
    name = await opened(hub, "ann", "bob")
    with recorder.tracer().start_as_current_span("request"):
        accepted = await hub.post(text(name, "ann", "a secret"))
    span = recorder.span(SAID)
    assert span.parent.name == "request"
    assert told(span, "session.type", "envelope.type", "post.outcome", "session.sequence", "post.conflicts") == (
        "talk",
        "ag2.msg.text",
        "accepted",
        accepted.seq,
        0,
    )
    assert (span.attributes["gen_ai.conversation.id"], span.attributes["gen_ai.agent.name"]) == (name, "ann")
    assert (span.status, "error.type" in span.attributes) == ("UNSET", False)
    # The invitation and bob's joining were posted too.
    assert recorder.metric("assembly.session.posts", session_type="talk", post_outcome="accepted") == 3
    assert recorder.metric("assembly.session.post.duration", post_outcome="accepted").count == 3
    assert "secret" not in str([s.attributes for s in recorder.spans])


async def test_steps_of_the_protocol_are_posts_too(hub, recorder):
    name = await opened(hub, "ann", "bob")
    await hub.close(name, "bob")
    names = [s.name for s in recorder.spans if s.name.startswith("post_envelope")]
    assert names == [
        "post_envelope ag2.session.invite",
        "post_envelope ag2.session.invite.ack",
        "post_envelope ag2.session.closed",
    ]


async def test_a_post_made_again_under_its_key_is_no_second_envelope(hub, recorder):
    name = await opened(hub, "ann", "bob")
    first = await hub.post(text(name, "ann", "one", idempotency_key="k"))
    assert await hub.post(text(name, "ann", "one", idempotency_key="k")) == first
    outcomes = [told(s, "post.outcome", "session.sequence") for s in recorder.spans_named(SAID)]
    assert outcomes == [("accepted", first.seq), ("repeated", first.seq)]


async def test_a_post_says_how_often_somebody_else_was_first(tmp_path, recorder):
    logs = [SqliteSessionLog(tmp_path / "s.db") for _ in range(2)]
    one, other = (Hub(log, [Talk(in_turns=False)]) for log in logs)
    name = await opened(one, "ann", "bob")
    await other.metadata(name)
    await one.post(text(name, "ann", "first"))
    await other.post(text(name, "bob", "second"))
    assert told(recorder.span(SAID), "post.conflicts", "post.outcome") == (1, "accepted")
    for log in logs:
        await log.close()


REFUSALS = {
    "no session": ("nobody", "ann", "x", NotFoundError),
    "stranger": (None, "eve", "x", AccessDeniedError),
    "twice in a row": (None, "bob", "x", ProtocolError),
    "a fold that raises": (None, "ann", "break", AdapterError),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_a_refused_post_says_which_error(hub, recorder, case):
    name = await opened(hub, "ann", "bob")
    await hub.post(text(name, "ann", "0"))
    await hub.post(text(name, "bob", "0"))
    session, who, says, error = REFUSALS[case]
    with pytest.raises(error) as raised:
        await hub.post(text(session or name, who, says))
    refused(recorder, raised.value, known=session is None)
    if error is AdapterError:
        assert recorder.span(SAID).attributes["exception.type"] == "RuntimeError"


def refused(recorder, error, *, known=True, outcome="refused", description="the post was refused"):
    span = recorder.span(SAID)
    assert span.attributes["error.type"] == f"otel_assembly.errors.{type(error).__name__}"
    assert told(span, "post.outcome", "session.sequence") == (outcome, None)
    assert (span.status, span.status_message) == ("ERROR", description)
    assert ("assembly.session.type" in span.attributes) == known
    assert str(error) not in str(span)
    given = {"session_type": "talk"} if known else {}
    assert recorder.metric("assembly.session.posts", post_outcome=outcome, **given) == 1


async def test_an_inbox_that_is_full_is_a_refusal(log, recorder):
    hub = Hub(log, [Talk()], inbox_limit=1)
    name = await opened(hub, "ann", "bob")
    with pytest.raises(InboxFull) as raised:
        await hub.post(text(name, "ann", "x"))
    refused(recorder, raised.value)


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("append", LogConflictError("somebody was first")),
        ("append", LogUnavailableError("no answer")),
        ("rows_from", LogRegressed("the log went back")),
        ("rows_from", LogDamagedError("row 3 is missing")),
    ],
)
async def test_what_a_log_does_not_do_is_a_refusal(log, hub, recorder, method, error):
    name = await opened(hub, "ann", "bob")
    log.fail(method, error)
    with pytest.raises(type(error)) as raised:
        # Out of turn to what is folded, so that the tail is looked at.
        await hub.post(
            text(name, "ann", "x", idempotency_key="k", envelope_id="0" * 32 if method == "rows_from" else "")
        )
    refused(recorder, raised.value)


async def test_a_post_whose_answer_was_lost_is_neither_accepted_nor_refused(log, hub, recorder):
    name = await opened(hub, "ann", "bob")
    log.fail("append", LogUnsureError("lost"))
    with pytest.raises(LogUnsureError) as raised:
        await hub.post(text(name, "ann", "x"))
    refused(recorder, raised.value, outcome="unsure", description="it is unknown whether the post was accepted")


async def test_a_post_that_was_cancelled_is_neither_accepted_nor_refused(log, recorder):
    hub = Hub(log, [Talk()], inbox_limit=1)
    name = await opened(hub, "ann", "bob")
    posting = asyncio.create_task(hub.post(text(name, "ann", "x"), timeout=60))
    await asyncio.sleep(0.01)
    posting.cancel()
    await asyncio.gather(posting, return_exceptions=True)
    assert told(recorder.span(SAID), "post.outcome") == ("unsure",)
    assert recorder.span(SAID).attributes["error.type"] == "cancelled"


@pytest.mark.parametrize("kind", ["", 7])
async def test_what_is_no_envelope_is_a_refusal_without_a_type(hub, recorder, kind):
    with pytest.raises(ProtocolError):
        await hub.post(Envelope("s", "ann", kind))
    assert recorder.tree() == "post_envelope _OTHER"


async def test_a_hydration_says_how_much_was_folded_and_whether_from_a_snapshot(tmp_path, recorder):
    log = SqliteSessionLog(tmp_path / "s.db")
    hub = Hub(log, [Talk(in_turns=False)], snapshot_every=4)
    name = await opened(hub, "ann", "bob")
    for turn in range(3):
        await hub.post(text(name, "ann", f"{turn}"))
    with recorder.tracer().start_as_current_span("request"):
        await Hub(log, [Talk(in_turns=False)]).folded(name)
    first, second = recorder.spans_named("hydrate")
    keys = "session.type", "hydrate.envelope_count", "hydrate.from_snapshot", "session.sequence"
    # What the first hub read was the invitation alone.
    assert told(first, *keys) == ("talk", 1, False, 1)
    assert told(second, *keys) == ("talk", 2, True, 6)
    assert second.parent.name == "request"
    assert second.attributes["gen_ai.conversation.id"] == name
    await log.close()


async def test_a_session_that_cannot_be_read_is_an_error_of_its_hydration(log, hub, recorder):
    name = await opened(hub, "ann", "bob")
    log.fail("rows_from", LogDamagedError("row 2 is missing"))
    with pytest.raises(LogDamagedError):
        await Hub(log, [Talk()]).folded(name)
    span = recorder.span("hydrate")
    assert span.attributes["error.type"] == "otel_assembly.errors.LogDamagedError"
    assert (span.status, span.status_message) == ("ERROR", "the session could not be read")


async def test_an_inbox_says_how_much_waits_in_it_when_it_is_looked_at(hub, recorder):
    name = await opened(hub, "ann", "bob")
    await hub.post(text(name, "ann", "one"))
    # The invitation, that all joined, the opening, and what was said.
    waiting = await hub.inbox(name, "bob", limit=1)
    await hub.confirm(waiting[0])
    await hub.inbox(name, "bob")
    found = recorder.metric("assembly.session.inbox.waiting", session_type="talk")
    assert (found.count, found.max, found.min) == (2, 3, 2)


async def test_a_violation_is_counted_once_and_logged_whichever_hubs_sweep(tmp_path, recorder, caplog):
    clock, logs = Clock(), [SqliteSessionLog(tmp_path / "s.db") for _ in range(2)]
    strict = [Expectation("reply_within", 60, "notify"), Expectation("max_silence", 600, "audit")]
    hubs = [Hub(log, [ConversationAdapter(strict)], clock=clock) for log in logs]
    session = await hubs[0].create("conversation", "ann", ["ann", "bob"])
    assert recorder.metric("assembly.session.violations", violation_kind="reply_within") == 0
    assert recorder.metric("assembly.session.violations", violation_kind="max_silence") == 0
    await hubs[0].join(session.session_id, "bob")
    await hubs[0].post(text(session.session_id, "ann", "well?"))
    clock.now += 61
    with caplog.at_level(logging.WARNING, "otel_assembly.sessions"):
        swept = [await hub.sweep() for hub in hubs]
    assert [len(found) for found in swept] == [1, 0]
    assert (
        recorder.metric("assembly.session.violations", session_type="conversation", violation_kind="reply_within") == 1
    )
    assert recorder.metric("assembly.session.violations", violation_kind="max_silence") == 0
    (line,) = [r.getMessage() for r in caplog.records if "was not met" in r.getMessage()]
    assert "reply_within of 60 s was not met by 'bob'; notify" in line
    span = recorder.span(f"post_envelope {EV_EXPECTATION_VIOLATED}")
    # A hub is no agent.
    assert "gen_ai.agent.name" not in span.attributes
    for log in logs:
        await log.close()


async def test_metrics_do_not_depend_on_what_is_sampled():
    telemetry = RecordedTelemetry(sampler=ALWAYS_OFF)
    with telemetry.as_default():
        hub = Hub(MemorySessionLog(), [Talk()])
        name = await opened(hub, "ann", "bob")
        await hub.post(text(name, "ann", "one"))
        with pytest.raises(ProtocolError):
            await hub.post(text(name, "ann", "two"))
    assert telemetry.spans == []
    assert telemetry.metric("assembly.session.posts", post_outcome="accepted") == 3
    assert telemetry.metric("assembly.session.posts", post_outcome="refused") == 1


async def test_what_splits_a_metric_is_bounded(log, recorder):
    hub = Hub(log, [Talk()])
    name = await opened(hub, "ann", "bob")
    for turn in range(120):
        await hub.post(Envelope(name, "ann", f"of.my.own.{turn}"))
    names = {s.name for s in recorder.spans if s.name.startswith("post_envelope")}
    assert len(names) == 101
    assert "post_envelope _OTHER" in names
    keys = {key for points in recorder.metrics.values() for point in points for key in point.attributes}
    assert keys == {"assembly.session.type", "assembly.post.outcome"}
