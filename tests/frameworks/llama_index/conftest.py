"""LlamaIndex, really installed; what is told stays in memory and keeps to the contract."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path

import pytest
from programs import own_warnings_ignored

from otel_assembly.instrumentation import instrument, uninstrument
from otel_assembly.testing import RecordedTelemetry

with warnings.catch_warnings():  # what older releases do as they are imported, newer releases of pydantic warn of
    warnings.simplefilter("ignore")
    import llama_index.core.agent.workflow
    import llama_index.core.chat_engine  # noqa: F401  # likewise


@pytest.fixture
def told():
    """LlamaIndex is instrumented; what is told of it is kept, and held against the contract at the end."""
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        instrument("llama_index")
        try:
            yield telemetry
        finally:
            uninstrument("llama_index")
    assert telemetry.violations() == []
    assert sum(point.value for point in telemetry.metrics.get("assembly.telemetry.errors", ())) == 0
    telemetry.shutdown()


@pytest.fixture(autouse=True)
def connections_go_with_their_test():
    """A `Memory` leaves its connection open, which is warned of where it is collected: here, where that is let pass."""
    yield
    gc.collect()


def pytest_collection_modifyitems(items):
    """What LlamaIndex itself is warned of by pydantic, SQLite and asyncio is not for these tests to judge."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for mark in own_warnings_ignored("llama_index"):
                item.add_marker(mark)
