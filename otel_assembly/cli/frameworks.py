"""The checks of ``doctor`` on frameworks: their hooks, and installed packages whose model calls are not captured.

A hook is a place in a framework that is instrumented. To check hooks, ``doctor`` instruments the framework itself.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from otel_assembly.cli.findings import Finding
from otel_assembly.errors import UnknownNameError
from otel_assembly.instrumentation import (
    INSTRUMENTORS,
    OTEL_PYTHON_DISABLED_INSTRUMENTATIONS,
    HookState,
    instrumentor_of,
)
from otel_assembly.instrumentation.uncaptured import UNCAPTURED_CLIENTS, UNCAPTURED_FRAMEWORKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from otel_assembly.cli.findings import Verdict
    from otel_assembly.instrumentation import AssemblyInstrumentor

_HOOK_FINDINGS: Final[dict[HookState, tuple[Verdict, str]]] = {
    HookState.TAKEN: ("ok", "{purpose}"),
    HookState.NOT_EXPECTED: ("note", "not in this version: {purpose}"),
    HookState.MISSING: ("fail", "not found, although this version should have it; not recorded: {purpose}"),
    HookState.WAITING: ("fail", "the module cannot be imported; not recorded: {purpose}"),
}


def framework_name(text: str) -> str:
    """Return the name of a framework or a provider's client, with underscores instead of hyphens.

    Raises:
        argparse.ArgumentTypeError: The name is unknown; the message suggests one, or lists all.
    """
    name = text.replace("-", "_")
    if name not in INSTRUMENTORS:
        raise argparse.ArgumentTypeError(str(UnknownNameError("framework", text, INSTRUMENTORS)))
    return name


def framework_findings(names: Iterable[str]) -> Iterator[Finding]:
    """Yield a finding for each framework, followed by a finding for each hook that its version should have."""
    disabled = os.environ.get(OTEL_PYTHON_DISABLED_INSTRUMENTATIONS, "").replace(" ", "").split(",")
    for framework in names:
        instrumentor = instrumentor_of(framework)
        version = instrumentor.version
        if version is None:
            yield Finding("note", framework, f"not installed; supported: {_requires(instrumentor)}")
        elif "*" in disabled or f"otel_assembly_{framework}" in disabled:
            yield Finding("note", f"{framework} {version}", f"disabled by {OTEL_PYTHON_DISABLED_INSTRUMENTATIONS}")
        else:
            yield from _hooks(framework, version, instrumentor)


def uncaptured() -> Iterator[Finding]:
    """Yield a finding for each installed framework or provider client whose model calls this package cannot capture."""
    none_found = True
    for row in (*UNCAPTURED_FRAMEWORKS, *UNCAPTURED_CLIENTS):
        version = row.version
        if version is not None:
            none_found = False
            yield Finding("note", f"{row.distribution} {version}", row.what)
    if none_found:
        yield Finding("ok", "other frameworks and clients", "none installed")


def _hooks(framework: str, version: str, instrumentor: AssemblyInstrumentor) -> Iterator[Finding]:
    states = _states(instrumentor)
    if states is None:
        yield Finding("note", f"{framework} {version}", f"not instrumented; supported: {_requires(instrumentor)}")
        return
    expected = [hook for hook in instrumentor.hooks if hook.expected(version) and instrumentor.has_package_of(hook)]
    applied = sum(states[hook.name] is HookState.TAKEN for hook in expected)
    others = len(instrumentor.hooks) - len(expected)
    summary = f"{applied}/{len(expected)} hooks applied" + (
        f" ({others} not applicable to this version or the installed packages)" if others else ""
    )
    yield Finding("ok" if applied == len(expected) else "fail", f"{framework} {version}", summary)
    for hook in expected:
        verdict, text = _HOOK_FINDINGS[states[hook.name]]
        yield Finding(verdict, hook.name, text.format(purpose=hook.purpose), indent="  ")


def _states(instrumentor: AssemblyInstrumentor) -> Mapping[str, HookState] | None:
    """Instrument a framework, import the modules of its hooks, and return the state of each hook.

    The instrumentation is removed again. The result is None if the framework could not be instrumented, for example
    because its version is not supported.
    """
    instrumented = instrumentor.is_instrumented_by_opentelemetry
    with _silent():
        if not instrumented:
            instrumentor.instrument()
        for module in dict.fromkeys(hook.module for hook in instrumentor.hooks):
            try:
                importlib.import_module(module)
            except Exception:  # noqa: BLE001, S112  # its hooks stay in the state WAITING, which is a finding
                continue
        states = instrumentor.states
        if not instrumented and instrumentor.is_instrumented_by_opentelemetry:
            instrumentor.uninstrument()
    return states if states or not instrumentor.hooks else None


def _requires(instrumentor: AssemblyInstrumentor) -> str:
    return " or ".join(instrumentor.requires)


@contextmanager
def _silent() -> Iterator[None]:
    """Suppress this package's log messages, because the findings contain the same information."""
    logger = logging.getLogger("otel_assembly")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
