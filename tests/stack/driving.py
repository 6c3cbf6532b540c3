"""Drives an agent in a process of its own, and counts by span id what became of what it sent."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from pathlib import Path

from local_stack import wait_until

PROGRAM = Path(__file__).with_name("driven_agent.py")
#: Of one turn: `assemble_context`, and one for each of its three policies.
SPANS_A_TURN = 4
#: Shorter than the defaults, so that a test sees in seconds what takes a minute otherwise.
SHORT_WAITS = {
    "OTEL_BSP_SCHEDULE_DELAY": "100",
    "OTEL_METRIC_EXPORT_INTERVAL": "300",
    "OTEL_EXPORTER_OTLP_TIMEOUT": "2",
}
#: With these settings, an agent also loses no span if a slow machine takes seconds for an export.
WITHOUT_LOSS = {"OTEL_EXPORTER_OTLP_TIMEOUT": "40", "OTEL_BSP_MAX_QUEUE_SIZE": "10000"}


class DrivenAgent:
    """`driven_agent.py`, told what to do line by line; a context manager.

    Args:
        service: Its `service.name`.
        folder: Where its words and its notes are kept.
        collector: Where it sends to, `host:port`; without, OpenTelemetry is not configured at all.
        notes: Whether it notes which spans were acknowledged; it then sends no metrics.
        settings: Environment variables.
    """

    def __init__(self, service, folder, collector=None, *, notes=False, settings=None):
        folder.mkdir(parents=True, exist_ok=True)
        self._errors = folder / f"{service}.err"
        self._notes = folder / f"{service}.acknowledged"
        self._heard = queue.Queue()
        command = [sys.executable, str(PROGRAM)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
        if collector is not None:
            environment |= SHORT_WAITS | {
                "OTEL_SERVICE_NAME": service,
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector}",
                "OTEL_TRACES_EXPORTER": "otlp",
                "OTEL_METRICS_EXPORTER": "otlp",
                "OTEL_LOGS_EXPORTER": "none",
            }
            if notes:
                command += ["--acknowledged", str(self._notes)]
            else:
                command.insert(0, str(Path(sys.executable).with_name("opentelemetry-instrument")))
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                env=environment | (settings or {}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self):
        for line in self._process.stdout:
            self._heard.put(json.loads(line))

    def tell(self, *words):
        """Tell it what to do, and do not wait until it is done."""
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def hear(self, seconds=100):
        """What it says when it is done with the next thing that it was told."""
        try:
            return self._heard.get(timeout=seconds)
        except queue.Empty:
            raise AssertionError(f"the agent did not answer: {self.complaints()[-2000:]}") from None

    def ask(self, *words):
        self.tell(*words)
        return self.hear()

    def end(self, seconds=60):
        """Close its input, and wait for its end: its exit status."""
        self._process.stdin.close()
        status = self._process.wait(seconds)
        self._listener.join(10)
        return status

    def complaints(self):
        """What stands on its standard error."""
        return self._errors.read_text()

    def acknowledged(self):
        """The ids of the spans that it was told have arrived."""
        # A line without its end is still being written.
        text = self._notes.read_text() if self._notes.exists() else ""
        return set(text[: text.rfind("\n") + 1].split())

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)
        self._listener.join(10)
        self._process.stdout.close()
        # A process that is gone does not take what it was told last.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()


def spans_in(jaeger, service):
    """The ids of all spans of a service that Jaeger has."""
    query = urllib.parse.urlencode({"service": service, "limit": 50_000})
    traces = jaeger.get(f"/api/traces?{query}")["data"]
    return {span["spanID"] for trace in traces for span in trace["spans"]}


def all_in(jaeger, service, expected, seconds=60):
    """Wait until Jaeger has all of these spans, and say which it has of that service; fails with how many are lost."""
    missing = expected

    def here():
        nonlocal missing
        arrived = spans_in(jaeger, service)
        missing = expected - arrived
        return None if missing else arrived

    try:
        return wait_until(here, seconds=seconds, every=0.5, what="all spans in Jaeger")
    except TimeoutError:
        raise AssertionError(f"{len(missing)} of {len(expected)} acknowledged spans are lost") from None
