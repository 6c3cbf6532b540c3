"""The modules that one message enters: their number, calls in both directions, and the page that describes them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
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


PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`((?:\w+/)+[\w*.]+|\w+/)`", PAGE)) | {
    folder + name
    for folder, section in re.findall(r"^### Modules of `(\w[\w/]*/)`\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    for row in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", section, re.MULTILINE)
    for name in re.findall(r"\w+", row)
}


def test_the_architecture_names_every_module_of_the_route(printed):
    entered = [line.split()[0] for line in printed["assemble"].splitlines()[1:]]
    assert not [module for module in entered if f"`{module}`" not in PAGE]


@pytest.mark.parametrize("name", sorted(NAMED))
def test_a_path_in_the_architecture_exists(name):
    folders = (ROOT / "otel_assembly", ROOT)
    assert any([*folder.glob(name), *folder.glob(f"{name}.py")] for folder in folders), name


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([A-Z]\w+\.\w+)(?:\(|`)", PAGE))))
def test_a_method_in_the_architecture_exists(name):
    kind, method = name.split(".")
    sources = [file.read_text(encoding="utf-8") for file in (ROOT / "otel_assembly").rglob("*.py")]
    bodies = [re.split(rf"^class {kind}\b", source, flags=re.MULTILINE)[1:] for source in sources]
    assert any(re.search(rf"^    (?:async )?def {method}\(", body, re.MULTILINE) for found in bodies for body in found)


def test_the_order_of_imports_in_the_architecture_is_the_one_that_is_linted():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    (shown,) = re.findall(r"^`cli` → .*?\.$", PAGE, re.MULTILINE | re.DOTALL)
    assert [set(re.findall(r"\w+", level)) for level in shown.split("→")] == [
        set(re.findall(r"otel_assembly\.(\w+)", level)) for level in layers
    ]
