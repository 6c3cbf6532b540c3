"""The public surface: one flat list of names, and nothing beside it by accident."""

from __future__ import annotations

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


def test_importing_brings_no_sdk_and_no_terminal_library():
    program = (
        "import sys, otel_assembly\n"
        "heavy = [m for m in sys.modules if m.startswith(('opentelemetry.sdk', 'rich', 'grpc'))]\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
