"""The public surface: one flat list of names, and nothing beside it by accident."""

from __future__ import annotations

import enum
import inspect
import re
import subprocess
import sys
import types

import otel_assembly


def test_all_is_what_the_package_has():
    public = {
        name
        for name, value in vars(otel_assembly).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public | {"__version__"} == set(otel_assembly.__all__)


def test_all_is_sorted_and_has_no_name_twice():
    names = [name for name in otel_assembly.__all__ if name != "__version__"]
    assert len(names) == len(set(names))


def test_every_public_name_says_what_it_is():
    silent = [
        name
        for name in otel_assembly.__all__
        if callable(value := getattr(otel_assembly, name)) and not (value.__doc__ or "").strip()
    ]
    assert silent == []


#: Made by us alone; what they are made of is nobody else's.
MADE_BY_US = {"Allocation", "AssembledContext", "Assembly", "OrderedPrompt", "View"}


def _methods(value: type) -> dict[str, object]:
    found = {name: member for name, member in vars(value).items() if not name.startswith("_")}
    read = {
        name: getattr(member, "fget", None) or getattr(member, "__func__", member) for name, member in found.items()
    }
    return {name: function for name, function in read.items() if inspect.isfunction(function)}


def test_every_public_method_says_what_it_does():
    classes = [value for name in otel_assembly.__all__ if isinstance(value := getattr(otel_assembly, name), type)]
    silent = [
        f"{value.__name__}.{name}"
        for value in classes
        for name, function in _methods(value).items()
        if not (function.__doc__ or "").strip()
    ]
    assert silent == []


def test_every_parameter_of_a_public_name_is_documented():
    missing = {}
    for name in set(otel_assembly.__all__) - MADE_BY_US:
        value = getattr(otel_assembly, name)
        of_a_class = isinstance(value, type)
        if not callable(value) or getattr(value, "_is_protocol", False):
            continue
        if of_a_class and issubclass(value, Exception | enum.Enum):
            continue
        said = " ".join(base.__doc__ or "" for base in value.__mro__) if of_a_class else value.__doc__ or ""
        if said.startswith("As `"):  # its sibling that does not wait has them
            continue
        names = {one for one in inspect.signature(value).parameters if not one.startswith("_")}
        if unsaid := {one for one in names if not re.search(rf"\b{one}\b", said)}:
            missing[name] = unsaid
    assert missing == {}


def test_importing_brings_no_sdk_and_no_terminal_library():
    program = (
        "import sys, otel_assembly\n"
        "heavy = [m for m in sys.modules if m.startswith(('opentelemetry.sdk', 'rich', 'grpc'))]\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
