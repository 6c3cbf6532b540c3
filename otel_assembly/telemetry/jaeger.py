"""Read spans from Jaeger: those of a time window, a trace, a conversation, or some ledgers.

A ledger is the record of one conversation of one agent in one process. Conversations and ledgers are searched by
attribute, so that only their traces are downloaded.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.jaeger_api import FoundAssembly, JaegerApi, NoJaegerError, base_url, seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from otel_assembly.telemetry.otlp_json import StoredSpan

__all__ = ["FoundAssembly", "base_url", "find_assemblies", "read_jaeger", "read_jaeger_ledgers", "read_jaeger_trace"]

_DEFAULT_LOOKBACK: Final = "2d"
#: The most traces per search request.
_LIMIT: Final = 1500


def read_jaeger(
    url: str,
    *,
    service: str | None = None,
    lookback: str | None = None,
    conversation: str | None = None,
    limit: int = _LIMIT,
    on_problem: Callable[[str], None] | None = None,
) -> list[StoredSpan]:
    """Return all spans of the traces that contain assemblies, by start time.

    If a time window has more traces than `limit`, the window is halved and searched again, down to one millisecond.

    Args:
        url: The URL of Jaeger's UI, such as ``http://localhost:16686``, with its base path if it has one.
        service: Only traces of this service; None for all services.
        lookback: How far back from now, such as ``30m``, ``6h`` or ``7d``; None for two days.
        conversation: Only traces with an assembly of this conversation id; None for all conversations.
        limit: The most traces that one search request returns. It does not limit the result: see above.
        on_problem: Called with one sentence for each part of the data that could not be read; None: such parts are
            ignored.

    Raises:
        ConfigurationError: The URL, the lookback or the limit is invalid.
        UnknownNameError: Jaeger has no such service.
        AssemblyError: Jaeger cannot be reached or failed, or the server is not Jaeger.
    """
    jaeger = JaegerApi(url, on_problem or (lambda problem: None), limit)
    since, until = _window(lookback)
    spans: list[StoredSpan] = []
    for name in jaeger.chosen_services(service):
        if conversation is None:
            spans += jaeger.search(name, since, until)
        else:
            spans += _spans_with(jaeger, name, {names.GEN_AI_CONVERSATION_ID: conversation}, since, until)
    return _assembly_traces(spans)


def find_assemblies(
    url: str, tags: Mapping[str, str], *, service: str | None = None, lookback: str | None = None, limit: int = 200
) -> list[FoundAssembly] | None:
    """Return the newest assemblies with these attributes, the newest first; None if Jaeger cannot search by attribute.

    Each service is searched with one request.

    Args:
        url: The URL of Jaeger's UI.
        tags: Attributes of ``assemble_context`` spans, as strings: ``"true"`` for True.
        service: Only traces of this service; None for all services.
        lookback: How far back from now; None for two days.
        limit: The most traces per service.

    Raises:
        ConfigurationError: The URL, the lookback or the limit is invalid.
        UnknownNameError: Jaeger has no such service.
        AssemblyError: Jaeger cannot be reached or failed, or the server is not Jaeger.
    """
    jaeger = JaegerApi(url, lambda problem: None, limit)
    since, until = _window(lookback)
    services = jaeger.chosen_services(service)
    try:
        answers = jaeger.concurrently(lambda name: jaeger.find(name, tags, since, until), services)
    except NoJaegerError:
        return None
    return sorted(
        (assembly for assemblies in answers for assembly in assemblies), key=lambda assembly: -assembly.start_us
    )


def read_jaeger_ledgers(
    url: str,
    ledgers: Iterable[tuple[str, str]],
    *,
    lookback: str | None = None,
    until: int | None = None,
    on_problem: Callable[[str], None] | None = None,
) -> list[StoredSpan]:
    """Return all spans of the traces of some ledgers, by start time.

    Args:
        url: The URL of Jaeger's UI.
        ledgers: The service and the id of each ledger.
        lookback: How far back from `until`; None for two days.
        until: The time that `lookback` is subtracted from, in nanoseconds since 1970; None for now. The search itself
            always extends to now.
        on_problem: Called with one sentence for each part of the data that could not be read; None: such parts are
            ignored.

    Raises:
        ConfigurationError: The URL or the lookback is invalid.
        AssemblyError: Jaeger cannot be reached or failed, or the server is not Jaeger.
    """
    jaeger = JaegerApi(url, on_problem or (lambda problem: None), _LIMIT)
    since, now = _window(lookback, until)

    def trace_ids(service_and_ledger: tuple[str, str]) -> list[str]:
        service, ledger = service_and_ledger
        return jaeger.traces_with(service, {names.LEDGER_ID: ledger}, since, now)

    distinct = list(dict.fromkeys(ledgers))
    try:
        ids_of_ledgers = jaeger.concurrently(trace_ids, distinct)
    except NoJaegerError:
        spans_of_ledgers = (
            _spans_with(jaeger, service, {names.LEDGER_ID: ledger}, since, now) for service, ledger in distinct
        )
        return _assembly_traces(span for spans in spans_of_ledgers for span in spans)
    return _assembly_traces(jaeger.traces(trace_id for ids in ids_of_ledgers for trace_id in ids))


def _spans_with(jaeger: JaegerApi, service: str, tags: Mapping[str, str], since: int, until: int) -> list[StoredSpan]:
    """Return the spans of all traces that contain an assembly with these attributes, between two times.

    Args:
        jaeger: The client.
        service: The service that recorded the assembly.
        tags: The attributes of the assembly's span, as text.
        since: The start of the search, in nanoseconds since 1970.
        until: The end of the search.
    """
    try:
        return jaeger.traces(jaeger.traces_with(service, tags, since, until))
    except NoJaegerError:
        # Jaeger listed its services, so it is Jaeger, but without the older API, and the newer API cannot search by
        # attribute. So all traces are downloaded and then filtered.
        spans = list(jaeger.search(service, since, until))
        trace_ids = {s.trace_id for s in spans if all(s.attributes.get(name) == value for name, value in tags.items())}
        return [span for span in spans if span.trace_id in trace_ids]


def _window(lookback: str | None, until: int | None = None) -> tuple[int, int]:
    """Return the start and the end of the search, in nanoseconds since 1970."""
    now = time.time_ns()
    lookback_ns = 1_000_000_000 * seconds_of(lookback or _DEFAULT_LOOKBACK)
    return (now if until is None else min(now, until)) - lookback_ns, now


def _assembly_traces(spans: Iterable[StoredSpan]) -> list[StoredSpan]:
    """Return the spans of all traces that contain a span of this library, without duplicates, by start time."""
    distinct: dict[tuple[str, str], StoredSpan] = {}
    for span in spans:
        distinct.setdefault((span.trace_id, span.span_id), span)
    trace_ids = {span.trace_id for span in distinct.values() if span.scope == names.SCOPE}
    return sorted((span for span in distinct.values() if span.trace_id in trace_ids), key=lambda span: span.start_ns)


def read_jaeger_trace(url: str, trace_id: str) -> list[StoredSpan]:
    """Return all spans of one trace, from any library; empty if Jaeger does not have the trace.

    Args:
        url: The URL of Jaeger's UI, such as ``http://localhost:16686``, with its base path if it has one.
        trace_id: The trace's id, as 32 hexadecimal digits.

    Raises:
        ConfigurationError: The URL is invalid.
        AssemblyError: Jaeger cannot be reached or failed, or the server is not Jaeger.
    """
    return JaegerApi(url, lambda problem: None, 1).trace(trace_id)
