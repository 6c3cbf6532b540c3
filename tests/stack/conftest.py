"""Tests on the real Collector, Jaeger, Prometheus and Alertmanager: `make test-stack`."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from local_stack import Stack, find_go
from local_stack import programs as built_programs

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.stack)


@pytest.fixture(scope="session")
def programs():
    """The programs by name, built where they are not there yet."""
    if find_go() is None:
        pytest.skip("no Go 1.26 or later to build the servers with")
    return built_programs()


class Webhook:
    """What Alertmanager's receivers were sent, by the path it was sent to."""

    def __init__(self, server):
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        self.notifications = []

    def alerts(self, name, receiver=None):
        return [
            alert
            for path, notification in list(self.notifications)
            for alert in notification["alerts"]
            if alert["labels"]["alertname"] == name and receiver in (None, path.strip("/"))
        ]


@pytest.fixture(scope="session")
def webhook():
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):  # the name that the server calls
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.notifications.append((self.path, json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        received = Webhook(server)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield received
        server.shutdown()
        thread.join(10)


@pytest.fixture(scope="session")
def stack(programs, webhook, tmp_path_factory):
    """The stack of one machine, as shipped but for its waits; one for all tests: service names tell runs apart."""
    folder = tmp_path_factory.mktemp("stack")
    settings = {"SPAN_METRICS_INTERVAL": "1s"}
    with Stack(
        programs, folder, webhook=webhook.url, settings=settings, evaluation_interval="1s", group_wait="1s"
    ) as running:
        yield running
