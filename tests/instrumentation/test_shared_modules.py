"""A module of the shared instrumentation serves at least two frameworks, or two other parts of the package."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "otel_assembly"
SHARED = {path.stem for path in (PACKAGE / "instrumentation").glob("*.py")} - {"__init__"}


def imported_by(path):
    """The shared modules that a module imports, also those imported only for types or within a function."""
    source = path.read_text(encoding="utf-8")
    if "otel_assembly.instrumentation" not in source:  # each worker of a parallel run reads all modules
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("otel_assembly.instrumentation"):
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            yield from {name.split(".")[2] for name in names if name.count(".") > 1} & SHARED
        elif isinstance(node, ast.Import):
            yield from {alias.name.split(".")[-1] for alias in node.names if ".instrumentation." in alias.name} & SHARED


def users():
    """For each shared module the frameworks, and other packages' modules, that use it, also through a shared module."""
    direct, found = {name: set() for name in SHARED}, {name: set() for name in SHARED}
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE).with_suffix("").parts
        is_shared = place[0] == "instrumentation" and len(place) == 2 and place[1] in SHARED
        user = "/".join(place[:2] if place[0] == "instrumentation" else place)
        for name in imported_by(path):
            (direct if is_shared else found)[name].add(place[1] if is_shared else user)
    for _ in SHARED:
        for name, importers in direct.items():
            found[name] |= {user for importer in importers - {name} for user in found[importer]}
    return found


@pytest.mark.parametrize(
    ("name", "served"), sorted(users().items()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_shared_module_has_at_least_two_users(name, served):
    assert len(served) >= 2, f"move {name} into the folder of {served or 'nothing'}"


def test_the_shared_context_variables_are_in_one_module_and_at_most_eight():
    made = {
        path.stem: path.read_text(encoding="utf-8").count("ContextVar(")
        for path in (PACKAGE / "instrumentation").glob("*.py")
    }
    variables = made.pop("context_variables")
    assert not any(made.values()), made
    assert variables <= 8
