"""What a post and a hydration take, counted: the same late in a session as early in it."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise

from sessions.talk import Talk, opened, text

from otel_assembly import Agent
from otel_assembly.sessions import Hub, MemorySessionLog, serve
from otel_assembly.testing import ScriptedModel

WHO = ("ann", "bob")


class Counting:
    """Counts what is asked of a log, and the rows that it hands out."""

    def __init__(self, log):
        self._log = log
        self.counts = Counter()

    def __getattr__(self, name):
        method = getattr(self._log, name)

        async def counted(*given):
            self.counts[name] += 1
            found = await method(*given)
            if name == "rows_from":
                self.counts["rows"] += len(found)
            return found

        return method if name in ("press", "changes") else counted


async def test_a_post_costs_the_same_however_long_the_session_is(log):
    counting, adapter = Counting(log), Talk()
    hub = Hub(counting, [adapter])
    name = await opened(hub, *WHO)
    costs = []
    for number in range(200):
        counting.counts.clear()
        adapter.folds = 0
        await hub.post(text(name, WHO[number % 2], str(number), idempotency_key=f"k{number}"))
        costs.append((dict(counting.counts), adapter.folds))
    assert costs == [({"append": 1}, 1)] * 200


async def test_a_post_after_others_reads_what_they_appended_and_no_more(log):
    counting, adapter = Counting(log), Talk()
    hub, other = Hub(counting, [adapter]), Hub(log, [Talk()])
    name = await opened(hub, *WHO)
    await other.folded(name)
    costs = []
    for number in range(60):
        await other.post(text(name, "ann", f"a{number}"))
        counting.counts.clear()
        adapter.folds = 0
        await hub.post(text(name, "bob", f"b{number}"))
        costs.append((dict(counting.counts), adapter.folds))
    # It is behind: refused by what it knows, it reads the row that it knew last and the new one, and decides again.
    assert costs[1:] == [({"rows_from": 1, "rows": 2, "append": 1}, 2)] * 59, costs


async def test_hydrating_ten_thousand_envelopes_folds_less_than_a_tenth_of_them():
    """Whenever it is done: the tail behind a snapshot never comes to that many."""
    log = MemorySessionLog()
    hub = Hub(log, [Talk()], inbox_limit=10_000)
    name = await opened(hub, *WHO)
    longest = 0
    for number in range(2_400):
        accepted = await hub.post(text(name, WHO[number % 2], str(number)))
        if number % 101 == 0 or number > 2_300:
            adapter = Talk()
            assert (await Hub(log, [adapter]).folded(name)).seq == accepted.seq
            longest = max(longest, adapter.folds)
    assert 0 < longest <= 500


async def test_a_long_session_is_folded_in_pieces_and_the_event_loop_goes_on_meanwhile(log):
    hub, adapter = Hub(log, [Talk()], snapshot_every=0), Talk()
    name = await opened(hub, *WHO)
    for number in range(700):
        await hub.post(text(name, WHO[number % 2], str(number)))
    pieces = []

    async def look_on():
        while True:
            pieces.append(adapter.folds)
            await asyncio.sleep(0)

    looking = asyncio.create_task(look_on())
    folded = await Hub(log, [adapter]).folded(name)
    looking.cancel()
    assert folded.seq == adapter.folds > 700
    assert max(after - before for before, after in pairwise(pieces)) <= 200


async def test_a_served_turn_takes_few_statements(log):
    counting, turns = Counting(log), 12
    hub, other = Hub(counting, [Talk(in_turns=False)]), Hub(log, [Talk(in_turns=False)])
    name = await opened(other, *WHO)
    bob = Agent("bob", "", ScriptedModel(*["well"] * turns))
    serving = asyncio.create_task(serve(hub, bob, "bob", session_id=name, lease_seconds=1_000.0, sweep_seconds=1_000.0))
    for number in range(turns):
        asked = await other.post(text(name, "ann", str(number)))
        while not await other.posted_under(name, "bob", asked.envelope_id) or await other.inbox(name, "bob"):
            await asyncio.sleep(0.01)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    assert counting.counts["claim_turn"] == counting.counts["turn"] == turns
    assert counting.counts["renew_turn"] == counting.counts["end_turn"] == 0
    started = 24  # what the server reads before its first turn, and when one change wakes it twice
    assert sum(counting.counts.values()) - counting.counts["rows"] <= started + 12 * turns


async def test_an_inbox_reads_what_is_for_others_once(log):
    counting = Counting(log)
    hub = Hub(counting, [Talk(in_turns=False)])
    name = await opened(hub, "ann", "bob", "cid")
    for delivery in await hub.inbox(name, "cid"):
        await hub.confirm(delivery)
    for number in range(600):
        await hub.post(text(name, "ann", str(number), audience=("bob",)))
    assert await hub.inbox(name, "cid") == []
    counting.counts.clear()
    assert await hub.inbox(name, "cid") == []
    assert counting.counts["rows"] == 0
    await hub.post(text(name, "ann", "for cid"))
    await hub.post(text(name, "ann", "for cid too"))
    counting.counts.clear()
    for _ in range(2):
        found = await hub.inbox(name, "cid")
        assert [delivery.envelope.event_data["text"] for delivery in found] == ["for cid", "for cid too"]
    assert counting.counts["rows"] == 4
    await hub.confirm(found[0])
    (left,) = await hub.inbox(name, "cid")
    assert left == found[1]
    elsewhere = await Hub(log, [Talk(in_turns=False)]).inbox(name, "cid")
    assert list(elsewhere) == [left]
