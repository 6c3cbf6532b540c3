"""What the docs say works: every command in them runs, and every Python example too."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
    ROOT / "docs" / "guide.md",
    ROOT / "docs" / "instrumentation.md",
    *sorted((ROOT / "docs" / "instrumentation").glob("*.md")),
]
PROGRAMS = ("opentelemetry-instrument", "python")


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def _commands() -> list[str]:
    lines = [line for page in PAGES for block in _blocks(page, "console") for line in block.splitlines()]
    return sorted({line.split("#")[0].strip() for line in lines} - {""})


def _program(command: str) -> str:
    """What a line runs, behind the variables that it sets."""
    return next(word for word in command.split() if "=" not in word)


#: Commands that import frameworks, and that tests of their own run.
ELSEWHERE = ("otel-assembly demo", "otel-assembly doctor")


@pytest.mark.parametrize(
    "command",
    [line for line in _commands() if line.startswith("otel-assembly") and not line.startswith(ELSEWHERE)],
)
def test_a_command_of_the_docs_runs(command, tmp_path, conversations_file, chain_file):
    (tmp_path / "conversations.jsonl").write_text(conversations_file)
    (tmp_path / "chain.yaml").write_text(chain_file)
    command = command.replace("otel-assembly-spans.jsonl", "spans.jsonl")
    if "spans.jsonl" in command and "--export" not in command:
        before = _run("replay conversations.jsonl --budget 8000 --export spans.jsonl", tmp_path)
        assert before.returncode == 0, before.stderr
    done = _run(command.removeprefix("otel-assembly"), tmp_path)
    assert done.returncode == 0, done.stderr


def _run(arguments, folder):
    return subprocess.run(
        [sys.executable, "-m", "otel_assembly.cli", *shlex.split(arguments)],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("command", [line for line in _commands() if line.startswith("make")])
def test_a_make_target_of_the_docs_exists(command):
    target = command.split()[1]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), target


@pytest.mark.slow
@pytest.mark.parametrize("command", [line for line in _commands() if _program(line) in PROGRAMS])
def test_a_program_of_the_docs_runs(command, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    if "benchmarks" in command:
        # The stack's needs servers that are built with Go.
        command = f"{command} {'--help' if 'stack' in command else '--tiny'}"
    quiet = dict.fromkeys(("OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER"), "none")
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=tmp_path,
        env={**os.environ, **quiet, "PATH": path, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if "otel_assembly_file" in command:
        assert (tmp_path / "otel-assembly-spans.jsonl").stat().st_size


def test_there_is_no_other_kind_of_command_in_the_docs():
    assert {_program(line) for line in _commands()} <= {"make", "otel-assembly", "pip", *PROGRAMS}


@pytest.fixture
def conversations_file():
    return (
        '{"id": "one", "messages": [{"role": "user", "content": "Where is my order?"}, '
        '{"role": "assistant", "content": "In the depot."}]}\n'
    )


@pytest.fixture
def chain_file():
    (block,) = _blocks(ROOT / "docs" / "guide.md", "yaml")
    return block


def test_the_readme_s_programs_run(tmp_path):
    programs = [block for block in _blocks(ROOT / "README.md", "python") if "import" in block]
    assert len(programs) == 2
    for program in programs:
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "tokens" in done.stdout


def test_links_between_pages_lead_somewhere():
    for page in [*PAGES, *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
