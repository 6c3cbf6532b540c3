"""Expectations: which deadlines stand, as the log says, and what a violation looks like."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol_sessions import metadata_of
from pydantic import TypeAdapter

from otel_assembly.sessions import (
    EV_PACKET,
    EV_SESSION_INVITE,
    EV_SESSION_INVITE_ACK,
    EV_SESSION_OPENED,
    EV_TEXT,
    ConversationAdapter,
    Deadline,
    DiscussionAdapter,
    Envelope,
    Expectation,
    PendingWaits,
    SessionState,
    Since,
    deadlines,
    violation,
)


class Watched:
    """A session in which every second an envelope may be accepted, and what it waits for."""

    def __init__(self, *expectations, adapter=DiscussionAdapter, participants=("ann", "bob", "cid")):
        self.adapter = adapter([Expectation(*expectation) for expectation in expectations])
        self.metadata = metadata_of(self.adapter, *participants)
        self.adapter_state = self.adapter.initial_state(self.metadata)
        self.state = SessionState.PENDING
        self.waits = PendingWaits()
        self.seq = 0

    def add(self, sender, kind=EV_TEXT, data=None, at=None, **more):
        return self.take(Envelope("s1", sender, kind, data or {"text": "x"}, **more), at)

    def take(self, envelope, at=None):
        self.seq += 1
        envelope = replace(envelope, seq=self.seq, envelope_id=f"e{self.seq}", created_at=float(at or self.seq))
        self.adapter_state = self.adapter.fold(envelope, self.adapter_state)
        expected = self.adapter.expected_next(self.metadata, self.adapter_state)
        self.waits = self.waits.after(envelope, self.metadata, expected)
        if envelope.event_type == EV_SESSION_OPENED:
            self.state = SessionState.ACTIVE
        return envelope

    def opened(self):
        self.add("ann", EV_SESSION_INVITE)
        self.add("bob", EV_SESSION_INVITE_ACK)
        self.add("cid", EV_SESSION_INVITE_ACK)
        self.add("ag2.hub", EV_SESSION_OPENED)
        return self

    @property
    def standing(self):
        return deadlines(self.metadata, self.state, self.waits)

    @property
    def told(self):
        return [(fact.kind, fact.action, fact.waited_for, fact.since.seq, fact.due_at) for fact in self.standing]


def test_acks_are_waited_for_until_each_has_answered():
    watched = Watched(("acks_within", 30, "auto_close"))
    assert watched.told == []
    watched.add("ann", EV_SESSION_INVITE, at=5)
    assert watched.told == [("acks_within", "auto_close", ("bob", "cid"), 1, 35)]
    watched.add("bob", EV_SESSION_INVITE_ACK)
    assert watched.told == [("acks_within", "auto_close", ("cid",), 1, 35)]
    watched.add("cid", EV_SESSION_INVITE_ACK)
    assert watched.told == []


def test_a_reply_is_waited_for_since_the_first_text_that_is_unanswered():
    watched = Watched(("reply_within", 10, "notify")).opened()
    assert watched.told == []
    watched.add("ann")
    watched.add("ann")
    assert watched.told == [("reply_within", "notify", ("bob", "cid"), 5, 15)]
    watched.add("bob")
    assert watched.told == [("reply_within", "notify", ("cid",), 5, 15), ("reply_within", "notify", ("ann",), 7, 17)]


def test_who_is_not_addressed_owes_no_reply():
    watched = Watched(("reply_within", 10, "notify")).opened()
    watched.add("ann", EV_PACKET, {"routing": {"kind": "text"}}, audience=("cid",))
    assert watched.told == [("reply_within", "notify", ("cid",), 5, 15)]


def test_a_turn_is_waited_for_since_what_gave_it():
    watched = Watched(("turn_within", 120, "warn"), ("turn_within", 600, "hide")).opened()
    assert watched.told == [("turn_within", "warn", ("ann",), 4, 124), ("turn_within", "hide", ("ann",), 4, 604)]
    watched.add("bob", "my.own")
    assert watched.told[0] == ("turn_within", "warn", ("ann",), 4, 124)
    watched.add("ann")
    assert watched.told[0] == ("turn_within", "warn", ("bob",), 6, 126)


def test_silence_is_counted_from_the_opening_and_from_what_was_said():
    watched = Watched(("max_silence", 60, "audit"), adapter=ConversationAdapter, participants=("ann", "bob"))
    watched.add("ann", EV_SESSION_INVITE)
    watched.add("bob", EV_SESSION_INVITE_ACK)
    assert watched.told == []
    watched.add("ag2.hub", EV_SESSION_OPENED)
    assert watched.told == [("max_silence", "audit", (), 3, 63)]
    watched.add("ann")
    watched.add("bob", "ag2.task.progress")
    assert watched.told == [("max_silence", "audit", (), 4, 64)]


def test_a_session_that_is_over_waits_for_nothing():
    watched = Watched(
        ("turn_within", 1, "warn"), ("max_silence", 1, "audit"), ("acks_within", 1, "warn"), ("reply_within", 1, "warn")
    ).opened()
    watched.add("ann")
    assert watched.told
    for state in (SessionState.CLOSED, SessionState.EXPIRED):
        assert deadlines(watched.metadata, state, watched.waits) == ()


class TestViolations:
    def violated(self, watched, index=0, at=None):
        return watched.take(violation(watched.metadata, watched.standing[index], "ag2.hub"), at)

    def test_each_is_told_once(self):
        watched = Watched(("turn_within", 5, "warn"), ("turn_within", 9, "notify")).opened()
        self.violated(watched)
        assert [item[1] for item in watched.told] == ["notify"]
        self.violated(watched)
        assert watched.told == []
        watched.add("ann")
        assert [item[:3] for item in watched.told] == [
            ("turn_within", "warn", ("bob",)),
            ("turn_within", "notify", ("bob",)),
        ]

    def test_what_is_waited_for_no_more_is_forgotten(self):
        watched = Watched(("turn_within", 5, "warn")).opened()
        for _ in range(20):
            self.violated(watched)
            watched.add(watched.adapter_state.expected_next_speaker)
            assert len(watched.waits.violated) <= 2

    def test_an_answer_of_another_one_does_not_let_it_be_told_twice(self):
        watched = Watched(("reply_within", 5, "warn")).opened()
        watched.add("ann")
        self.violated(watched)
        watched.add("bob")
        assert [item for item in watched.told if "cid" in item[2]] == []

    def test_after_a_hide_the_next_one_has_its_whole_time(self):
        watched = Watched(("turn_within", 600, "hide")).opened()
        hidden = self.violated(watched, at=1000)
        assert watched.told == [("turn_within", "hide", ("bob",), hidden.seq, 1600)]
        self.violated(watched, at=1600)
        self.violated(watched, at=2200)
        assert (watched.told, watched.adapter_state.hidden) == ([], ("ann", "bob", "cid"))
        back = watched.add("bob", at=3000)
        assert watched.told == [("turn_within", "hide", ("bob",), back.seq, 3600)]

    @pytest.mark.parametrize(
        ("action", "audience"),
        [("audit", ()), ("warn", ()), ("notify", ("bob", "ann")), ("hide", None), ("auto_close", None)],
    )
    def test_who_is_told(self, action, audience):
        watched = Watched()
        deadline = Deadline("turn_within", action, 5.0, ("bob",), Since(7, "e7", 3.0))
        envelope = violation(watched.metadata, deadline, "ag2.hub")
        assert envelope.audience == audience
        assert envelope.event_data == {
            "kind": "turn_within",
            "action": action,
            "seconds": 5.0,
            "waited_for": ["bob"],
            "since_seq": 7,
            "since_id": "e7",
        }
        assert (envelope.causation_id, envelope.idempotency_key) == (
            "e7",
            f"ag2.expectation:turn_within:{action}:5.0:7",
        )

    def test_the_creator_is_told_once_where_it_is_waited_for_itself(self):
        deadline = Deadline("turn_within", "notify", 5.0, ("ann",), Since(7, "e7", 3.0))
        assert violation(Watched().metadata, deadline, "ag2.hub").audience == ("ann",)

    def test_every_hub_says_it_alike_whatever_the_manifest_was_read_from(self):
        whole, read = (Watched(("turn_within", seconds, "warn")).opened() for seconds in (5, 5.0))
        said = [violation(item.metadata, item.standing[0], "ag2.hub").to_json() for item in (whole, read)]
        assert said[0] == said[1]


def test_what_is_waited_for_is_kept_as_json_and_read_back_equal():
    watched = Watched(("turn_within", 5, "warn"), ("reply_within", 3, "warn")).opened()
    watched.add("ann")
    watched.take(violation(watched.metadata, watched.standing[0], "ag2.hub"))
    kept = TypeAdapter(PendingWaits)
    assert kept.validate_json(kept.dump_json(watched.waits)) == watched.waits
    assert watched.waits.violated
