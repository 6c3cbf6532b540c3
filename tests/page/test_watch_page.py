"""The page of `watch` in a real browser, while real programs call a scripted provider."""

from __future__ import annotations

import re
import sys

import pytest
from frameworks.chat_provider import ChatProvider
from watch.watching import PROGRAMS, Watch

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture
def provider():
    server = ChatProvider()
    yield server
    server.close()


class LivePage:
    """The page of a running `watch`, as somebody reads it."""

    def __init__(self, driver, watch):
        self.driver = driver
        driver.get("about:blank")
        driver.get_log("browser")
        driver.get(watch.url)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def until(self, condition, what):
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, 60, poll_frequency=0.02).until(lambda _: condition(), f"{what} did not come")

    def shows(self, selector, pattern):
        self.until(lambda: re.search(pattern, self.text(selector)), f"{pattern} in {selector}")

    def errors(self):
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in {"SEVERE", "WARNING"}]


@pytest.mark.parametrize(
    ("program", "policy", "heading"),
    [("openai_loop.py", "caller", "conversation 1"), ("langgraph_agent.py", "trim_messages", "ticket-1042")],
)
def test_a_turn_of_a_real_program_is_shown_with_its_drops(chromium, provider, program, policy, heading):
    provider.says("Hello.", "Fine.", "Good bye.")
    with Watch("--port", 0, "--", sys.executable, PROGRAMS / program, f"{provider.url}/v1") as watch:
        page = LivePage(chromium, watch)
        page.shows("main", "No assembly has arrived yet")
        assert watch.ask("I am allergic to nuts.") == "answered\n"
        page.shows(".chart-head", r"\b1 turn\b")
        page.shows("main h2", heading)
        page.run("document.querySelector('.layer').focus()")
        page.run("document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }))")
        page.shows("#turn-head", "Turn 0")
        watch.ask("And what else?")
        page.shows(".chart-head", r"\b2 turns\b")
        watch.ask("Recommend a dinner.")
        page.shows(".chart-head", r"\b3 turns\b.*\b2 items dropped\b")
        assert "Turn 0" in page.text("#turn-head"), "the open turn stays open"
        page.run("location.hash = ''; document.querySelector('[aria-label=\"Close the turn\"]').click()")
        page.run("document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key: 'End', bubbles: true }))")
        page.run("document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }))")
        page.shows("#turn-head", "Turn 2")
        assert policy in page.text(".turn")
        assert "I am allergic to nuts." in page.text(".items"), "the content is captured"
        assert page.errors() == []
        assert watch.end() == 0
