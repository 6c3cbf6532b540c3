"""Google ADK, really installed; what is told stays in memory and keeps to the contract."""

from __future__ import annotations

import pytest

from otel_assembly.instrumentation import instrument, uninstrument
from otel_assembly.testing import RecordedTelemetry

#: What ADK, and what it stands on, warns of by itself.
OWN_WARNINGS = (
    "ignore:.*EXPERIMENTAL.*:UserWarning",
    "ignore::FutureWarning",
    "ignore::DeprecationWarning",
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)


def pytest_collection_modifyitems(items):
    for item in items:
        if "google_adk" in str(item.path):
            for warning in OWN_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(warning))


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
