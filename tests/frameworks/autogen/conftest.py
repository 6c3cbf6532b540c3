"""AutoGen, really installed, with its own test model; what is told stays in memory and keeps to the contract."""

from __future__ import annotations

import pytest

from otel_assembly.instrumentation import instrument, uninstrument
from otel_assembly.testing import RecordedTelemetry


@pytest.fixture
def told():
    """AutoGen is instrumented; what is told of it is kept, and held against the contract at the end."""
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        instrument("autogen")
        try:
            yield telemetry
        finally:
            uninstrument("autogen")
    assert telemetry.violations() == []
    assert failures(telemetry) == 0
    telemetry.shutdown()


def failures(telemetry):
    return sum(point.value for point in telemetry.metrics.get("assembly.telemetry.errors", ()))


@pytest.fixture
def autogens_spans(told, monkeypatch):
    """AutoGen's own spans go where ours go."""
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", told.tracer_provider)
    return told
