"""What a hub accepts, what it refuses, and that any number of them on one log agree."""

from __future__ import annotations

import asyncio
import logging

import pytest
from sessions.talk import Talk, TalkState, assert_in_order, opened, said, text

from otel_assembly import ConfigurationError
from otel_assembly.errors import (
    AccessDeniedError,
    AdapterError,
    InboxFull,
    LogConflictError,
    LogRegressed,
    LogUnavailableError,
    LogUnsureError,
    NotFoundError,
    ProtocolError,
)
from otel_assembly.sessions import (
    EV_ENVELOPE_EXPIRED,
    EV_SESSION_CLOSED,
    EV_SESSION_EXPIRED,
    EV_SESSION_INVITE,
    EV_SESSION_INVITE_ACK,
    EV_SESSION_OPENED,
    EV_TEXT,
    Envelope,
    Hub,
    LogPosition,
    MemorySessionLog,
    SessionState,
)


@pytest.fixture
def hub(log):
    return Hub(log, [Talk()])


async def test_a_session_opens_when_all_have_joined(hub):
    metadata = await hub.create("talk", "ann", ["ann", "bob", "cid"])
    name = metadata.session_id
    await hub.join(name, "bob")
    with pytest.raises(ProtocolError, match=r"is pending: it waits for 'cid' to join"):
        await hub.post(text(name, "ann", "too early"))
    await hub.join(name, "cid")
    await hub.post(text(name, "ann", "hello"))
    kinds = [e.event_type for e in await hub.envelopes(name)]
    assert kinds == [EV_SESSION_INVITE, EV_SESSION_INVITE_ACK, EV_SESSION_INVITE_ACK, EV_SESSION_OPENED, EV_TEXT]
    assert (await hub.folded(name)).state is SessionState.ACTIVE


async def test_joining_twice_is_joining_once(hub):
    name = await opened(hub, "ann", "bob")
    assert await hub.join(name, "bob") == await hub.join(name, "bob")
    assert len(await hub.envelopes(name)) == 3


async def test_one_refusal_closes_it(hub):
    metadata = await hub.create("talk", "ann", ["ann", "bob", "cid"])
    await hub.reject(metadata.session_id, "bob", "no time")
    assert (await hub.folded(metadata.session_id)).state is SessionState.CLOSED
    with pytest.raises(ProtocolError, match="is closed"):
        await hub.join(metadata.session_id, "cid")


async def test_what_follows_from_an_envelope_is_appended_with_it(hub, log):
    name = await opened(hub, "ann", "bob")
    bye = await hub.post(text(name, "ann", "bye"))
    closed = (await hub.envelopes(name))[-1]
    assert (closed.event_type, closed.event_data, closed.causation_id) == (
        EV_SESSION_CLOSED,
        {"reason": "said goodbye"},
        bye.envelope_id,
    )
    with pytest.raises(ProtocolError, match="is closed"):
        await Hub(log, [Talk()]).post(text(name, "bob", "wait"))


async def test_hubs_on_one_log_agree_and_none_refuses_because_it_is_behind(open_log):
    hubs = [Hub(open_log(), [Talk()]) for _ in range(3)]
    name = await opened(hubs[0], "ann", "bob")
    for hub in hubs:
        await hub.folded(name)
    for turn in range(30):
        await hubs[turn % 3].post(text(name, ("ann", "bob")[turn % 2], str(turn)))
    folded = [await hub.folded(name) for hub in (*hubs, Hub(open_log(), [Talk()]))]
    assert all(item == folded[0] for item in folded)
    assert folded[0].adapter_state == TalkState(30, "bob", ("27", "28", "29"))
    await assert_in_order(hubs[0], name)


async def test_of_hubs_that_race_for_one_turn_one_wins(open_log):
    hubs = [Hub(open_log(), [Talk()]) for _ in range(5)]
    name = await opened(hubs[0], "ann", "bob")
    for hub in hubs:
        await hub.folded(name)
    results = await asyncio.gather(
        *(hub.post(text(name, "ann", f"mine {i}")) for i, hub in enumerate(hubs)), return_exceptions=True
    )
    assert sorted(type(r).__name__ for r in results) == ["Envelope", *["ProtocolError"] * 4]


async def test_many_hubs_that_post_at_once_lose_nothing(open_log):
    hubs = [Hub(open_log(), [Talk(in_turns=False)]) for _ in range(4)]
    name = await opened(hubs[0], *(f"p{i}" for i in range(8)))

    async def speak(hub, who):
        for turn in range(25):
            await hub.post(text(name, who, f"{who} {turn}"))

    await asyncio.gather(*(speak(hubs[i % 4], f"p{i}") for i in range(8)))
    words = await said(hubs[0], name)
    assert sorted(words) == sorted(f"p{i} {turn}" for i in range(8) for turn in range(25))
    for i in range(8):
        assert [w for w in words if w.startswith(f"p{i} ")] == [f"p{i} {turn}" for turn in range(25)]
    await assert_in_order(hubs[0], name)


class TestOncePerKey:
    async def test_the_second_post_returns_the_first_whichever_hub_takes_it(self, log):
        one, two = Hub(log, [Talk()]), Hub(log, [Talk()])
        name = await opened(one, "ann", "bob")
        first = await one.post(text(name, "ann", "hello", idempotency_key="k"))
        await one.post(text(name, "bob", "hi"))
        assert await two.post(text(name, "ann", "hello", idempotency_key="k")) == first
        assert await said(one, name) == ["hello", "hi"]

    async def test_also_when_the_session_has_ended_since(self, hub):
        name = await opened(hub, "ann", "bob")
        first = await hub.post(text(name, "ann", "bye", idempotency_key="k"))
        assert await hub.post(text(name, "ann", "bye", idempotency_key="k")) == first

    async def test_other_content_under_the_key_is_refused(self, hub):
        name = await opened(hub, "ann", "bob")
        await hub.post(text(name, "ann", "hello", idempotency_key="k"))
        with pytest.raises(ProtocolError, match=r"other content under the idempotency key 'k' before, as row 4"):
            await hub.post(text(name, "ann", "hullo", idempotency_key="k"))
        await hub.post(text(name, "bob", "hullo", idempotency_key="k"))

    async def test_ten_at_once_are_one(self, open_log):
        hubs = [Hub(open_log(), [Talk()]) for _ in range(10)]
        name = await opened(hubs[0], "ann", "bob")
        posts = [hub.post(text(name, "ann", "same", idempotency_key="k")) for hub in hubs]
        assert len({e.envelope_id for e in await asyncio.gather(*posts)}) == 1
        assert await said(hubs[0], name) == ["same"]


class TestIdsAndTimes:
    async def test_a_clock_that_goes_back_does_not_take_the_log_with_it(self, log):
        ahead, behind = Hub(log, [Talk()], clock=lambda: 2e9), Hub(log, [Talk()], clock=lambda: 1e9)
        name = await opened(ahead, "ann", "bob")
        await ahead.post(text(name, "ann", "1"))
        await behind.post(text(name, "bob", "2"))
        await assert_in_order(ahead, name)

    async def test_an_id_of_the_senders_own_comes_after_the_newest_and_is_taken_once(self, hub):
        name = await opened(hub, "ann", "bob")
        newest = (await hub.folded(name)).envelope_id
        own = f"{int(newest[:16], 16) + 5:016x}{'0' * 16}"
        assert (await hub.post(text(name, "ann", "1", envelope_id=own))).envelope_id == own
        for taken in (own, newest, "z" * 32, "1"):
            with pytest.raises(ProtocolError, match="envelope id"):
                await hub.post(text(name, "bob", "2", envelope_id=taken))
        await hub.post(text(name, "bob", "2"))
        await assert_in_order(hub, name)

    async def test_no_id_leaves_the_next_one_no_room(self, hub):
        name = await opened(hub, "ann", "bob")
        with pytest.raises(ProtocolError, match="envelope id"):
            await hub.post(text(name, "ann", "1", envelope_id="f" * 32))
        await hub.post(text(name, "ann", "1", envelope_id="7" + "f" * 31))
        await hub.post(text(name, "bob", "2"))
        await assert_in_order(hub, name)


class TestRefused:
    @pytest.mark.parametrize(
        ("wrong", "error", "why"),
        [
            ({"sender_id": "eve"}, AccessDeniedError, "'eve' is not a participant"),
            ({"audience": ("eve",)}, ProtocolError, "the audience contains 'eve', not among the participants"),
            ({"event_type": ""}, ProtocolError, "event_type has 0 characters"),
            ({"event_type": EV_SESSION_CLOSED}, ProtocolError, "is a system type"),
            ({"idempotency_key": "k" * 257}, ProtocolError, "idempotency_key has 257 characters"),
            ({"idempotency_key": "a\0b"}, ProtocolError, "NUL"),
            ({"sender_id": "\ud800"}, ProtocolError, "surrogate"),
            ({"event_data": {"text": object()}}, ProtocolError, "is not valid JSON"),
            ({"event_data": {"text": float("nan")}}, ProtocolError, "is not valid JSON"),
            ({"event_data": ["text"]}, ProtocolError, "is a mapping, not list"),
            ({"event_data": {"text": "x" * 5000}}, ProtocolError, "too large"),
            ({"ttl_seconds": 0}, ProtocolError, "ttl_seconds"),
            ({"session_id": "nowhere"}, NotFoundError, "no session 'nowhere'"),
        ],
    )
    async def test_is_a_typed_error_and_an_audit_line_and_changes_nothing(self, log, wrong, error, why, caplog):
        hub = Hub(log, [Talk()], max_envelope_bytes=2000)
        name = await opened(hub, "ann", "bob")
        before = await hub.folded(name)
        given = {"session_id": name, "sender_id": "ann", "event_type": EV_TEXT, "event_data": {"text": "x"}, **wrong}
        with caplog.at_level(logging.WARNING, "otel_assembly.sessions.audit"), pytest.raises(error, match=why):
            await hub.post(Envelope(**given))
        (line,) = [r.getMessage() for r in caplog.records if r.name == "otel_assembly.sessions.audit"]
        assert error.__name__ in line
        assert await hub.folded(name) == before

    async def test_a_fold_that_raises_leaves_nothing_behind(self, hub, log):
        name = await opened(hub, "ann", "bob")
        before = await hub.folded(name)
        with pytest.raises(AdapterError, match=r"adapter 'talk' version 1 raised RuntimeError in fold\(\)"):
            await hub.post(text(name, "ann", "break"))
        assert await hub.folded(name) == before == await Hub(log, [Talk()]).folded(name)

    async def test_a_session_that_cannot_be(self, hub):
        with pytest.raises(ProtocolError, match="two or more"):
            await hub.create("talk", "ann", [])
        with pytest.raises(ProtocolError, match="name each once"):
            await hub.create("talk", "ann", ["bob", "bob"])
        with pytest.raises(NotFoundError, match=r"no adapter 'chat'; it has: talk 1"):
            await hub.create("chat", "ann", ["bob"])
        await hub.create("talk", "ann", ["bob"], session_id="s")
        with pytest.raises(ProtocolError, match="session 's' already exists"):
            await hub.create("talk", "ann", ["bob"], session_id="s")
        with pytest.raises(ProtocolError, match="cannot be written as JSON"):
            await hub.create("talk", "ann", ["bob"], knobs={"of": object()})

    def test_a_hub_that_cannot_be(self, log):
        with pytest.raises(ConfigurationError, match="two adapters have type 'talk' and version 1"):
            Hub(log, [Talk(), Talk()])
        with pytest.raises(ConfigurationError, match="inbox_limit must be at least 1"):
            Hub(log, [Talk()], inbox_limit=0)


class TestInboxes:
    async def test_hold_what_is_not_confirmed_in_order_and_at_least_once(self, hub, log):
        name = await opened(hub, "ann", "bob", "cid")
        await hub.post(text(name, "ann", "to all"))
        await hub.post(text(name, "cid", "to ann", audience=("ann",)))
        texts = [d.envelope.event_data.get("text") for d in await hub.inbox(name, "bob")]
        assert [t for t in texts if t] == ["to all"]
        deliveries = await hub.inbox(name, "ann")
        assert [d.envelope.event_data.get("text") for d in deliveries][-1] == "to ann"
        await hub.confirm(deliveries[-2])
        again = await Hub(log, [Talk()]).inbox(name, "ann")
        assert [d.envelope for d in again] == [deliveries[-1].envelope]
        await hub.confirm(deliveries[0])
        assert await hub.inbox(name, "ann") == again

    async def test_a_full_one_refuses_and_nothing_is_appended(self, log):
        hubs = [Hub(log, [Talk()], inbox_limit=5) for _ in range(2)]
        name = await self.filled(hubs[0], 5)
        before = await hubs[0].folded(name)
        for hub in hubs:
            with pytest.raises(InboxFull, match=r"'bob' has 5 envelopes to confirm, and its inbox is limited to 5"):
                await hub.post(text(name, "ann", "one more"), timeout=0.01)
            with pytest.raises(InboxFull):
                await hub.post(text(name, "ann", "one more"))
        assert await hubs[1].folded(name) == before
        # To whom there is room it is posted, and what the protocol says is never held back.
        await hubs[0].post(text(name, "ann", "not to bob", audience=("cid",)))
        await hubs[1].close(name, "ann")

    async def test_a_post_waits_for_room(self, log):
        one, two = Hub(log, [Talk()], inbox_limit=5), Hub(log, [Talk()], inbox_limit=5)
        name = await self.filled(one, 5)
        waits = asyncio.create_task(two.post(text(name, "ann", "room"), timeout=500))
        await asyncio.sleep(0.02)
        assert not waits.done()
        await one.confirm((await one.inbox(name, "bob"))[-1])
        assert (await waits).event_data == {"text": "room"}

    async def filled(self, hub, count):
        """A session in which bob has so many envelopes to confirm, the others few, and ann may speak."""
        name = await opened(hub, "ann", "bob", "cid")
        turn = 0
        while len(await hub.inbox(name, "bob")) < count or turn % 2:
            for who in ("ann", "cid"):
                for delivery in await hub.inbox(name, who):
                    await hub.confirm(delivery)
            speaker, other = ("ann", "cid") if turn % 2 == 0 else ("cid", "ann")
            room = len(await hub.inbox(name, "bob")) < count
            await hub.post(text(name, speaker, str(turn), audience=("bob",) if room else (other,)))
            turn += 1
        for delivery in await hub.inbox(name, "cid"):
            await hub.confirm(delivery)
        return name

    async def test_one_who_takes_no_part_has_none(self, hub):
        name = await opened(hub, "ann", "bob")
        with pytest.raises(AccessDeniedError, match="'eve' is not a participant"):
            await hub.inbox(name, "eve")


class TestTimeIsOver:
    async def test_of_an_envelope_for_each_recipient_once(self, log):
        now = 1e9
        hub, slow = Hub(log, [Talk()], clock=lambda: now), Hub(log, [Talk()], clock=lambda: 1e9)
        name = await opened(hub, "ann", "bob", "cid")
        await hub.post(text(name, "ann", "soon", ttl_seconds=10))
        assert [d.expired for d in await hub.inbox(name, "bob")][-1] is False
        now += 11
        for _ in range(2):
            assert [d.expired for d in await hub.inbox(name, "bob")][-1] is True
        # What one hub noted holds for all, whatever their clocks say; another recipient is judged anew.
        assert [d.expired for d in await slow.inbox(name, "bob")][-1] is True
        assert [d.expired for d in await slow.inbox(name, "cid")][-1] is False
        notes = [e.event_data for e in await hub.envelopes(name) if e.event_type == EV_ENVELOPE_EXPIRED]
        assert [n["participant_id"] for n in notes] == ["bob"]
        assert (await hub.folded(name)).adapter_state.seen == ("soon",)

    async def test_of_a_session(self, log):
        now = 1e9
        hub = Hub(log, [Talk()], clock=lambda: now)
        name = await opened(hub, "ann", "bob", ttl_seconds=60)
        assert await hub.expire(name) is False
        await hub.post(text(name, "ann", "in time"))
        now += 61
        with pytest.raises(ProtocolError, match="is expired"):
            await hub.post(text(name, "bob", "late"))
        assert await hub.expire(name) is False
        assert [e.event_type for e in await hub.envelopes(name)].count(EV_SESSION_EXPIRED) == 1
        assert (await Hub(log, [Talk()]).folded(name)).state is SessionState.EXPIRED


class TestHydrating:
    async def test_from_a_snapshot_folds_the_tail_only_and_comes_to_an_equal_state(self, log):
        hub = Hub(log, [Talk()], snapshot_every=50)
        name = await opened(hub, "ann", "bob")
        for turn in range(120):
            await hub.post(text(name, ("ann", "bob")[turn % 2], str(turn)))
        adapter = Talk()
        assert await Hub(log, [adapter]).folded(name) == await hub.folded(name)
        assert adapter.folds < 30

    async def test_a_snapshot_that_cannot_be_read_only_costs_time(self, log, caplog):
        hub = Hub(log, [Talk()], snapshot_every=10)
        name = await opened(hub, "ann", "bob")
        for turn in range(30):
            await hub.post(text(name, ("ann", "bob")[turn % 2], str(turn)))
        snapshot = await log.snapshot(name, "talk/1")
        await log.save_snapshot(name, "talk/1", type(snapshot)(snapshot.seq + 1, "{"))
        assert await Hub(log, [Talk()]).folded(name) == await hub.folded(name)
        assert "its snapshot cannot be read" in caplog.text

    async def test_a_later_version_never_changes_a_session_in_flight(self, log):
        name = await opened(Hub(log, [Talk(1)]), "ann", "bob")
        both = Hub(log, [Talk(1), Talk(2)])
        assert (await both.metadata(name)).manifest.version == 1
        assert (await both.create("talk", "ann", ["bob"])).manifest.version == 2
        with pytest.raises(NotFoundError, match="no adapter 'talk' version 1; it has: talk 2"):
            await Hub(log, [Talk(2)]).folded(name)

    async def test_what_an_envelope_says_is_nobodys_to_change_afterwards(self, hub, log):
        name = await opened(hub, "ann", "bob")
        data = {"text": "as it was"}
        accepted = await hub.post(Envelope(name, "ann", EV_TEXT, data))
        data["text"] = accepted.event_data["text"] = "changed"
        assert (await hub.folded(name)).adapter_state.seen == ("as it was",)
        assert await hub.folded(name) == await Hub(log, [Talk()]).folded(name)


class Flaky:
    """A log whose appends are lost before they happen, or whose answers are after they did."""

    def __init__(self, log, *failures):
        self._log = log
        self.failures = list(failures)

    def __getattr__(self, name):
        return getattr(self._log, name)

    async def append(self, rows, on: LogPosition):
        failure = self.failures.pop(0) if self.failures else None
        if failure == "before":
            raise LogUnsureError("the connection broke")
        await self._log.append(rows, on)
        if failure == "after":
            raise LogUnsureError("the connection broke")


class TestLostAnswers:
    @pytest.mark.parametrize("failures", [["before"], ["after"], ["before", "before", "after"], ["after"] * 2])
    async def test_a_post_without_a_key_is_there_once(self, log, failures):
        flaky = Flaky(log)
        hub = Hub(flaky, [Talk()])
        name = await opened(hub, "ann", "bob")
        flaky.failures = list(failures)
        posted = [await hub.post(text(name, ("ann", "bob")[i % 2], str(i))) for i in range(4)]
        assert await said(hub, name) == ["0", "1", "2", "3"]
        assert [e.envelope_id for e in posted] == [e.envelope_id for e in (await hub.envelopes(name))[3:]]

    async def test_what_is_not_known_is_said_to_be_unknown(self, log):
        flaky = Flaky(log)
        hub = Hub(flaky, [Talk()])
        name = await opened(hub, "ann", "bob")
        flaky.failures = ["after"]

        async def gone(*_):
            raise LogUnavailableError("no answer")

        flaky.rows_from = gone
        with pytest.raises(LogUnsureError, match="post again with the same idempotency key"):
            await hub.post(text(name, "ann", "1", idempotency_key="k"))
        del flaky.rows_from
        again = await hub.post(text(name, "ann", "1", idempotency_key="k"))
        assert (await hub.envelopes(name))[-1] == again

    async def test_a_log_that_always_says_somebody_was_first_is_not_asked_for_ever(self, log):
        flaky = Flaky(log)
        hub = Hub(flaky, [Talk()])
        name = await opened(hub, "ann", "bob")

        async def first(*_):
            raise LogConflictError("somebody was first")

        flaky.append = first
        with pytest.raises(LogConflictError, match="nothing was appended"):
            await hub.post(text(name, "ann", "1"))


async def test_a_log_that_went_back_stops_the_session(log):
    hub = Hub(log, [Talk()])
    name = await opened(hub, "ann", "bob")
    await hub.post(text(name, "ann", "1"))
    copy = MemorySessionLog()
    rows = await log.rows_from(name, 1)
    await copy.create(name, await log.metadata(name), rows[0])
    await copy.append(rows[1:3], LogPosition(1, rows[0].envelope_id))

    class FailedOver:
        """A log that was read from one place, and is read from a copy that lagged behind."""

        at = log

        def __getattr__(self, attribute):
            return getattr(self.at, attribute)

    over = FailedOver()
    hub = Hub(over, [Talk()])
    await hub.folded(name)
    over.at = copy
    for _ in range(2):
        with pytest.raises(LogRegressed, match="row 4, which this hub has read, no longer exists"):
            await hub.post(text(name, "bob", "2"))
    assert len(await copy.rows_from(name, 1)) == 3


async def test_a_hub_hears_of_what_others_append(open_log):
    one, two = Hub(open_log(), [Talk()]), Hub(open_log(), [Talk()])
    name = await opened(one, "ann", "bob")
    listens, found = asyncio.Event(), asyncio.Event()

    async def listen():
        # None, first of all and where some may have been missed, is to look at every session.
        async for session_id in two.changes():
            listens.set()
            if session_id in (None, name) and "hello" in await said(two, name):
                found.set()

    listening = asyncio.create_task(listen())
    await listens.wait()
    await one.post(text(name, "ann", "hello"))
    await found.wait()
    await two.aclose()
    await listening


async def test_whoever_waits_for_changes_is_let_go_when_the_hub_closes(log):
    async with Hub(log, [Talk()]) as hub:
        waiting = asyncio.create_task(anext_none_after(hub))
        await asyncio.sleep(0.01)
    await waiting


async def anext_none_after(hub):
    async for _ in hub.changes():
        pass


async def test_a_post_that_is_cancelled_leaves_the_hub_working(log):
    hub = Hub(log, [Talk()])
    name = await opened(hub, "ann", "bob")
    slow = log.append

    async def append(rows, on):
        await asyncio.sleep(0.02)
        await slow(rows, on)

    log.append = append
    posting = asyncio.create_task(hub.post(text(name, "ann", "never heard")))
    await asyncio.sleep(0.005)
    posting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await posting
    log.append = slow
    await hub.post(text(name, "ann", "heard"))
    assert await said(hub, name) == ["heard"]
