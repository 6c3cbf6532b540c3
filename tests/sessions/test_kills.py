"""Hubs, and servers, that are killed at any moment lose nothing that they accepted, and accept nothing twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from kills import SECONDS, SECONDS_A_KILL, defects
from poster import Book, said_under
from postgres_server import BIN, MISSING
from rows import created, on, row
from striking import AFTER, BEFORE, DURING, Strike, StrikingLog

from otel_assembly.errors import LogConflictError
from otel_assembly.sessions import MemorySessionLog

HERE = Path(__file__).parent


@contextmanager
def started(*arguments):
    """The program, which is told to stop all that it started where it does not come to its end."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE.parent), *sys.path])}
    command = [sys.executable, str(HERE / "kills.py"), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)


def killed(kind, kills):
    seconds = 2 * (SECONDS + kills * SECONDS_A_KILL)
    with started("--log", kind, "--kills", str(kills)) as process:
        said, errors = process.communicate(timeout=seconds)
    print(said)
    assert (process.returncode, errors) == (0, ""), said + errors
    assert said.endswith("held\n")
    return said


def test_hubs_that_are_killed_lose_nothing():
    assert "sqlite: seed " in killed("sqlite", 5)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_thirty_kills_lose_nothing(kind):
    if kind == "postgres" and BIN is None:
        pytest.skip(MISSING)
    said = killed(kind, 30)
    assert "at a random moment" in said
    assert ("before the commit" if kind == "sqlite" else "the server ") in said


@pytest.fixture
def session():
    """Envelopes of a log, and the books of who posted them."""
    envelopes, books = [], {"ann": [], "bob": []}
    for seq in range(1, 7):
        who = ("ann", "bob")[seq % 2]
        one = replace(said_under("s", who, f"{who}-0-{seq}"), envelope_id=f"{seq:032x}", seq=seq, created_at=float(seq))
        envelopes.append(one)
        books[who] += [["try", "s", one.idempotency_key], ["ok", "s", one.idempotency_key, one.envelope_id, str(seq)]]
    return envelopes, books


def test_a_whole_log_has_no_defects(session):
    envelopes, books = session
    books["ann"] += [["try", "s", "ann-0-9"], ["no", "s", "ann-0-9"]]
    assert defects(envelopes, books, refusable=True) == []
    assert defects(envelopes, books, refusable=False) == ["ann's ann-0-9 was refused"]


def test_what_is_lost_is_told(session):
    envelopes, books = session
    assert "lost: ann's ann-0-6, accepted as row 6" in defects(envelopes[:-1], books, refusable=False)
    assert "the rows are not numbered without gaps from 1" in defects(envelopes[1:], books, refusable=False)


def test_what_is_there_twice_or_elsewhere_is_told(session):
    envelopes, books = session
    twice = replace(envelopes[0], seq=7, envelope_id=f"{7:032x}", created_at=7.0)
    found = defects([*envelopes, twice], books, refusable=False)
    assert found == ["2 times there: bob's bob-0-1", "bob's bob-0-1 was accepted as row 1, and is row 7"]
    early = replace(envelopes[-1], created_at=0.5)
    assert defects([*envelopes[:-1], early], books, refusable=False) == ["the ids do not grow, or the time goes back"]
    other = replace(envelopes[-1], event_data={"text": "something else"})
    assert defects([*envelopes[:-1], other], books, refusable=False) == ["ann's ann-0-6 says something else"]


def test_what_nobody_was_told_of_is_told(session):
    envelopes, books = session
    del books["ann"][-2:]
    books["bob"][-1] = ["no", "s", "bob-0-5"]
    books["bob"].append(["try", "s", "bob-0-8"])
    assert defects(envelopes, books, refusable=True) == [
        "bob's bob-0-5 was refused, and is there",
        "bob's bob-0-8 never had an answer",
        "nobody posted ('ann', 'ann-0-6')",
    ]


def test_a_line_that_was_not_written_whole_does_not_count(tmp_path):
    book = Book(tmp_path / "book")
    book.write("try", "s", "a")
    book.write("ok", "s", "a", "id", 3, sync=True)
    book.write("try", "s", "b")
    book.close()
    with book.path.open("a") as file:
        file.write("ok s b")
    again = Book(book.path)
    assert again.unanswered() == [("s", "b")]
    again.write("try", "s", "c")
    assert again.unanswered() == [("s", "b"), ("s", "c")]
    again.close()


class Told(Strike):
    """A strike that is told, and kills nobody."""

    struck = 0

    def now(self):
        Told.struck += 1


@pytest.mark.parametrize("point", [BEFORE, DURING, AFTER])
async def test_a_strike_that_comes_to_nothing_waits_for_the_next_append(monkeypatch, point):
    """Where somebody else was first there is no commit, and no answer to strike after."""
    monkeypatch.setattr(Told, "struck", 0)
    log = MemorySessionLog()
    first = await created(log)
    striking = StrikingLog(log, Told(point, 2))
    await striking.append([row("s", 2)], on(first))
    assert Told.struck == 0
    with pytest.raises(LogConflictError):
        await striking.append([row("s", 2)], on(first))
    assert Told.struck == (0 if point == AFTER else 1)
    await striking.append([row("s", 3)], on(row("s", 2)))
    assert Told.struck == 1
    await striking.append([row("s", 4)], on(row("s", 3)))
    assert Told.struck == 1
