"""Running ``otel-assembly explain`` on a replayed conversation."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import talk

from otel_assembly.cli import main


@dataclass(frozen=True)
class Said:
    status: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def run(capsys, monkeypatch):
    """Run the command line in this process, 80 columns wide."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments):
        capsys.readouterr()
        try:
            status = main(list(map(str, arguments)))
        except SystemExit as ended:  # argparse: wrong usage
            status = ended.code
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return Said(status, said.out, said.err)

    return run


@pytest.fixture
def transcript(tmp_path):
    """A file of two conversations."""
    path = tmp_path / "talks.jsonl"
    rows = [talk.as_row(4, "talk-1"), talk.as_row(1, "talk-2")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def traces(run, transcript, tmp_path):
    """The span file of their replay at 500 tokens."""
    path = tmp_path / "spans.jsonl"
    assert run("replay", transcript, "--policies", talk.policies(500), "--export", path, "--json").status == 0
    return path
