"""What of AG2 is wrapped, here and in whichever release is installed, and how all of it is put back."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest
from ag2_package import PACKAGE

from otel_assembly.instrumentation import AG2Instrumentor, HookState, instrument, uninstrument


def here() -> list:
    """The hooks that the installed release should have."""
    version = AG2Instrumentor().version
    return [hook for hook in AG2Instrumentor.hooks if hook.module.startswith(PACKAGE) and hook.expected(version)]


@pytest.fixture
def modules():
    return [importlib.import_module(name) for name in dict.fromkeys(hook.module for hook in here())]


def _held() -> dict:
    found = {}
    for hook in here():
        owner = importlib.import_module(hook.module)
        *path, name = hook.target.split(".")
        for step in path:
            owner = getattr(owner, step)
        found[hook.name] = inspect.getattr_static(owner, name)
    return found


def test_every_hook_of_this_release_takes_and_is_put_back(modules, caplog):
    before = _held()
    instrument("ag2")
    try:
        states = AG2Instrumentor().states
        assert {name: states[name] for name in before} == dict.fromkeys(before, HookState.TAKEN)
        during = _held()
        assert all(during[name] is not before[name] for name in before)
    finally:
        uninstrument("ag2")
    after = _held()
    assert all(after[name] is before[name] for name in before)
    assert caplog.records == []


def test_every_hook_says_what_is_seen_by_it_and_has_versions():
    assert all(hook.purpose and hook.versions for hook in AG2Instrumentor.hooks)


def test_nothing_of_ag2_is_imported_before_the_program_does_it():
    program = (
        "import sys; from otel_assembly.instrumentation import instrument; assert instrument('ag2') == ('ag2',);"
        f"import otel_assembly.instrumentation.ag2; assert '{PACKAGE}' not in sys.modules;"
        f"import {PACKAGE}.policies as policies, {PACKAGE}.assembly as assembly;"
        "from otel_assembly.instrumentation.ag2 import AG2Instrumentor;"
        f"assert AG2Instrumentor().states['{PACKAGE}.assembly.AssemblerMiddleware.on_llm_call'] == 'taken'"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
