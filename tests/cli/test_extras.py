"""What is not installed is named at once, with one command that installs it."""

from __future__ import annotations

import importlib.util
import re
import sys
from importlib import metadata

import pytest

from otel_assembly.cli import main


@pytest.fixture
def without(monkeypatch, tmp_path):
    """This environment without some packages."""

    def without(*packages):
        real = importlib.util.find_spec

        def find_spec(name, package=None):
            return None if any(f"{name}.".startswith(f"{package}.") for package in packages) else real(name, package)

        version = metadata.version

        def version_of(name):
            if name in packages:
                raise metadata.PackageNotFoundError(name)
            return version(name)

        monkeypatch.setattr(importlib.util, "find_spec", find_spec)
        monkeypatch.setattr(metadata, "version", version_of)
        # Versions are remembered for each path.
        monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])

    return without


@pytest.mark.parametrize(
    ("command", "missing", "extras"),
    [
        ("demo", ("ag2",), "ag2"),
        ("demo --framework pydantic_ai", ("ag2", "pydantic-ai-slim"), "pydantic-ai"),
        ("demo", ("ag2", "opentelemetry.distro", "opentelemetry.exporter", "rich"), "ag2,cli,otlp"),
        ("replay a.jsonl", ("rich", "opentelemetry.sdk"), "cli"),
        ("watch", ("starlette", "uvicorn", "sse_starlette", "opentelemetry.proto"), "watch"),
        ("watch --tree -- python agent.py", ("rich", "uvicorn"), "cli,watch"),
        ("replay a.jsonl --html b.html --json", ("rich", "opentelemetry.sdk"), "cli"),
        ("replay a.jsonl --export otlp", ("opentelemetry.exporter", "rich"), "cli,otlp"),
        ("replay a.jsonl --export b.jsonl --json", ("opentelemetry.sdk", "opentelemetry.exporter"), "cli"),
    ],
)
def test_all_that_a_command_lacks_is_named_at_once(without, capsys, command, missing, extras):
    without(*missing)
    assert main(command.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(r"pip install '(.*?)'", line)[1] == f"otel-assembly[{extras}]"


def test_what_a_command_does_not_use_may_be_missing(without, capsys, conversations):
    without("rich", "opentelemetry.sdk", "opentelemetry.exporter", "ag2")
    assert main(["replay", str(conversations), "--json"]) == 0
    assert '"turns": 30' in capsys.readouterr().out
