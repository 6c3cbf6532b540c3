from __future__ import annotations

import importlib
import sys

import pytest
from pretend_instrumentor import OWNERS, PretendInstrumentor

from otel_assembly.instrumentation import FRAMEWORKS, instrument, uninstrument


@pytest.fixture
def agents(monkeypatch, assembly_telemetry):
    """`pretend_agents`, instrumented."""
    monkeypatch.setitem(FRAMEWORKS, "pretend", "PretendInstrumentor")
    monkeypatch.setattr("otel_assembly.instrumentation.instrumentor_of", lambda _: PretendInstrumentor())
    with assembly_telemetry.as_default():
        instrument("pretend")
        yield importlib.import_module("pretend_agents")
        uninstrument("pretend")
    sys.modules.pop("pretend_agents", None)
    OWNERS.clear()
