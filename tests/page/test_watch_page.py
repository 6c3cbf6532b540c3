"""The page of `watch` in a real browser, while real programs call a scripted provider."""

from __future__ import annotations

import http.server
import json
import queue
import re
import socket
import sys
import threading
from contextlib import suppress

import pytest
from frameworks.chat_provider import ChatProvider
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from page_runs import messages, play
from transcripts.claude_code_session import compacted
from watch.watching import PROGRAMS, Watch

from otel_assembly import ModelRequest, ModelResponse, OpenTelemetryRecorder
from otel_assembly.page import RowStore, render_live_page
from otel_assembly.telemetry import ContentCapture, TelemetrySettings
from otel_assembly.watch import Feed

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture
def provider():
    server = ChatProvider()
    yield server
    server.close()


PRESS = "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key: arguments[0], bubbles: true }))"


class LivePage:
    """The page of a running `watch`, as somebody reads it."""

    def __init__(self, driver, watch=None):
        self.driver = driver
        if watch is not None:
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
    [
        ("openai_loop.py", "caller", "conversation 1"),
        pytest.param("langgraph_agent.py", "trim_messages", "ticket-1042", marks=pytest.mark.slow),
    ],
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
        assert "spans of the policies are missing" not in page.text(".turn")
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


def test_a_log_of_a_coding_agent_is_shown_while_it_grows(chromium, tmp_path):
    from axe_core_python.selenium import Axe

    session = [f"{json.dumps(record)}\n" for record in compacted(logical=True).lines]
    log = tmp_path / "s-1.jsonl"
    log.write_text("".join(session[:5]))
    with Watch("--port", 0, log) as watch:
        page = LivePage(chromium, watch)
        page.shows(".chart-head", r"\b2 turns\b")
        page.shows("main h2", "s-1")
        with log.open("a") as file:
            file.write("".join(session[5:]))
        page.shows(".chart-head", r"\b3 turns\b")
        page.run("document.querySelector('.layer').focus()")
        for key in ("End", "Enter"):
            page.run(
                f"document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {{ key: '{key}', bubbles: true }}))"
            )
        page.shows("#turn-head", "Turn 2")
        assert "compact" in page.text(".turn")
        assert "Reverse it." in page.text(".items")
        log.write_text("".join(session[:2]))
        page.shows(".chart-head", r"\b1 turn\b")
        log.write_bytes(b"\xff")
        page.shows(".refusals", "1 conversation cannot be read")
        assert Axe().run(chromium)["violations"] == []
        page.run("document.querySelector('.refusals summary').click()")
        page.shows(".refusals", "s-1.jsonl: is not UTF-8")
        log.write_text("".join(session))
        page.shows(".chart-head", r"\b3 turns\b")
        page.until(lambda: not page.text(".refusals"), "the end of the problem")
        assert page.errors() == []


async def spans_of(turns, conversation="talk", budget=300, **options):
    """The export requests of a conversation, one for each turn, with content."""
    memory = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    settings = TelemetrySettings(content=ContentCapture.SPAN_ONLY)
    recorder = OpenTelemetryRecorder(tracer_provider=provider, settings=settings)
    await play(recorder, turns, conversation=conversation, budget=budget, **options)
    requests = [[]]
    for span in memory.get_finished_spans():
        requests[-1].append(span)
        if span.name == "assemble_context":
            requests.append([])
    return [encode_spans(spans).SerializeToString() for spans in requests if spans]


@pytest.fixture
def watch():
    with Watch("--port", 0) as running:
        running.line("waiting for OTLP")
        yield running


async def test_the_page_follows_the_end_of_a_long_conversation(chromium, watch):
    requests = await spans_of(messages(340, size=5), budget=90)
    for request in requests[:-1]:
        assert watch.post("/v1/traces", request)[0] == 200
    page = LivePage(chromium, watch)
    page.shows(".chart-head", r"\b339 turns\b")
    page.run("document.querySelector('.layer').focus()")
    label = "return document.getElementById('turn-of-0').getAttribute('aria-label')"
    assert page.run(label).startswith("Turn 338; ")
    assert page.run("return document.querySelector('.slide').hidden") is False, "the newest 300 turns are in sight"
    watch.post("/v1/traces", requests[-1])
    page.until(lambda: page.run(label).startswith("Turn 339; "), "the newest turn")
    press = "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key: arguments[0], bubbles: true }))"
    page.run(press, "0")
    page.until(lambda: page.run("return document.querySelector('.slide').hidden"), "all turns")
    page.run(press, "Home")
    assert page.run(label).startswith("Turn 0; ")
    assert page.errors() == []


async def test_a_new_conversation_is_shown_until_the_reader_chooses_one(chromium, watch):
    page = LivePage(chromium, watch)
    for name in ("first", "second"):
        for request in await spans_of(messages(3), conversation=name):
            watch.post("/v1/traces", request)
        page.shows("main h2", name)
        page.shows(".chart-head", r"\b3 turns\b")
    page.shows("#side summary", r"\(2\)")
    page.run("[...document.querySelectorAll('#side .inner .row')].find((row) => /first/.test(row.innerText)).click()")
    page.shows("main h2", "first")
    for request in await spans_of(messages(2), conversation="third"):
        watch.post("/v1/traces", request)
    page.shows("#side summary", r"\(3\)")
    assert page.text("main h2") == "first"
    assert page.errors() == []


async def test_a_turn_whose_spans_are_late_is_completed(chromium, watch):
    (request,) = (await spans_of(messages(1)))[:1]
    whole = ExportTraceServiceRequest.FromString(request)
    late = ExportTraceServiceRequest.FromString(request)
    for message, keep in ((whole, "assemble_context"), (late, "apply_policy")):
        spans = message.resource_spans[0].scope_spans[0].spans
        kept = [span for span in spans if span.name.startswith(keep)]
        del spans[:]
        spans.extend(kept)
    page = LivePage(chromium, watch)
    watch.post("/v1/traces", whole.SerializeToString())
    page.shows(".chart-head", r"\b1 turn\b")
    page.run("document.querySelector('.layer').focus()")
    page.run("document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }))")
    page.shows(".turn", "The spans of the policies are missing.")
    for _ in range(2):
        watch.post("/v1/traces", late.SerializeToString())
    page.shows(".turn", "token_budget")
    assert "missing" not in page.text(".turn")
    assert "0 items dropped" in page.text(".chart-head")


async def test_hostile_texts_do_nothing_on_the_live_page(chromium, watch):
    hostile = (
        "</script><img src=x onerror='window.broken=1'><script>window.broken = 1</script>\r\ndata: {}\r\n\r\n\u202e"
    )
    turns = [(ModelRequest(content=hostile), ModelResponse(content=hostile))] * 2
    page = LivePage(chromium, watch)
    for request in await spans_of(turns, conversation=hostile, name=hostile, prompts=(hostile,)):
        assert watch.post("/v1/traces", request)[0] == 200
    page.shows(".chart-head", r"\b2 turns\b")
    page.run("document.querySelector('.layer').focus()")
    page.run("document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }))")
    page.shows(".items", "window.broken")
    assert page.run("return window.broken ?? null") is None
    assert page.run("return document.querySelectorAll('main img').length") == 0
    assert page.errors() == []


async def test_the_main_agent_is_shown_before_its_subagents(chromium, watch):
    for name in ("session", "session/helper"):
        for request in await spans_of(messages(2), conversation=name):
            watch.post("/v1/traces", request)
    page = LivePage(chromium, watch)
    page.shows("main h2", "session$")
    for request in await spans_of(messages(2), conversation="session/second"):
        watch.post("/v1/traces", request)
    page.shows("#side summary", r"\(3\)")
    assert page.text("main h2") == "session"
    assert page.errors() == []


async def test_the_page_says_that_watch_has_ended(chromium, watch):
    for request in await spans_of(messages(2)):
        watch.post("/v1/traces", request)
    page = LivePage(chromium, watch)
    page.shows(".live", "live")
    watch.end_by_signal()
    page.shows(".live", "not connected")
    assert "2 turns" in page.text(".chart-head"), "the turns stay"


class Line:
    """A connection between browser and server that can be cut."""

    def __init__(self, endpoint):
        host, port = endpoint.removeprefix("http://").split(":")
        self._target = host, int(port)
        self._sockets = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    @staticmethod
    def _copy(source, target):
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def cut(self):
        """Cut the open connections; new ones are possible."""
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._sockets = []

    def close(self):
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()


async def test_a_page_that_connects_again_keeps_its_selection_and_gets_the_missed_turns(chromium, watch):
    requests = await spans_of(messages(5))
    for request in requests[:3]:
        watch.post("/v1/traces", request)
    line = Line(watch.endpoint)
    chromium.get("about:blank")
    chromium.get(f"{line.endpoint}/?token={watch.token}")
    page = LivePage(chromium)
    page.shows(".chart-head", r"\b3 turns\b")
    page.run("document.querySelector('.layer').focus()")
    for key in ("Home", "Enter"):
        page.run(
            "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key: arguments[0], bubbles: true }))",
            key,
        )
    page.shows("#turn-head", "Turn 0")
    line.cut()
    watch.post("/v1/traces", requests[3])
    page.shows(".chart-head", r"\b4 turns\b")
    watch.post("/v1/traces", requests[4])
    page.shows(".chart-head", r"\b5 turns\b")
    assert "Turn 0" in page.text("#turn-head")
    assert page.text("header").count("1 conversation,") == 1
    line.close()


class Patches:
    """A server of a live page whose patches a test sends."""

    def __init__(self):
        self.queue = queue.Queue()
        page, patches = render_live_page("log").encode(), self.queue

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                is_stream = self.path.startswith("/events")
                self.send_response(200)
                self.send_header("content-type", "text/event-stream" if is_stream else "text/html")
                self.end_headers()
                if not is_stream:
                    self.wfile.write(page)
                    return
                while (event := patches.get()) is not None:
                    self.wfile.write(event.encode())

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/"

    def send(self, event):
        self.queue.put(f"event: {event.name}\ndata: {event.data}\n\n")

    def close(self):
        self.queue.put(None)
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def patches():
    server = Patches()
    yield server
    server.close()


TYPE = (
    "const field = document.querySelector('#search'); field.value = 'question'; field.dispatchEvent(new Event('input'))"
)


@pytest.mark.parametrize("has_other", [True, False])
async def test_a_removed_conversation_can_be_used_until_the_page_is_drawn_again(chromium, patches, has_other):
    page = LivePage(chromium)
    chromium.get("about:blank")
    chromium.get_log("browser")
    chromium.get(patches.url)
    feed = Feed(RowStore())
    for name in ("other", "shown")[not has_other :]:
        for request in await spans_of(messages(3), conversation=name):
            await feed.receive("traces", request, is_json=False)
    events = feed.events()
    while (event := await anext(events)).name != "ready":
        patches.send(event)
    patches.send(event)
    assert (await anext(events)).name == "refusals"
    page.shows(".chart-head", "3 turns")
    page.shows("main h2", "shown")
    page.run("document.querySelector('.layer').focus()")
    page.run(PRESS, "Enter")
    page.shows(".items", "Question 0")
    page.run(TYPE)
    page.shows("#results", "Question 0")
    # Without frames, the page is not drawn again after the conversation is removed.
    page.run("window.asked = 0; window.requestAnimationFrame = () => (window.asked += 1)")
    await feed.remove("shown")
    patches.send(await anext(events))
    page.until(lambda: page.run("return window.asked"), "the patch")
    assert page.run("return document.querySelector('#results').hidden")
    page.run(TYPE)
    page.shows("#said", "Nothing found|items? found")
    for row in ("document.querySelector('.items .row:not(.head)')", "document.querySelector('.chip')"):
        page.run(f"{row}?.click()")
    for key in ("t", "t", "0", "+", "n"):
        page.run(PRESS, key)
    assert page.errors() == []
    await events.aclose()
    feed.close()


async def test_an_empty_live_page_can_be_used(chromium, watch):
    page = LivePage(chromium, watch)
    page.shows(".live", "live")
    page.run("document.querySelector('#search').focus()")
    page.run(TYPE)
    page.shows("#said", "Nothing found")
    for key in ("t", "0", "+", "-"):
        page.run("document.body.dispatchEvent(new KeyboardEvent('keydown', { key: arguments[0], bubbles: true }))", key)
    page.run("for (const button of document.querySelectorAll('.tools button')) button.click()")
    assert page.errors() == []


@pytest.mark.slow
async def test_nothing_on_the_live_page_is_inaccessible(chromium, watch):
    from axe_core_python.selenium import Axe

    page = LivePage(chromium, watch)
    page.shows(".live", "live")
    assert Axe().run(chromium)["violations"] == []
    for request in await spans_of(messages(4), budget=90):
        watch.post("/v1/traces", request)
    page.shows(".chart-head", r"\b4 turns\b")
    assert [(each["id"], each["nodes"][0]["target"]) for each in Axe().run(chromium)["violations"]] == []
