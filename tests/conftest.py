"""Lets every test import the helpers that lie beside this file: pytest puts the folder of a conftest on the path."""

from __future__ import annotations

import gc
import os
import re

import pytest
from counting import WordCounter

#: The only reasons for which a test may be skipped where CI=true; any other skip fails the run.
EXPECTED_SKIPS = (re.compile(r"the recorded transcripts are not beside this checkout"),)


def _unexpected_skips(config):
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter is not None else []
    return [one for one in skipped if not any(reason.search(str(one.longrepr)) for reason in EXPECTED_SKIPS)]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session):
    """The frameworks that the tests import stay to the end: no collection of a test has to look at them."""
    import hypothesis  # noqa: F401  # asks the collector who holds a generator, and is told of nobody who is frozen

    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    if os.environ.get("CI") == "true" and session.exitstatus == 0 and _unexpected_skips(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    for report in _unexpected_skips(config):
        terminalreporter.line(f"nobody expected this skip: {report.nodeid}: {report.longrepr}")


@pytest.fixture
def recorder(assembly_telemetry):
    """Everything that the assemblies of a test tell."""
    return assembly_telemetry


@pytest.fixture
def words():
    """Counts one token a word."""
    return WordCounter()


@pytest.fixture
def receiver():
    from otlp_receiver import receiving

    with receiving() as receiver:
        yield receiver
