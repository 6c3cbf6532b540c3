"""What ``otel-assembly doctor`` says of a stack where nobody answers, or that is named in a wrong way."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from command_line import NO_FRAMEWORKS

NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def doctor(otel_assembly):
    """The command without a look at the frameworks, which would all be imported."""
    return lambda *arguments, **environment: otel_assembly("doctor", *arguments, **NO_FRAMEWORKS, **environment)


def test_without_an_address_nothing_is_sent_and_no_stack_is_spoken_of(doctor, receiver):
    ran = doctor(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{receiver.port}")
    assert ran.status == 0
    assert "Stack" not in ran.out
    assert receiver.requests == []


def test_where_no_jaeger_and_no_prometheus_answer_nothing_is_sent_and_nothing_is_waited_for(doctor, receiver):
    ran = doctor(
        *("--jaeger", NOBODY, "--prometheus", NOBODY),
        OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{receiver.port}",
    )
    assert ran.status == 1
    assert ran.err == ""
    stack = ran.out.split("\nStack", 1)[1].splitlines()[1:]
    assert len(stack) == 4
    for line in stack:
        assert line.startswith("  ✖ ")
        assert line.endswith(f"cannot connect to {NOBODY}: connection refused")
    assert receiver.requests == receiver.metric_requests == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--jaeger", "localhost:16686"), "'localhost:16686' is not a URL of Jaeger"),
        (("--jaeger", ""), "'' is not a URL of Jaeger"),
        (("--jaeger", "http://[::1"), "is not a URL of Jaeger"),
        (("--jaeger", "http://me:secret@localhost:1"), "contains credentials"),
        (
            ("--prometheus", "file:///etc/passwd"),
            "is not a URL of Prometheus; use one such as http://localhost:9090",
        ),
        (("--alertmanager", "9093"), "is not a URL of Alertmanager"),
        (("--jaeger", NOBODY, "--wait", "0"), "a whole number of seconds from 1 to 3600, got '0'"),
        (("--jaeger", NOBODY, "--wait", "soon"), "got 'soon'"),
        (("--wait", "5"), "add --jaeger, --prometheus or --alertmanager"),
    ],
)
def test_wrong_usage_is_one_line_before_anything_is_looked_at(doctor, arguments, said):
    ran = doctor(*arguments)
    assert ran.status == 2
    assert ran.out == ""
    assert said in ran.err
    assert ran.err.count("\n") == 1
    assert "secret" not in ran.err


@pytest.mark.parametrize("columns", [80, pytest.param(120, marks=pytest.mark.slow)])
def test_in_a_terminal_no_line_is_longer_than_it_but_for_an_address(columns, tmp_path):
    shown = _in_a_terminal(columns, tmp_path)
    assert any("is not an HTTP server" in line or "cannot connect" in line for line in shown)
    for line in shown:
        assert len(line) <= columns or "http" in line.split()[-1], line
    # What goes on stands further in than what begins.
    assert any(line.startswith("      ") for line in shown)


def _in_a_terminal(columns, folder):
    ours, theirs = os.openpty()
    env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    env |= {"COLUMNS": str(columns), "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "*", "PYTHONIOENCODING": "utf-8"}
    long = f"{NOBODY}/behind/a/path/that/is/rather/long"
    command = [sys.executable, "-m", "otel_assembly.cli", "doctor", "--jaeger", long, "--prometheus", long]
    with subprocess.Popen(command, cwd=folder, env=env, stdout=theirs) as process:
        os.close(theirs)
        read = b""
        while True:
            try:
                more = os.read(ours, 65_536)
            except OSError:  # the other end is closed
                break
            if not more:
                break
            read += more
        assert process.wait() == 1
    os.close(ours)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", read.decode())
    return plain.splitlines()
