"""Another one's wrapper under every hook of ours, as where somebody instruments the same framework before us.

As a plug-in of pytest, it puts one there for a whole run: ``-p others`` with ``OTHERS_WRAP`` set to a kind of wrapper.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections import Counter
from contextlib import contextmanager
from typing import Any

import wrapt

from otel_assembly.instrumentation import FRAMEWORKS, instrumentor_of

#: How often each hooked function was called, by its name.
CALLED: Counter[str] = Counter()


def by_wrapt(name: str, there: Any) -> Any:
    def decorate(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        CALLED[name] += 1
        return wrapped(*args, **kwargs)

    return wrapt.FunctionWrapper(there, decorate)


def by_functools(name: str, there: Any) -> Any:
    """A plain function, whatever it stands around: what is awaited or iterated is what it returns."""
    if isinstance(there, classmethod | staticmethod):
        return type(there)(by_functools(name, there.__func__))

    @functools.wraps(there)
    def decorate(*args: Any, **kwargs: Any) -> Any:
        CALLED[name] += 1
        return there(*args, **kwargs)

    return decorate


def by_a_patch(name: str, there: Any) -> Any:
    """The same, and it says nothing of what it stands around."""
    if isinstance(there, classmethod | staticmethod):
        return type(there)(by_a_patch(name, there.__func__))

    def patched(*args: Any, **kwargs: Any) -> Any:
        CALLED[name] += 1
        return there(*args, **kwargs)

    return patched


WRAPPERS = {"wrapt": by_wrapt, "functools": by_functools, "patch": by_a_patch}


def places(framework: str) -> dict[str, tuple[Any, str]]:
    """Where the hooks of the installed release are: the module or the class, and the name there."""
    instrumentor: Any = instrumentor_of(framework)
    found: dict[str, tuple[Any, str]] = {}
    for hook in instrumentor.hooks:
        try:
            owner: Any = importlib.import_module(hook.module)
        except ImportError:
            continue
        *path, name = hook.target.split(".")
        for part in path:
            owner = getattr(owner, part, None)
        if owner is not None and name in vars(owner):
            found[hook.name] = owner, name
    return found


@contextmanager
def wrapped_by_others(framework: str, kind: str) -> Any:
    """A wrapper of this kind under every hook; each of them, by its hook's name."""
    there = {name: vars(owner)[attribute] for name, (owner, attribute) in places(framework).items()}
    for name, (owner, attribute) in places(framework).items():
        setattr(owner, attribute, WRAPPERS[kind](name, there[name]))
    theirs = {name: vars(owner)[attribute] for name, (owner, attribute) in places(framework).items()}
    CALLED.clear()
    try:
        yield theirs
    finally:
        for name, (owner, attribute) in places(framework).items():
            setattr(owner, attribute, there[name])


def pytest_configure(config: Any) -> None:
    kind = os.environ.get("OTHERS_WRAP")
    for framework in FRAMEWORKS if kind else ():
        if instrumentor_of(framework).version is not None:
            wrapping = wrapped_by_others(framework, kind)
            wrapping.__enter__()
            config.add_cleanup(lambda wrapping=wrapping: wrapping.__exit__(None, None, None))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if os.environ.get("OTHERS_WRAP"):
        terminalreporter.line(f"reached: {' '.join(sorted(CALLED))}")
