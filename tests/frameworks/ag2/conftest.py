from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

from otel_assembly.instrumentation import instrument, uninstrument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.testing import RecordedTelemetry

#: Releases before 1.0 have the classic agents; 1.0.0 has a folder `autogen` without them.
AUTOGEN = importlib.util.find_spec("autogen")
collect_ignore = [] if AUTOGEN is not None and AUTOGEN.origin is not None else ["test_ag2_classic.py"]


@pytest.fixture
def telemetry(assembly_telemetry: RecordedTelemetry) -> Iterator[RecordedTelemetry]:
    """AG2 instrumented; whatever a test did, what was told keeps to the contract."""
    instrument("ag2")
    yield assembly_telemetry
    uninstrument("ag2")
    assert assembly_telemetry.violations() == []
