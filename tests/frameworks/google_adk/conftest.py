"""Google ADK, really installed; what is told stays in memory and keeps to the contract."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import own_warnings_ignored

from otel_assembly.instrumentation import instrument, uninstrument
from otel_assembly.testing import RecordedTelemetry


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for mark in own_warnings_ignored("google_adk"):
                item.add_marker(mark)


@pytest.fixture
def told():
    """ADK is instrumented; what is told of it is kept, and held against the contract at the end."""
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        instrument("google_adk")
        try:
            yield telemetry
        finally:
            uninstrument("google_adk")
    assert telemetry.violations() == []
    assert failures(telemetry) == 0
    telemetry.shutdown()


def failures(telemetry):
    return sum(point.value for point in telemetry.metrics.get("assembly.telemetry.errors", ()))
