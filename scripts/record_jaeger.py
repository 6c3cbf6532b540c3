"""Record anew what a real Jaeger answers, for the tests that read from one without one.

PYTHONPATH=scripts:tests/explain python scripts/record_jaeger.py

It starts the Jaeger that `make test-stack` builds, replays the conversations of `tests/explain/talk.py` into it, and
writes the bodies of its answers to `tests/explain/recorded_jaeger.json`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlencode

import talk
from local_stack import Jaeger, programs, wait_until

RECORDED = Path(__file__).parents[1] / "tests" / "explain" / "recorded_jaeger.json"
SERVICE = "otel-assembly-replay"
TALKS = {"talk-1": 4, "talk-2": 1}
#: Each question is a trace.
TRACES = sum(TALKS.values())
ASSEMBLIES = 2 * TRACES


def main() -> None:
    """Start, replay, ask, write."""
    with tempfile.TemporaryDirectory() as temporary:
        jaeger = Jaeger(programs(("jaeger",)), Path(temporary) / "jaeger")
        jaeger.start()
        try:
            replay(jaeger, Path(temporary))
            wait_until(lambda: len(assemblies(jaeger)) == ASSEMBLIES, seconds=60, what="the spans of all assemblies")
            RECORDED.write_text(json.dumps(answers(jaeger), indent=1) + "\n", encoding="utf-8")
        finally:
            jaeger.stop()


def replay(jaeger: Jaeger, folder: Path) -> None:
    """Send the spans of the conversations' replay."""
    transcript = folder / "talks.jsonl"
    rows = (json.dumps(talk.as_row(questions, name)) for name, questions in TALKS.items())
    transcript.write_text("\n".join(rows) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "otel_assembly.cli", "replay", str(transcript), "--policies", talk.policies(500)]
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{jaeger.otlp}", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    subprocess.run([*command, "--json", "--export", "otlp"], env=os.environ | endpoint, check=True)


def get(jaeger: Jaeger, path: str, **query: object) -> tuple[int, str]:
    """The status and the body of an answer."""
    try:
        with urllib.request.urlopen(f"{jaeger.url}{path}?{urlencode(query)}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def assemblies(jaeger: Jaeger) -> list[str]:
    """The assemblies that it has by now, each by the trace that it is in."""
    found = json.loads(get(jaeger, "/api/traces", service=SERVICE, limit=100, lookback="1h")[1])["data"]
    return [row["traceID"] for row in found for span in row["spans"] if span["operationName"] == "assemble_context"]


def answers(jaeger: Jaeger) -> dict[str, object]:
    """The bodies of its answers."""
    window = {"query.start_time_min": "2020-01-01T00:00:00Z", "query.start_time_max": "2020-01-02T00:00:00Z"}
    asked = {"query.service_name": SERVICE, "query.num_traces": 100, **window}
    traces = dict.fromkeys(assemblies(jaeger))
    return {
        "services": get(jaeger, "/api/v3/services")[1],
        "traces": {trace: get(jaeger, f"/api/v3/traces/{trace}")[1] for trace in traces},
        "nothing": get(jaeger, "/api/v3/traces", **asked),
        "failed": get(jaeger, "/api/v3/traces", **asked | {"query.num_traces": 10_000_000}),
    }


if __name__ == "__main__":
    main()
