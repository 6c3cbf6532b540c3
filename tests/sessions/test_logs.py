"""What every log holds, in memory, in SQLite and in PostgreSQL."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from rows import appended, created, on, row, said

from otel_assembly.errors import LogConflictError, LogUnavailableError, SessionLogError
from otel_assembly.sessions import Cursor, LogPosition, SessionLog, Snapshot

#: As long as an id may be, in characters that take four bytes each and that nothing compresses.
LONG = "".join(chr(0x10000 + 7919 * n % 60000) for n in range(256))


async def test_it_is_a_log(log):
    assert isinstance(log, SessionLog)


async def test_what_was_appended_is_read_again(open_log):
    log = open_log()
    first = await created(log, metadata='{"creator_id": "ann"}')
    second, third = row("s", 2, sender="ben", key="k", text="hö\n\x7f"), row("s", 3)
    await log.append([second, third], on(first))
    for item in (log, open_log()):
        assert await item.metadata("s") == '{"creator_id": "ann"}'
        assert list(await item.rows_from("s", 1)) == [first, second, third]
        assert list(await item.rows_from("s", 2)) == [second, third]
        assert list(await item.rows_from("s", 2, 1)) == [second]
        assert list(await item.rows_from("s", 4)) == []
        assert await item.by_id("s", second.envelope_id) == second
        assert await item.by_key("s", "ben", "k") == second
        assert await item.by_key("s", "ann", "k") is None
        assert await item.by_id("s", "nobody's") is None


async def test_what_is_not_there_is_nothing(log):
    assert await log.metadata("s") is None
    assert list(await log.session_ids()) == []
    assert list(await log.rows_from("s", 1)) == []
    assert await log.by_id("s", "i") is None
    assert await log.by_key("s", "ann", "k") is None
    assert dict(await log.cursors("s")) == {}
    assert await log.snapshot("s", "discussion/1") is None
    await log.move_cursor("s", "ann", Cursor(1, 1))
    await log.save_snapshot("s", "discussion/1", Snapshot(1, "{}"))
    assert dict(await log.cursors("s")) == {}
    with pytest.raises(LogConflictError):
        await log.append([row("s", 2)], LogPosition(1, "i"))


async def test_sessions_are_listed_in_the_order_of_their_creation(open_log):
    log, other = open_log(), open_log()
    for number, session_id in enumerate("zaymb"):
        await created(other if number % 2 else log, session_id)
    assert list(await log.session_ids()) == list(await other.session_ids()) == list("zaymb")


async def test_a_session_is_created_once(open_log):
    log, other = open_log(), open_log()
    first = await created(log, metadata="first")
    with pytest.raises(LogConflictError, match="'s'"):
        await other.create("s", "second", row("s", 1, envelope_id="other"))
    assert await other.metadata("s") == "first"
    assert list(await other.rows_from("s", 1)) == [first]


async def test_sessions_share_ids_and_keys_with_nobody(log):
    for session_id in "ab":
        first = await created(log, session_id)
        await log.append([row(session_id, 2, key="k")], on(first))
    assert (await log.by_key("b", "ann", "k")).session_id == "b"
    assert await said(log, "a") == await said(log, "b")


async def test_ids_may_be_as_long_as_they_may(log):
    first = row(LONG, 1, sender=LONG, key=LONG, envelope_id=LONG)
    await log.create(LONG, "{}", first)
    await log.move_cursor(LONG, LONG, Cursor(1, 1))
    assert await log.by_key(LONG, LONG, LONG) == await log.by_id(LONG, LONG) == first
    assert dict(await log.cursors(LONG)) == {LONG: Cursor(1, 1)}


async def test_a_body_may_be_large(log):
    first = await created(log)
    large = row("s", 2, text="x" * 3_000_000)
    await log.append([large], on(first))
    assert await log.by_id("s", large.envelope_id) == large


@pytest.mark.parametrize("stale", [LogPosition(1, f"{1:016x}"), LogPosition(2, "other"), LogPosition(3, f"{3:016x}")])
async def test_only_the_newest_row_is_appended_to(open_log, stale):
    log, other = open_log(), open_log()
    await appended(log, 2)
    with pytest.raises(LogConflictError, match="'s'"):
        await other.append([row("s", stale.seq + 1, envelope_id="late")], stale)
    assert await said(other, "s") == [f"1 {1:016x}", f"2 {2:016x}"]


@pytest.mark.parametrize(
    "again",
    [
        [row("s", 3, envelope_id=f"{1:016x}")],
        [row("s", 3, key="k")],
        [row("s", 3), row("s", 4, key="k")],
        [row("s", 3, envelope_id="i"), row("s", 4, envelope_id="i")],
        [row("s", 3, key="n"), row("s", 4, key="n")],
    ],
    ids=["id", "key", "key of the second", "id twice", "key twice"],
)
async def test_an_id_and_a_key_are_used_once_and_nothing_is_written_by_halves(open_log, again):
    log, other = open_log(), open_log()
    first = await created(log)
    second = row("s", 2, key="k")
    await log.append([second], on(first))
    with pytest.raises(LogConflictError):
        await other.append(again, on(second))
    assert list(await log.rows_from("s", 1)) == [first, second]
    after = [row("s", 3, sender="ben", key="k"), row("s", 4)]
    await other.append(after, on(second))
    assert list(await log.rows_from("s", 3)) == after


@pytest.mark.parametrize("rows", [[], [row("s", 3)], [row("s", 2), row("s", 4)], [row("s", 2), row("t", 3)]])
async def test_rows_with_gaps_are_refused(log, rows):
    first = await created(log)
    with pytest.raises(SessionLogError):
        await log.append(rows, on(first))
    with pytest.raises(SessionLogError):
        await log.create("t", "{}", row("t", 2))
    assert list(await log.rows_from("s", 1)) == [first]
    assert list(await log.session_ids()) == ["s"]


async def test_of_many_who_append_at_once_one_is_first(open_log):
    logs = [open_log() for _ in range(4)]
    last = await created(logs[0])
    for seq in range(2, 12):
        tried = [row("s", seq, envelope_id=f"{seq}-{number}") for number in range(8)]
        done = await asyncio.gather(
            *(logs[number % 4].append([item], on(last)) for number, item in enumerate(tried)), return_exceptions=True
        )
        won = [item for item, outcome in zip(tried, done, strict=True) if outcome is None]
        assert len(won) == 1
        assert all(isinstance(outcome, LogConflictError) for outcome in done if outcome is not None)
        (last,) = won
    rows = await logs[3].rows_from("s", 1)
    assert [row.seq for row in rows] == list(range(1, 12))


async def test_a_cursor_goes_forward_only(open_log):
    log, other = open_log(), open_log()
    await appended(log, 3)
    await log.move_cursor("s", "ann", Cursor(2, 1))
    await log.move_cursor("s", "ben", Cursor(1, 1))
    await other.move_cursor("s", "ann", Cursor(1, 9))
    assert dict(await other.cursors("s")) == {"ann": Cursor(2, 1), "ben": Cursor(1, 1)}
    await other.move_cursor("s", "ann", Cursor(3, 2))
    assert (await log.cursors("s"))["ann"] == Cursor(3, 2)


async def test_a_snapshot_is_the_newest_of_its_adapter(open_log):
    log, other = open_log(), open_log()
    await appended(log, 3)
    await log.save_snapshot("s", "discussion/1", Snapshot(2, '{"turn": 2}'))
    await other.save_snapshot("s", "discussion/1", Snapshot(1, '{"turn": 1}'))
    await other.save_snapshot("s", "discussion/2", Snapshot(3, '{"turn": 3}'))
    assert await other.snapshot("s", "discussion/1") == Snapshot(2, '{"turn": 2}')
    assert await log.snapshot("s", "discussion/2") == Snapshot(3, '{"turn": 3}')
    assert await log.snapshot("s", "discussion/3") is None


async def until_told(changes, session_id):
    """Wait for a change of a session; of others a notice may come as well."""
    while await anext(changes) != session_id:
        pass


async def test_changes_are_told_to_every_log(open_log):
    log, other = open_log(), open_log()
    last = await created(log)
    async with aclosing(log.changes()) as ours, aclosing(other.changes()) as theirs:
        assert await anext(ours) is None
        assert await anext(theirs) is None
        for seq in range(2, 6):
            after = row("s", seq)
            await log.append([after], on(last))
            last = after
            await until_told(ours, "s")
            await until_told(theirs, "s")
        await created(other, "t")
        await until_told(ours, "t")
        await until_told(theirs, "t")


async def test_every_session_that_changed_is_told(open_log):
    log, other = open_log(), open_log()
    names = [f"s{number}" for number in range(20)]
    async with aclosing(other.changes()) as changes:
        assert await anext(changes) is None
        for name in names:
            await appended(log, 3, name)
        missing = set(names)
        while missing:
            missing.discard(await anext(changes))


async def test_a_refused_append_tells_nothing(open_log):
    log, other = open_log(), open_log()
    first = await created(log)
    async with aclosing(other.changes()) as changes:
        assert await anext(changes) is None
        with pytest.raises(LogConflictError):
            await log.append([row("s", 2)], LogPosition(1, "other"))
        with pytest.raises(LogConflictError):
            await log.append([row("s", 2, envelope_id=first.envelope_id)], on(first))
        await created(log, "t")
        assert await anext(changes) == "t"


async def test_who_waits_for_changes_goes_on_when_the_log_is_closed(open_log):
    log = open_log()
    await created(log)

    async def follow():
        async for _ in log.changes():
            listening.set()

    listening = asyncio.Event()
    follower = asyncio.create_task(follow())
    await listening.wait()
    await log.close()
    await follower


async def test_whoever_holds_the_press_reads_decides_and_appends(open_log):
    logs = [open_log() for _ in range(3)]
    await created(logs[0])

    async def add(log, who):
        for number in range(5):
            async with log.press("s"):
                newest = (await log.rows_from("s", 1))[-1]
                await asyncio.sleep(0.001)
                await log.append([row("s", newest.seq + 1, envelope_id=f"{who}-{number}")], on(newest))

    await asyncio.gather(*(add(log, who) for who, log in enumerate([*logs, *logs])))
    assert len(await logs[0].rows_from("s", 1)) == 31


async def test_who_has_not_the_press_waits_and_is_then_too_late(open_log):
    log, other = open_log(), open_log()
    first = await created(log)
    assert list(await other.rows_from("s", 1)) == [first]
    go = asyncio.Event()

    async def append():
        await go.wait()
        await other.append([row("s", 2, envelope_id="late")], on(first))

    late = asyncio.create_task(append())
    async with log.press("s"):
        go.set()
        await asyncio.sleep(0.05)
        assert not late.done()
        assert list(await other.rows_from("s", 1)) == [first]
        second = row("s", 2)
        await log.append([second], on(first))
        # What was appended is accepted at once, not when the press is let go.
        assert list(await other.rows_from("s", 1)) == [first, second]
    with pytest.raises(LogConflictError):
        await late


async def test_the_press_is_let_go_by_whoever_fails_or_is_cancelled(open_log):
    log, other = open_log(), open_log()
    last = await created(log)

    async def hold(entered):
        async with log.press("s"):
            entered.set()
            await asyncio.Event().wait()

    with pytest.raises(ZeroDivisionError):
        async with log.press("s"):
            raise ZeroDivisionError
    for _ in range(3):
        entered = asyncio.Event()
        holder = asyncio.create_task(hold(entered))
        await entered.wait()
        waiting = asyncio.create_task(hold(asyncio.Event()))
        await asyncio.sleep(0.01)
        waiting.cancel()
        holder.cancel()
        await asyncio.gather(holder, waiting, return_exceptions=True)
        after = row("s", last.seq + 1)
        await other.append([after], on(last))
        last = after


async def test_a_task_that_outlives_the_press_has_no_part_in_it(open_log):
    log, other = open_log(), open_log()
    first = await created(log)
    assert list(await other.rows_from("s", 1)) == [first]
    go, held, end = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def later():
        await go.wait()
        await log.append([row("s", 2, envelope_id="outlived")], on(first))

    async def hold():
        async with other.press("s"):
            held.set()
            await end.wait()

    async with log.press("s"):
        outlives = asyncio.create_task(later())
    holder = asyncio.create_task(hold())
    await held.wait()
    go.set()
    await asyncio.sleep(0.05)
    assert not outlives.done()
    end.set()
    await asyncio.gather(outlives, holder)
    assert [envelope.envelope_id for envelope in await log.rows_from("s", 2)] == ["outlived"]


async def test_who_is_cancelled_leaves_a_log_that_works(open_log, log_kind):
    log = open_log()
    last = await created(log)
    cut = 0
    for number in range(120):
        after = row("s", last.seq + 1, envelope_id=f"i{number}")
        task = asyncio.create_task(log.append([after], on(last)))
        for _ in range(number % 12):
            await asyncio.sleep(0)
        if number % 3 == 0:
            await asyncio.sleep(number * 1e-5)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            cut += 1
        # As a hub does: what the log holds is what counts.
        last = (await log.rows_from("s", last.seq))[-1]
        found = await log.by_id("s", after.envelope_id)
        assert (last.envelope_id == after.envelope_id) == (found is not None)
    assert cut > 0 or log_kind == "memory"  # where nothing waits
    rows = await log.rows_from("s", 1)
    assert [row.seq for row in rows] == list(range(1, last.seq + 1))


async def test_a_closed_log_says_so(open_log):
    log = open_log()
    first = await created(log)
    await log.close()
    await log.close()
    for call in (log.rows_from("s", 1), log.append([row("s", 2)], on(first)), log.metadata("s"), log.session_ids()):
        with pytest.raises(LogUnavailableError, match="closed"):
            await call
    with pytest.raises(LogUnavailableError, match="closed"):
        await anext(log.changes())
