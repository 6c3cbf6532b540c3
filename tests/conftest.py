"""Lets every test import the helpers that lie beside this file: pytest puts the folder of a conftest on the path."""

from __future__ import annotations

import gc
import os
import re
from collections import Counter
from pathlib import Path

import hypothesis
import pytest
from counting import WordCounter

from otel_assembly.testing import plugin

# No property may fail because the machine is busy: no time limit for an example, nor for drawing it.
# Hypothesis draws 100 examples by default; properties of the slow run set a number of their own.
hypothesis.settings.register_profile(
    "busy",
    deadline=None,
    max_examples=50,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
hypothesis.settings.load_profile("busy")

#: The plugin's fixture, for all tests.
assembly_telemetry = plugin.assembly_telemetry

#: The only reasons for which a test may be skipped where CI=true; any other skip fails the run.
EXPECTED_SKIPS = (re.compile(r"the recorded transcripts are not beside this checkout"),)


def _skips_by_reason(config):
    """The number of skipped tests for each reason."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter is not None else []
    reasons = (report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr) for report in skipped)
    return Counter(reason.removeprefix("Skipped: ") for reason in reasons)


def _is_expected(reason):
    return any(expected.search(reason) for expected in EXPECTED_SKIPS)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """A collection makes next to no garbage; the search for it takes a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session):
    """The frameworks that the tests import stay to the end: no collection of a test has to look at them."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    unexpected = [reason for reason in _skips_by_reason(session.config) if not _is_expected(reason)]
    if os.environ.get("CI") == "true" and session.exitstatus == 0 and unexpected:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    for reason, number in sorted(_skips_by_reason(config).items()):
        note = "" if _is_expected(reason) else " (fails the run where CI=true)"
        terminalreporter.line(f"skipped {number}: {reason}{note}")


@pytest.fixture
def recorder(assembly_telemetry):
    """Everything that the assemblies of a test tell."""
    return assembly_telemetry


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A file with one certificate."""
    authorities = Path(pytest.importorskip("certifi").where()).read_text(encoding="utf-8")
    first, end, _ = authorities.partition("-----END CERTIFICATE-----\n")
    file = tmp_path_factory.mktemp("certificates") / "one.pem"
    file.write_text(first + end, encoding="utf-8")
    return file


@pytest.fixture
def one_authority(certificate, monkeypatch):
    """Clients trust one authority. Each reads all that the system trusts, for 25 ms, though these tests use no TLS."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))


@pytest.fixture
def words():
    """Counts one token a word."""
    return WordCounter()


@pytest.fixture
def receiver():
    from otlp_receiver import receiving

    with receiving() as receiver:
        yield receiver
