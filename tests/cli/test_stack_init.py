"""`stack init` writes what is shipped, and never over what somebody has changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import runner

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path_factory):
    return runner(tmp_path_factory.mktemp("anywhere"))


def written(folder):
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_it_writes_the_files_as_they_are_in_the_sources(run, tmp_path):
    done = run("stack", "init", tmp_path / "stack")

    files = written(tmp_path / "stack")
    assert done.status == 0, done.err
    assert {
        "collectors/local.yaml",
        "collectors/agent.yaml",
        "collectors/gateway-sampler.yaml",
        "collectors/jaeger/memory.yaml",
        "collectors/prometheus/prometheus.yaml",
        "collectors/alertmanager/alertmanager.yaml",
        "collectors/compose.yaml",
        "collectors/README.md",
        "dashboards/assembly-overview.json",
        "dashboards/rules/alerts.yaml",
        "examples/alert_receiver.py",
    } <= set(files)
    assert all(content == (ROOT / path).read_bytes() for path, content in files.items())
    assert f"wrote {len(files)} files" in done.out


def test_what_builds_the_servers_stays_with_the_sources(run, tmp_path):
    run("stack", "init", tmp_path)

    assert not [path for path in written(tmp_path) if path.endswith((".py", "go.mod", "go.sum", "pom.xml", ".pyc"))][1:]


def test_a_second_time_changes_nothing(run, tmp_path):
    run("stack", "init", tmp_path)
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}

    done = run("stack", "init", tmp_path)

    assert done.status == 0
    assert "already contains all" in done.out
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")} == before


def test_a_file_that_somebody_changed_is_not_overwritten_and_nothing_else_is_written(run, tmp_path):
    (tmp_path / "collectors").mkdir()
    (tmp_path / "collectors" / "local.yaml").write_text("mine")

    done = run("stack", "init", tmp_path)

    assert done.status == 1
    assert "collectors/local.yaml" in done.err
    assert "--force" in done.err
    assert written(tmp_path) == {"collectors/local.yaml": b"mine"}


def test_unless_asked_to(run, tmp_path):
    (tmp_path / "collectors").mkdir()
    (tmp_path / "collectors" / "local.yaml").write_text("mine")

    done = run("stack", "init", tmp_path, "--force")

    assert done.status == 0
    assert "(1 overwritten)" in done.out
    assert (tmp_path / "collectors/local.yaml").read_bytes() == (ROOT / "collectors/local.yaml").read_bytes()


@pytest.mark.parametrize(("below", "status"), [("", 2), ("deeper", 1)])
def test_a_folder_that_cannot_be_is_one_line(run, tmp_path, below, status):
    (tmp_path / "file").write_text("")

    done = run("stack", "init", tmp_path / "file" / below)

    assert done.status == status
    assert len(done.err.splitlines()) == 1
    assert "file" in done.err


@pytest.mark.slow
def test_an_installed_package_writes_the_same_files(run, tmp_path):
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", tmp_path / "wheel", ROOT], check=True)
    (wheel,) = (tmp_path / "wheel").glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", tmp_path / "site", wheel], check=True)
    program = "import sys; from otel_assembly.cli import main; sys.exit(main(sys.argv[1:]))"
    installed = tmp_path / "installed"
    subprocess.run(
        [sys.executable, "-c", program, "stack", "init", installed],
        # Of this folder nothing is on the path, so that it is the installed package that answers.
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "site"), "PATH": "/usr/bin:/bin"},
        check=True,
    )

    run("stack", "init", tmp_path / "sources")

    assert written(installed) == written(tmp_path / "sources")
