"""What the page's guide says works: its commands run, and its keys are those of the page."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

GUIDE = (Path(__file__).parents[2] / "docs" / "view.md").read_text(encoding="utf-8")


def test_the_commands_of_the_guide_run(tmp_path):
    messages = [{"role": "user", "content": "Where is my order?"}, {"role": "assistant", "content": "In the depot."}]
    (tmp_path / "conversations.jsonl").write_text(json.dumps({"id": "one", "messages": messages}) + "\n")
    commands = [
        line for block in re.findall(r"^```console\n(.*?)^```", GUIDE, re.M | re.S) for line in block.splitlines()
    ]
    assert commands
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "otel-assembly"
        done = subprocess.run(
            [sys.executable, "-m", "otel_assembly.cli", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "support.html").stat().st_size > 10_000
