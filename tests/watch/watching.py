"""A running `otel-assembly watch`, as a user starts it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
URL = re.compile(r"watch on (http://\S+?)/\?token=(\S+)")


class Watch:
    """A process of `watch`; it is ended by its id when the block ends.

    Attributes:
        said: The lines on standard error so far.
        endpoint: The address of the server.
        token: The token of the page.
    """

    def __init__(self, *arguments, environment=None, starts=True):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
        path = os.pathsep.join((str(Path(sys.executable).parent), clean.get("PATH", "")))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "otel_assembly", "watch", *map(str, arguments)],
            env={**clean, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "100", **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Ctrl-C of the test run does not reach it, and it has no terminal.
            start_new_session=True,
        )
        self.said = []
        self.endpoint = self.token = None
        if starts:
            found = URL.search(self.line("watch on "))
            self.endpoint, self.token = found[1], found[2]

    @property
    def url(self):
        return f"{self.endpoint}/?token={self.token}"

    def line(self, text):
        """Wait for a line on standard error that contains a text."""
        for line in self.process.stderr:
            self.said.append(line.rstrip("\n"))
            if text in line:
                return line
        raise AssertionError("\n".join(self.said))

    def ask(self, text):
        """Write a line to the command, and wait for its answer."""
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def end(self):
        """Close the input of the command, wait for the end, and return the exit status."""
        self.process.stdin.close()
        self.said += self.process.stderr.read().splitlines()
        return self.process.wait()

    def end_by_signal(self, number=signal.SIGTERM):
        """Send a signal, wait for the end, and return the exit status."""
        self.process.send_signal(number)
        return self.end()

    def events(self):
        """Yield the name and the data of each event of the page's stream, without end."""
        with urllib.request.urlopen(f"{self.endpoint}/events?token={self.token}", timeout=60) as stream:
            name, data = "message", []
            for raw in stream:
                line = raw.decode().rstrip("\r\n")
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data:"):
                    data.append(line.removeprefix("data:").removeprefix(" "))
                elif not line and data:
                    yield name, "\n".join(data)
                    name, data = "message", []

    def patches(self):
        """Yield the patches of the page's stream, without end."""
        return (json.loads(data) for name, data in self.events() if name == "message")

    def turns(self, count, talk=""):
        """Wait until so many turns have been shown, and return the newest row of each, by ledger and number.

        If `talk` is set, only turns of the conversation with this id count.
        """
        shown = {}
        for patch in self.patches():
            for conversation in patch.get("conversations", ()):
                if talk and conversation["key"] != f"id {talk}":
                    continue
                for ledger in conversation["ledgers"]:
                    shown |= {(ledger["id"], turn["n"]): turn for turn in ledger["turns"]}
            if len(shown) >= count:
                return [shown[key] for key in sorted(shown)]
        raise AssertionError(shown)

    def post(self, path, body, content_type="application/x-protobuf", **headers):
        """Send a request, and return its status and the body of the response."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(
            self.endpoint + path, body, {"content-type": content_type, **named}, method="POST"
        )
        return self.answer(request)

    def get(self, path, **headers):
        """Send a request, and return its status and the body of the response."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.answer(urllib.request.Request(self.endpoint + path, headers=named))

    @staticmethod
    def answer(request):
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()
