"""A pytest plugin with one fixture, `assembly_telemetry`. It imports OpenTelemetry's SDK on first use.

Ask for it in the `conftest.py` of the root folder::

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
    """Record the telemetry of assemblers without a recorder of their own, in memory."""
    from otel_assembly.testing import RecordedTelemetry

    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        yield telemetry
    telemetry.shutdown()
