from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
from plugin_talks import Adapter

from otel_assembly.instrumentation import instrument, uninstrument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.testing import RecordedTelemetry


@pytest.fixture(autouse=True)
def unclosed_connections(request: pytest.FixtureRequest) -> Iterator[None]:
    """Collect the connections that LlamaIndex's `Memory` leaves open, in the test that may ignore their warnings."""
    yield
    callspec = getattr(request.node, "callspec", None)
    if callspec is not None and "llama_index" in callspec.params.get("adapter", ()):
        gc.collect()


@pytest.fixture
def adapter(request: pytest.FixtureRequest) -> Iterator[Adapter]:
    """Makes plug-ins and talks of the framework that the test is for."""
    adapter = Adapter(*request.param)
    yield adapter
    adapter.close()


@pytest.fixture
def instrumented(adapter: Adapter, assembly_telemetry: RecordedTelemetry) -> Iterator[RecordedTelemetry]:
    """The framework is instrumented; what is recorded follows the conventions."""
    assert adapter.talk_type
    assert instrument(adapter.framework) == (adapter.framework,)
    try:
        yield assembly_telemetry
    finally:
        uninstrument(adapter.framework)
    assert assembly_telemetry.violations() == []
    assert sum(point.value for point in assembly_telemetry.metrics.get("assembly.telemetry.errors", ())) == 0
