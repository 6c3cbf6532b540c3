"""A pytest plugin that keeps a fixed sample of a suite: the same tests on every machine and in every run.

The sample is drawn by a checksum of each test's name. Parametrized cases of one test share a name, so a test is kept or
left out with all its cases.
"""

from __future__ import annotations

import os
from zlib import crc32

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one test in as many as `UPSTREAM_SAMPLE` says."""
    share = int(os.environ["UPSTREAM_SAMPLE"])
    kept, dropped = [], []
    for item in items:
        name = item.nodeid.partition("[")[0]
        (dropped if crc32(name.encode()) % share else kept).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=dropped)
