"""The pytest plugin: one fixture. Nothing of OpenTelemetry's SDK is imported before a test asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.testing import RecordedTelemetry


@pytest.fixture
def assembly_telemetry() -> Iterator[RecordedTelemetry]:
    """Everything that assemblers emit, in memory, where they were given no recorder of their own."""
    from otel_assembly.testing import RecordedTelemetry

    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        yield telemetry
    telemetry.shutdown()
