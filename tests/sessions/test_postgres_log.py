"""The log in PostgreSQL: answers that are lost, servers that are killed, and settings under which nothing is safe."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from postgres_server import BIN, MISSING, PostgresServer
from rows import appended, created, on, row

from otel_assembly.errors import (
    ConfigurationError,
    LogConflictError,
    LogDamagedError,
    LogUnavailableError,
    LogUnsureError,
)
from otel_assembly.sessions import (
    EV_TEXT,
    ConversationAdapter,
    Cursor,
    Envelope,
    Hub,
    PostgresSessionLog,
    Snapshot,
    TurnClaim,
)
from otel_assembly.sessions.log_rows import read_rows
from otel_assembly.sessions.postgres_reader import PostgresReader

HERE = Path(__file__).parent
#: Seconds that a log waits for a machine that is busy with other work; far more than any test needs.
PATIENCE = 500.0


@pytest.fixture
def schema(postgres):
    return postgres.new_schema()


@pytest.fixture
async def log(postgres, schema):
    async with PostgresSessionLog(postgres.dsn(schema), patience=PATIENCE) as log:
        yield log


async def answer_of(ask):
    """What an impatient log answers once it does; on a busy machine, connecting takes longer than its patience."""
    while True:
        with contextlib.suppress(LogUnavailableError):
            return await ask()


@pytest.fixture
def own_server():
    """Makes a server that a test may kill, with settings of the test's own."""
    if BIN is None:
        pytest.skip(MISSING)
    with contextlib.ExitStack() as stack:

        def make(*settings):
            server = PostgresServer(*settings)
            stack.callback(server.remove)
            server.start()
            return server

        yield make


class Proxy:
    """Stands between a log and its server, and loses what it is told to lose.

    `cut` is what happens at the next append: ``before`` it reaches the server, ``during``, as soon as it has, or
    ``after``, when its answer comes back; or it is let through, and nothing is answered (``silent``).
    """

    def __init__(self, server):
        self.server = server
        self.cut = ""
        self.cuts = 0
        self.tasks = set()

    async def __aenter__(self):
        self.listener = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.port = self.listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self.listener.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def dsn(self, schema):
        there = f"host=127.0.0.1 port={self.port} sslmode=disable gssencmode=disable"
        return self.server.dsn(schema).replace(f"host={self.server.folder}", there)

    async def serve(self, reader, writer):
        self.tasks.add(asyncio.current_task())
        to_reader, to_writer = await asyncio.open_unix_connection(self.server.socket)
        lose = [False]

        async def requests():
            while data := await reader.read(1 << 20):
                # The statement itself, or the values of one that is prepared: the ids of these tests begin so.
                if self.cut and b"append-" in data and b"pg_advisory_lock" not in data:
                    cut, self.cut = self.cut, ""
                    self.cuts += 1
                    if cut == "before":
                        return
                    if cut in {"after", "silent"}:
                        lose[0] = cut == "after" or None
                    to_writer.write(data)
                    await to_writer.drain()
                    if cut == "during":
                        return
                    continue
                to_writer.write(data)
                await to_writer.drain()

        async def answers():
            while data := await to_reader.read(1 << 20):
                if lose[0]:
                    return
                if lose[0] is None:
                    continue
                writer.write(data)
                await writer.drain()

        both = [asyncio.create_task(item()) for item in (requests, answers)]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            writer.close()
            to_writer.close()


async def post(log, last, envelope_id, key=None):
    """Append as a hub does: an answer that was lost is looked up by id. Also how often it was."""
    unsure = 0
    while True:
        after = row("s", last.seq + 1, envelope_id=envelope_id, key=key)
        try:
            await log.append([after], on(last))
        except LogUnsureError:
            unsure += 1
            if (found := await log.by_id("s", envelope_id)) is not None:
                return found, unsure
            last = (await log.rows_from("s", last.seq))[-1]
        except LogConflictError:
            if (found := await log.by_id("s", envelope_id)) is not None:
                return found, unsure
            last = (await log.rows_from("s", last.seq))[-1]
        else:
            return after, unsure


@pytest.mark.parametrize("cut", ["before", "during", "after"])
async def test_an_answer_that_is_lost_leaves_each_row_once(postgres, schema, cut):
    async with Proxy(postgres) as proxy, PostgresSessionLog(proxy.dsn(schema), patience=PATIENCE) as log:
        last = await created(log)
        lost = 0
        for number in range(20):
            proxy.cut = cut if number % 2 else ""
            last, unsure = await post(log, last, f"append-{number}")
            lost += unsure
        assert proxy.cuts == 10
        assert lost == 10
        there = [envelope.envelope_id for envelope in await log.rows_from("s", 2)]
        assert there == [f"append-{number}" for number in range(20)]


async def test_a_lost_answer_is_resolved_from_anywhere_by_its_key(postgres, schema, log):
    async with Proxy(postgres) as proxy, PostgresSessionLog(proxy.dsn(schema), patience=PATIENCE) as lossy:
        first = await created(lossy)
        proxy.cut = "after"
        with pytest.raises(LogUnsureError, match="'s': row 2"):
            await lossy.append([row("s", 2, envelope_id="append-1", key="k")], on(first))
        assert (await log.by_key("s", "ann", "k")).envelope_id == "append-1"
        proxy.cut = "before"
        with pytest.raises(LogUnsureError):
            await lossy.create("append-t", "{}", row("append-t", 1))
        assert await log.metadata("append-t") is None


async def test_a_server_that_falls_silent_is_given_up(postgres, schema, log):
    first = await created(log)
    async with Proxy(postgres) as proxy, PostgresSessionLog(proxy.dsn(schema), patience=3.0) as silent:
        assert list(await answer_of(lambda: silent.rows_from("s", 1))) == [first]
        proxy.cut = "silent"
        with pytest.raises(LogUnsureError, match="has not answered"):
            await silent.append([row("s", 2, envelope_id="append-1")], on(first))
        assert (await answer_of(lambda: silent.by_id("s", "append-1"))).seq == 2


async def test_a_connection_that_was_lost_while_idle_leaves_nobody_unsure(postgres, schema, log):
    last = await created(log)
    with postgres.connected() as other:
        for seq in range(2, 5):
            other.execute(
                "SELECT pg_terminate_backend(pid, 500000) FROM pg_stat_activity"
                " WHERE application_name = 'otel-assembly'"
            )
            after = row("s", seq)
            await log.append([after], on(last))
            last = after
    assert len(await log.rows_from("s", 1)) == 4


async def test_who_listens_looks_at_everything_after_a_lost_connection(postgres, schema, log):
    last = await created(log)
    async with aclosing(log.changes()) as changes:
        assert await anext(changes) is None
        for seq in (2, 3):
            with postgres.connected() as other:
                other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'otel-assembly'"
                )
            after = row("s", seq)
            last, _ = await post(log, last, after.envelope_id)
            while await anext(changes) is not None:
                pass
        await log.append([row("s", 4)], on(last))
        assert await anext(changes) == "s"


async def test_a_notice_says_the_session_and_no_more(postgres, schema, log):
    with postgres.connected() as other:
        other.execute("LISTEN otel_assembly_sessions")
        first = await created(log, "quiet")
        await log.append([row("quiet", 2, text="a secret", key="k"), row("quiet", 3)], on(first))
        told = [notice.payload for notice in other.notifies(stop_after=2)]
    assert told == ["quiet", "quiet"]


async def test_a_press_that_is_lost_with_its_connection_hinders_nobody(postgres, schema, log):
    first = await created(log)
    async with PostgresSessionLog(postgres.dsn(schema), patience=PATIENCE) as other:
        async with log.press("s"):
            with postgres.connected() as third:
                third.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'otel-assembly'"
                )
            async with other.press("s"):
                await other.append([row("s", 2)], on(first))
            with pytest.raises(LogUnsureError):
                await log.append([row("s", 3)], on(row("s", 2)))
            assert len(await log.rows_from("s", 1)) == 2
        async with log.press("s"):
            await log.append([row("s", 3)], on(row("s", 2)))


async def test_who_waits_too_long_for_the_press_has_written_nothing(postgres, schema, log):
    first = await created(log)
    async with PostgresSessionLog(postgres.dsn(schema), patience=1.0) as other:
        assert list(await answer_of(lambda: other.rows_from("s", 1))) == [first]
        async with log.press("s"):
            with pytest.raises(LogUnavailableError, match="refused"):
                await other.append([row("s", 2, envelope_id="late")], on(first))
            with pytest.raises(LogUnavailableError):
                async with other.press("s"):
                    pass
            await log.append([row("s", 2)], on(first))
        assert [envelope.envelope_id for envelope in await log.rows_from("s", 2)] == [f"{2:016x}"]

        async def press():
            async with other.press("s"):
                return True

        assert await answer_of(press)


async def test_connections_are_as_many_as_were_allowed(postgres, schema):
    async with PostgresSessionLog(postgres.dsn(schema), patience=PATIENCE, connections=2) as log:
        await appended(log, 3)
        await asyncio.gather(*(log.rows_from("s", 1) for _ in range(50)))

        async def press():
            async with log.press("s"):
                newest = (await log.rows_from("s", 1))[-1]
                await log.append([row("s", newest.seq + 1)], on(newest))

        await asyncio.gather(*(press() for _ in range(20)))
        assert len(await log.rows_from("s", 1)) == 23
        with postgres.connected() as other:
            found = other.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'otel-assembly'")
            assert found.fetchone() <= (2,)


async def test_tables_are_made_once_whoever_comes_first(postgres, schema):
    logs = [PostgresSessionLog(postgres.dsn(schema), patience=PATIENCE) for _ in range(8)]
    found = await asyncio.gather(*(log.session_ids() for log in logs))
    assert [list(item) for item in found] == [[]] * 8
    for log in logs:
        await log.close()


async def test_who_may_not_make_tables_uses_those_that_are_there(postgres, schema, log):
    await created(log)
    role = f"plain_{schema}"
    with postgres.connected() as other:
        other.execute(f"CREATE ROLE {role} LOGIN")
        other.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        other.execute(f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA {schema} TO {role}")
    async with PostgresSessionLog(postgres.dsn(schema).replace("user=tests", f"user={role}")) as plain:
        await plain.append([row("s", 2)], on(row("s", 1)))
        assert len(await log.rows_from("s", 1)) == 2


async def test_a_row_that_is_damaged_or_missing_is_named(postgres, schema, log, caplog):
    await appended(log, 20)
    await log.save_snapshot("s", "discussion/1", Snapshot(20, "{}"))
    with postgres.connected(schema) as other:
        other.execute("UPDATE otel_assembly_session_rows SET body = replace(body, 'said', 'sold') WHERE seq = 17")
        other.execute("DELETE FROM otel_assembly_session_rows WHERE seq = 9")
        other.execute("UPDATE otel_assembly_session_snapshots SET state = '[]'")
        other.execute("UPDATE otel_assembly_sessions SET metadata = '[]'")
    with pytest.raises(LogDamagedError, match="session 's': row 9 is missing"):
        await log.rows_from("s", 1)
    with pytest.raises(LogDamagedError, match="session 's': row 17 is damaged"):
        await log.rows_from("s", 10)
    with pytest.raises(LogDamagedError, match="session 's': row 17"):
        await log.by_id("s", f"{17:016x}")
    with pytest.raises(LogDamagedError, match="its metadata"):
        await log.metadata("s")
    assert await log.snapshot("s", "discussion/1") is None
    assert "a snapshot is damaged" in caplog.text


@pytest.fixture
def flipped(postgres, schema):
    """Changes one byte of a text column; the bytes need not be UTF-8 afterwards."""
    with postgres.connected(schema) as other:
        other.execute("CREATE CAST (bytea AS text) WITHOUT FUNCTION")

        def flip(table, column, where, at, bits):
            (whole,) = other.execute(f"SELECT convert_to({column}, 'UTF8') FROM {table} WHERE {where}").fetchone()
            at %= len(whole)
            other.execute(
                f"UPDATE {table} SET {column} = set_byte(%s::bytea, %s, %s)::text WHERE {where}",
                (whole, at, (whole[at] ^ bits) or 1),
            )
            return whole

        def mend(table, column, where, whole):
            other.execute(f"UPDATE {table} SET {column} = %s::bytea::text WHERE {where}", (whole,))

        yield flip, mend
        other.execute("DROP CAST (bytea AS text)")


DAMAGED = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
ROWS = "otel_assembly_session_rows"


@DAMAGED
@given(st.integers(0, 10_000), st.integers(1, 255))
@example(64, 0x80)
async def test_a_flipped_byte_of_a_row_is_damage_that_names_the_row(postgres, schema, flipped, at, bits):
    flip, mend = flipped
    async with PostgresSessionLog(postgres.dsn(schema), patience=PATIENCE) as log:
        if await log.metadata("s") is None:
            await appended(log, 20, text="said \u20ac")
        whole = flip(ROWS, "body", "seq = 17", at, bits)
        try:
            for reads in (log.rows_from("s", 1), log.by_id("s", f"{17:016x}")):
                with pytest.raises(LogDamagedError, match="session 's': row 17 is damaged"):
                    await reads
            with PostgresReader(postgres.dsn(schema)) as reader:
                (stored,) = reader.sessions()
                with pytest.raises(LogDamagedError, match="row 17"):
                    read_rows("s", 1, reader.rows(stored))
        finally:
            mend(ROWS, "body", "seq = 17", whole)
        assert len(await log.rows_from("s", 1)) == 20


@pytest.mark.parametrize("bits", [0x01, 0x80])
@pytest.mark.parametrize("column", ["envelope_id", "sender_id", "key"])
async def test_a_flipped_byte_of_a_column_is_damage_that_names_the_row(schema, log, flipped, column, bits):
    async with Hub(log, [ConversationAdapter()]) as hub:
        name = (await hub.create("conversation", "ann", ["ann", "bob"])).session_id
        await hub.join(name, "bob")
        said = await hub.post(Envelope(name, "ann", EV_TEXT, {"text": "hello"}, idempotency_key="first"))
        flipped[0](ROWS, column, f"seq = {said.seq}", 3, bits)
        with pytest.raises(LogDamagedError, match=f"row {said.seq}: it"):
            await hub.envelopes(name)


@pytest.mark.parametrize("bits", [0x01, 0x80])
async def test_a_flipped_byte_beside_the_rows_is_damage_too(schema, log, flipped, caplog, bits):
    flip, _ = flipped
    await appended(log, 3)
    await log.save_snapshot("s", "discussion/1", Snapshot(2, '{"a": 1}'))
    claim = TurnClaim("s", "bob", 3, False, "token")
    assert await log.claim_turn(claim, None, 0.0, 1_000.0)
    assert await log.add_work(claim, 1, "{}")
    assert await log.add_work(claim, 2, '{"a": 1}')
    flip("otel_assembly_sessions", "metadata", "true", 0, bits)
    flip("otel_assembly_session_snapshots", "state", "true", 3, bits)
    flip("otel_assembly_session_work", "body", "number = 2", 3, bits)
    with pytest.raises(LogDamagedError, match="session 's': its metadata are damaged"):
        await log.metadata("s")
    with pytest.raises(LogDamagedError, match="step 2 of the turn of 'bob'"):
        await log.work("s", "bob")
    assert await log.snapshot("s", "discussion/1") is None
    assert "a snapshot is damaged" in caplog.text


async def test_a_session_whose_id_is_damaged_stops_no_other(schema, log, flipped, caplog):
    await created(log, "one")
    await created(log, "two")
    flipped[0]("otel_assembly_sessions", "id", "id = 'one'", 1, 0x80)
    assert list(await log.session_ids()) == ["two"]
    assert "the id of a session is damaged: 'o\\udceee'" in caplog.text


async def test_a_value_whose_length_is_damaged_is_damage(own_server):
    server = own_server()
    said = "said " * 100
    async with PostgresSessionLog(server.dsn(), patience=PATIENCE) as log:
        await appended(log, 3, text=said)
    with server.connected() as other:
        other.execute("CHECKPOINT")
        (path,) = other.execute(f"SELECT pg_relation_filepath('{ROWS}')").fetchone()
    server.stop()
    page = bytearray((server.data / path).read_bytes())
    body = page.index(row("s", 2, text=said).body.encode())
    assert sys.byteorder == "little"
    page[body - 4 : body] = (1 << 2).to_bytes(4, "little")  # a length below that of the length itself
    (server.data / path).write_bytes(page)
    server.start()
    async with PostgresSessionLog(server.dsn(), patience=PATIENCE) as log:
        with pytest.raises(LogDamagedError, match="restore the database"):
            await log.rows_from("s", 1)
    with PostgresReader(server.dsn()) as reader, pytest.raises(LogDamagedError, match="row 2 cannot be read"):
        list(reader.rows(next(reader.sessions())))


async def test_every_acceptance_was_synced(postgres, schema):
    def syncs():
        with postgres.connected() as other:
            return other.execute("SELECT wal_sync FROM pg_stat_wal").fetchone()[0]

    async with PostgresSessionLog(postgres.dsn(schema), patience=PATIENCE, connections=1) as log:
        last = await created(log)
    await asyncio.sleep(0.2)
    before = syncs()
    async with PostgresSessionLog(postgres.dsn(schema), patience=PATIENCE, connections=1) as log:
        for seq in range(2, 52):
            after = row("s", seq)
            await log.append([after], on(last))
            last = after
    while syncs() - before < 50:  # told as the connection ends
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("setting", "said"), [("fsync=off", "fsync is off"), ("synchronous_commit=off", "synchronous_commit is off")]
)
async def test_a_server_that_does_not_sync_is_refused(own_server, setting, said):
    server = own_server(setting)
    async with PostgresSessionLog(server.dsn()) as log:
        with pytest.raises(LogUnavailableError, match=said):
            await log.session_ids()
        with pytest.raises(LogUnavailableError, match=said):
            await log.create("s", "{}", row("s", 1))
    if "commit" in setting:
        async with PostgresSessionLog(server.dsn().replace("-c search", "-c synchronous_commit=on -c search")) as log:
            assert list(await log.session_ids()) == []


async def test_a_database_of_another_encoding_is_refused(postgres, schema):
    name = f"latin_{schema}"
    with postgres.connected() as other:
        other.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    async with PostgresSessionLog(postgres.dsn().replace("dbname=postgres", f"dbname={name}")) as log:
        with pytest.raises(LogUnavailableError, match="LATIN1"):
            await log.session_ids()


async def test_nothing_accepted_is_lost_when_the_server_is_killed(own_server):
    server = own_server()
    accepted, lost = [], 0
    async with PostgresSessionLog(server.dsn(), patience=PATIENCE) as log:
        last = await created(log)
        stop = asyncio.Event()

        async def write():
            nonlocal last, lost
            number = 0
            while not stop.is_set():
                last, unsure = await post(log, last, f"append-{number}", key=f"k{number}")
                accepted.append(last.envelope_id)
                lost += unsure
                number += 1

        writer = asyncio.create_task(write())
        for _ in range(3):
            already = len(accepted)
            while len(accepted) < already + 5:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        stop.set()
        await writer
        there = [envelope.envelope_id for envelope in await log.rows_from("s", 2)]
    assert there == accepted == [f"append-{number}" for number in range(len(accepted))]


async def test_a_server_that_is_gone_is_waited_for_no_longer_than_told(own_server):
    server = own_server()
    async with PostgresSessionLog(server.dsn(), patience=PATIENCE) as patient:
        first = await created(patient)
    async with PostgresSessionLog(server.dsn(), patience=0.5) as log:
        followed = []

        async def follow():
            followed.append(log.changes())
            return await anext(followed[-1])

        assert await answer_of(follow) is None
        server.stop()
        with pytest.raises(LogUnavailableError):
            await log.append([row("s", 2)], on(first))
        with pytest.raises(LogUnavailableError):
            await log.rows_from("s", 1)
        with pytest.raises(LogUnavailableError):
            await anext(followed[-1])
        server.start()
        assert list(await answer_of(lambda: log.rows_from("s", 1))) == [first]


@pytest.mark.parametrize("dsn", ["postgresql://u:s3cret@[::1/x", "no dsn s3cret", "hots=x s3cret"])
def test_a_dsn_that_cannot_be_read_is_not_said_again(dsn):
    pytest.importorskip("psycopg")
    with pytest.raises(ConfigurationError, match="DSN") as raised:
        PostgresSessionLog(dsn)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("given", [{"patience": 0}, {"connections": 0}])
def test_numbers_are_above_nothing(given):
    with pytest.raises(ConfigurationError):
        PostgresSessionLog("host=nowhere", **given)


def test_without_its_client_the_extra_is_named():
    program = """
import sys
sys.modules["psycopg"] = None
from otel_assembly.errors import ConfigurationError
from otel_assembly.sessions import PostgresSessionLog
try:
    PostgresSessionLog("host=nowhere")
except ConfigurationError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "pip install 'otel-assembly[postgres]'" in done.stdout, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_connections_of_its_own(postgres, schema):
    program = """
import asyncio, os, sys
from rows import created, on, row
from otel_assembly.sessions import PostgresSessionLog

log = PostgresSessionLog(sys.argv[1], patience=500)
first = asyncio.run(created(log))
pid = os.fork()

async def append(seq):
    while True:
        there = await log.rows_from("s", 1)
        if there[-1].seq == seq - 1:
            await log.append([row("s", seq)], on(there[-1]))
            return
        await asyncio.sleep(0.01)

for seq in (2, 4) if pid else (3, 5):
    asyncio.run(append(seq))
asyncio.run(log.close())
if pid:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
else:
    os._exit(0)
"""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    command = [sys.executable, "-c", program, postgres.dsn(schema)]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)

    async def there():
        async with PostgresSessionLog(postgres.dsn(schema), patience=PATIENCE) as log:
            return [envelope.seq for envelope in await log.rows_from("s", 1)]

    assert asyncio.run(there()) == [1, 2, 3, 4, 5]


async def test_cursors_and_snapshots_outlive_a_lost_connection(postgres, schema):
    async with Proxy(postgres) as proxy, PostgresSessionLog(proxy.dsn(schema), patience=PATIENCE) as log:
        await created(log)
        proxy.cut = "after"
        await log.move_cursor("s", "append-er", Cursor(1, 1))
        assert proxy.cuts == 1
        assert dict(await log.cursors("s")) == {"append-er": Cursor(1, 1)}


@pytest.mark.slow
async def test_the_ten_thousandth_append_writes_as_much_as_the_first(postgres, schema, log):
    last = await created(log)
    with postgres.connected() as other:

        def written():
            return int(other.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()[0])

        def touched():
            return other.execute(
                "SELECT sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read)::bigint"
                " FROM pg_statio_user_tables"
                " WHERE schemaname = %s",
                (schema,),
            ).fetchone()[0]

        bytes_each, blocks_each = [], []
        for _ in range(10):
            bytes_before, blocks_before = written(), touched()
            for _ in range(1000):
                after = row("s", last.seq + 1, key=f"k{last.seq}")
                await log.append([after], on(last))
                last = after
            await asyncio.sleep(1.5)  # a server tells its counters about once a second
            await log.rows_from("s", last.seq)
            await asyncio.sleep(0.5)
            bytes_each.append(written() - bytes_before)
            blocks_each.append(touched() - blocks_before)
    assert bytes_each[-1] < 1.5 * bytes_each[1], bytes_each
    assert blocks_each[-1] < 1.5 * blocks_each[1], blocks_each
