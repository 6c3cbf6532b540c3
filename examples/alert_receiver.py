"""Print the alerts that Alertmanager sends. It needs only the standard library.

    python examples/alert_receiver.py --host 127.0.0.1 --port 9095

Use it in place of a pager or a chat: write its address into the `*.url` files next to
`collectors/alertmanager/alertmanager.yaml`. Each alert is printed with severity, summary, agent, and links to traces
and runbook. The Watchdog alert always fires, to show that alerts arrive, so it is not printed. A line is printed if the
Watchdog alert does not arrive for ten minutes after it has arrived once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WATCHDOG = "Watchdog"
#: After this many seconds without the Watchdog alert, a line is printed. Alertmanager repeats the alert every 300
#: seconds, and one repetition may be late.
SILENCE = 600


def formatted(alert: dict[str, Any], receiver: str) -> str:
    """Format one alert as a few lines."""
    labels, annotations = alert["labels"], alert["annotations"]
    if alert["status"] == "resolved":
        head = f"resolved  {annotations.get('summary', labels['alertname'])}"
        return f"{head}  [{labels['alertname']}, since {alert['startsAt'][:19]}Z]"
    head = f"{labels.get('severity', 'unknown').upper()}  {annotations.get('summary', labels['alertname'])}"
    rows = {
        "agent": labels.get("gen_ai_agent_name"),
        "service": labels.get("job"),
        "environment": labels.get("deployment_environment_name"),
        "what": annotations.get("description"),
        "traces": annotations.get("trace_search"),
        "runbook": annotations.get("runbook_url"),
        "since": f"{alert['startsAt'][:19]}Z, to {receiver}",
    }
    return "\n".join([head, *(f"  {name:12}{text}" for name, text in rows.items() if text)])


class Receiver(BaseHTTPRequestHandler):
    """Accept Alertmanager's webhook requests; the path of a request is the name of Alertmanager's receiver."""

    def do_POST(self) -> None:
        try:
            notification = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            lines = [
                formatted(alert, self.path.strip("/"))
                for alert in notification["alerts"]
                if alert["labels"]["alertname"] != WATCHDOG
            ]
            has_watchdog = len(lines) < len(notification["alerts"])
        except (ValueError, KeyError, TypeError):
            self._answer(400)
            return
        if has_watchdog:
            watchdog.alert_arrived()
        for text in lines:
            print(f"{text}\n", flush=True)
        self._answer(200)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Do nothing: a log line per request would hide the alerts."""


class Watchdog:
    """Print a line if the Watchdog alert does not arrive any more."""

    def __init__(self) -> None:
        self._last: float | None = None

    def alert_arrived(self) -> None:
        if self._last is None:
            print("the Watchdog alert has arrived: alerts are delivered\n", flush=True)
        self._last = time.monotonic()

    def watch(self) -> None:
        while True:
            time.sleep(10)
            if self._last is not None and time.monotonic() - self._last > SILENCE:
                print(f"CRITICAL  no Watchdog alert for {SILENCE} s: alerts are not delivered\n", flush=True)
                self._last = None


watchdog = Watchdog()


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the alerts that Alertmanager sends.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9095)
    options = parser.parse_args()
    threading.Thread(target=watchdog.watch, daemon=True).start()
    with ThreadingHTTPServer((options.host, options.port), Receiver) as server:
        print(f"waiting for alerts at http://{options.host}:{server.server_address[1]}\n", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    main()
