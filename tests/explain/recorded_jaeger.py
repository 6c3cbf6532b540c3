"""A loopback server that answers as a Jaeger 2.13 did, with what `scripts/record_jaeger.py` wrote down of that one."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

RECORDED = json.loads(Path(__file__).with_name("recorded_jaeger.json").read_text(encoding="utf-8"))
TRACES = {trace: json.loads(body)["result"] for trace, body in RECORDED["traces"].items()}


def starts(trace):
    spans = [s for r in TRACES[trace]["resourceSpans"] for scope in r["scopeSpans"] for s in scope["spans"]]
    return min(int(s["startTimeUnixNano"]) for s in spans)


BEGUN = min(map(starts, TRACES))
ENDED = max(map(starts, TRACES))


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):  # as the standard library calls it
        target = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(target.query).items()}
        self.server.asked.append((target.path, query))
        status, body = self.answer(target.path, query)
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def answer(self, path, query):
        if self.server.instead is not None:
            return self.server.instead
        if path == self.server.without:
            return 404, "404 page not found"
        if path == "/api/v3/services":
            return 200, RECORDED["services"]
        if path == "/api/v3/traces":
            return self.search(query)
        if path == "/api/traces":
            return self.by_tag(query)
        trace = unquote(path.rpartition("/")[2])
        return (200, RECORDED["traces"][trace]) if trace in TRACES else tuple(RECORDED["nothing"])

    def search(self, query):
        """The newest traces of a window of time, together in one answer."""
        least, most = (_nanoseconds(query[f"query.start_time_{end}"]) for end in ("min", "max"))
        there = sorted((t for t in TRACES if least <= starts(t) <= most), key=starts)
        if query["query.service_name"] not in RECORDED["services"] or not there:
            return tuple(RECORDED["nothing"])
        found = there[-int(query["query.num_traces"]) :]
        rows = [row for trace in found for row in TRACES[trace]["resourceSpans"]]
        return 200, json.dumps({"result": {"resourceSpans": rows}})

    def by_tag(self, query):
        (conversation,) = json.loads(query["tags"]).values()
        rows = json.loads(RECORDED["search"].get(conversation) or '{"data": []}')["data"]
        least, most = int(query["start"]) * 1000, int(query["end"]) * 1000
        there = sorted((r for r in rows if least <= starts(r["traceID"]) <= most), key=lambda r: starts(r["traceID"]))
        return 200, json.dumps({"data": there[-int(query["limit"]) :], "total": 0, "errors": None})

    def log_message(self, *args):
        pass


def _nanoseconds(text):
    whole, _, rest = text.removesuffix("Z").partition(".")
    return int(datetime.fromisoformat(whole + "+00:00").timestamp()) * 1_000_000_000 + int(rest.ljust(9, "0"))


@contextmanager
def serving(instead=None, without=None):
    """The server; `instead` is a status and a body that it gives to everything, `without` a path it does not know."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked, server.instead, server.without = [], instead, without
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
