"""Logs that tests write, and the program that reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.command_line import runner

#: Samples of other tools' files, which are not part of the repository.
SAMPLES = Path(__file__).parents[3] / "shared" / "data" / "transcripts"


@pytest.fixture
def otel_assembly(tmp_path):
    return runner(tmp_path)


@pytest.fixture
def write(tmp_path):
    """A function that writes records as JSON Lines, or a single value as a JSON document."""

    def write(name, *records, end=""):
        path = tmp_path / name
        if name.endswith(".jsonl"):
            text = "".join((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records)
        else:
            (record,) = records
            text = json.dumps(record, indent=1)
        path.write_text(text + end, encoding="utf-8")
        return path

    return write


@pytest.fixture
def samples():
    if not SAMPLES.is_dir():
        pytest.skip("the recorded transcripts are not beside this checkout")
    return SAMPLES
