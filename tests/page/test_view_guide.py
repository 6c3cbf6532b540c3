"""What the page's guide says works: its commands run, and its keys are those of the page."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

from cli.command_line import runner

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "view.md").read_text(encoding="utf-8")


def test_the_commands_of_the_guide_run(tmp_path):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    blocks = re.findall(r"^```console\n(.*?)^```", GUIDE, re.M | re.S)
    commands = [line for block in blocks for line in block.splitlines() if not line.startswith("pip ")]
    assert commands
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "otel-assembly"
        done = runner(tmp_path)(*arguments)
        assert done.status == 0, done.err
    assert (tmp_path / "support.html").stat().st_size > 10_000
