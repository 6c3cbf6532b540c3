"""Pages, and a real browser to open them in."""

from __future__ import annotations

import os
import shutil

import pytest

from otel_assembly.telemetry import ContentCapture, TelemetrySettings
from otel_assembly.testing import RecordedTelemetry

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
SWITCHES = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,800",
)


@pytest.fixture
def capturing():
    """Telemetry with the contents of messages."""
    telemetry = RecordedTelemetry(settings=TelemetrySettings(content=ContentCapture.SPAN_ONLY))
    yield telemetry
    telemetry.shutdown()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("Chromium and its driver are not installed: apt-get install chromium chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for switch in (*SWITCHES, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER, env={**os.environ}))
    yield driver
    driver.quit()
