"""A client of Jaeger's HTTP API.

Spans are read from ``/api/v3``. It returns OTLP JSON, in which numbers and arrays keep their types. Searches by
attribute use the older ``/api/traces``, because only that can do them. From its results, only trace ids and attributes
of assemblies are read.
"""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from otel_assembly.errors import AssemblyError, ConfigurationError, UnknownNameError
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.otlp_json import StoredSpan, read_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

T = TypeVar("T")
U = TypeVar("U")

__all__ = ["FoundAssembly", "JaegerApi", "NoJaegerError", "base_url", "seconds_of"]

#: Seconds to wait for the start of a response or for more data, and for the whole response.
_TIMEOUT: Final = 10.0
_LONGEST: Final = 60.0
#: The most bytes of a response, so that a wrong URL cannot fill the memory.
_MOST_BYTES: Final = 512 * 1024 * 1024
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
#: The shortest time window, in nanoseconds. A window with too many traces is halved down to this length; then the
#: missing traces are reported.
_SHORTEST: Final = 1_000_000
#: The number of concurrent requests.
_CONCURRENT_REQUESTS: Final = 8


@dataclass(frozen=True, slots=True)
class FoundAssembly:
    """An assembly that a search found.

    Attributes:
        service: The service that recorded the assembly.
        trace_id: The trace id of the assembly's span.
        start_us: When the assembly began, in microseconds since 1970.
        attributes: The attributes of the assembly's span; arrays are JSON text.
    """

    service: str
    trace_id: str
    start_us: int
    attributes: Mapping[str, Any]

    @property
    def ledger(self) -> str:
        """The id of the assembly's ledger (the numbering of one conversation's items); empty if the span has none."""
        return str(self.attributes.get(names.LEDGER_ID, ""))


def base_url(url: str, server: str, example: str) -> str:
    """Return an HTTP or HTTPS URL without a trailing slash, query and fragment.

    Args:
        url: The URL.
        server: The kind of server, for error messages, such as "Jaeger".
        example: A valid URL, for error messages.

    Raises:
        ConfigurationError: The URL is invalid or contains credentials.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        known = parts.scheme in {"http", "https"} and parts.hostname and (parts.port or True)
    except ValueError:
        known = False
    if not known:
        raise ConfigurationError(f"{url!r} is not a URL of {server}; use one such as {example}")
    if "@" in parts.netloc:
        raise ConfigurationError(f"the URL of {server} contains credentials; remove them")
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


def seconds_of(lookback: str) -> int:
    """Return a duration such as ``30m``, ``6h`` or ``7d`` in seconds.

    Raises:
        ConfigurationError: The text is not a number with a unit.
    """
    match = re.fullmatch(r"([1-9][0-9]{0,5})([smhd])", lookback)
    if match is None:
        raise ConfigurationError(
            f"the lookback must be a number with a unit, such as 30m, 6h or 7d; it is {lookback!r}"
        )
    return int(match[1]) * _UNITS[match[2]]


class JaegerApi:
    """A client of one Jaeger server.

    Args:
        url: The URL of Jaeger's UI.
        on_problem: Called with one sentence for each part of the data that could not be read.
        limit: The most traces that one search request returns.

    Raises:
        ConfigurationError: The URL is invalid, or the limit is below 1.
    """

    def __init__(self, url: str, on_problem: Callable[[str], None], limit: int) -> None:
        base = base_url(url, "Jaeger", "http://localhost:16686")
        if limit < 1:
            raise ConfigurationError(f"the limit must be at least 1 trace; it is {limit}")
        self._base = base
        self._on_problem = on_problem
        self._limit = limit

    def services(self) -> list[str]:
        """Return the names of all services, sorted."""
        services = self._get("/api/v3/services", {}).get("services") or []
        if not isinstance(services, list) or not all(isinstance(name, str) for name in services):
            raise self._no_jaeger()
        return sorted(services)

    def chosen_services(self, service: str | None) -> list[str]:
        """Return a list of this service, or of all services if `service` is None.

        Raises:
            UnknownNameError: Jaeger has no such service.
        """
        known = self.services()
        if service is not None and service not in known:
            raise UnknownNameError("service", service, known)
        return known if service is None else [service]

    def concurrently(self, request: Callable[[U], T], arguments: Iterable[U]) -> list[T]:
        """Call `request` with each argument, at most eight at a time, and return the results in order."""
        with ThreadPoolExecutor(_CONCURRENT_REQUESTS) as pool:
            return list(pool.map(request, arguments))

    def search(self, service: str, since: int, until: int) -> Iterator[StoredSpan]:
        """Yield the spans of all traces with an assembly between two times, in nanoseconds since 1970."""

        def ask(start: int, stop: int) -> tuple[int, list[StoredSpan]]:
            spans = self._search(service, start, stop)
            return len({span.trace_id for span in spans}), spans

        return self._halved(since, until, ask)

    def _halved(self, since: int, until: int, ask: Callable[[int, int], tuple[int, list[T]]]) -> Iterator[T]:
        """Search a time window completely, although one request returns at most the limit of traces.

        If a request reaches the limit, both halves of its window are searched instead. If a window of one millisecond
        reaches the limit, `on_problem` is called, because traces may be missing.

        Args:
            since: The start of the window, in nanoseconds since 1970.
            until: The end of the window.
            ask: Searches from one time to another, and returns the number of traces and the results.

        Yields:
            The results of the windows that were not halved, by time.
        """
        waiting = [(since, until)]
        while waiting:
            start, stop = waiting.pop()
            traces, results = ask(start, stop)
            if traces >= self._limit and stop - start > _SHORTEST:
                middle = (start + stop) // 2
                waiting += [(middle, stop), (start, middle)]
                continue
            if traces >= self._limit:
                self._on_problem(
                    f"{self._base}: {self._limit} traces or more within a millisecond; some may be missing"
                )
            yield from results

    def _search(self, service: str, start: int, stop: int) -> list[StoredSpan]:
        query = {
            "query.service_name": service,
            "query.operation_name": names.SPAN_ASSEMBLE_CONTEXT,
            "query.start_time_min": _rfc3339(start),
            "query.start_time_max": _rfc3339(stop),
            "query.num_traces": str(self._limit),  # up to Jaeger 2.13; later releases use search_depth
            "query.search_depth": str(self._limit),
        }
        return self._spans(self._get("/api/v3/traces", query, none_is_404=True))

    def trace(self, trace_id: str) -> list[StoredSpan]:
        """Return the spans of one trace."""
        return self._spans(self._get(f"/api/v3/traces/{trace_id}", {}, none_is_404=True))

    def traces(self, trace_ids: Iterable[str]) -> list[StoredSpan]:
        """Return the spans of several traces."""
        return [span for spans in self.concurrently(self.trace, dict.fromkeys(trace_ids)) for span in spans]

    def find(self, service: str, tags: Mapping[str, str], since: int, until: int) -> list[FoundAssembly]:
        """Return the assemblies with the attributes `tags` between two times in ns, from at most `limit` traces."""
        return [
            assembly
            for row in self._rows(service, tags, since, until)
            for assembly in self._assemblies(service, row, tags)
        ]

    def traces_with(self, service: str, tags: Mapping[str, str], since: int, until: int) -> list[str]:
        """Return the ids of all traces with an assembly that has the attributes `tags`, between two times in ns."""

        def ask(start: int, stop: int) -> tuple[int, list[str]]:
            rows = self._rows(service, tags, start, stop)
            return len(rows), [trace for trace, _ in rows]

        return list(dict.fromkeys(self._halved(since, until, ask)))

    def _rows(self, service: str, tags: Mapping[str, str], since: int, until: int) -> list[tuple[str, list[Any]]]:
        """Search with the older API, and return the id and the spans (JSON objects) of each trace.

        Raises:
            NoJaegerError: The server does not have the older API.
        """
        query = {
            "service": service,
            "operation": names.SPAN_ASSEMBLE_CONTEXT,
            **({"tags": json.dumps(tags)} if tags else {}),
            "start": str(since // 1000),
            "end": str(-(-until // 1000)),
            "limit": str(self._limit),
        }
        rows = self._get("/api/traces", query).get("data") or []
        try:
            return [(str(row["traceID"]).rjust(32, "0"), list(row["spans"])) for row in rows]
        except (TypeError, KeyError):
            raise self._no_jaeger() from None

    def _assemblies(self, service: str, row: tuple[str, list[Any]], tags: Mapping[str, str]) -> Iterator[FoundAssembly]:
        trace, spans = row
        for span in spans:
            try:
                if span["operationName"] != names.SPAN_ASSEMBLE_CONTEXT:
                    continue
                attributes = {tag["key"]: tag["value"] for tag in span["tags"]}
                started = int(span["startTime"])
            except (TypeError, KeyError, ValueError):
                raise self._no_jaeger() from None
            if all(_text_of(attributes.get(name)) == value for name, value in tags.items()):
                yield FoundAssembly(service, trace, started, attributes)

    def _spans(self, answer: Mapping[str, Any]) -> list[StoredSpan]:
        result = answer.get("result")
        if result is None:
            return []
        line = read_line(json.dumps(result).encode())
        if line.problem is not None:
            self._on_problem(f"{self._base}: {line.problem}")
        return line.spans

    def _get(self, path: str, query: Mapping[str, str], *, none_is_404: bool = False) -> dict[str, Any]:
        target = f"{self._base}{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
        request = urllib.request.Request(target, headers={"Accept": "application/json"})  # noqa: S310  # http(s) only
        try:
            with _OPENER.open(request, timeout=_TIMEOUT) as response:
                body = self._read(response)
        except urllib.error.HTTPError as error:
            body = error.read(65_536)
            message = _error_of(body)
            if none_is_404 and error.code == 404 and message is not None:
                return {}
            if message is None:
                raise self._no_jaeger(f" (HTTP {error.code} at {path})") from None
            raise AssemblyError(f"{self._base}: Jaeger returned an error: {message}") from None
        except http.client.HTTPException:
            raise self._no_jaeger() from None
        except OSError as error:  # a URLError or a timeout
            why = getattr(error, "reason", error)
            reason = getattr(why, "strerror", None) or str(why) or type(error).__name__
            raise AssemblyError(f"cannot connect to {self._base}: {str(reason).lower()}") from None
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            raise self._no_jaeger() from None
        if not isinstance(answer, dict):
            raise self._no_jaeger()
        return answer

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        chunks: list[bytes] = []
        size, until = 0, time.monotonic() + _LONGEST
        while chunk := response.read1(1 << 20):
            chunks.append(chunk)
            size += len(chunk)
            if size > _MOST_BYTES or time.monotonic() > until:
                problem = "is over 512 MiB" if size > _MOST_BYTES else f"takes more than {_LONGEST:.0f} s"
                raise AssemblyError(
                    f"{self._base}: a response {problem}; limit the search to a service or a shorter time"
                )
        return b"".join(chunks)

    def _no_jaeger(self, more: str = "") -> NoJaegerError:
        return NoJaegerError(f"the server at {self._base} is not Jaeger, or has no /api/v3{more}")


def _text_of(value: Any) -> str:
    """Return an attribute's value as the text with which Jaeger's search compares it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class NoJaegerError(AssemblyError):
    """The server is not Jaeger, or is a Jaeger without the requested API."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: a login page is not Jaeger, and a redirect may use another scheme than HTTP."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


_OPENER: Final = urllib.request.build_opener(_NoRedirect)


def _error_of(body: bytes) -> str | None:
    """Return the error message in either of Jaeger's two formats; None if the response is not from Jaeger."""
    try:
        answer = json.loads(body)
        message = answer["error"]["message"] if "error" in answer else answer["errors"][0]["msg"]
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return None
    return str(message)[:200]


def _rfc3339(nanoseconds: int) -> str:
    whole, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"
