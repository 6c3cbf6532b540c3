"""The HTTP application of `watch`: OTLP in, the page and its stream of patches out.

The page and the stream need the token of the printed URL. No page of another site can read or write: a browser sends
such requests with an ``Origin`` header, or with a ``Host`` that is not loopback, or with a content type that OTLP does
not use.
"""

from __future__ import annotations

import ipaddress
import secrets
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from otel_assembly.page import render_live_page
from otel_assembly.watch.bodies import Bodies, BodyError, decompressed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import ASGIApp, Receive, Scope, Send

    from otel_assembly.watch.feed import Feed
    from otel_assembly.watch.forward import Forwarder

#: The header in which senders on other machines send the token.
TOKEN_HEADER: Final = "x-otel-assembly-token"  # noqa: S105  # the name, not the token
_PROTOBUF: Final = "application/x-protobuf"
_JSON: Final = "application/json"
_SIGNALS: Final = ("traces", "logs", "metrics")
_HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def application(feed: Feed, *, token: str, title: str, loopback: bool, forward: Forwarder | None = None) -> ASGIApp:
    """Return the ASGI application.

    Args:
        feed: Gets the spans and log records, and yields the patches.
        token: The token that the page and the stream need; if `loopback` is false, senders need it too.
        title: The heading of the page.
        loopback: Whether the server listens on the loopback interface only.
        forward: Sends each request on; None: requests are not sent on.
    """
    views = _Views(feed, token, title, forward)
    routes = [
        *(Route(f"/v1/{signal}", views.export, methods=["POST"]) for signal in _SIGNALS),
        Route("/", views.page),
        Route("/events", views.events),
    ]
    return _Guard(Starlette(routes=routes), token, loopback=loopback)


class _Views:
    def __init__(self, feed: Feed, token: str, title: str, forward: Forwarder | None) -> None:
        self._feed = feed
        self._token = token
        self._page = render_live_page(title)
        self._forward = forward
        self._bodies = Bodies()

    async def export(self, request: Request) -> Response:
        """Receive an OTLP export request."""
        signal = request.url.path.rsplit("/", 1)[-1]
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type not in (_PROTOBUF, _JSON):
            return PlainTextResponse(f"Content-Type has to be {_PROTOBUF} or {_JSON}", 415)
        try:
            body = await self._bodies.read(request)
            encoding = request.headers.get("content-encoding", "").strip().lower()
            contents = await run_in_threadpool(decompressed, body, encoding)
        except BodyError as error:
            return PlainTextResponse(str(error), error.status)
        except ClientDisconnect:
            return PlainTextResponse("the request is not complete", 400)
        problem = None
        if signal != "metrics":
            problem = await self._feed.receive(signal, contents, is_json=content_type == _JSON)
        if self._forward is not None:
            return await self._forward.send(f"/v1/{signal}", body, request.headers)
        if problem is not None and problem.startswith(("not ", "more than ")):
            return PlainTextResponse(problem, 400)
        return Response(b"{}" if content_type == _JSON else b"", media_type=content_type)

    async def page(self, request: Request) -> Response:
        """Return the page."""
        return HTMLResponse(self._page) if self._is_allowed(request) else _refused()

    async def events(self, request: Request) -> Response:
        """Return the events of a page as a stream."""
        if not self._is_allowed(request):
            return _refused()

        async def stream() -> AsyncIterator[ServerSentEvent]:
            async for event in self._feed.events():
                yield ServerSentEvent(event.data, event=event.name, retry=1000 if event.name == "reset" else None)

        # A page that does not read for half a minute is closed; the browser connects again.
        return EventSourceResponse(stream(), send_timeout=30)

    def _is_allowed(self, request: Request) -> bool:
        given = request.query_params.get("token", "")
        return secrets.compare_digest(given.encode(), self._token.encode())


def _refused() -> Response:
    return PlainTextResponse("This page needs the token of the URL that otel-assembly watch has printed.", 403)


class _Guard:
    """Refuses requests that a page of another site could cause, and adds headers to responses."""

    def __init__(self, app: ASGIApp, token: str, *, loopback: bool) -> None:
        self._app = app
        self._token = token
        self._loopback = loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # a WebSocket, which is refused by not being accepted

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                known = {name for name, _ in message["headers"]}
                added = [
                    (name.encode(), value.encode()) for name, value in _HEADERS.items() if name.encode() not in known
                ]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        refusal = self._refusal(Request(scope))
        app = self._app if refusal is None else PlainTextResponse(refusal, 403)
        await app(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> str | None:
        """Return why a request is refused; None if it is not."""
        headers = request.headers
        host, origin, site = headers.get("host", ""), headers.get("origin"), headers.get("sec-fetch-site", "none")
        if self._loopback and not _is_loopback(host):
            return "this Host is not served; use 127.0.0.1 or localhost"
        if origin is not None and (urlsplit(origin).netloc != host or request.method != "GET"):
            return "requests of web pages are refused"
        if site not in ("none", "same-origin") and request.method != "GET":
            return "requests of web pages are refused"
        given = headers.get(TOKEN_HEADER, "")
        if (
            not self._loopback
            and request.method == "POST"
            and not secrets.compare_digest(given.encode(), self._token.encode())
        ):
            return f"the header {TOKEN_HEADER} with the printed token is missing"
        return None


def _is_loopback(host: str) -> bool:
    """Return whether a ``Host`` header names the loopback interface."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
