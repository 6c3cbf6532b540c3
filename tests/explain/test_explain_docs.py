"""What the page on ``explain`` shows is what happens."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import talk
from recorded_jaeger import serving

PAGE = (Path(__file__).parents[2] / "docs" / "explain.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def shown(run, tmp_path, monkeypatch):
    """Every command of the page, in order, with what it said."""
    monkeypatch.chdir(tmp_path)
    Path("conversations.jsonl").write_text(json.dumps(talk.as_row()) + "\n", encoding="utf-8")
    with serving() as jaeger:
        commands = [line for block in blocks("console") for line in block.splitlines()]
        assert {shlex.split(line)[0] for line in commands} == {"otel-assembly"}
        there = {"http://localhost:16686": jaeger.url, "7d": "9999d"}  # the recording is as old as it is
        return [(line, run(*(there.get(word, word) for word in shlex.split(line)[1:]))) for line in commands]


def test_every_command_works_and_the_answer_is_the_one_that_is_shown(shown):
    assert [(line, said.err) for line, said in shown if said.status] == []
    dropped, unsent = blocks("text")
    assert [said.out for line, said in shown if line.endswith("spans.jsonl --turn 7 --item 2")] == [dropped]
    assert [said.out for line, said in shown if line.endswith("--overflowed --turn 2 --item 1")] == [unsent]


def test_the_python_works(shown, capsys):
    (program,) = blocks("python")
    exec(compile(program, "docs/explain.md", "exec"), {})
    assert capsys.readouterr().out == "dropped token_budget over_budget\ntoken_budget max_tokens 763\n"
