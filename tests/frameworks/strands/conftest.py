"""Strands Agents, really installed; what is told stays in memory and keeps to the contract."""

from __future__ import annotations

import pytest

from otel_assembly.instrumentation import instrument, uninstrument
from otel_assembly.testing import RecordedTelemetry


@pytest.fixture
def told():
    """Strands is instrumented; what is told of it is kept, and held against the contract at the end."""
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        instrument("strands")
        try:
            yield telemetry
        finally:
            uninstrument("strands")
    assert telemetry.violations() == []
    assert failures(telemetry) == 0
    telemetry.shutdown()


def failures(telemetry):
    return sum(point.value for point in telemetry.metrics.get("assembly.telemetry.errors", ()))
