"""What the tests of telemetry share: the contract is kept, and the SDK has no complaints."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture
def recorder(recorder):
    """What every test of telemetry asserts beside its own: all that was told is within the contract."""
    yield recorder
    assert recorder.violations() == []


class _Heard(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.said = []

    def emit(self, record):
        self.said.append(f"{record.name}: {record.getMessage()}")


@pytest.fixture
def quiet_sdk():
    """OpenTelemetry has nothing to complain of: no attribute of a type it refuses, no span told of after its end."""
    heard = _Heard()
    logger = logging.getLogger("opentelemetry")
    logger.addHandler(heard)
    yield heard.said
    logger.removeHandler(heard)
    assert heard.said == []
