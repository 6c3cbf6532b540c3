"""What the page on ``explain`` shows is what happens."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from recorded_jaeger import serving

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def shown(run, tmp_path, monkeypatch):
    """Every command of ours on the page, in order, with what it said."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", "examples")
    with serving() as jaeger:
        commands = [line for block in blocks("console") for line in block.splitlines() if not line.startswith("pip ")]
        assert {shlex.split(line)[0] for line in commands} == {"otel-assembly"}
        # The recording is as old as it is, and of another conversation.
        there = {"http://localhost:16686": jaeger.url, "7d": "9999d", "broken-shade": "talk-1"}
        return [
            (line, run(*(there.get(word, word) if "--jaeger" in line else word for word in shlex.split(line)[1:])))
            for line in commands
        ]


def test_every_command_works_and_the_answer_is_the_one_that_is_shown(shown):
    assert [(line, said.err) for line, said in shown if said.status] == []
    dropped, unsent, _ = blocks("text")
    assert [
        said.out for line, said in shown if line.endswith("spans.jsonl --conversation broken-shade --turn 7 --item 0")
    ] == [dropped]
    assert [said.out for line, said in shown if line.endswith("--overflowed --item 1")] == [unsent]


def test_the_python_works(shown, capsys):
    (program,) = blocks("python")
    exec(compile(program, "docs/explain.md", "exec"), {})
    assert capsys.readouterr().out == blocks("text")[2]
