"""Reads our spans back from a Jaeger: all of a time, those of one trace, or those of the conversations asked for.

On a busy Jaeger, what is asked for is found by its attributes first; only the traces of the conversations in question
are read.
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
#: Traces that are asked for at a time.
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
    jaeger = JaegerApi(url, on_problem or (lambda problem: None), limit)
    since, until = _window(lookback)
    spans: list[StoredSpan] = []
    for each in jaeger.chosen_services(service):
        if conversation is None:
            spans += jaeger.search(each, since, until)
        else:
            spans += _with(jaeger, each, {names.GEN_AI_CONVERSATION_ID: conversation}, since, until)
    return _ours(spans)


def find_assemblies(
    url: str, tags: Mapping[str, str], *, service: str | None = None, lookback: str | None = None, limit: int = 200
) -> list[FoundAssembly] | None:
    """The newest assemblies with these attributes, the newest first; None where this Jaeger cannot search so.

    No more than `limit` traces of a service are looked at, by one question each.

    Args:
        url: Where Jaeger's page is.
        tags: Attributes of ``assemble_context`` spans, as they are searched for: ``true``, and not True.
        service: Only traces of this service; None: of all services.
        lookback: How far back from now; None: two days.
        limit: The most traces of a service.

    Raises:
        ConfigurationError: The URL, the lookback or the limit is none.
        UnknownNameError: Jaeger knows no such service.
        AssemblyError: Nobody answers there, or what answers is no Jaeger, or it failed.
    """
    jaeger = JaegerApi(url, lambda problem: None, limit)
    since, until = _window(lookback)
    services = jaeger.chosen_services(service)
    try:
        answers = jaeger.at_once(lambda each: jaeger.find(each, tags, since, until), services)
    except NoJaegerError:
        return None
    return sorted((one for found in answers for one in found), key=lambda one: -one.start_us)


def read_jaeger_ledgers(
    url: str,
    ledgers: Iterable[tuple[str, str]],
    *,
    lookback: str | None = None,
    until: int | None = None,
    on_problem: Callable[[str], None] | None = None,
) -> list[StoredSpan]:
    """Every span of the traces of some ledgers, by start time.

    Args:
        url: Where Jaeger's page is.
        ledgers: The service and the id of each.
        lookback: How far back; None: two days.
        until: Back from when, in nanoseconds since 1970; None: from now. What came later is read as well.
        on_problem: Called with a sentence for what could not be read.

    Raises:
        ConfigurationError: The URL or the lookback is none.
        AssemblyError: Nobody answers there, or what answers is no Jaeger, or it failed.
    """
    jaeger = JaegerApi(url, on_problem or (lambda problem: None), _LIMIT)
    since, now = _window(lookback, until)

    def traces(which: tuple[str, str]) -> list[str]:
        service, ledger = which
        return jaeger.traces_with(service, {names.LEDGER_ID: ledger}, since, now)

    whose = list(dict.fromkeys(ledgers))
    try:
        found = jaeger.at_once(traces, whose)
    except NoJaegerError:
        each = (_with(jaeger, service, {names.LEDGER_ID: ledger}, since, now) for service, ledger in whose)
        return _ours(span for spans in each for span in spans)
    return _ours(jaeger.traces(trace for one in found for trace in one))


def _with(jaeger: JaegerApi, service: str, tags: Mapping[str, str], since: int, until: int) -> list[StoredSpan]:
    """The spans of the traces with an assembly that has these attributes."""
    try:
        return jaeger.traces(jaeger.traces_with(service, tags, since, until))
    except NoJaegerError:
        # It has named its services, so it is one, but without the older API, and the newer one searches by no
        # attribute: everything is read, and what is of another conversation left out.
        spans = list(jaeger.search(service, since, until))
        wanted = {s.trace_id for s in spans if all(s.attributes.get(name) == value for name, value in tags.items())}
        return [span for span in spans if span.trace_id in wanted]


def _window(lookback: str | None, until: int | None = None) -> tuple[int, int]:
    """From when to when, in nanoseconds since 1970."""
    now = time.time_ns()
    back = 1_000_000_000 * seconds_of(lookback or _DEFAULT_LOOKBACK)
    return (now if until is None else min(now, until)) - back, now


def _ours(spans: Iterable[StoredSpan]) -> list[StoredSpan]:
    """Each span once, of the traces with any of ours, by start time."""
    once: dict[tuple[str, str], StoredSpan] = {}
    for span in spans:
        once.setdefault((span.trace_id, span.span_id), span)
    ours = {span.trace_id for span in once.values() if span.scope == names.SCOPE}
    return sorted((span for span in once.values() if span.trace_id in ours), key=lambda span: span.start_ns)


def read_jaeger_trace(url: str, trace_id: str) -> list[StoredSpan]:
    """Every span of one trace, whoever made it; none where Jaeger does not have that trace.

    Args:
        url: Where Jaeger's page is, such as ``http://localhost:16686``, with its base path if it has one.
        trace_id: The trace's id, as 32 hexadecimal digits.

    Raises:
        ConfigurationError: The URL is none.
        AssemblyError: Nobody answers there, or what answers is no Jaeger, or it failed.
    """
    return JaegerApi(url, lambda problem: None, 1).trace(trace_id)
