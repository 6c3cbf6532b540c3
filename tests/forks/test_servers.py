"""Real servers that fork: gunicorn that loads the application before its workers, and a pool of processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

import otel_assembly

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

FOLDER = Path(__file__).parent
ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join(map(str, (Path(otel_assembly.__file__).parents[1], FOLDER, *sys.path)))
}


@contextmanager
def gunicorn(workers):
    """The address of a gunicorn whose master has loaded `preloaded`."""
    pytest.importorskip("gunicorn", reason="gunicorn is not installed")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        command = f"--preload --workers {workers} --timeout 600 --bind fd://{listening.fileno()} preloaded:app"
        server = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", *command.split()],
            pass_fds=[listening.fileno()],
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            server.send_signal(signal.SIGTERM)
            print(server.communicate()[0])


def check(answers):
    """All were told the same prompt, each under an id of its own, and each process has ledgers of its own."""
    assert len({answer["id"] for answer in answers}) == len(answers)
    assert len({answer["tokens.out"] for answer in answers}) == 1
    ledgers = {}
    for answer in answers:
        ledgers.setdefault(answer["ledger.id"], []).append(answer)
    for told in ledgers.values():
        assert len({answer["process"] for answer in told}) == 1
        assert sorted(answer["turn"] for answer in told) == list(range(len(told)))
    assert len(ledgers) == len({answer["process"] for answer in answers}) > 1


@pytest.mark.slow
def test_workers_of_a_gunicorn_that_loaded_the_application_first_all_answer():
    answers = []
    with gunicorn(3) as address:
        while len({answer["process"] for answer in answers}) < 3:
            with urlopen(address) as response:
                answers.append(json.load(response))
    check(answers)


def test_a_pool_of_forked_processes_answers():
    ran = subprocess.run(
        [sys.executable, FOLDER / "preloaded.py"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    check(json.loads(ran.stdout))
