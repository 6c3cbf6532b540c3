"""Haystack, really installed; what is told stays in memory and keeps to the contract."""

from __future__ import annotations

import os

import pytest

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # read as Haystack is imported

from otel_assembly.instrumentation import instrument, uninstrument
from otel_assembly.testing import RecordedTelemetry


@pytest.fixture(autouse=True)
def _experiments():
    """Haystack's own warning of what is new in it."""
    with pytest.MonkeyPatch.context():
        yield


@pytest.fixture
def told():
    """Haystack is instrumented; what is told of it is kept, and held against the contract at the end."""
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        instrument("haystack")
        try:
            yield telemetry
        finally:
            uninstrument("haystack")
    assert telemetry.violations() == []
    assert failures(telemetry) == 0
    telemetry.shutdown()


def failures(telemetry):
    return sum(point.value for point in telemetry.metrics.get("assembly.telemetry.errors", ()))
