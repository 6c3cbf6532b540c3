"""A provider on loopback that answers each request with what a function returns for the request's path and body."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def scripted_provider(answer):
    """Yield the URL of a server. A list of events is streamed; any other answer is sent as a whole."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            answered = answer(self.path, json.loads(self.rfile.read(int(self.headers["content-length"]))))
            kind, text = "application/json", json.dumps(answered)
            if isinstance(answered, list):
                kind, lines = "text/event-stream", [f"data: {json.dumps(event)}\n\n" for event in answered]
                if "type" in answered[0]:
                    lines = [f"event: {event['type']}\n{line}" for event, line in zip(answered, lines, strict=True)]
                text = "".join([*lines, "data: [DONE]\n\n" if "anthropic-version" not in self.headers else ""])
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
