"""A loopback server that answers as a Jaeger 2.13 did, with what `scripts/record_jaeger.py` wrote down of that one."""

from __future__ import annotations

import json
import re
import threading
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

RECORDED = json.loads(Path(__file__).with_name("recorded_jaeger.json").read_text(encoding="utf-8"))
TRACES = {trace: json.loads(body)["result"] for trace, body in RECORDED["traces"].items()}


def spans_of(result):
    return [s for r in result["resourceSpans"] for scope in r["scopeSpans"] for s in scope["spans"]]


def starts(trace, traces=TRACES):
    return min(int(s["startTimeUnixNano"]) for s in spans_of(traces[trace]))


def copies(count, conversation="talk-2", overflowed=False):
    """The traces of that many conversations like this one, each with ids of its own, by trace id."""
    made = {}
    of = {trace: json.dumps(result) for trace, result in TRACES.items() if f'"{conversation}"' in json.dumps(result)}
    for number in range(count):
        for place, (trace, text) in enumerate(of.items()):
            tagged = f"{number:08x}{place:04x}{overflowed:04x}".rjust(32, "f")
            ledger = next(tag["stringValue"] for tag in _tags(text) if tag["key"] == "assembly.ledger.id")
            text = text.replace(trace, tagged).replace(f'"{conversation}"', f'"{conversation}-{number}"')
            text = text.replace(ledger, f"{number:08x}{overflowed:04x}".rjust(32, "e"))
            if overflowed:
                text = re.sub(r'("assembly.overflowed", "value": {"boolValue": )false', r"\1true", text)
            made[tagged] = json.loads(text)
    return made


def _tags(text):
    spans = spans_of(json.loads(text))
    return [{"key": attribute["key"], **attribute["value"]} for span in spans for attribute in span["attributes"]]


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
        if trace not in self.server.traces:
            return tuple(RECORDED["nothing"])
        self.server.sent.append(trace)
        return 200, json.dumps({"result": self.server.traces[trace]})

    def search(self, query):
        """The newest traces of a window of time, together in one answer."""
        least, most = (_nanoseconds(query[f"query.start_time_{end}"]) for end in ("min", "max"))
        there = self.between(least, most)
        if query["query.service_name"] not in RECORDED["services"] or not there:
            return tuple(RECORDED["nothing"])
        found = there[-int(query["query.num_traces"]) :]
        self.server.sent += found
        rows = [row for trace in found for row in self.server.traces[trace]["resourceSpans"]]
        return 200, json.dumps({"result": {"resourceSpans": rows}})

    def between(self, least, most):
        at = self.server.starts
        return sorted((trace for trace in self.server.traces if least <= at[trace] <= most), key=at.__getitem__)

    def by_tag(self, query):
        """The newest traces with a span of that name that has all the tags, as the older API tells them."""
        tags = json.loads(query.get("tags", "{}"))
        there = self.between(int(query["start"]) * 1000, int(query["end"]) * 1000)
        rows = [row for trace in reversed(there) if (row := self.row(trace, query["operation"], tags)) is not None]
        rows = rows[: int(query["limit"])]
        self.server.searched += len(rows)
        return 200, json.dumps({"data": rows, "total": 0, "limit": 0, "offset": 0, "errors": None})

    def row(self, trace, operation, tags):
        spans = [
            {
                "traceID": trace,
                "operationName": span["name"],
                "startTime": int(span["startTimeUnixNano"]) // 1000,
                "tags": [
                    {"key": attribute["key"], "value": _plain(attribute["value"])} for attribute in span["attributes"]
                ],
            }
            for span in spans_of(self.server.traces[trace])
        ]
        for span in spans:
            held = {tag["key"]: _as_searched(tag["value"]) for tag in span["tags"]}
            if span["operationName"] == operation and tags.items() <= held.items():
                return {"traceID": trace, "spans": spans, "processes": {}, "warnings": None}
        return None

    def log_message(self, *args):
        pass


def _plain(value):
    """A value as the older API has it: arrays as their JSON text."""
    ((kind, held),) = value.items()
    if kind == "arrayValue":
        return json.dumps([_plain(value) for value in held.get("values", [])])
    return int(held) if kind == "intValue" else held


def _as_searched(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def _nanoseconds(text):
    whole, _, rest = text.removesuffix("Z").partition(".")
    return int(datetime.fromisoformat(whole + "+00:00").timestamp()) * 1_000_000_000 + int(rest.ljust(9, "0"))


@contextmanager
def serving(instead=None, without=None, more=None):
    """The server; `instead` is a status and a body that it gives to everything, `without` a path it does not know.

    It notes what it is asked (`asked`), the traces that it hands out (`sent`), and how many it tells of in searches by
    tag (`searched`). `more` are traces that it has beside those that were recorded.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked, server.instead, server.without = [], instead, without
    server.sent, server.searched, server.traces = [], 0, TRACES | (more or {})
    server.starts = {trace: starts(trace, server.traces) for trace in server.traces}
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
