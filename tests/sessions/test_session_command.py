"""``otel-assembly session``: a log is listed, shown and verified beside hubs that append to it; nothing is written."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from types import SimpleNamespace
from urllib.parse import quote
from zlib import crc32

import pytest
from cli.command_line import runner
from sessions.talk import Talk, text

from otel_assembly.errors import LogDamagedError, LogUnavailableError
from otel_assembly.sessions import (
    EV_TEXT,
    ConsultingAdapter,
    DiscussionAdapter,
    Envelope,
    Expectation,
    Handoff,
    Hub,
    PostgresSessionLog,
    SqliteSessionLog,
    TransitionGraph,
    WorkflowAdapter,
    open_log,
)

WHO = ("ann", "bob", "cid")


@pytest.fixture
def otel_assembly(tmp_path):
    return runner(tmp_path)


@pytest.fixture
def log_kind():
    return "sqlite"


@pytest.fixture
async def stored(request, log_kind, tmp_path):
    """A log, and where the command finds it."""
    if log_kind == "sqlite":
        where, log = str(tmp_path / "log.db"), SqliteSessionLog(tmp_path / "log.db")
    else:
        server = request.getfixturevalue("postgres")
        schema = server.new_schema()
        options = quote(f"-c search_path={schema}", safe="")
        where = f"postgresql:///postgres?host={quote(str(server.folder), safe='')}&user=tests&options={options}"
        log = PostgresSessionLog(where)
    yield SimpleNamespace(log=log, where=where, path=tmp_path / "log.db")
    await log.close()


def a_hub(log, **more):
    strict = DiscussionAdapter([Expectation("turn_within", 0.05, "warn")])
    return Hub(log, [ConsultingAdapter(), strict, WorkflowAdapter(), Talk()], **more)


async def discussed(hub, texts=4, session_id="trip"):
    await hub.create("discussion", "ann", WHO, session_id=session_id)
    for who in WHO[1:]:
        await hub.join(session_id, who)
    for number in range(texts):
        await hub.post(text(session_id, WHO[number % 3], f"text {number}", idempotency_key=f"k{number}"))


both = pytest.mark.parametrize("log_kind", ["sqlite", "postgres"])


@both
async def test_sessions_are_listed_beside_a_hub(otel_assembly, stored):
    async with a_hub(stored.log, snapshot_every=5) as hub:
        await discussed(hub)
        await hub.create("consulting", "ann", ["ann", "bob"], session_id="waiting")
        await hub.create("talk", "ann", ["ann", "bob"], session_id="talk")
        await hub.reject("talk", "bob")
        listed = otel_assembly("session", stored.where)
        assert (listed.status, listed.err) == (0, "")
        lines = listed.out.splitlines()
        assert lines[0] == "trip  discussion  active"
        assert lines[1].startswith("    8 envelopes, last 20")
        assert lines[1].endswith(": ann, bob, cid")
        assert lines[2] == "waiting  consulting  pending"
        assert lines[4] == "    waiting for bob to join"
        # What is written while a hub runs is seen, and a hub goes on.
        await hub.post(text("trip", "bob", "one more"))
        told = otel_assembly("session", stored.where, "--json").json["sessions"]
        assert [(item["id"], item["state"], item["envelopes"]) for item in told] == [
            ("trip", "active", 9),
            ("waiting", "pending", 1),
            ("talk", "closed", 2),
        ]
        assert [item["joined"] for item in told] == [["ann", "bob", "cid"], ["ann"], ["ann"]]


@both
async def test_a_session_is_shown_with_what_was_violated_and_who_is_next(otel_assembly, stored):
    async with a_hub(stored.log) as hub:
        await discussed(hub, 2)
        await hub.post(Envelope("trip", "cid", "my.note", {"n": [1]}, audience=("bob",)))
        await asyncio.sleep(0.1)
        await hub.sweep("trip")
    shown = otel_assembly("session", stored.where, "tr")
    assert (shown.status, shown.err) == (0, "")
    for line in (
        "trip  discussion",
        "        text 1",
        '        {"n": [1]}',
        "        ⚠ turn_within 0.05 s not met by cid since row 6 (warn)",
        "8 envelopes; the session is active",
        "violated: 1 expectation, recorded in row 8",
        "expected next: cid",
    ):
        assert line in shown.out.splitlines()
    assert "cid → bob  my.note" in shown.out
    told = otel_assembly("session", stored.where, "trip", "--json").json
    assert [envelope["seq"] for envelope in told["envelopes"]] == list(range(1, 9))
    assert (told["state"], told["expected_next"], told["violations"]) == ("active", "cid", 1)


@both
async def test_a_log_that_hubs_left_is_whole(otel_assembly, stored):
    graph = TransitionGraph.round_robin(["ann", "bob"])
    async with a_hub(stored.log, snapshot_every=3) as hub:
        await discussed(hub, 12)
        await hub.create("workflow", "ann", ["ann", "bob"], session_id="flow", knobs={"graph": graph.to_dict()})
        await hub.join("flow", "bob")
        packet = (await hub.adapter("flow")).build_packet_envelope(
            await hub.metadata("flow"), "ann", "look", routing=Handoff("ann", "wait"), context_set={"n": 1}
        )
        await hub.post(packet)
        for delivery in await hub.inbox("trip", "bob"):
            await hub.confirm(delivery)
        await hub.create("talk", "ann", ["ann", "bob"], session_id="talk")
        verified = otel_assembly("session", stored.where, "--verify")
        assert (verified.status, verified.err) == (0, "")
        assert verified.out.splitlines() == [
            "ok       trip  16 envelopes  discussion",
            "ok       flow  4 envelopes  workflow",
            "ok       talk  1 envelope  talk",
            "    not folded: no adapter for its protocol; name one with --adapter",
            "3 sessions, 21 envelopes: all ok",
        ]
        own = otel_assembly("session", stored.where, "talk", "--verify", "--adapter", "sessions.talk:Talk", "--json")
        assert own.json == {
            "problems": [],
            "sessions": [{"id": "talk", "envelopes": 1, "folded": True, "problems": []}],
            "whole": True,
        }


# Damage


def changed(stored, *statements):
    """Change the file behind every hub's back, its constraints included."""
    with sqlite3.connect(stored.path) as db:
        for statement, *arguments in statements:
            db.execute(statement, arguments)
    db.close()


ROWS = "otel_assembly_session_rows"


def row_of(stored, seq):
    db = sqlite3.connect(stored.path)
    ((found,),) = db.execute(f"SELECT body FROM {ROWS} WHERE seq = ? AND session = 1", (seq,)).fetchall()
    db.close()
    return json.loads(found)


def rewritten(stored, seq, **fields):
    """A row with other fields, its columns and its checksum right."""
    body = json.dumps(row_of(stored, seq) | fields, sort_keys=True)
    said = json.loads(body)
    values = said["envelope_id"], said["sender_id"], said["idempotency_key"], body, crc32(body.encode()), seq
    set_all = f"UPDATE {ROWS} SET envelope_id = ?, sender_id = ?, key = ?, body = ?, checksum = ?"
    return f"{set_all} WHERE seq = ? AND session = 1", *values


SNAPSHOTS = "otel_assembly_session_snapshots"
WITHOUT_CONSTRAINTS = [
    (f"CREATE TABLE free AS SELECT * FROM {ROWS}",),
    (f"DROP TABLE {ROWS}",),
    (f"ALTER TABLE free RENAME TO {ROWS}",),
]


def snapshot_of_another_state(stored):
    db = sqlite3.connect(stored.path)
    ((state,),) = db.execute(f"SELECT state FROM {SNAPSHOTS} WHERE session = 1").fetchall()
    db.close()
    other = json.dumps(json.loads(state) | {"joined": ["ann"]})
    return [(f"UPDATE {SNAPSHOTS} SET state = ?, checksum = ?", other, crc32(other.encode()))]


@pytest.mark.parametrize(
    ("damage", "row", "said"),
    [
        (lambda s: [(f"UPDATE {ROWS} SET body = body || ' ' WHERE seq = 6",)], 6, "row 6 is damaged"),
        (lambda s: [(f"DELETE FROM {ROWS} WHERE seq = 3",)], 3, "row 3 is missing, but row 4 exists"),
        (
            lambda s: [(f"UPDATE {ROWS} SET sender_id = 'cid', key = NULL WHERE seq = 5",)],
            5,
            "row 5: its sender or",
        ),
        (
            lambda s: [(f"UPDATE {ROWS} SET envelope_id = 'x' WHERE seq = 5",)],
            5,
            "row 5: its envelope is not the one that its columns name",
        ),
        (lambda s: [rewritten(s, 6, envelope_id="0" * 32)], 6, "row 6: its id '0000"),
        (lambda s: [rewritten(s, 6, created_at=1.0)], 6, "s before row 5"),
        (lambda s: [rewritten(s, 6, event_data={"text": 4}), rewritten(s, 7, created_at="x")], 7, "row 7: the time of"),
        (
            lambda s: [*WITHOUT_CONSTRAINTS, rewritten(s, 8, idempotency_key="k0")],
            8,
            "row 8: 'ann' posted under the key 'k0' before",
        ),
        (lambda s: [("UPDATE otel_assembly_sessions SET metadata = '{}'",)], None, "its metadata are damaged"),
        (
            lambda s: [(f"UPDATE {SNAPSHOTS} SET state = '{{}}'",)],
            None,
            "snapshot for discussion/1 is damaged",
        ),
        (snapshot_of_another_state, 5, "of row 5 differs from the state folded from the rows"),
        (lambda s: [(f"DELETE FROM {ROWS} WHERE seq > 4",)], None, "snapshot for discussion/1 is of row 5, which is"),
        (
            lambda s: [(f"DELETE FROM {SNAPSHOTS}",), (f"DELETE FROM {ROWS} WHERE seq > 4",)],
            None,
            "'bob' confirmed row 8, which is missing",
        ),
        (lambda s: [(f"DELETE FROM {ROWS}",), (f"DELETE FROM {SNAPSHOTS}",)], 1, "row 1 is missing"),
    ],
)
async def test_what_is_damaged_is_named_by_session_and_row(otel_assembly, stored, damage, row, said):
    async with a_hub(stored.log, snapshot_every=5) as hub:
        await discussed(hub)
        await hub.confirm((await hub.inbox("trip", "bob"))[-1])
        await discussed(hub, 1, "other")
    await stored.log.close()
    changed(stored, *damage(stored))
    verified = otel_assembly("session", stored.where, "--verify", COLUMNS="1000")
    assert verified.status == 1
    assert "damaged  trip" in verified.out
    assert "session 'trip'" in verified.out
    assert said in verified.out
    told = otel_assembly("session", stored.where, "--verify", "--json")
    assert (told.status, told.json["whole"]) == (1, False)
    trip = next(session for session in told.json["sessions"] if session["id"] == "trip")
    assert any(problem["row"] == row and said in problem["problem"] for problem in trip["problems"])


async def test_what_cannot_be_read_is_said_where_it_is_listed_and_shown(otel_assembly, stored):
    async with a_hub(stored.log) as hub:
        await discussed(hub)
        await discussed(hub, 1, "other")
    await stored.log.close()
    changed(stored, (f"UPDATE {ROWS} SET body = body || ' ' WHERE seq = 6 AND session = 1",))
    listed = otel_assembly("session", stored.where)
    assert listed.status == 1
    assert listed.out.splitlines()[1].startswith("    5 envelopes, ")
    assert "    session 'trip': row 6 is damaged; restore the log" in listed.out.splitlines()
    assert "other  discussion  active" in listed.out.splitlines()
    shown = otel_assembly("session", stored.where, "trip")
    assert shown.status == 1
    assert "✖ session 'trip': row 6 is damaged; restore the log" in shown.out
    assert "expected next: bob" in shown.out


async def test_rows_of_no_session_and_pages_that_are_overwritten_are_damage_of_the_log(otel_assembly, stored):
    async with a_hub(stored.log) as hub:
        await discussed(hub, 200)
    await stored.log.close()
    changed(stored, (f"INSERT INTO {ROWS} VALUES (9, 1, 'e', 's', NULL, '{{}}', 0)",))
    verified = otel_assembly("session", stored.where, "--verify")
    assert verified.status == 1
    assert "1 row of session number 9, which does not exist" in verified.out
    content = bytearray(stored.path.read_bytes())
    at = content.index(b"text 150")
    page = at // 4096 * 4096
    content[page : page + 4096] = b"\xff" * 4096
    stored.path.write_bytes(content)
    broken = otel_assembly("session", stored.where, "trip", "--verify", COLUMNS="1000")
    assert broken.status == 1
    assert "session 'trip': row 1" in broken.out
    assert "restore the file" in broken.out


async def test_accepted_rows_that_are_damaged_in_the_write_ahead_log_are_told(otel_assembly, stored):
    async with a_hub(stored.log) as hub:
        await discussed(hub, 20)
        for suffix in ("", "-wal"):
            copy = stored.path.with_name(f"copy.db{suffix}")
            copy.write_bytes(stored.path.with_name(f"log.db{suffix}").read_bytes())
    wal = stored.path.with_name("copy.db-wal")
    content = bytearray(wal.read_bytes())
    content[len(content) // 2] ^= 0xFF
    wal.write_bytes(content)
    ran = otel_assembly("session", stored.path.with_name("copy.db"))
    assert ran.status == 1
    assert "transactions follow it" in ran.err


async def test_a_file_that_ends_before_an_accepted_row_is_told(otel_assembly, stored):
    async with a_hub(stored.log) as hub:
        await discussed(hub)
        await stored.log.close()
    older = stored.path.read_bytes()
    log = SqliteSessionLog(stored.path)
    async with a_hub(log) as hub:
        await hub.post(text("trip", "bob", "the last word"))
    await log.close()
    assert otel_assembly("session", stored.where, "--verify").status == 0
    stored.path.write_bytes(older)
    verified = otel_assembly("session", stored.where, "--verify", COLUMNS="1000")
    assert verified.status == 1
    assert "session 'trip': row 9 was accepted, and is not in" in verified.out


# A guest


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


async def test_nothing_is_written_to_a_file(otel_assembly, stored, tmp_path):
    async with a_hub(stored.log, snapshot_every=2) as hub:
        await discussed(hub)
        before = files_of(tmp_path)
        for arguments in ([], ["trip"], ["--verify"]):
            assert otel_assembly("session", stored.where, *arguments).status == 0
        after = files_of(tmp_path)
        # A reader's marks stand in the shared memory, which is none of the log.
        assert before.keys() == after.keys()
        assert all(before[name] == after[name] for name in ("log.db", "log.db-wal", "log.db.queue"))
    await stored.log.close()
    before = files_of(tmp_path)
    assert before.keys() == {"log.db", "log.db.queue"}
    for arguments in ([], ["trip"], ["--verify"]):
        assert otel_assembly("session", stored.where, *arguments).status == 0
    assert files_of(tmp_path) == before


async def test_a_hub_that_begins_to_write_while_a_log_is_read_is_seen(stored):
    async with a_hub(stored.log) as hub:
        await discussed(hub)
    await stored.log.close()
    with open_log(stored.where) as reader:
        trip = reader.session("trip")
        assert len(list(reader.rows(trip))) == 8
        async with SqliteSessionLog(stored.path) as again:
            await a_hub(again).post(text("trip", "bob", "one more"))
            assert len(list(reader.rows(trip))) == 9
        assert len(list(reader.rows(trip))) == 9


async def test_of_a_long_session_a_page_is_held(otel_assembly, stored, monkeypatch):
    async with a_hub(stored.log) as hub:
        await discussed(hub, 300)
    sizes = []
    with open_log(stored.where) as reader:
        kind = type(reader)
    ask = kind.ask

    def counted(reader, *given):
        found = ask(reader, *given)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(kind, "ask", counted)
    for arguments in ([], ["trip"], ["trip", "--json"], ["--verify"]):
        assert otel_assembly("session", stored.where, *arguments).status == 0
    assert max(sizes) == 100
    assert sum(sizes) > 4 * 300


@pytest.mark.parametrize("log_kind", ["postgres"])
async def test_nothing_is_made_in_a_database_that_has_no_log(otel_assembly, stored, postgres):
    ran = otel_assembly("session", stored.where)
    assert (ran.status, ran.out) == (2, "")
    assert "no log of sessions in this database" in ran.err
    schema = stored.where.rpartition("%3D")[2]
    with postgres.connected() as connection:
        (made,) = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = %s", (schema,)).fetchone()
    assert made == 0


@pytest.mark.parametrize("log_kind", ["postgres"])
async def test_a_database_is_read_by_a_connection_that_cannot_write(stored):
    async with a_hub(stored.log) as hub:
        await discussed(hub)
    with open_log(stored.where) as reader, pytest.raises(LogUnavailableError, match="read-only transaction"):
        reader.ask("a row", "DELETE FROM otel_assembly_session_rows RETURNING 1")


# Wrong usage


def test_what_is_no_log_is_wrong_usage(otel_assembly, tmp_path):
    (tmp_path / "notes.txt").write_text("These are the notes of a meeting, and no database. " * 100)
    (tmp_path / "empty.db").write_bytes(b"")
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE notes (text TEXT)")
    other.close()
    for name, said in {
        "missing.db": "missing.db does not exist",
        ".": ". is a folder",
        "notes.txt": "notes.txt is not an SQLite file; give the file of a log of sessions",
        "empty.db": "empty.db is not a log of sessions",
        "other.db": "other.db is not a log of sessions",
        "postgresql://%zz": "the DSN of PostgreSQL cannot be read",
    }.items():
        ran = otel_assembly("session", name)
        assert (ran.status, ran.out) == (2, "")
        assert said in ran.err
    assert not (tmp_path / "missing.db").exists()


async def test_a_file_of_a_later_form_is_told(otel_assembly, stored):
    async with a_hub(stored.log) as hub:
        await discussed(hub)
    await stored.log.close()
    changed(stored, ("PRAGMA user_version = 7",))
    ran = otel_assembly("session", stored.where)
    assert (ran.status, ran.out) == (2, "")
    assert "has form 7, of another release" in ran.err


async def test_an_id_that_is_none_or_of_several_is_told(otel_assembly, stored):
    async with a_hub(stored.log) as hub:
        await discussed(hub, 1, "trip-1")
        await discussed(hub, 1, "trip-2")
    assert "several sessions begin with 'trip'" in otel_assembly("session", stored.where, "trip").err
    ran = otel_assembly("session", stored.where, "nope")
    assert (ran.status, ran.out) == (1, "")
    assert "no session 'nope'" in ran.err
    assert otel_assembly("session", stored.where, "trip-2").status == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("Talk", "does not have the form MODULE:CLASS"),
        ("nowhere:Talk", "cannot import nowhere:Talk: ModuleNotFoundError"),
        ("json:JSONDecoder", "is not a SessionAdapter"),
    ],
)
def test_an_adapter_that_is_none_is_wrong_usage(otel_assembly, given, said):
    ran = otel_assembly("session", "log.db", "--adapter", given)
    assert ran.status == 2
    assert said in ran.err


async def test_lines_fit_a_terminal_and_say_nothing_to_it(otel_assembly, stored):
    async with a_hub(stored.log) as hub:
        long = "a-participant-with-a-name-that-is-quite-long"
        await hub.create("discussion", long, [long, "bob"], session_id="trip")
        await hub.join("trip", "bob")
        await hub.post(Envelope("trip", long, EV_TEXT, {"text": "\x1b[31mred\n주문은 어디에 있습니까? " * 20}))
        await hub.post(Envelope("trip", "bob", "a.type." * 20, {"text": "x" * 500}, audience=(long,)))
    for arguments in ([], ["trip"], ["--verify"]):
        ran = otel_assembly("session", stored.where, *arguments, COLUMNS="60")
        assert ran.status == 0
        assert "\x1b" not in ran.out
        # A letter of Hangul takes two columns.
        assert all(len(line) + sum("가" <= item <= "힣" for item in line) <= 60 for line in ran.out.splitlines())


@pytest.mark.parametrize("column", ["envelope_id", "sender_id", "key", "body"])
async def test_a_hub_reads_no_row_of_which_a_column_was_changed(stored, column):
    async with a_hub(stored.log) as hub:
        await discussed(hub)
    await stored.log.close()
    changed(stored, (f"UPDATE {ROWS} SET {column} = 'zz' WHERE seq = 4",))
    async with SqliteSessionLog(stored.path) as log, a_hub(log) as hub:
        with pytest.raises(LogDamagedError, match="row 4"):
            await hub.envelopes("trip")
