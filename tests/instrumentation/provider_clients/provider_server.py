"""An HTTP server in the place of a provider: it answers each request with the next answer, and keeps the requests."""

from __future__ import annotations

import binascii
import json
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class ProviderServer:
    """Listens on a free port of the loopback interface until `close`.

    Attributes:
        requests: The JSON bodies of the requests.
        paths: The paths of the requests.
        url: The server's URL.
    """

    def __init__(self):
        self.requests = []
        self.paths = []
        self._answers = []
        self._answer = None
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                provider.requests.append(json.loads(body))
                provider.paths.append(self.path)
                if provider._answers:
                    status, content_type, content = provider._answers.pop(0)
                else:
                    status, (content_type, content) = 200, provider._answer(self.path, provider.requests[-1])
                self.send_response(status)
                self.send_header("content-type", content_type)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def answers(self, body):
        """Answer the next request with a JSON body."""
        self._answers.append((200, *json_content(body)))

    def fails(self, status, body=None):
        """Answer the next request with an error."""
        self._answers.append((status, *json_content(body or {"error": {"message": "refused"}})))

    def answers_lines(self, bodies):
        """Answer the next request with one JSON body per line, as Ollama streams its answers."""
        lines = b"".join(json.dumps(body).encode() + b"\n" for body in bodies)
        self._answers.append((200, "application/x-ndjson", lines))

    def answers_with(self, content, content_type):
        """Answer the next request with these bytes."""
        self._answers.append((200, content_type, content))

    def forget(self):
        """Forget the answers to requests that did not come."""
        self._answers.clear()

    def streams(self, events, named=False, done=True):
        """Answer the next request with server-sent events; `named` adds the name of each event, its type."""
        self._answers.append((200, *sse_events(events, named, done)))

    def streams_aws(self, events):
        """Answer the next request with AWS event stream messages; each event has one key, its type."""
        self._answers.append((200, *aws_events(events)))

    def answers_all(self, answer):
        """Answer all further requests: `answer` returns the content type and the content for a path and a body."""
        self._answer = answer

    def close(self):
        self._server.shutdown()
        self._server.server_close()


def json_content(body):
    return "application/json", json.dumps(body).encode()


def sse_events(events, named=False, done=True):
    lines = [f"{'event: ' + event['type'] + chr(10) if named else ''}data: {json.dumps(event)}\n\n" for event in events]
    lines += ["data: [DONE]\n\n"] if done else []
    return "text/event-stream", "".join(lines).encode()


def aws_events(events):
    messages = [_aws_message(kind, event) for events_by_type in events for kind, event in events_by_type.items()]
    return "application/vnd.amazon.eventstream", b"".join(messages)


def _aws_message(kind, event):
    headers = b""
    message_type = "exception" if kind.endswith("Exception") else "event"
    for name, value in (
        (f":{message_type}-type", kind),
        (":content-type", "application/json"),
        (":message-type", message_type),
    ):
        headers += bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
    payload = json.dumps(event).encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack(">I", binascii.crc32(prelude)) + headers + payload
    return message + struct.pack(">I", binascii.crc32(message))
