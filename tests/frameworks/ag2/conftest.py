from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from otel_assembly.instrumentation import instrument, uninstrument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.testing import RecordedTelemetry


@pytest.fixture
def telemetry(assembly_telemetry: RecordedTelemetry) -> Iterator[RecordedTelemetry]:
    """AG2 instrumented; whatever a test did, what was told keeps to the contract."""
    instrument("ag2")
    yield assembly_telemetry
    uninstrument("ag2")
    assert assembly_telemetry.violations() == []
