"""The log in SQLite: synced before it is accepted, in a queue of processes, and loud where the file is damaged."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rows import appended, created, on, row

from otel_assembly.errors import ConfigurationError, LogDamagedError, LogUnavailableError, LogUnsureError
from otel_assembly.sessions import Cursor, Snapshot, SqliteSessionLog

STRACE = shutil.which("strace")
HERE = Path(__file__).parent

#: Appends so many rows, and says which are accepted.
WRITER = """
import asyncio, sys
from rows import created, on, row
from otel_assembly.errors import LogConflictError, LogUnsureError
from otel_assembly.sessions import SqliteSessionLog

async def main(path, name, count):
    log = SqliteSessionLog(path, patience=500)
    if await log.metadata("s") is None:
        await created(log)
    last = (await log.rows_from("s", 1))[-1]
    number = 0
    print("ready", flush=True)
    sys.stdin.readline()
    while number < int(count):
        after = row("s", last.seq + 1, envelope_id=f"{name}-{number}")
        try:
            await log.append([after], on(last))
        except LogConflictError:
            last = (await log.rows_from("s", last.seq))[-1]
            continue
        except LogUnsureError:
            print("unsure", after.envelope_id, flush=True)
            last = (await log.rows_from("s", last.seq))[-1]
            if last.envelope_id != after.envelope_id:
                continue
        last = after
        number += 1
        print("accepted", after.envelope_id, flush=True)
    await log.close()

asyncio.run(main(*sys.argv[1:]))
"""


@contextlib.contextmanager
def writing(path, name, count, *before):
    """A process that appends once it is told to go."""
    command = [*before, sys.executable, "-c", WRITER, str(path), name, str(count)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env)
    with process:
        try:
            assert process.stdout.readline() == "ready\n", process.stderr.read()
            yield process
        finally:
            process.kill()


def go(process):
    process.stdin.write("\n")
    process.stdin.flush()


def ended(process):
    """What a process said after it was told to go, and how it ended."""
    said, errors = process.communicate("\n")
    return said.splitlines(), errors, process.returncode


@pytest.fixture
def strace(tmp_path):
    """Runs a program under strace; skipped with the reason where that cannot be, which fails the run in CI."""
    if STRACE is None:
        pytest.skip("strace is not installed: apt-get install strace")
    tried = subprocess.run([STRACE, "-f", "-o", os.devnull, "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"strace cannot trace here: {tried.stderr}")
    return [STRACE, "-f", "-o", str(tmp_path / "calls")]


def test_every_acceptance_was_synced_before(tmp_path, strace):
    with writing(tmp_path / "log.db", "x", 50, *strace, "-e", "trace=fsync,fdatasync,write") as process:
        said, errors, code = ended(process)
    assert (len(said), errors, code) == (50, "", 0)
    synced = 0
    accepted = []
    for line in (tmp_path / "calls").read_text().splitlines():
        synced += bool(re.search(r"f(data)?sync\(.* = 0|f(data)?sync resumed.* = 0", line))
        if '"accepted' in line:
            accepted.append(synced)
            synced = 0
    assert len(accepted) == 50
    assert min(accepted) >= 1


@pytest.mark.parametrize("when", [20, 21, 25])  # the file is made by then
def test_a_process_that_is_killed_in_a_sync_loses_nothing_it_accepted(tmp_path, strace, when):
    kill = ["-e", "trace=fdatasync", "-e", f"inject=fdatasync:signal=KILL:when={when}"]
    with writing(tmp_path / "log.db", "x", 1000, *strace, *kill) as process:
        said, _, code = ended(process)
    assert code != 0
    accepted = [line.split()[1] for line in said]
    assert accepted

    async def check():
        async with SqliteSessionLog(tmp_path / "log.db") as log:
            there = [envelope.envelope_id for envelope in (await log.rows_from("s", 1))[1:]]
            assert there[: len(accepted)] == accepted
            assert len(there) <= len(accepted) + 1
            return there

    assert len(asyncio.run(check())) == len(set(asyncio.run(check())))


def test_a_sync_that_fails_leaves_the_writer_unsure_and_each_row_once(tmp_path, strace):
    fail = ["-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=9+4"]
    with writing(tmp_path / "log.db", "x", 30, *strace, *fail) as process:
        said, errors, code = ended(process)
    assert (errors, code) == ("", 0)
    assert sum(line.startswith("unsure") for line in said) >= 5

    async def check():
        async with SqliteSessionLog(tmp_path / "log.db") as log:
            return [envelope.envelope_id for envelope in await log.rows_from("s", 2)]

    assert asyncio.run(check()) == [f"x-{number}" for number in range(30)]


def test_processes_append_in_turn_and_nobody_starves(tmp_path):
    path = tmp_path / "log.db"
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(writing(path, name, 40)) for name in "xyz"]
        for writer in writers:
            go(writer)
        for writer in writers:
            said, errors, code = ended(writer)
            assert (len(said), errors, code) == (40, "", 0)

    async def check():
        async with SqliteSessionLog(path) as log:
            return [envelope.envelope_id for envelope in await log.rows_from("s", 2)]

    there = asyncio.run(check())
    for name in "xyz":
        assert [item for item in there if item[0] == name] == [f"{name}-{number}" for number in range(40)]


def test_a_writer_that_is_killed_lets_the_others_go_on(tmp_path):
    path = tmp_path / "log.db"
    accepted = []
    with contextlib.ExitStack() as stack:
        steady = stack.enter_context(writing(path, "steady", 60))
        go(steady)
        for number in range(4):
            with writing(path, f"victim{number}", 1000) as victim:
                go(victim)
                accepted += [victim.stdout.readline().split()[1] for _ in range(5)]
                victim.send_signal(signal.SIGKILL)
                accepted += [line.split()[1] for line in victim.stdout.read().splitlines(keepends=True) if "\n" in line]
        said, errors, code = ended(steady)
        assert (errors, code) == ("", 0)
        accepted += [line.split()[1] for line in said]

    async def check():
        async with SqliteSessionLog(path) as log:
            return [envelope.envelope_id for envelope in await log.rows_from("s", 2)]

    there = asyncio.run(check())
    assert len(set(there)) == len(there)
    assert set(accepted) <= set(there)


async def seen_by(log, first):
    """Whether a log has opened its file and read it, which on a busy machine takes longer than its patience."""
    try:
        return list(await log.rows_from("s", 1)) == [first]
    except LogUnavailableError:
        return False


async def test_the_event_loop_never_waits_for_a_writer(tmp_path):
    path = tmp_path / "log.db"
    async with SqliteSessionLog(path) as log, SqliteSessionLog(path, patience=0.2) as other:
        first = await created(log)
        while not await seen_by(other, first):
            pass
        async with log.press("s"):
            waiting = asyncio.create_task(other.append([row("s", 2)], on(first)))
            turns = 0
            while not waiting.done():
                await asyncio.sleep(0)
                turns += 1
            assert turns > 10
            with pytest.raises(LogUnavailableError, match="nothing was written"):
                await waiting
        # It gave up, and so is never written.
        await log.append([row("s", 2, envelope_id="ours")], on(first))
        assert [envelope.envelope_id for envelope in await log.rows_from("s", 2)] == ["ours"]


async def cut_copy(path, where, size):
    """The file as it is, with no more than the first bytes of its write-ahead log."""
    where.mkdir()
    shutil.copy(path, where / "log.db")
    (where / "log.db-wal").write_bytes(Path(f"{path}-wal").read_bytes()[:size])
    return SqliteSessionLog(where / "log.db")


async def test_a_file_that_is_cut_has_all_that_was_accepted_before_the_cut(tmp_path, caplog):
    path = tmp_path / "log.db"
    async with SqliteSessionLog(path) as log:
        last = await created(log)
        sizes = []
        for seq in range(2, 12):
            after = row("s", seq, text="x" * 700 * seq)
            await log.append([after], on(last))
            last = after
            sizes.append(os.path.getsize(f"{path}-wal"))
        assert sizes == sorted(set(sizes))
        for number, size in enumerate(sizes):
            for cut in (size, size + 30, size + 3000):
                async with await cut_copy(path, tmp_path / f"{number}-{cut}", cut) as copy:
                    there = await copy.rows_from("s", 1)
                    caplog.clear()
                if cut == size:
                    assert [item.seq for item in there] == list(range(1, number + 3))
                else:
                    assert number + 2 <= len(there) <= number + 3


@pytest.mark.parametrize("torn", [0, 1_000])
async def test_a_log_that_was_cut_behind_an_accepted_row_names_it(tmp_path, torn):
    """Also where it was cut at the very end of a transaction, so that nothing in the file itself tells."""
    path = tmp_path / "log.db"
    async with SqliteSessionLog(path) as log:
        last, sizes = await created(log), []
        for seq in range(2, 12):
            await log.append([after := row("s", seq)], on(last))
            last = after
            sizes.append(os.path.getsize(f"{path}-wal"))
        copy = await cut_copy(path, tmp_path / "cut", sizes[4] + torn)
        shutil.copy(f"{path}.queue", tmp_path / "cut/log.db.queue")
    async with copy:
        for _ in range(2):
            with pytest.raises(LogDamagedError, match=r"session 's': row 11 was accepted, and is not in .*cut/log\.db"):
                await copy.rows_from("s", 1)
        (tmp_path / "cut/log.db.queue").write_bytes(b"")
        assert [envelope.seq for envelope in await copy.rows_from("s", 1)] == list(range(1, 7))


async def test_a_log_that_was_deleted_begins_anew(tmp_path):
    path = tmp_path / "log.db"
    await closed_log(path)
    path.unlink()
    for _ in range(2):
        async with SqliteSessionLog(path) as log:
            assert list(await log.session_ids()) == []
    async with SqliteSessionLog(path) as log:
        await created(log)
    async with SqliteSessionLog(path) as log:
        assert list(await log.session_ids()) == ["s"]


async def test_a_log_that_was_emptied_is_told(tmp_path):
    path = tmp_path / "log.db"
    await closed_log(path)
    os.truncate(path, 0)
    async with SqliteSessionLog(path) as log:
        for _ in range(2):
            with pytest.raises(LogDamagedError, match="session 's': row 40 was accepted, and is not in"):
                await log.session_ids()


async def test_a_note_of_the_newest_row_that_was_not_written_whole_says_nothing(tmp_path):
    path = tmp_path / "log.db"
    await closed_log(path)
    noted = Path(f"{path}.queue").read_bytes()
    damaged(path, "DELETE FROM otel_assembly_session_rows WHERE seq = 40")
    for note in (noted[:-5], noted.replace(b"40", b"41", 1), b"not a note at all\n", b"\xff" * 50):
        Path(f"{path}.queue").write_bytes(note)
        async with SqliteSessionLog(path) as log:
            assert len(await log.rows_from("s", 1)) == 39
    Path(f"{path}.queue").write_bytes(noted)
    async with SqliteSessionLog(path) as log:
        with pytest.raises(LogDamagedError, match="session 's': row 40 was accepted, and is not in"):
            await log.rows_from("s", 1)


async def test_what_was_not_written_whole_is_left_out_with_a_warning(tmp_path, caplog):
    path = tmp_path / "log.db"
    async with SqliteSessionLog(path) as log:
        await appended(log, 5)
        size = os.path.getsize(f"{path}-wal")
        async with await cut_copy(path, tmp_path / "cut", size - 100) as copy:
            assert [envelope.seq for envelope in await copy.rows_from("s", 1)] == [1, 2, 3, 4]
    assert "log.db-wal ends with an incomplete transaction" in caplog.text


@pytest.mark.parametrize("at", [0.1, 0.5, 0.8])
async def test_accepted_rows_are_never_cut_without_a_word(tmp_path, at):
    path = tmp_path / "log.db"
    async with SqliteSessionLog(path) as log:
        await appended(log, 10)
        (tmp_path / "copy").mkdir()
        shutil.copy(path, tmp_path / "copy/log.db")
        wal = bytearray(Path(f"{path}-wal").read_bytes())
    wal[int(len(wal) * at)] ^= 0x40
    (tmp_path / "copy/log.db-wal").write_bytes(wal)
    async with SqliteSessionLog(tmp_path / "copy/log.db") as copy:
        for _ in range(2):
            with pytest.raises(LogDamagedError, match=r"frame \d+ of .*log.db-wal .* restore the file"):
                await copy.rows_from("s", 1)
    assert (tmp_path / "copy/log.db-wal").read_bytes() == wal


async def test_a_damaged_header_of_the_write_ahead_log_is_told(tmp_path):
    path = tmp_path / "log.db"
    async with SqliteSessionLog(path) as log:
        await appended(log, 3)
        wal = bytearray(Path(f"{path}-wal").read_bytes())
        (tmp_path / "copy").mkdir()
        shutil.copy(path, tmp_path / "copy/log.db")
    wal[20] ^= 1
    (tmp_path / "copy/log.db-wal").write_bytes(wal)
    async with SqliteSessionLog(tmp_path / "copy/log.db") as copy:
        with pytest.raises(LogDamagedError, match="header"):
            await copy.session_ids()
    (tmp_path / "copy/log.db").write_bytes(b"")
    async with SqliteSessionLog(tmp_path / "copy/log.db") as copy:
        with pytest.raises(LogDamagedError, match="is empty"):
            await copy.session_ids()


async def closed_log(path, count=40):
    async with SqliteSessionLog(path) as log:
        await appended(log, count, text="x" * 500)
        await log.save_snapshot("s", "discussion/1", Snapshot(count, '{"turns": 12345}'))
        await log.move_cursor("s", "ann", Cursor(1, 1))
    assert not Path(f"{path}-wal").exists()


def damaged(path, statement, *arguments):
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(statement, arguments)
        db.commit()


async def test_a_row_that_is_not_what_was_written_is_named(tmp_path):
    path = tmp_path / "log.db"
    await closed_log(path)
    damaged(path, "UPDATE otel_assembly_session_rows SET body = replace(body, 'xx', 'xy') WHERE seq = 17")
    async with SqliteSessionLog(path) as log:
        assert len(await log.rows_from("s", 1, 16)) == 16
        for call in (log.rows_from("s", 1), log.rows_from("s", 17), log.by_id("s", f"{17:016x}")):
            with pytest.raises(LogDamagedError, match="session 's': row 17 is damaged"):
                await call
        assert len(await log.rows_from("s", 18)) == 23


@pytest.mark.parametrize("value", [None, 5, b"\xff\xfe"])
async def test_a_row_that_is_no_text_any_more_is_named(tmp_path, value):
    path = tmp_path / "log.db"
    await closed_log(path)
    if value is None:
        damaged(path, "UPDATE otel_assembly_session_rows SET checksum = 'x' WHERE seq = 17")
    else:
        damaged(path, "UPDATE otel_assembly_session_rows SET body = CAST(? AS TEXT) WHERE seq = 17", value)
    async with SqliteSessionLog(path) as log:
        with pytest.raises(LogDamagedError, match="session 's': row 17 is damaged"):
            await log.rows_from("s", 1)


async def test_a_row_that_is_missing_is_named(tmp_path):
    path = tmp_path / "log.db"
    await closed_log(path)
    damaged(path, "DELETE FROM otel_assembly_session_rows WHERE seq = 17")
    async with SqliteSessionLog(path) as log:
        for first in (1, 17):
            with pytest.raises(LogDamagedError, match="session 's': row 17 is missing"):
                await log.rows_from("s", first)


async def test_metadata_and_snapshots_are_what_was_written(tmp_path, caplog):
    path = tmp_path / "log.db"
    await closed_log(path)
    damaged(path, "UPDATE otel_assembly_session_snapshots SET state = replace(state, '12345', '12346')")
    damaged(path, "UPDATE otel_assembly_sessions SET metadata = '{\"a\": 1}'")
    async with SqliteSessionLog(path) as log:
        assert await log.snapshot("s", "discussion/1") is None
        with pytest.raises(LogDamagedError, match="session 's': its metadata"):
            await log.metadata("s")
    assert "session 's': a snapshot is damaged" in caplog.text


async def test_a_file_that_is_cut_short_is_told(tmp_path):
    path = tmp_path / "log.db"
    await closed_log(path, 400)
    os.truncate(path, os.path.getsize(path) // 2 // 4096 * 4096)
    async with SqliteSessionLog(path) as log:
        with pytest.raises(LogDamagedError, match=r"log\.db: database disk image is malformed; restore"):
            await log.rows_from("s", 1)


async def test_a_page_that_is_overwritten_names_session_and_row(tmp_path):
    path = tmp_path / "log.db"
    await closed_log(path, 400)
    pages = bytearray(path.read_bytes())
    found = pages.index(b'"seq": 200,')
    page = found // 4096 * 4096
    pages[page : page + 4096] = b"\x55" * 4096
    path.write_bytes(pages)
    async with SqliteSessionLog(path) as log:
        with pytest.raises(LogDamagedError, match=r"session 's': row (19\d|200) cannot be read"):
            await log.rows_from("s", 1)


async def test_what_is_no_database_is_told(tmp_path):
    path = tmp_path / "log.db"
    path.write_text("These are the notes of a meeting, and no database. " * 100)
    async with SqliteSessionLog(path) as log:
        with pytest.raises(LogDamagedError, match=r"log\.db: file is not a database; restore the file"):
            await log.session_ids()
    assert path.read_text().startswith("These are the notes")


async def test_a_file_of_a_later_form_is_left_alone(tmp_path):
    path = tmp_path / "log.db"
    await closed_log(path)
    damaged(path, "PRAGMA user_version = 7")
    async with SqliteSessionLog(path) as log:
        with pytest.raises(LogUnavailableError, match="form 7"):
            await log.session_ids()


async def test_a_file_that_is_moved_away_takes_no_more_rows(tmp_path):
    path = tmp_path / "log.db"
    async with SqliteSessionLog(path) as log:
        first = await created(log)
        path.rename(tmp_path / "moved.db")
        with pytest.raises(LogUnavailableError, match="moved or deleted"):
            await log.append([row("s", 2)], on(first))
        (tmp_path / "moved.db").rename(path)
        await log.append([row("s", 2)], on(first))


async def test_a_folder_that_is_not_there_is_told(tmp_path):
    async with SqliteSessionLog(tmp_path / "nowhere/log.db") as log:
        with pytest.raises(LogUnavailableError, match="nowhere"):
            await log.session_ids()


@pytest.mark.parametrize("given", [{"patience": 0}, {"poll_seconds": -1}, {"patience": float("nan")}])
def test_times_are_above_nothing(tmp_path, given):
    with pytest.raises(ConfigurationError):
        SqliteSessionLog(tmp_path / "log.db", **given)


def test_a_log_in_memory_is_another_class():
    with pytest.raises(ConfigurationError, match="MemorySessionLog"):
        SqliteSessionLog(":memory:")


def test_a_full_disk_leaves_a_log_that_works(tmp_path):
    program = """
import asyncio, resource, sys
from rows import created, on, row
from otel_assembly.errors import LogUnavailableError, LogUnsureError
from otel_assembly.sessions import SqliteSessionLog

async def main(path):
    async with SqliteSessionLog(path) as log:
        first = await created(log)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
        large = row("s", 2, text="x" * 1_000_000)
        try:
            await log.append([large], on(first))
        except (LogUnsureError, LogUnavailableError):
            print("refused")
        assert await log.by_id("s", large.envelope_id) is None
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        await log.append([large], on(first))
        assert list(await log.rows_from("s", 1)) == [first, large]

asyncio.run(main(sys.argv[1]))
"""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    command = [sys.executable, "-c", program, str(tmp_path / "log.db")]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert (done.stdout, done.stderr) == ("refused\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_a_way_of_its_own_into_the_file(tmp_path):
    program = """
import asyncio, os, sys
from rows import created, on, row
from otel_assembly.sessions import SqliteSessionLog

async def parent(log):
    first = await created(log)
    async with log.press("s"):
        pid = os.fork()
        if pid == 0:
            return first
        # The child left the turn alone: it is the parent's still.
        second = row("s", 2, envelope_id="parent")
        await asyncio.sleep(0.3)
        await log.append([second], on(first))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    print(*(one.envelope_id for one in await log.rows_from("s", 2)))
    await log.close()

async def child(log):
    while not (there := await log.rows_from("s", 2)):
        await asyncio.sleep(0.01)
    await log.append([row("s", 3, envelope_id="child")], on(there[-1]))
    await log.close()

log = SqliteSessionLog(sys.argv[1])
loop = asyncio.new_event_loop()
pid = os.getpid()
loop.run_until_complete(parent(log))
if os.getpid() != pid:
    asyncio._set_running_loop(None)
    asyncio.run(child(log))
    os._exit(0)
"""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    # From Python 3.12 on os.fork() warns that there are threads.
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", program, str(tmp_path / "log.db")]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert (done.stdout, done.stderr, done.returncode) == ("parent child\n", "", 0)


async def test_a_log_that_nobody_closed_ends_its_threads(tmp_path):
    before = set(threading.enumerate())
    log = SqliteSessionLog(tmp_path / "log.db")
    await created(log)
    (started,) = {item for item in threading.enumerate() if item not in before}
    del log
    await asyncio.to_thread(started.join)
    assert not started.is_alive()


def held_in(folder):
    """The files of a folder that this process holds open."""
    descriptors = Path("/proc/self/fd")
    if not descriptors.is_dir():
        pytest.skip("the system does not list what a process holds open")
    held = []
    for item in descriptors.iterdir():
        with contextlib.suppress(FileNotFoundError):
            held.append(Path(os.readlink(item)))
    return sorted(path.name for path in held if path.parent == folder)


def threads_of_logs():
    return {thread for thread in threading.enumerate() if thread.name.startswith("otel-assembly-log")}


async def until(true):
    while not true():
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("reads", [False, True])
async def test_a_log_that_nobody_closes_ends_its_threads_when_it_is_collected(tmp_path, reads):
    before = threads_of_logs()
    log = SqliteSessionLog(tmp_path / "log.db")
    await created(log)
    if reads:
        assert await log.session_ids() == ["s"]
        assert len(await log.rows_from("s", 1)) == 1
    assert threads_of_logs() > before
    del log
    gc.collect()
    await until(lambda: threads_of_logs() <= before)
    assert held_in(tmp_path) == []


async def test_a_log_that_is_closed_leaves_its_folder_alone(tmp_path):
    before = threads_of_logs()  # of logs that other tests left to the garbage collector
    log = SqliteSessionLog(tmp_path / "log.db")
    await created(log)
    await log.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.db", "log.db.queue"]
    for path in tmp_path.iterdir():
        path.unlink()
    await until(lambda: threads_of_logs() <= before)
    assert (list(tmp_path.iterdir()), held_in(tmp_path)) == ([], [])


async def test_a_log_that_is_closed_while_it_opens_leaves_nothing_open(tmp_path):
    before = threads_of_logs()  # of logs that other tests left to the garbage collector
    fcntl = pytest.importorskip("fcntl", reason="the system has no flock")
    log = SqliteSessionLog(tmp_path / "log.db", patience=500)
    with open(tmp_path / "log.db.queue", "w") as queue:
        fcntl.flock(queue, fcntl.LOCK_EX)
        opening = asyncio.create_task(created(log))
        await asyncio.sleep(0.1)
        closing = asyncio.create_task(log.close())
        await asyncio.sleep(0.1)
    await closing
    with pytest.raises(LogUnavailableError, match="closed"):
        await opening
    await until(lambda: threads_of_logs() <= before)
    assert held_in(tmp_path) == []
    assert not {path.name for path in tmp_path.iterdir()} - {"log.db", "log.db.queue"}


async def test_a_log_that_could_not_be_opened_is_closed_without_a_word(tmp_path):
    before = threads_of_logs()  # of logs that other tests left to the garbage collector
    log = SqliteSessionLog(tmp_path / "missing" / "log.db")
    with pytest.raises(LogUnavailableError):
        await log.session_ids()
    await log.close()
    await until(lambda: threads_of_logs() <= before)


async def test_an_unsure_read_is_no_read(tmp_path):
    """Only what may have been written is unsure."""
    async with SqliteSessionLog(tmp_path / "log.db") as log:
        await created(log)
        with pytest.raises(Exception) as raised:
            await log.rows_from("s", 1, limit="many")
        assert not isinstance(raised.value, LogUnsureError)


def bytes_written():
    """What this process has written to files until now."""
    said = Path("/proc/self/io").read_text()
    return int(re.search(r"^wchar: (\d+)$", said, re.MULTILINE)[1])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="no /proc/self/io here")
async def test_the_ten_thousandth_append_writes_as_much_as_the_first(tmp_path):
    async with SqliteSessionLog(tmp_path / "log.db") as log:
        last = await created(log)
        written = []
        for thousand in range(10):
            before = bytes_written()
            for _ in range(1000):
                after = row("s", last.seq + 1, key=f"k{last.seq}")
                await log.append([after], on(last))
                last = after
            written.append(bytes_written() - before)
            assert thousand == len(written) - 1
        assert written[-1] < 1.5 * written[1], written
