"""Draw the README's pictures anew: the demonstration's first overflow as a tree, and its page in a browser.

python scripts/pictures.py
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

from otel_assembly.cli import render_tree
from otel_assembly.telemetry import read_spans, span_tree

if TYPE_CHECKING:
    from otel_assembly.telemetry import StoredSpan

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
COLUMNS = 100
PAGE = (1200, 860)


def main() -> None:
    """Run the demonstration and draw what it left."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        spans, page = Path(folder) / "demo.jsonl", Path(folder) / "page.html"
        for command in (["demo", "-o", spans], ["view", spans, "-o", page]):
            subprocess.run([sys.executable, "-m", "otel_assembly.cli", *command], check=True, stdout=subprocess.DEVNULL)
        (PICTURES / "tree.svg").write_text(tree(list(read_spans(spans))), encoding="utf-8")
        (PICTURES / "page.png").write_bytes(screenshot(page))


def tree(spans: list[StoredSpan]) -> str:
    """The trace of the first overflow, as a terminal shows it."""
    first = min((span for span in spans if span.attributes.get("assembly.overflowed")), key=lambda span: span.start_ns)
    roots = [node for node in span_tree(spans) if node.span.trace_id == first.trace_id]
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(render_tree(roots, width=COLUMNS, color=True).rstrip()))
    drawn = console.export_svg(title="otel-assembly demo", theme=DIMMED_MONOKAI)
    # A picture loads nothing: the fonts of whoever looks will do.
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)
    return re.sub(r" +$", "", drawn.replace("Fira Code", "ui-monospace"), flags=re.MULTILINE)


def screenshot(page: Path) -> bytes:
    """The page as it opens."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.support.ui import WebDriverWait

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for switch in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(switch)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        size = {"width": PAGE[0], "height": PAGE[1], "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        driver.get(page.as_uri())
        WebDriverWait(driver, 20).until(lambda it: it.find_elements("css selector", ".chart[data-drawn]"))
        return bytes(driver.get_screenshot_as_png())
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
