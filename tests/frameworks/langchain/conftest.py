"""LangChain while it is instrumented, and everything that it then tells."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from otel_assembly.instrumentation import instrument, uninstrument

#: `make test-matrix` installs these beside LangChain.
collect_ignore = [] if find_spec("langchain_classic") and find_spec("langmem") else ["test_langchain_classic.py"]


@pytest.fixture
def telemetry(assembly_telemetry):
    """What an instrumented LangChain tells; what was told against the contract fails the test."""
    assert instrument("langchain") == ("langchain",)
    yield assembly_telemetry
    uninstrument("langchain")
    assert assembly_telemetry.violations() == []
    errors = assembly_telemetry.metrics.get("assembly.telemetry.errors", [])
    assert [(point.attributes, point.value) for point in errors if point.value] == []


@pytest.fixture
def before_us(assembly_telemetry):
    """A function that begins to instrument, for agents that are made before."""
    yield lambda: instrument("langchain")
    uninstrument("langchain")
    assert assembly_telemetry.violations() == []
