"""The OpenAI Agents SDK, really installed; what is told stays in memory and keeps to the contract."""

from __future__ import annotations

import pytest
from agents import SQLiteSession, set_tracing_disabled
from openai_agents_models import BRIDGES

from otel_assembly.instrumentation import instrument, uninstrument
from otel_assembly.testing import RecordedTelemetry

collect_ignore = [] if BRIDGES else ["test_openai_agents_beside.py"]


@pytest.fixture(autouse=True)
def no_tracing():
    """The SDK sends its traces to its maker, unless it is told not to."""
    set_tracing_disabled(True)
    yield
    set_tracing_disabled(True)


@pytest.fixture
def told():
    """The SDK is instrumented; what is told of it is kept, and held against the contract at the end."""
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        instrument("openai_agents")
        try:
            yield telemetry
        finally:
            uninstrument("openai_agents")
    assert telemetry.violations() == []
    assert failures(telemetry) == 0
    telemetry.shutdown()


def failures(telemetry):
    return sum(point.value for point in telemetry.metrics.get("assembly.telemetry.errors", ()))


@pytest.fixture(autouse=True)
def sessions_are_closed(monkeypatch):
    """Each session that a program opens is closed behind it: the SDK leaves that to whoever opens one."""
    opened, begin = [], SQLiteSession.__init__

    def begins(self, *args, **kwargs):
        begin(self, *args, **kwargs)
        opened.append(self)

    monkeypatch.setattr(SQLiteSession, "__init__", begins)
    yield
    for session in opened:
        session.close()
