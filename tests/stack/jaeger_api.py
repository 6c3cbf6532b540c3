"""What a Jaeger answers to its page, and the searches that the guide says work and do not work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlencode

ROOT = Path(__file__).parents[2]
SUPPORT_AGENT = ROOT / "examples" / "ag2_support_agent.py"

#: What is typed into the page's search form → how many of the support agent's five traces are found by it, on every
#: storage. "Tags" is a field of the form.
SEARCHES = {
    "everything": ({}, 5),
    "an overflow": ({"tags": {"assembly.overflowed": "true"}}, 2),
    "an overflow of one policy": (
        {"operation": "apply_policy token_budget", "tags": {"assembly.overflowed": "true"}},
        2,
    ),
    "a halt": ({"tags": {"assembly.halts.emitted": "1"}}, 1),
    "what ended in a halt": ({"tags": {"error.type": "assembly_halt"}}, 1),
    "a fatal alert": ({"tags": {"assembly.alert.severity": "fatal"}}, 1),
    "a warning": ({"tags": {"assembly.alert.severity": "warning"}}, 1),
    "one observer": ({"tags": {"assembly.alert.source": "refund-limit"}}, 1),
    "an agent": ({"tags": {"gen_ai.agent.name": "support"}}, 5),
    "another agent": ({"tags": {"gen_ai.agent.name": "nobody"}}, 0),
    "a span's name": ({"operation": "assemble_context"}, 5),
    "a policy": ({"operation": "apply_policy sliding_window"}, 5),
    "why a prefix broke": ({"tags": {"assembly.prefix.break": "first"}}, 1),
    "longer than a microsecond": ({"operation": "assemble_context", "minDuration": "1us"}, 5),
    "longer than an hour": ({"minDuration": "1h"}, 0),
    "a comparison": ({"tags": {"assembly.overflow.tokens": ">0"}}, 0),
    "a member of an array": ({"tags": {"assembly.dropped.reasons": "outside_window"}}, 0),
}

#: What depends on the storage: memory, Badger, OpenSearch.
STORAGE_SEARCHES = {
    "error=true": ({"tags": {"error": "true"}}, {"memory": 0, "badger": 2, "opensearch": 2}),
    "otel.status_code=ERROR": ({"tags": {"otel.status_code": "ERROR"}}, {"memory": 0, "badger": 2, "opensearch": 0}),
    "two spans": (
        {"tags": {"assembly.overflowed": "true", "assembly.alert.severity": "fatal"}},
        {"memory": 0, "badger": 1, "opensearch": 0},
    ),
    "event=assembly.halt": ({"tags": {"event": "assembly.halt"}}, {"memory": 0, "badger": 1, "opensearch": 1}),
}


def search(jaeger, service, *, tags=None, **query):
    """The traces that the page's search finds."""
    asked = {"service": service, "limit": 200, "lookback": "1h", **query}
    if tags:
        asked["tags"] = json.dumps(tags)
    return jaeger.get(f"/api/traces?{urlencode(asked)}")["data"]


def found(jaeger, service, searches):
    """How many traces each search finds."""
    return {name: len(search(jaeger, service, **query)) for name, (query, _) in searches.items()}


def expected(searches, storage=None):
    return {name: count if storage is None else count[storage] for name, (_, count) in searches.items()}


class Trace:
    """One trace as ``/api/traces`` tells it."""

    def __init__(self, data):
        self.id = data["traceID"]
        self.spans = sorted(data["spans"], key=lambda span: span["startTime"])

    def tree(self, parent=None):
        """Names under each other: ``[(name, [children])]``, by start."""
        known = {span["spanID"] for span in self.spans}
        return [
            (span["operationName"], self.tree(span["spanID"]))
            for span in self.spans
            if parent_of(span) == parent or (parent is None and parent_of(span) not in known)
        ]

    def named(self, name):
        return [span for span in self.spans if span["operationName"] == name]


def parent_of(span):
    return next((ref["spanID"] for ref in span["references"] if ref["refType"] == "CHILD_OF"), None)


def tags(span):
    """Its attributes as ``name → (type, value)``."""
    return {tag["key"]: (tag["type"], tag["value"]) for tag in span["tags"]}


def events(span):
    """Its span events as ``name → {attribute: value}``."""
    each = [{field["key"]: field["value"] for field in log["fields"]} for log in span["logs"]]
    return {fields.pop("event"): fields for fields in each}


def environment(folder, **more):
    """Nothing of OpenTelemetry in it; the programs beside this interpreter come first."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    path = os.pathsep.join((str(Path(sys.executable).parent), env.get("PATH", "")))
    exported = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_METRICS_EXPORTER": "otlp", "OTEL_LOGS_EXPORTER": "otlp"}
    return env | exported | {"PATH": path, "TMPDIR": str(folder), "PYTHONIOENCODING": "utf-8", "COLUMNS": "100", **more}


def run(folder, *command, status=0, **variables):
    """Run a program to its end."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=environment(folder, **variables),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=150,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done


def run_agent(folder, program, endpoint, service, **variables):
    """Run an agent as ``opentelemetry-instrument`` does, with what it says of itself going to an endpoint."""
    command = ("opentelemetry-instrument", "python", program)
    return run(folder, *command, OTEL_SERVICE_NAME=service, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, **variables)
