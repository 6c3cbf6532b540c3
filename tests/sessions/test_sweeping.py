"""What a session waits for in vain is told in its log: once, by whichever hub looks, by a clock that the tests set."""

from __future__ import annotations

import asyncio
import logging

import pytest
from sessions.talk import Talk, assert_in_order, text

from otel_assembly.errors import ProtocolError
from otel_assembly.sessions import (
    EV_EXPECTATION_VIOLATED,
    EV_SESSION_CLOSED,
    EV_SESSION_EXPIRED,
    ConversationAdapter,
    DiscussionAdapter,
    Expectation,
    Hub,
    SessionState,
)

WHO = ("ann", "bob", "cid")


class Clock:
    """The time, which goes on when a test says so."""

    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def hub_on(log, clock, *expectations, adapter=DiscussionAdapter, **more):
    return Hub(log, [adapter([Expectation(*expectation) for expectation in expectations])], clock=clock, **more)


async def opened(hub, *who, **more):
    (kind,) = [adapter.manifest.type for adapter in hub._adapters.values()]
    name = (await hub.create(kind, who[0], who, **more)).session_id
    for participant_id in who[1:]:
        await hub.join(name, participant_id)
    return name


async def violations(hub, name):
    return [e for e in await hub.envelopes(name) if e.event_type == EV_EXPECTATION_VIOLATED]


async def unread(hub, name, participant_id):
    """The types of what waits for a participant since the session opened."""
    return [d.envelope.event_type for d in await hub.inbox(name, participant_id)][-1:]


async def test_a_turn_that_is_over_is_told_once_by_whichever_hub_looks(open_log, clock, caplog):
    expected = ("turn_within", 60, "warn")
    hubs = [hub_on(open_log(), clock, expected) for _ in range(3)]
    name = await opened(hubs[0], *WHO)
    await hubs[0].post(text(name, "ann", "hello"))
    clock.now += 59
    assert [await hub.sweep() for hub in hubs] == [[], [], []]
    clock.now += 2
    with caplog.at_level(logging.WARNING):
        told = [found for hub in hubs for found in await hub.sweep()]
    assert [e.event_data["waited_for"] for e in told] == [["bob"]]
    assert [record.message for record in caplog.records] == [
        f"session {name!r}: turn_within of 60 s was not met by 'bob'; warn"
    ]
    clock.now += 600
    assert [await hub.sweep() for hub in (*hubs, hub_on(open_log(), clock, expected))] == [[], [], [], []]
    assert await violations(hubs[2], name) == told
    # A new wait is another one.
    await hubs[1].post(text(name, "bob", "at last"))
    clock.now += 61
    assert [e.event_data["waited_for"] for e in await hubs[2].sweep(name)] == [["cid"]]
    await assert_in_order(hubs[0], name)


async def test_hubs_that_sweep_at_once_tell_it_once(open_log, clock):
    hubs = [hub_on(open_log(), clock, ("turn_within", 60, "notify")) for _ in range(4)]
    name = await opened(hubs[0], *WHO)
    for hub in hubs:
        await hub.folded(name)
    clock.now += 61
    told = await asyncio.gather(*(hub.sweep() for hub in hubs))
    assert sum(map(len, told)) == len(await violations(hubs[0], name)) == 1


async def test_a_warning_is_for_the_log_and_a_notice_is_delivered_to_who_is_waited_for_and_the_creator(log, clock):
    hub = hub_on(log, clock, ("turn_within", 60, "warn"), ("turn_within", 90, "notify"))
    name = await opened(hub, *WHO)
    await hub.post(text(name, "ann", "hello"))
    before = {who: await unread(hub, name, who) for who in WHO}
    clock.now += 61
    assert len(await hub.sweep()) == 1
    assert {who: await unread(hub, name, who) for who in WHO} == before
    clock.now += 31
    assert len(await hub.sweep()) == 1
    notice = [EV_EXPECTATION_VIOLATED]
    assert {who: await unread(hub, name, who) for who in WHO} == {"ann": notice, "bob": notice, "cid": before["cid"]}


async def test_who_is_hidden_is_passed_over_and_so_it_is_for_who_reads_the_log_anew(log, clock):
    hub = hub_on(log, clock, ("turn_within", 60, "hide"))
    name = await opened(hub, *WHO)
    await hub.post(text(name, "ann", "hello"))
    clock.now += 61
    await hub.sweep()
    await hub.post(text(name, "cid", "bob is not here"))
    reopened = hub_on(log, clock, ("turn_within", 60, "hide"))
    assert await reopened.folded(name) == await hub.folded(name)
    assert (await reopened.folded(name)).adapter_state.hidden == ("bob",)


async def test_an_invitation_that_nobody_answers_closes_the_session(log, clock):
    hub = hub_on(log, clock, ("acks_within", 30, "auto_close"))
    name = (await hub.create("discussion", "ann", WHO)).session_id
    await hub.join(name, "bob")
    clock.now += 31
    assert [e.event_data["waited_for"] for e in await hub.sweep()] == [["cid"]]
    closed = (await hub.envelopes(name))[-1]
    assert (closed.event_type, closed.event_data) == (EV_SESSION_CLOSED, {"reason": "expectation_violated:acks_within"})
    assert (await hub.folded(name)).state is SessionState.CLOSED
    assert await hub.sweep() == []
    with pytest.raises(ProtocolError, match="is closed"):
        await hub.join(name, "cid")


async def test_what_is_answered_meanwhile_is_not_told(open_log, clock):
    behind, ahead = (hub_on(open_log(), clock, ("turn_within", 60, "auto_close")) for _ in range(2))
    name = await opened(behind, *WHO)
    await behind.folded(name)
    clock.now += 61

    read = behind._log.rows_from

    async def tail_and_answer(*given):
        rows = await read(*given)
        behind._log.rows_from = read
        # The answer comes between the look at the log and the append.
        await ahead.post(text(name, "ann", "just in time"))
        return rows

    behind._log.rows_from = tail_and_answer
    assert await behind.sweep(name) == []
    assert await violations(ahead, name) == []
    assert (await behind.folded(name)).state is SessionState.ACTIVE


async def test_several_expectations_are_told_in_the_order_of_their_time(log, clock):
    hub = hub_on(log, clock, ("max_silence", 90, "audit"), ("max_silence", 60, "warn"), adapter=ConversationAdapter)
    await opened(hub, "ann", "bob")
    clock.now += 100
    assert [e.event_data["action"] for e in await hub.sweep()] == ["warn", "audit"]
    assert await hub.sweep() == []


async def test_a_session_whose_time_is_over_ends(log, clock):
    hub = hub_on(log, clock)
    name = await opened(hub, *WHO, ttl_seconds=10)
    clock.now += 11
    assert await hub.sweep() == []
    assert (await hub.envelopes(name))[-1].event_type == EV_SESSION_EXPIRED


async def test_what_a_session_waits_for_is_in_its_snapshot(log, clock):
    expected = ("turn_within", 60, "warn"), ("reply_within", 500, "notify")
    hub = hub_on(log, clock, *expected, snapshot_every=2)
    name = await opened(hub, *WHO)
    for turn in range(6):
        clock.now += 61
        await hub.sweep()
        await hub.post(text(name, WHO[turn % 3], str(turn)))
    snapshot = await log.snapshot(name, "discussion/1")
    assert snapshot.seq > 10
    assert await hub_on(log, clock, *expected).folded(name) == await hub.folded(name)


async def test_a_session_that_cannot_be_read_is_passed_over_with_a_warning(log, clock, caplog):
    both = [Talk(), DiscussionAdapter([Expectation("turn_within", 60, "warn")])]
    name = (await Hub(log, both, clock=clock).create("talk", "ann", WHO)).session_id
    hub = Hub(log, both[1:], clock=clock)
    other = (await hub.create("discussion", "ann", WHO)).session_id
    await hub.join(other, "bob")
    await hub.join(other, "cid")
    clock.now += 61
    assert [e.session_id for e in await hub.sweep()] == [other]
    assert f"session {name!r} was not swept" in caplog.text
