"""What the context assembler's guide and example say works."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

from otel_assembly import Context

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "context-assembler.md"


def test_the_example_says_what_was_kept_cut_and_why():
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "context_assembler.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "evidence fees-2025: stale" in done.stdout
    assert "charged-twice written, mood rejected" in done.stdout
    assert re.search(r"middle +memory +charged-twice", done.stdout)
    assert "fraud" not in done.stdout
    first, second = re.findall(r"cacheable prefix is (\w+)", done.stdout)
    assert first == second


def test_the_guides_code_runs(capsys):
    code = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.M | re.S)
    assembling, remembering, queueing = code
    names: dict = {}
    exec(compile(assembling, str(GUIDE), "exec"), names)
    messages = asyncio.run(names["answer"]("What is the fee?", Context()))
    assert [message["content"] for message in messages] == [
        "You are the support desk of a shop.",
        "The monthly fee is 11 EUR.",
        '{"plan":"pro"}',
        "What is the fee?\n\nAnswer in one sentence.",
    ]
    exec(compile(remembering, str(GUIDE), "exec"), names)
    assert names["recall"].recall
    exec(compile(queueing, str(GUIDE), "exec"), names)
    assert names["queue"].queued == 0
