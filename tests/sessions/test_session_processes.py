"""The example of agents in processes of their own: what they say, that they end, and how their traces are linked."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

import pytest

ROOT = Path(__file__).parents[2]
TURNS = ("post_envelope ag2.msg.text", "post_envelope ag2.packet")
AGENTS = ("triage", "billing", "clerk")
SAID = [
    ("customer", "I was charged twice for order 4711."),
    ("triage", "[Handed off via hand_over] charged twice Billing will look at it."),
    ("billing", "There are two charges; one is to go back."),
    ("clerk", "We are sorry: 25.00 are on their way to you."),
]


def start(folder, *arguments, **variables):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return subprocess.Popen(
        [sys.executable, ROOT / "examples" / "session_processes.py", *arguments],
        env={**clean, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def assert_told(process):
    """The conversation is told, each agent spoke in a process of its own, and all of them have ended."""
    told, complaints = process.communicate()
    assert (process.returncode, complaints) == (0, "")
    *lines, last = told.splitlines()
    assert last == "the session is closed"
    said = [re.fullmatch(r"\d+\. (\w+): (.*) \(process (\d+)\)", line).groups() for line in lines]
    assert [(who, text) for who, text, _ in said] == SAID
    asked, *answered = [int(pid) for _, _, pid in said]
    assert asked == process.pid
    assert len({asked, *answered}) == 4
    assert not [pid for pid in answered if Path(f"/proc/{pid}").exists()]


def test_without_a_server_three_processes_share_a_file(tmp_path):
    assert_told(start(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_on_postgres_each_turn_is_linked_to_the_post_of_another_process(tmp_path, postgres, receiver):
    options = quote(f"-c search_path={postgres.new_schema()}")
    dsn = f"postgresql:///postgres?host={quote(str(postgres.folder), safe='')}&user=tests&options={options}"
    assert_told(start(tmp_path, dsn, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{receiver.port}"))
    spans = [
        (service(resource), span)
        for request in receiver.requests
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert {who for who, _ in spans} == {"customer", *AGENTS}
    posts = {(s.trace_id, s.span_id): who for who, s in spans if s.name in TURNS}
    turns = {who: s for who, s in spans if s.name == f"serve_turn {who}"}
    # Who spoke before whom, as the links say it; each turn is a trace of its own, with what it assembled and said.
    assert {who: [posts[link.trace_id, link.span_id] for link in turn.links] for who, turn in turns.items()} == {
        "triage": ["customer"],
        "billing": ["triage"],
        "clerk": ["billing"],
    }
    for who, turn in turns.items():
        assert not turn.parent_span_id
        inside = [(other, s.name) for other, s in spans if s.trace_id == turn.trace_id]
        assert {other for other, _ in inside} == {who}
        assert {"assemble_context", "project_view named_windowed_summary", "post_envelope ag2.packet"} <= {
            name for _, name in inside
        }


def service(resource):
    return next(
        attribute.value.string_value for attribute in resource.resource.attributes if attribute.key == "service.name"
    )


def test_one_that_dies_ends_all_of_them(tmp_path):
    first = start(tmp_path)
    children = Path(f"/proc/{first.pid}/task/{first.pid}/children")
    while len(started := [int(pid) for pid in children.read_text().split()]) < len(AGENTS):
        time.sleep(0.01)
    os.kill(started[0], signal.SIGKILL)
    _, complaints = first.communicate()
    assert first.returncode == 1
    assert "the process of triage ended with -9" in complaints
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
