"""The page is one file that holds everything, loads nothing, and runs nothing that came from outside."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest
from page_runs import embedded, messages, play

from otel_assembly import ConfigurationError, ModelRequest, ModelResponse
from otel_assembly.page import document, page_model, render_page, write_page

HOSTILE = [
    "</script><script>window.broken = true</script>",
    "<!-- <script>",
    "]]> </SCRIPT\n>",
    "line\u2028and\u2029paragraph",
    "a lone \ud800 surrogate",
    "\u202egnp.exe\u202c \u0000 \x1b[31m",
    "\"quoted\" & 'single' \\ back",
    "{{policy}} {{data}} \\g<0> $& ",
]


class Loads(HTMLParser):
    """Every address that an element of the page could load from, and every handler in an attribute."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        self.found += [
            (tag, name, value)
            for name, value in attributes
            if name in {"src", "srcset", "data", "action"} or name.startswith("on")
        ]
        self.found += [(tag, name, value) for name, value in attributes if name == "href" and not value.startswith("#")]
        if tag in {"link", "iframe", "object", "embed", "base", "img"}:
            self.found.append((tag, None, None))


@pytest.mark.parametrize("text", HOSTILE)
async def test_no_text_leaves_the_data(capturing, text):
    await play(
        capturing.recorder, [(ModelRequest(content=text), ModelResponse(content=text))], name=text, conversation=text
    )
    model = page_model(capturing.spans, title=text)
    page = render_page(model)
    data, scripts = embedded(page)
    assert data == model
    assert len(scripts) == 1
    assert page.count("</script>") == 2
    page.encode("utf-8")


async def test_nothing_is_loaded_and_only_our_script_and_our_style_may_be_used(recorder):
    await play(recorder.recorder, messages(2))
    page = render_page(page_model(recorder.spans, title="t"))
    _, scripts = embedded(page)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1]
    allowed = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert allowed.pop("default-src") == "'none'"
    styles = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    for name, texts in (("style-src", styles), ("script-src", scripts)):
        hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
        assert allowed.pop(name).split() == [f"'sha256-{value}'" for value in hashes]
    assert len(page) < 150_000, "a page is what it tells, not a library"
    assert set(allowed.values()) == {"'none'"}
    # Elements are looked at without what stands in the scripts.
    loads = Loads()
    loads.feed(re.sub(r"(<script[^>]*>).*?(</script>)", r"\1\2", page, flags=re.DOTALL))
    assert loads.found == []


def test_the_script_makes_no_markup_of_texts():
    script = document._script()
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        'setTimeout("',
        "http://",
        "https://",
    ):
        assert way not in script.replace("http://www.w3.org/2000/svg", ""), way


@pytest.mark.parametrize(
    ("named", "link"),
    [
        ("http://localhost:16686/", "http://localhost:16686/trace/{trace}?uiFind={span}"),
        ("https://ops.example/jaeger", "https://ops.example/jaeger/trace/{trace}?uiFind={span}"),
        ("https://ops.example/explore?id={trace}", "https://ops.example/explore?id={trace}"),
    ],
)
def test_a_trace_is_looked_at_where_it_is_said_to_be(named, link):
    assert page_model([], title="t", trace_link=named)["traceLink"] == link


@pytest.mark.parametrize("link", ["javascript:alert('{trace}')", "localhost:16686", "https://me:secret@ops.example"])
def test_a_link_that_is_no_web_address_is_refused(link):
    with pytest.raises(ConfigurationError, match="page of traces"):
        page_model([], title="t", trace_link=link)


async def test_a_page_is_replaced_only_when_it_is_whole(recorder, tmp_path, monkeypatch):
    await play(recorder.recorder, messages(2))
    path = tmp_path / "page.html"
    path.write_text("the page before")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        write_page(recorder.spans, tmp_path / "nowhere" / "page.html", title="t")
    write_page(recorder.spans, path, title="t")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


async def test_the_same_spans_make_the_same_page(recorder):
    await play(recorder.recorder, messages(3))
    assert render_page(page_model(recorder.spans, title="t")) == render_page(
        page_model(reversed(recorder.spans), title="t")
    )
