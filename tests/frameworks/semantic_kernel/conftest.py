"""Semantic Kernel, really installed; what is told stays in memory and keeps to the contract."""

from __future__ import annotations

import warnings
from importlib import import_module
from pathlib import Path

import pytest
from opentelemetry.trace import NoOpTracer
from programs import own_warnings_ignored
from semantic_kernel.agents.runtime.core.telemetry import tracing

from otel_assembly.instrumentation import instrument, uninstrument
from otel_assembly.testing import RecordedTelemetry

with warnings.catch_warnings(action="ignore"):  # pydantic's, of what it goes on to use
    import_module("semantic_kernel.connectors.ai.open_ai")

HERE = Path(__file__).parent
#: Its modules that hold a tracer of the provider that is the process's own.
TRACING = (
    "connectors.ai.chat_completion_client_base",
    "functions.kernel_function",
    "utils.telemetry.agent_diagnostics.decorators",
    "utils.telemetry.model_diagnostics.decorators",
)


def pytest_itemcollected(item):
    """It goes on to use what pydantic would rather have it not use."""
    if HERE in item.path.parents:
        for mark in own_warnings_ignored("semantic_kernel"):
            item.add_marker(mark)


@pytest.fixture
def told(monkeypatch):
    """Semantic Kernel is instrumented; what is told of it, and what it tells itself, is kept and checked."""
    telemetry = RecordedTelemetry()
    for name in TRACING:
        module = import_module(f"semantic_kernel.{name}")
        monkeypatch.setattr(module, "tracer", telemetry.tracer_provider.get_tracer(module.__name__))
    monkeypatch.setattr(tracing, "get_tracer_provider", lambda: telemetry.tracer_provider)
    with telemetry.as_default():
        instrument("semantic_kernel")
        try:
            yield telemetry
        finally:
            uninstrument("semantic_kernel")
    assert telemetry.violations() == []
    assert failures(telemetry) == 0
    telemetry.shutdown()


@pytest.fixture
def no_own_spans(told, monkeypatch):
    """The framework's own spans go nowhere."""
    for name in TRACING:
        monkeypatch.setattr(import_module(f"semantic_kernel.{name}"), "tracer", NoOpTracer())


def failures(telemetry):
    return sum(point.value for point in telemetry.metrics.get("assembly.telemetry.errors", ()))
