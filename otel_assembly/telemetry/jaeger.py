"""Reads our spans back from a Jaeger, through the HTTP API that its own page uses; no SDK is needed.

Spans are taken from ``/api/v3``, which answers in OTLP JSON: numbers come as numbers and arrays as arrays, as in a span
file. Only where a conversation is named, ``/api/traces`` is asked first, because it alone can search by an attribute.
"""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from otel_assembly.errors import AssemblyError, ConfigurationError, UnknownNameError
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.otlp_json import StoredSpan, read_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

T = TypeVar("T")

__all__ = ["base_url", "read_jaeger", "read_jaeger_trace"]

#: Seconds that an answer may keep us waiting, for its beginning or for more of it; and that it may take in all.
_TIMEOUT: Final = 10.0
_LONGEST: Final = 60.0
#: Bytes of one answer: more is not read, so that a mistaken URL cannot fill the memory.
_MOST_BYTES: Final = 512 * 1024 * 1024
_DEFAULT_LOOKBACK: Final = "2d"
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
#: A window of time is halved until its traces fit; below this many nanoseconds, what is missing is said instead.
_SHORTEST: Final = 1_000_000


def read_jaeger(
    url: str,
    *,
    service: str | None = None,
    lookback: str | None = None,
    conversation: str | None = None,
    limit: int = 1500,
    on_problem: Callable[[str], None] | None = None,
) -> list[StoredSpan]:
    """Every span of the traces that hold assemblies of ours, by start time.

    Where a window of time has more traces than `limit`, it is halved, so that long conversations come whole.

    Args:
        url: Where Jaeger's page is, such as ``http://localhost:16686``, with its base path if it has one.
        service: Only traces of this service; None: of all services.
        lookback: How far back from now, such as ``30m``, ``6h`` or ``7d``; None: two days.
        conversation: Only traces with an assembly of the conversation of this id.
        limit: Traces that are asked for at a time.
        on_problem: Called with a sentence for what could not be read.

    Raises:
        ConfigurationError: The URL, the lookback or the limit is none.
        UnknownNameError: Jaeger knows no such service.
        AssemblyError: Nobody answers there, or what answers is no Jaeger, or it failed.
    """
    jaeger = _Jaeger(url, on_problem or (lambda problem: None), limit)
    until = time.time_ns()
    since = until - 1_000_000_000 * _seconds(lookback or _DEFAULT_LOOKBACK)
    services = jaeger.services()
    if service is not None:
        if service not in services:
            raise UnknownNameError("service", service, services)
        services = [service]
    spans: dict[tuple[str, str], StoredSpan] = {}
    for each in services:
        if conversation is None:
            found = jaeger.search(each, since, until)
        else:
            found = jaeger.conversation(each, conversation, since, until)
        for span in found:
            spans.setdefault((span.trace_id, span.span_id), span)
    ours = {span.trace_id for span in spans.values() if span.scope == names.SCOPE}
    return sorted((span for span in spans.values() if span.trace_id in ours), key=lambda span: span.start_ns)


def read_jaeger_trace(url: str, trace_id: str) -> list[StoredSpan]:
    """Every span of one trace, whoever made it; none where Jaeger does not have that trace.

    Args:
        url: Where Jaeger's page is, such as ``http://localhost:16686``, with its base path if it has one.
        trace_id: The trace's id, as 32 hexadecimal digits.

    Raises:
        ConfigurationError: The URL is none.
        AssemblyError: Nobody answers there, or what answers is no Jaeger, or it failed.
    """
    return _Jaeger(url, lambda problem: None, 1).trace(trace_id)


def base_url(url: str, whose: str, example: str) -> str:
    """An http(s) URL without what no base has: a slash at its end, a query, a fragment.

    Raises:
        ConfigurationError: It is none, or holds credentials.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        known = parts.scheme in {"http", "https"} and parts.hostname and (parts.port or True)
    except ValueError:
        known = False
    if not known:
        raise ConfigurationError(f"{url!r} is no URL of {whose}; expected one such as {example}")
    if "@" in parts.netloc:
        raise ConfigurationError(f"the URL of {whose} holds credentials; name it without them")
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


def _seconds(lookback: str) -> int:
    match = re.fullmatch(r"([1-9][0-9]{0,5})([smhd])", lookback)
    if match is None:
        raise ConfigurationError(f"the lookback must be a number and a unit, such as 30m, 6h or 7d, got {lookback!r}")
    return int(match[1]) * _UNITS[match[2]]


class _Jaeger:
    """One Jaeger, asked over HTTP."""

    def __init__(self, url: str, on_problem: Callable[[str], None], limit: int) -> None:
        base = base_url(url, "a Jaeger", "http://localhost:16686")
        if limit < 1:
            raise ConfigurationError(f"the limit must be at least 1 trace, got {limit}")
        self._base = base
        self._on_problem = on_problem
        self._limit = limit

    def services(self) -> list[str]:
        """The services that it has spans of."""
        found = self._get("/api/v3/services", {}).get("services") or []
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            raise self._no_jaeger()
        return sorted(found)

    def search(self, service: str, since: int, until: int) -> Iterator[StoredSpan]:
        """The spans of the traces with an assembly that began within a time, in nanoseconds since 1970."""

        def ask(start: int, stop: int) -> tuple[int, list[StoredSpan]]:
            spans = self._search(service, start, stop)
            return len({span.trace_id for span in spans}), spans

        return self._halved(since, until, ask)

    def _halved(self, since: int, until: int, ask: Callable[[int, int], tuple[int, list[T]]]) -> Iterator[T]:
        """What is found in a window of time, which is halved where Jaeger may have more traces than it gives."""
        waiting = [(since, until)]
        while waiting:
            start, stop = waiting.pop()
            traces, found = ask(start, stop)
            if traces >= self._limit and stop - start > _SHORTEST:
                middle = (start + stop) // 2
                waiting += [(middle, stop), (start, middle)]
                continue
            if traces >= self._limit:
                self._on_problem(f"{self._base}: {self._limit} traces or more at once; some may be missing")
            yield from found

    def _search(self, service: str, start: int, stop: int) -> list[StoredSpan]:
        query = {
            "query.service_name": service,
            "query.operation_name": names.SPAN_ASSEMBLE_CONTEXT,
            "query.start_time_min": _rfc3339(start),
            "query.start_time_max": _rfc3339(stop),
            "query.num_traces": str(self._limit),  # as it is called up to 2.13; later, by the name of its API, as below
            "query.search_depth": str(self._limit),
        }
        return self._spans(self._get("/api/v3/traces", query, none_is_404=True))

    def trace(self, trace_id: str) -> list[StoredSpan]:
        """The spans of one trace."""
        return self._spans(self._get(f"/api/v3/traces/{trace_id}", {}, none_is_404=True))

    def conversation(self, service: str, conversation: str, since: int, until: int) -> Iterator[StoredSpan]:
        """The spans of the traces with an assembly of a conversation."""
        try:
            traces = self._traces_of(service, conversation, since, until)
        except _NoJaegerError:
            # It has named its services, so it is one, but without the older API, and the newer one searches by no
            # attribute: everything is read, and what is of another conversation left out.
            spans = list(self.search(service, since, until))
            wanted = {
                span.trace_id for span in spans if span.attributes.get(names.GEN_AI_CONVERSATION_ID) == conversation
            }
            yield from (span for span in spans if span.trace_id in wanted)
            return
        for trace in traces:
            yield from self.trace(trace)

    def _traces_of(self, service: str, conversation: str, since: int, until: int) -> list[str]:
        """The ids of the traces with an assembly of a conversation."""

        def ask(start: int, stop: int) -> tuple[int, list[str]]:
            query = {
                "service": service,
                "operation": names.SPAN_ASSEMBLE_CONTEXT,
                "tags": json.dumps({names.GEN_AI_CONVERSATION_ID: conversation}),
                "start": str(start // 1000),
                "end": str(-(-stop // 1000)),
                "limit": str(self._limit),
            }
            rows = self._get("/api/traces", query).get("data") or []
            try:
                traces = [str(row["traceID"]).rjust(32, "0") for row in rows]
            except (TypeError, KeyError):
                raise self._no_jaeger() from None
            return len(traces), traces

        return list(dict.fromkeys(self._halved(since, until, ask)))

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
            said = _error_of(body)
            if none_is_404 and error.code == 404 and said is not None:
                return {}
            if said is None:
                raise self._no_jaeger(f" (HTTP {error.code} at {path})") from None
            raise AssemblyError(f"{self._base}: Jaeger failed: {said}") from None
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
                what = "is over 512 MiB" if size > _MOST_BYTES else f"takes more than {_LONGEST:.0f} s"
                raise AssemblyError(f"{self._base}: an answer {what}; ask for less with a service or a lookback")
        return b"".join(chunks)

    def _no_jaeger(self, more: str = "") -> _NoJaegerError:
        return _NoJaegerError(f"what answers at {self._base} is no Jaeger, or one without /api/v3{more}")


class _NoJaegerError(AssemblyError):
    """What answers is no Jaeger, or not one that knows this path."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A login page is no answer, and another scheme is none of ours to follow."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


_OPENER: Final = urllib.request.build_opener(_NoRedirect)


def _error_of(body: bytes) -> str | None:
    """What Jaeger says of a failure, in either of its forms; None where it is not Jaeger that answered."""
    try:
        answer = json.loads(body)
        said = answer["error"]["message"] if "error" in answer else answer["errors"][0]["msg"]
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return None
    return str(said)[:200]


def _rfc3339(nanoseconds: int) -> str:
    whole, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"
