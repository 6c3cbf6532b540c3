"""The agent's example runs as it stands, and the page about it shows code that runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_example_asks_waits_halts_and_goes_on():
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "agent.py")], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "It is sunny in Bonn. Shall I book the 9:14?",
        'may it run? book {"train": "9:14"}',
        "Your seat is booked.",
        "HALTED: FATAL: loop 1: tool 'weather' was called 3 times with the same arguments within the last 10 calls",
        "goes on: True",
    ]


def test_the_code_on_the_page_makes_an_agent(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    page = (ROOT / "docs" / "write-an-agent.md").read_text(encoding="utf-8")
    found: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        exec(block, found)  # our own page
    assert list(found["agent"].tools) == ["weather"]
