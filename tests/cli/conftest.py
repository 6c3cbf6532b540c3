"""Running the command line as a user does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import runner

REAL_DATA = Path(__file__).parents[3] / "shared" / "data" / "airline_support_dev.jsonl"


@pytest.fixture
def otel_assembly(tmp_path):
    """Run the program in a process of its own, in an empty folder, with nothing of OpenTelemetry in its environment."""
    return runner(tmp_path)


@pytest.fixture
def refused(tmp_path):
    """Run a command that ends before it starts a program or a server, in this process."""
    return runner(tmp_path, here=True)


@pytest.fixture
def conversations(tmp_path):
    """A file of two short conversations and a long one."""

    def turns(count):
        made = [{"role": "system", "content": "You are terse."}]
        for number in range(count):
            made += [
                {"role": "user", "content": f"Question {number}, 주문은 어디에: " + "how does it work? " * 10},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
                    ],
                },
                {"role": "tool", "tool_call_id": f"c{number}", "content": f"Fact {number}. " * 30},
                {"role": "assistant", "content": f"Answer {number}."},
            ]
        return made

    path = tmp_path / "conversations.jsonl"
    rows = [{"id": f"talk-{n}", "messages": turns(count)} for n, count in enumerate((2, 1, 12))]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def real_data():
    if not REAL_DATA.is_file():
        pytest.skip("the recorded transcripts are not beside this checkout")
    return REAL_DATA
