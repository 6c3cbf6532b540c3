"""A command under `watch`: its environment, its exit status, its signals, and what happens when `watch` is killed."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import sys
import venv

import pytest
from cli.command_line import runner
from watch.watching import PROGRAMS, ROOT, Watch

from otel_assembly.watch import python_program


def watched(provider, *options, program="openai_loop.py"):
    """A watched loop that calls the provider once for each line."""
    return Watch(
        *("--port", 0, *options, "--", sys.executable, PROGRAMS / program, f"{provider.url}/v1"),
        # Its last spans are given up after a second if `watch` is gone.
        environment={"OTEL_EXPORTER_OTLP_TIMEOUT": "1"},
    )


def shell(*options, script):
    return Watch("--port", 0, *options, "--", "/bin/sh", "-c", script)


def test_the_turns_are_printed_as_a_tree_and_content_is_on_the_page_only(provider):
    provider.says("Hello.", "Fine.", "Bye.")
    with watched(provider, "--tree") as watch:
        for text in ("I am allergic to nuts.", "And else?", "A dinner, please."):
            assert watch.ask(text) == "answered\n"
        watch.line("turn 2")
        shown = (patch.get("texts") for patch in watch.patches())
        assert next(texts for texts in shown if "I am allergic to nuts." in str(texts))
        assert watch.end() == 0
    said = "\n".join(watch.said)
    assert "message content is captured and shown on the page; --no-content turns this off" in said
    assert "dropped 2 (2 newly; not_sent ×2)" in said
    assert max(map(len, said.splitlines()[2:])) <= 100
    assert "allergic" not in said


def test_no_content_is_captured_if_it_is_turned_off_and_the_page_stays_if_that_is_wished(provider):
    provider.says("Hello.")
    with watched(provider, "--no-content", "--stay") as watch:
        assert "not captured" in watch.line("message content")
        watch.ask("I am allergic to nuts.")
        watch.process.stdin.close()
        assert "exited with status 0" in watch.line("the page stays until Ctrl-C")
        (turn,) = watch.turns(1)
        assert turn["out"] > 0
        assert "allergic" not in str(next(patch for patch in watch.patches() if "conversations" in patch))
        watch.process.send_signal(signal.SIGINT)
        assert watch.process.wait() == 0


@pytest.mark.parametrize(
    ("options", "environment", "said"),
    [
        (["--forward", "http://127.0.0.1:9"], {}, "is not captured; --content turns this on"),
        (["--forward", "http://127.0.0.1:9", "--content"], {}, "captured and shown on the page and sent to http://"),
        ([], {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "NO_CONTENT"}, "as the environment sets it"),
    ],
)
def test_a_line_says_what_is_captured(options, environment, said):
    with Watch("--port", 0, *options, "--", "/bin/sh", "-c", "exit 0", environment=environment) as watch:
        assert said in watch.line("message content")
        assert watch.end() == 0


@pytest.mark.parametrize("status", [7, *(pytest.param(status, marks=pytest.mark.slow) for status in (0, 1, 130))])
def test_the_exit_status_is_that_of_the_command(status):
    with shell(script=f"exit {status}") as watch:
        assert watch.end() == status
    assert any("no assembly has arrived" in line for line in watch.said)


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        signal.SIGINT,
        *(pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGHUP, signal.SIGUSR1)),
    ],
)
def test_signals_reach_the_command_and_end_watch_as_they_end_the_command(number):
    with shell(script="echo ready; exec sleep 600") as watch:
        assert watch.process.stdout.readline() == "ready\n"
        assert watch.end_by_signal(number) == -number


def test_a_command_that_handles_a_signal_ends_with_its_own_status():
    script = "trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    with shell(script=script) as watch:
        assert watch.process.stdout.readline() == "ready\n"
        assert watch.end_by_signal(signal.SIGTERM) == 5


def test_a_killed_command_ends_watch_by_the_same_signal():
    with shell(script="kill -KILL $$") as watch:
        assert watch.end() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        (["no-such-program"], 127, "no-such-program: not found; name a program that is on the PATH"),
        (["/etc/passwd"], 126, "/etc/passwd: cannot be started: permission denied"),
    ],
)
def test_a_command_that_cannot_start_is_one_line(command, status, said):
    with Watch("--port", 0, "--", *command) as watch:
        assert watch.end() == status
    assert watch.said[-1] == f"otel-assembly: {said}"


def test_a_taken_port_is_one_line_and_another_one_is_used_by_default(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ran = runner(tmp_path, here=True)("watch", "--port", port)
        assert ran.status == 2
        (line,) = ran.err.splitlines()
        assert f"cannot listen on 127.0.0.1:{port}" in line
        assert "choose --port 0 for a free port" in line


def test_a_command_needs_the_separator(tmp_path):
    run = runner(tmp_path, here=True)
    ran = run("watch", "python", "agent.py")
    assert ran.status == 2
    assert ran.err == (
        "otel-assembly: python: does not exist; name a log or its directory, or put -- before a command: "
        "otel-assembly watch -- python agent.py\n"
    )
    ran = run("watch", "--port", 0, "--")
    assert ran.status == 2
    assert ran.err == "otel-assembly: put -- before the command: otel-assembly watch -- python agent.py\n"


def test_the_options_after_the_separator_are_those_of_the_command():
    with Watch("--port", 0, "--", "/bin/echo", "--port", "--") as watch:
        assert watch.process.stdout.readline() == "--port --\n"


def test_an_interpreter_without_the_instrumentation_is_named(tmp_path):
    venv.create(tmp_path / "bare")
    python = tmp_path / "bare" / "bin" / "python"
    with Watch("--port", 0, "--", python, "-c", "print('ran')", environment={"PYTHONPATH": ""}) as watch:
        assert watch.process.stdout.readline() == "ran\n"
        assert watch.end() == 0
    (line,) = [line for line in watch.said if "is not instrumented" in line]
    assert f"{python} has no otel_assembly" in line
    assert f"{python} -m pip install 'otel-assembly[otlp-http]'" in line


@pytest.mark.parametrize(
    "head",
    [
        f"#!{sys.executable}\n",
        "#!/usr/bin/env python\n",
        "#!/usr/bin/env -S python -u\n",
        f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''\n",
    ],
)
def test_a_script_runs_under_the_interpreter_of_its_first_line(tmp_path, head):
    script = tmp_path / "agent"
    script.write_text(head + "print('agent')\n")
    script.chmod(0o755)
    path = f"{os.path.dirname(sys.executable)}:/usr/bin:/bin"
    program = python_program([str(script), "--flag"], {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)})
    assert os.path.dirname(program.interpreter) == os.path.dirname(sys.executable)
    assert program.missing == []
    assert program.command[-2:] == [str(script), "--flag"]


@pytest.mark.parametrize("command", [["/bin/sh", "-c", "python"], ["opentelemetry-instrument", "python"], ["missing"]])
def test_other_commands_run_as_they_are(command):
    assert python_program(command, os.environ) is None


def test_a_killed_watch_leaves_the_command_alone_and_a_store_that_opens_again(provider, tmp_path):
    provider.says("Hello.", "Fine.", "Bye.")
    store = tmp_path / "turns.db"
    with watched(provider, "--store", store) as watch:
        watch.ask("I am allergic to nuts.")
        watch.ask("And else?")
        seen = watch.turns(2)
        watch.process.kill()
        watch.process.wait()
        assert watch.ask("A dinner, please.") == "answered\n", "the command goes on"
        watch.process.stdin.close()
        assert watch.process.stdout.read() == ""
    assert store.stat().st_mode & 0o777 == 0o600
    with Watch("--port", 0, "--store", store) as again:
        assert again.turns(2) == seen
        with Watch("--port", 0, "--store", store, starts=False) as second:
            assert second.end() == 2
        assert "another process uses it" in second.said[0]
    with sqlite3.connect(store) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
