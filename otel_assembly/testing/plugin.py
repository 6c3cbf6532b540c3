"""A pytest plugin with one fixture, `assembly_telemetry`. It imports OpenTelemetry's SDK on first use.

Load the plugin in the `conftest.py` of the root folder::

    pytest_plugins = ["otel_assembly.testing.plugin"]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.testing import RecordedTelemetry


@pytest.fixture
def assembly_telemetry() -> Iterator[RecordedTelemetry]:
    """Record in memory the telemetry of all assemblers that have no recorder of their own."""
    from otel_assembly.testing import RecordedTelemetry

    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        yield telemetry
    telemetry.shutdown()
