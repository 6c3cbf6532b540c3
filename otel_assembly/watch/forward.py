"""Send requests on to another OTLP endpoint, unchanged."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Final

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from otel_assembly.telemetry.jaeger_api import base_url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SECONDS: Final = 10.0
#: The headers that belong to the connection of the sender, not to its request.
_OWN_HEADERS: Final = frozenset(
    [
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-otel-assembly-token",
    ]
)


class Forwarder:
    """Sends each request on, and answers as the endpoint answers, so that the sender repeats what was refused.

    Args:
        url: The endpoint without a path such as ``/v1/traces``.
        on_failure: Called with a description when the endpoint does not answer, once until it answers again.

    Raises:
        ConfigurationError: `url` is not an http(s) URL.
    """

    def __init__(self, url: str, on_failure: Callable[[str], None]) -> None:
        self.url = base_url(url, "an OTLP endpoint", "http://collector:4318")
        self._on_failure = on_failure
        self._is_failing = False

    async def send(self, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
        """Send a request on, and return the response for its sender.

        If the endpoint does not answer, the response has the status 503, after which OTLP exporters try again.
        """
        kept = {name: value for name, value in headers.items() if name.lower() not in _OWN_HEADERS}
        try:
            status, content_type, content = await run_in_threadpool(self._post, path, body, kept)
        except (OSError, http.client.HTTPException) as error:
            if not self._is_failing:
                self._on_failure(f"{self.url} does not answer ({getattr(error, 'reason', error)})")
            self._is_failing = True
            return Response(b"", 503, headers={"retry-after": "1"})
        self._is_failing = False
        return Response(content, status, media_type=content_type)

    def _post(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, str, bytes]:
        request = urllib.request.Request(self.url + path, body, headers, method="POST")  # noqa: S310  # http(s), as checked
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310
                return answer.status, answer.headers.get("content-type", ""), answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers.get("content-type", ""), error.read()
