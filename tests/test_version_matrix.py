"""`make test-matrix` finds the Pythons that a machine has, and no others."""

from __future__ import annotations

from importlib import metadata

import pytest
from environments import ROOT
from version_matrix import BETWEEN, FLOORS, cells_of, floors_of, interpreter, is_here, pythons_here


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with a path and a pyenv of its own; `has` puts a program there that says a version, or fails."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))

    def has(place, says):
        program = tmp_path / place
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\n{f'echo {says}' if says else 'echo no such version >&2; exit 127'}\n")
        program.chmod(0o755)
        return program

    return has


def test_one_on_the_path_is_taken(machine):
    assert interpreter("3.99") is None
    program = machine("bin/python3.99", "3.99")
    assert interpreter("3.99") == program


def test_a_shim_that_runs_nothing_is_passed_over_for_what_pyenv_has(machine):
    machine("bin/python3.99", None)
    assert interpreter("3.99") is None
    machine("pyenv/versions/3.99.1/bin/python", "3.99")
    newest = machine("pyenv/versions/3.99.2/bin/python", "3.99")
    assert interpreter("3.99") == newest


def test_one_that_says_another_version_is_not_it(machine):
    machine("bin/python3.99", "3.98")
    assert interpreter("3.99") is None


def test_the_newest_other_python_is_run_with_the_newest_releases_and_others_with_the_earlier(machine, monkeypatch):
    monkeypatch.setattr("version_matrix.PYTHONS", ("3.96", "3.97", "3.98", "3.99"))
    monkeypatch.setattr("version_matrix.THIS_PYTHON", "python3.97")
    for version in ("3.96", "3.97", "3.98"):
        machine(f"bin/python{version}", version)
    assert pythons_here(earlier=False) == ["python3.98"]
    assert pythons_here(earlier=True) == ["python3.96"]


@pytest.mark.parametrize("extra", FLOORS)
def test_the_tests_of_an_extra_run_with_the_oldest_release_that_it_takes(extra):
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (floor,) = floors_of(extra)
    assert f'{extra} = ["{floor.replace("==", ">=")}' in project
    assert all((ROOT / "tests" / requirement).is_file() for requirement in FLOORS[extra])
    assert [what for what, _ in cells_of(extra, earlier=True)] == [floor, *BETWEEN.get(extra, ())]
    assert not list(cells_of(extra, earlier=False))  # `make test` has the newest


def test_a_release_is_here_where_its_requirements_come_to_what_is_installed(monkeypatch, capsys):
    now = {"pytest": metadata.version("pytest"), "hypothesis": metadata.version("hypothesis"), "never-released": "1.0"}
    monkeypatch.setattr("version_matrix.locked", lambda base, wanted: [f"{name}=={at}" for name, at in now.items()])
    assert is_here(("pytest>=8", "Hypothesis"))
    assert f"pytest {now['pytest']}" in capsys.readouterr().out
    now["hypothesis"] = "99.1"
    assert not is_here(("pytest>=8", "hypothesis"))
    assert not is_here(("never-released",))
