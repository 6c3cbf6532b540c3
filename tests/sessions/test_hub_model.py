"""A hub, or several, do what a model of twenty lines does, whatever is done in whatever order."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sessions.talk import Talk, assert_in_order, said, text

from otel_assembly.errors import InboxFull, LogUnsureError, NetworkError, ProtocolError
from otel_assembly.sessions import Hub, MemorySessionLog, SessionState

WHO = ("ann", "bob", "cid")
LIMIT = 6


class Model:
    """What a session is: what was said, what each was handed and confirmed, and whether it goes on."""

    def __init__(self):
        self.state = "pending"
        self.joined = {"ann"}
        self.texts = []
        self.keys = {}
        self.last = None
        self.addressed = dict.fromkeys(WHO, 0)
        self.confirmed = dict.fromkeys(WHO, 0)

    def address(self, sender):
        for who in WHO:
            self.addressed[who] += who != sender

    def join(self, who):
        if who in self.joined - {"ann"}:
            return True
        if self.state != "pending" or who == "ann":
            return who == "ann" and self.state in ("pending", "active")
        self.joined.add(who)
        self.address(who)
        if self.joined == set(WHO):
            self.state = "active"
            self.address(None)
        return True

    def post(self, who, says, key):
        if key is not None and (who, key) in self.keys:
            return None if self.keys[who, key] == says else ProtocolError
        if self.state != "active" or who == self.last:
            return ProtocolError
        if any(self.addressed[p] - self.confirmed[p] >= LIMIT for p in WHO if p != who):
            return InboxFull
        self.texts.append(says)
        self.last = who
        self.address(who)
        if key is not None:
            self.keys[who, key] = says
        if says == "bye":
            self.close(None)
        return None

    def close(self, who):
        if self.state in ("closed",):
            return False
        self.state = "closed"
        self.address(who)
        return True


class Losing:
    """A log that loses the answer of an append when it is told to, before or after it happened."""

    def __init__(self, log):
        self._log = log
        self.lose = None

    def __getattr__(self, name):
        return getattr(self._log, name)

    async def append(self, rows, on):
        lose, self.lose = self.lose, None
        if lose == "before":
            raise LogUnsureError("lost")
        await self._log.append(rows, on)
        if lose == "after":
            raise LogUnsureError("lost")


class HubsAgreeWithTheModel(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.model = Model()
        self.log = Losing(MemorySessionLog())
        self.hubs = []

    def run(self, awaitable):
        return self.loop.run_until_complete(awaitable)

    def teardown(self):
        self.loop.close()

    def outcome(self, awaitable):
        try:
            self.run(awaitable)
        except NetworkError as error:
            return type(error)
        return None

    def hub(self, index):
        return self.hubs[index % len(self.hubs)]

    @initialize()
    def create(self):
        self.open_another()
        self.name = self.run(self.hubs[0].create("talk", "ann", WHO)).session_id
        self.model.address("ann")

    @rule()
    def open_another(self):
        self.hubs.append(Hub(self.log, [Talk()], inbox_limit=LIMIT, snapshot_every=3))

    @precondition(lambda self: len(self.hubs) > 1)
    @rule(index=st.integers(0, 9))
    def lose_a_hub(self, index):
        self.hubs.pop(index % len(self.hubs))

    @rule(index=st.integers(0, 9), who=st.sampled_from(WHO[1:]))
    def join(self, index, who):
        assert (self.outcome(self.hub(index).join(self.name, who)) is None) == self.model.join(who)

    @rule(
        index=st.integers(0, 9),
        who=st.sampled_from(WHO),
        says=st.sampled_from(["a", "b", "c", "bye"]),
        key=st.sampled_from([None, None, "k", "l"]),
        lose=st.sampled_from([None, None, "before", "after"]),
    )
    def post(self, index, who, says, key, lose):
        self.log.lose = lose
        got = self.outcome(self.hub(index).post(text(self.name, who, says, idempotency_key=key)))
        assert got == self.model.post(who, says, key)
        self.log.lose = None

    @rule(index=st.integers(0, 9), who=st.sampled_from(WHO), upto=st.integers(0, 9))
    def confirm(self, index, who, upto):
        hub = self.hub(index)
        deliveries = self.run(hub.inbox(self.name, who))
        assert len(deliveries) == self.model.addressed[who] - self.model.confirmed[who]
        if deliveries:
            delivery = deliveries[upto % len(deliveries)]
            self.run(hub.confirm(delivery))
            self.model.confirmed[who] = delivery.count

    @rule(index=st.integers(0, 9), who=st.sampled_from(WHO))
    def close(self, index, who):
        assert (self.outcome(self.hub(index).close(self.name, who)) is None) == self.model.close(who)

    @rule(index=st.integers(0, 9), says=st.sampled_from(["break", "x"]))
    def post_what_nobody_may(self, index, says):
        who = "eve" if says == "x" else next(w for w in WHO if w != self.model.last)
        assert self.outcome(self.hub(index).post(text(self.name, who, says))) is not None

    @invariant()
    def all_hubs_agree(self):
        if not self.hubs:
            return
        folded = [self.run(hub.folded(self.name)) for hub in (*self.hubs, Hub(self.log, [Talk()]))]
        assert all(item == folded[0] for item in folded)
        assert self.run(said(self.hubs[0], self.name)) == self.model.texts
        assert folded[0].state is SessionState(self.model.state)
        assert folded[0].adapter_state.turns == len(self.model.texts)
        self.run(assert_in_order(self.hubs[0], self.name))


TestHubsAgreeWithTheModel = HubsAgreeWithTheModel.TestCase
TestHubsAgreeWithTheModel.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


class TestLong(HubsAgreeWithTheModel.TestCase):
    settings = settings(max_examples=300, stateful_step_count=50, deadline=None)


# Two to three minutes on a machine that is busy: what interrupts it looks to hypothesis like a test that is flaky.
TestLong = pytest.mark.timeout(1_200)(pytest.mark.slow(TestLong))
