"""Which frameworks are installed, and which of our hooks take on their versions: found out by instrumenting here."""

from __future__ import annotations

import importlib
import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from otel_assembly.cli.findings import Finding
from otel_assembly.instrumentation import FRAMEWORKS, OTEL_PYTHON_DISABLED_INSTRUMENTATIONS, HookState, instrumentor_of
from otel_assembly.instrumentation.uncaptured import UNCAPTURED_CLIENTS, UNCAPTURED_FRAMEWORKS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from otel_assembly.cli.findings import Verdict
    from otel_assembly.instrumentation import AssemblyInstrumentor

_SAID: Final[dict[HookState, tuple[Verdict, str]]] = {
    HookState.TAKEN: ("ok", "{gives}"),
    HookState.NOT_EXPECTED: ("note", "not in this version: {gives}"),
    HookState.MISSING: ("fail", "expected in this version, and not there; not seen: {gives}"),
    HookState.WAITING: ("fail", "its module could not be imported; not seen: {gives}"),
}


def frameworks() -> Iterator[Finding]:
    """A finding for each framework, and below it one for each hook."""
    disabled = os.environ.get(OTEL_PYTHON_DISABLED_INSTRUMENTATIONS, "").replace(" ", "").split(",")
    for framework in FRAMEWORKS:
        instrumentor = instrumentor_of(framework)
        version = instrumentor.version
        if version is None:
            yield Finding("note", framework, f"not installed; taken on: {_requires(instrumentor)}")
        elif "*" in disabled or f"otel_assembly_{framework}" in disabled:
            yield Finding("note", f"{framework} {version}", f"disabled by {OTEL_PYTHON_DISABLED_INSTRUMENTATIONS}")
        else:
            yield from _hooks(framework, version, instrumentor)


def uncaptured() -> Iterator[Finding]:
    """A finding for each framework and each provider's client that is installed and whose calls are not captured."""
    none_found = True
    for row in (*UNCAPTURED_FRAMEWORKS, *UNCAPTURED_CLIENTS):
        version = row.version
        if version is not None:
            none_found = False
            yield Finding("note", f"{row.distribution} {version}", row.what)
    if none_found:
        yield Finding("ok", "other frameworks and clients", "none of those that are known is installed")


def _hooks(framework: str, version: str, instrumentor: AssemblyInstrumentor) -> Iterator[Finding]:
    states = _states(instrumentor)
    if states is None:
        yield Finding("note", f"{framework} {version}", f"not instrumented; taken on: {_requires(instrumentor)}")
        return
    expected = [hook for hook in instrumentor.hooks if hook.expected(version) and instrumentor.has_package_of(hook)]
    taken = sum(states[hook.name] is HookState.TAKEN for hook in expected)
    others = len(instrumentor.hooks) - len(expected)
    found = f"{taken} of {len(expected)} hooks take" + (
        f"; {others} are for other versions or packages" if others else ""
    )
    yield Finding("ok" if taken == len(expected) else "fail", f"{framework} {version}", found)
    for hook in expected:
        mark, text = _SAID[states[hook.name]]
        yield Finding(mark, hook.name, text.format(gives=hook.gives), indent="  ")


def _states(instrumentor: AssemblyInstrumentor) -> Mapping[str, HookState] | None:
    """What becomes of each hook once its module is imported; None where the framework is not instrumented at all."""
    instrumented = instrumentor.is_instrumented_by_opentelemetry
    with _silent():
        if not instrumented:
            instrumentor.instrument()
        for module in dict.fromkeys(hook.module for hook in instrumentor.hooks):
            try:
                importlib.import_module(module)
            except Exception:  # noqa: BLE001, S112  # what does not import keeps its hooks waiting, which is said
                continue
        states = instrumentor.states
        if not instrumented and instrumentor.is_instrumented_by_opentelemetry:
            instrumentor.uninstrument()
    return states if states or not instrumentor.hooks else None


def _requires(instrumentor: AssemblyInstrumentor) -> str:
    return " or ".join(instrumentor.requires)


@contextmanager
def _silent() -> Iterator[None]:
    """What would be warned of is in the findings."""
    logger = logging.getLogger("otel_assembly")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
