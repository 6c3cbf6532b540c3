"""The page in a real browser: it can be used with keys and read by a reader, and nothing from outside runs in it."""

from __future__ import annotations

import json
import re

import pytest
from page_runs import limited, messages, play

from otel_assembly import BudgetPolicy, ConversationPolicy, ModelRequest, ModelResponse, SlidingWindowPolicy
from otel_assembly.budget import Compactors
from otel_assembly.page import write_page

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::ResourceWarning")]

WATCH = """
window.violations = [];
window.addEventListener('error', (event) => { window.broke = event.message; });
document.addEventListener('securitypolicyviolation', (event) => window.violations.push(event.violatedDirective));
"""


class Page:
    """A page as somebody uses it."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, path, *, width=1280, height=800, dark=False, fragment=""):
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [theme, {"name": "prefers-reduced-motion", "value": "reduce"}]}
        )
        self.driver.get(path.as_uri() + fragment)
        self.until(lambda: self.run("return 'ready' in document.documentElement.dataset"), "the page")
        self.until(lambda: self.find(".chart[data-drawn]") or not self.find(".chart"), "its charts")
        return self

    def until(self, condition, what):
        from selenium.webdriver.support.ui import WebDriverWait

        def came(_):
            # A page whose script broke will never be ready: no use in waiting for it.
            assert self.run("return window.broke ?? null") is None
            return condition()

        WebDriverWait(self.driver, 20, poll_frequency=0.05).until(came, f"{what} did not come")

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def find(self, selector):
        return self.driver.find_elements("css selector", selector)

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def press(self, *keys):
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.keys import Keys

        for key in keys:
            ActionChains(self.driver).send_keys(getattr(Keys, key, key)).perform()

    def focus(self, selector):
        self.run("document.querySelector(arguments[0]).focus()", selector)

    @property
    def turn(self):
        """What a screen reader says of the turn that is pointed at, in the chart that has the focus."""
        return self.run(
            "const id = document.activeElement.getAttribute('aria-activedescendant');"
            "return id ? document.getElementById(id).getAttribute('aria-label') : null"
        )

    def said(self, pattern):
        self.until(lambda: re.search(pattern, self.run("return document.getElementById('said').textContent")), pattern)


@pytest.fixture
def page(chromium):
    shown = Page(chromium)
    yield shown
    assert shown.run("return window.violations") == []
    errors = [entry["message"] for entry in chromium.get_log("browser") if entry["level"] in {"SEVERE", "WARNING"}]
    assert errors == []
    sent = [json.loads(entry["message"])["message"] for entry in chromium.get_log("performance")]
    urls = [message["params"]["request"]["url"] for message in sent if message["method"] == "Network.requestWillBeSent"]
    assert [url for url in urls if not url.startswith(("file:", "about:", "data:"))] == []


@pytest.fixture
async def variants(recorder, tmp_path):
    """A conversation of twelve turns under two budgets, and another one."""
    for budget in (300, 900):
        await play(recorder.recorder, messages(12), name=f"budget-{budget}", budget=budget)
    await play(recorder.recorder, messages(3), conversation="another")
    write_page(recorder.spans, tmp_path / "page.html", title="two budgets")
    return tmp_path / "page.html"


def test_turns_are_walked_and_opened_with_keys(page, variants):
    page.open(variants)
    page.focus(".layer")
    assert page.turn.startswith("Turn 0; ")
    page.press("ARROW_RIGHT", "ARROW_RIGHT")
    assert page.turn.startswith("Turn 2; ")
    page.press("END")
    assert page.turn.startswith("Turn 11; ")
    page.said(r"budget-300\. Turn 11; \d+ of 300 tokens")
    page.press("ARROW_DOWN")
    assert "of 900 tokens" in page.turn
    page.press("ENTER")
    assert page.run("return document.activeElement.id") == "turn-head"
    assert "Turn 11" in page.text("#turn-head")
    page.press("ESCAPE")
    assert not page.find(".turn:not([hidden])")
    assert page.turn.startswith("Turn 11; ")


def test_the_next_mark_is_one_key_away(page, variants):
    page.open(variants)
    page.focus(".layer")
    page.press("n")
    assert "dropped" in page.turn
    first = page.turn
    page.press("n", "p")
    assert page.turn == first


def test_focus_can_be_seen(page, variants):
    page.open(variants)
    page.press("TAB")
    for _ in range(12):
        outline = page.run(
            "const one = document.activeElement, style = getComputedStyle(one);"
            "return [style.outlineStyle, style.outlineWidth, one.outerHTML.slice(0, 80)]"
        )
        assert outline[0] != "none", outline
        assert outline[1] != "0px", outline
        page.press("TAB")


def test_an_opened_turn_says_what_left_and_why(page, variants):
    page.open(variants, fragment="#c=0&l=0&t=11&o=1")
    text = page.text(".turn")
    for said in (
        "Since the turn before",
        "Dropped (",
        "over_budget",
        "Cached prefix",
        "cut moved",
        "token_budget",
        "max_tokens=300",
        "Side by side",
    ):
        assert said in text, said
    page.run("[...document.querySelectorAll('.tab')].find((tab) => tab.dataset.filter === 'out').click()")
    states = page.run(
        "return [...document.querySelectorAll('.items .inner .c-state')].map((cell) => cell.innerText.trim())"
    )
    assert states
    assert {state.split()[-1] for state in states} == {"dropped"}


def test_an_item_is_found_by_its_number_and_followed(page, variants):
    page.open(variants)
    page.press("/")
    page.press("#", "0")
    page.until(lambda: page.find(".result"), "a result")
    page.press("ENTER")
    text = page.text(".item")
    assert "Item 0" in text
    assert re.search(r"turns? 0(–\d+)? in the prompt", text)
    assert "did not fit the budget (over_budget, token_budget)" in text
    assert len(page.find(".strip")) == 2
    assert "Not captured." in text


def test_without_captured_texts_a_search_says_so(page, variants):
    page.open(variants)
    page.focus("#search")
    page.press(*"refund")
    page.until(lambda: "The spans contain no text" in page.text(".finder"), "the note")


def test_the_chart_has_a_table_beside_it(page, variants):
    page.open(variants)
    page.press("t")
    grid = page.find(".charts [role=grid]")[0]
    assert grid.get_attribute("aria-rowcount") == "13"
    rows = page.run(
        "return [...document.querySelector('.charts .inner').children].map((row) => row.innerText.split(/\\s*\\n\\s*/))"
    )
    assert [row[0] for row in rows][:3] == ["0", "1", "2"]
    page.focus(".charts [role=grid]")
    page.press("ARROW_DOWN", "ARROW_DOWN", "ENTER")
    assert "Turn 1" in page.text("#turn-head")


def test_conversations_are_chosen_with_keys(page, variants):
    page.open(variants)
    page.focus("#side [role=grid]")
    page.press("ARROW_DOWN", "ARROW_DOWN", "ENTER")
    assert page.text("main h2") == "another"


@pytest.mark.parametrize(
    ("dark", "width"),
    [
        (False, 1280),
        (True, 390),
        pytest.param(False, 390, marks=pytest.mark.slow),
        pytest.param(True, 1280, marks=pytest.mark.slow),
    ],
)
def test_nothing_is_inaccessible(page, variants, width, dark):
    from axe_core_python.selenium import Axe

    page.open(variants, width=width, dark=dark, fragment="#c=0&l=0&t=9&o=1&i=0")
    assert page.run("return document.documentElement.dataset.theme") == ("dark" if dark else "light")
    assert page.run("return document.documentElement.scrollWidth") <= width
    found = Axe().run(page.driver)
    assert [
        (violation["id"], [node["target"] for node in violation["nodes"]]) for violation in found["violations"]
    ] == []
    page.press("t")
    found = Axe().run(page.driver)
    assert [
        (violation["id"], [node["target"] for node in violation["nodes"]]) for violation in found["violations"]
    ] == []


def test_the_theme_can_be_turned(page, variants):
    page.open(variants)
    before = page.run("return getComputedStyle(document.body).backgroundColor")
    page.run("[...document.querySelectorAll('.button')].find((one) => one.innerText.includes('Dark')).click()")
    assert page.run("return getComputedStyle(document.body).backgroundColor") != before
    page.run("localStorage.clear()")


async def test_hostile_texts_are_only_shown(page, capturing, tmp_path):
    hostile = (
        "</script><img src=x onerror='window.broken=1'><script>window.broken = 1</script> \u202e<b>bold</b> refund"
    )
    turns = [(ModelRequest(content=hostile), ModelResponse(content=hostile))] * 2
    await play(capturing.recorder, turns, name=hostile, conversation=hostile, prompts=(hostile,))
    write_page(capturing.spans, tmp_path / "page.html", title=hostile)
    page.open(tmp_path / "page.html", fragment="#c=0&l=0&t=1&o=1&i=0")
    assert page.run("return window.broken ?? null") is None
    assert page.run("return document.querySelectorAll('main img, main b > b').length") == 0
    assert page.text(".item .text") == hostile
    assert page.run("return document.title") == hostile.replace("  ", " ")
    page.focus("#search")
    page.press(*"REFUND")
    # Each key changes the marked text.
    marked = "return document.querySelector('.result mark')?.textContent"
    page.until(lambda: page.run(marked) == "refund", "the result")


async def test_what_is_not_recorded_shows_as_a_gap(page, recorder, tmp_path):
    await play(recorder.recorder, messages(10), budget=300)
    turns = [span for span in recorder.spans if span.name == "assemble_context"]
    lost = {span.span_id for span in turns[3:6]}
    write_page([span for span in recorder.spans if span.span_id not in lost], tmp_path / "page.html", title="gaps")
    page.open(tmp_path / "page.html", fragment="#c=0&l=0&t=6&o=1&i=0")
    assert "3 turns not recorded" in page.text(".chart-head")
    assert "turns 3–5 unknown: these turns were not recorded" in page.text(".item")
    assert "A span is missing" not in page.text(".turn"), "a turn is read from that turn"
    assert page.find(".problems")
    page.open(tmp_path / "page.html", fragment="#c=0&l=0&t=6&o=1&i=8")
    assert "unknown: the span of its arrival is missing" in page.text(".item"), "it arrived on one of the lost turns"
    page.focus(".layer")
    page.press("ARROW_LEFT")
    assert page.turn.startswith("Turn 2; ")


async def test_a_summary_leads_to_what_it_stands_for_and_back(page, recorder, tmp_path):
    chain = [ConversationPolicy(), BudgetPolicy(420, 20, step_tokens=0, compact=Compactors(), summary_tokens=80)]
    await play(recorder.recorder, messages(14), chain)
    write_page(recorder.spans, tmp_path / "page.html", title="compaction")
    page.open(tmp_path / "page.html", fragment="#c=0&l=0&t=13&o=1&i=0")
    text = page.text(".turn")
    for said in ("Allocation", "Window 420, reserve 20, budget 400", "Compaction of older by budget", "Compacted ("):
        assert said in text, said
    assert "is covered by a summary (compacted, budget)" in page.text(".item")
    page.run(
        "for (const one of document.querySelectorAll('.item .fact'))"
        "  if (one.innerText.startsWith('Covered by')) return one.querySelector('button').click();"
    )
    assert "Stands for" in page.text(".item")
    assert re.search(r"Item m\d+\s+summary", page.text(".item"))


@pytest.mark.slow
async def test_a_thousand_turns_are_no_thousand_elements(page, recorder, tmp_path):
    for name, keep in (("window-40", 40),):
        chain = [ConversationPolicy(), SlidingWindowPolicy(keep)]
        await play(recorder.recorder, messages(1000, size=6), chain, name=name)
    write_page(recorder.spans, tmp_path / "page.html", title="long")
    page.open(tmp_path / "page.html", fragment="#c=0&l=0&t=999&o=1")
    assert page.run("return document.querySelectorAll('*').length") < 1500
    page.run("document.querySelector('.items .rows').scrollTop = 1e6")
    page.until(lambda: "1998" in page.text(".items .inner"), "the last item")
    page.focus(".layer")
    page.press("HOME")
    assert page.turn.startswith("Turn 0; ")
    page.press("+", "+", "+")
    assert page.run("return document.querySelectorAll('*').length") < 1500


@pytest.fixture
async def overflowing(recorder, tmp_path):
    """Three roomy turns in one conversation; in another, a third turn that would have needed far more than it may."""
    small = messages(3)
    await play(recorder.recorder, small, conversation="roomy", budget=900)
    big = (ModelRequest(content="Why? " * 1200), ModelResponse(content="Because."))
    await play(recorder.recorder, [*small[:2], big], conversation="tight", name="tight", budget=400)
    write_page(recorder.spans, tmp_path / "page.html", title="overflow", trace_link="https://traces.example/jaeger")
    return tmp_path / "page.html", next(span for span in recorder.spans if span.attributes.get("assembly.overflowed"))


def test_it_opens_on_the_first_overflow_and_says_what_would_have_been_needed(page, overflowing):
    path, overflowed = overflowing
    page.open(path)
    assert page.text("main h2") == "tight"
    assert page.text("#turn-head") == "Turn 2"
    needs = 400 + overflowed.attributes["assembly.overflow.tokens"]
    assert f"{needs - 400:,} tokens over the budget of 400; needed {needs:,} tokens" in page.text(".turn")
    page.focus(".layer")
    assert f"needed {needs:,}" in page.turn
    page.open(path, fragment="#c=0&l=0&t=1")
    assert page.text("main h2") == "roomy"
    assert not page.find(".turn:not([hidden])")


def test_a_limit_of_the_messages_is_told_of_them_and_stands_behind_what_is_beside_them(page, recorder, tmp_path):
    limited(recorder.recorder, 3, budget=10)
    told = recorder.spans_named("assemble_context")[-1].attributes
    used, sent = told["assembly.budget.used"], told["assembly.tokens.out"]
    write_page(recorder.spans, tmp_path / "page.html", title="t")
    page.open(tmp_path / "page.html")
    assert "3 turns · message limit 10 · most" in page.text(".chart-head")
    page.focus(".layer")
    page.press("END")
    assert re.match(rf"Turn 2; {sent} tokens; messages {used} of 10, {used * 10}\.0\s%", page.turn)
    page.press("ENTER")
    facts = page.text(".turn .head")
    assert re.search(rf"{used} of their 10, {used * 10}\.0\s%", facts)
    assert "no budget" not in facts
    ends = page.run("return parseFloat(document.querySelector('.turn .fill .limit').style.left)")
    assert ends == pytest.approx(100 * (sent - used + 10) / sent, abs=0.1)


REDDEST = """
const canvas = document.querySelector('canvas'), [x, y] = [canvas.width, canvas.height];
const alarm = getComputedStyle(document.documentElement).getPropertyValue('--alarm').trim();
const wanted = [1, 3, 5].map((at) => parseInt(alarm.slice(at, at + 2), 16));
const wide = Math.round(x * 0.06);
const pixels = canvas.getContext('2d').getImageData(Math.round(x * 0.88), 0, wide, y).data;
for (let at = 0; at < pixels.length; at += 4)
  if (pixels[at + 3] > 90 && wanted.every((one, index) => Math.abs(one - pixels[at + index]) < 40))
    return Math.floor(at / 4 / wide);
return null;
"""


async def test_the_outline_reaches_up_to_what_would_have_been_needed(page, recorder, tmp_path):
    """The highest row of the alarm's colour, right of the marks, is where the axis has that many tokens."""
    big = (ModelRequest(content="Why? " * 290), ModelResponse(content="Because."))
    await play(recorder.recorder, [*messages(2), big], budget=400)
    overflowed = next(span for span in recorder.spans if span.attributes.get("assembly.overflowed"))
    needs = 400 + overflowed.attributes["assembly.overflow.tokens"]
    assert 550 < needs < 1600
    write_page(recorder.spans, tmp_path / "page.html", title="t")
    page.open(tmp_path / "page.html")
    height, lanes = 250, len(page.find(".legend .mark")) * 13 + 4
    inner = height - 28
    assert page.run(REDDEST) == pytest.approx(height - 22 - (inner - lanes) / 1.04, abs=2)


def test_a_turn_leads_to_its_trace(page, overflowing):
    path, overflowed = overflowing
    page.open(path)
    href = page.run("return document.querySelector('.turn a').href")
    turn = overflowed.attributes.get("assembly.turn")
    assert turn is None or turn == 2
    assert href.startswith(f"https://traces.example/jaeger/trace/{overflowed.trace_id}?uiFind=")
    assert len(href.rsplit("=", 1)[1]) == 16


def test_no_two_numbers_stand_side_by_side_without_saying_of_what(page, variants):
    page.open(variants, fragment="#c=0&l=0&t=11&o=1")
    facts = dict(
        page.run(
            "return [...document.querySelectorAll('.head .fact')]"
            ".map((one) => [...one.children].map((each) => each.innerText))"
        )
    )
    assert re.fullmatch(r"\d+ items, [\d,]+ tokens", facts["Dropped"])
    for selector in (".head .fact dd", ".prompts li", "#side .row", ".chart-head p"):
        for text in page.run(
            "return [...document.querySelectorAll(arguments[0])].map((one) => one.innerText)", selector
        ):
            assert not re.search(r"\d\s+\d", text), text
