"""Output that nobody takes, and Ctrl-C: one line or silence, the right exit status, never a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

FULL = Path("/dev/full")
PROGRAM = [sys.executable, "-m", "otel_assembly"]
#: A finder that is asked for every import, and presses Ctrl-C at one of them.
IMPATIENT = """
import os, signal, sys
class Impatient:
    def find_spec(self, name, *_):
        if name == "pydantic":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Impatient())
from otel_assembly.__main__ import main
sys.exit(main())
"""
WAITING = """
import asyncio, pathlib
class Waiting:
    name = "waiting"
    async def apply(self, prompts, events, context):
        pathlib.Path("begun").touch()
        await asyncio.sleep(60)
"""


def heed_ctrl_c():
    """Who is started in the background ignores it, and so do the programs that it starts: see the shell's manual."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def both_ways(*commands):
    """Each command with its output buffered and not, in a process of its own; in short, by turns."""
    ways = {"buffered": "", "unbuffered": "1"}
    return pytest.mark.parametrize(
        ("command", "unbuffered"),
        [
            pytest.param(
                command, ways[way], id=f"{command}-{way}", marks=[pytest.mark.slow] if (at + other) % 2 else []
            )
            for at, command in enumerate(commands)
            for other, way in enumerate(ways)
        ],
    )


@pytest.fixture
def unbuffered():
    return ""


@pytest.fixture
def environment(unbuffered):
    env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return {**env, "PYTHONUNBUFFERED": unbuffered, "PYTHONIOENCODING": "utf-8"}


@pytest.fixture
def spans(otel_assembly, conversations):
    assert otel_assembly("replay", conversations, "--export", "spans.jsonl").status == 0
    return "spans.jsonl"


@pytest.mark.skipif(not FULL.exists(), reason="this machine has no /dev/full")
@both_ways("replay conversations.jsonl", "replay conversations.jsonl --json", "view spans.jsonl -o -")
def test_a_full_output_is_one_line(command, environment, spans, tmp_path):
    with FULL.open("w") as full:
        done = subprocess.run(
            [*PROGRAM, *command.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=environment,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "otel-assembly: the output cannot be written: no space left on device\n"


@both_ways("replay conversations.jsonl --turns", "view spans.jsonl -o -", "--help")
def test_a_reader_that_leaves_early_is_silence(command, environment, spans, tmp_path):
    done = _unread(command, environment, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_else_a_replay_makes_is_made_although_nobody_reads_on(environment, conversations, tmp_path):
    whole = [f"--export={tmp_path / 'spans.jsonl'}", f"--html={tmp_path / 'page.html'}", "--turns"]
    done = _unread(f"replay conversations.jsonl {' '.join(whole)}", environment, tmp_path)
    assert done.returncode == 0
    assert "exported" in done.stderr
    assert (tmp_path / "page.html").read_text(encoding="utf-8").count("talk-") >= 3


def _unread(command, environment, folder):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return subprocess.run(
            [*PROGRAM, *command.split()],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=environment,
            check=False,
        )
    finally:
        os.close(writing)


def test_ctrl_c_while_importing_is_one_line():
    done = subprocess.run(
        [sys.executable, "-c", IMPATIENT, "doctor"], capture_output=True, text=True, check=False, preexec_fn=heed_ctrl_c
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "otel-assembly: interrupted\n")


def test_ctrl_c_while_a_command_runs_is_one_line(environment, conversations, tmp_path):
    (tmp_path / "waiting.py").write_text(WAITING)
    running = subprocess.Popen(
        [*PROGRAM, "replay", "conversations.jsonl", "--policies", "waiting:Waiting"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment,
        preexec_fn=heed_ctrl_c,
    )
    while not (tmp_path / "begun").exists():
        assert running.poll() is None, running.communicate()
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate()
    assert (running.returncode, out, err) == (130, "", "otel-assembly: interrupted\n")


def test_a_closed_output_is_no_error(environment, spans, tmp_path):
    done = subprocess.run(
        ["/bin/sh", "-c", f"{' '.join(PROGRAM)} explain --traces spans.jsonl --turn 0 --conversation talk-0 >&-"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
