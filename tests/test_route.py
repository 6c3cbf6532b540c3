"""How many modules one message enters on its way to its spans: it only falls, and no two call each other both ways."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: Modules of the package that each walk enters at most. Lower it where a change makes it fall.
MODULES = {"assemble": 23, "trim_messages": 28}


@pytest.fixture(scope="module")
def printed():
    done = subprocess.run(
        [sys.executable, "scripts/route.py", *MODULES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(walk.split(": ", 1) for walk in done.stdout.strip().split("\n\n"))


@pytest.mark.parametrize("walk", MODULES)
def test_a_message_enters_few_modules(walk, printed):
    assert int(printed[walk].split()[0]) <= MODULES[walk], printed[walk]


@pytest.mark.parametrize("walk", MODULES)
def test_no_two_modules_call_each_other_both_ways(walk, printed):
    assert "both ways" not in printed[walk], printed[walk]


def test_the_architecture_names_every_module_of_the_route(printed):
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    entered = [line.split()[0] for line in printed["assemble"].splitlines()[1:]]
    assert not [module for module in entered if f"`{module}`" not in page]
