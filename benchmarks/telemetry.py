"""Providers to measure with, and the spans and points of a turn made by hand: what the SDK alone takes for them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased

from otel_assembly.telemetry import OpenTelemetryRecorder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.sdk.trace import ReadableSpan


class Discard(SpanExporter):
    """Takes spans and keeps none."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        pass


def _tracers(share: float = 1.0) -> TracerProvider:
    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(share)), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Discard(), max_queue_size=1 << 16, schedule_delay_millis=60_000))
    return provider


def _meters() -> MeterProvider:
    return MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)


def providers(share: float = 1.0) -> dict[str, Any]:
    """An SDK for spans and metrics, of this share of the traces."""
    return {"tracer_provider": _tracers(share), "meter_provider": _meters()}


def recording(share: float = 1.0) -> OpenTelemetryRecorder:
    """Spans and metrics, of this share of the traces."""
    return OpenTelemetryRecorder(**providers(share))


def sampled_out() -> OpenTelemetryRecorder:
    """Spans that no sampler takes, and no metrics."""
    return OpenTelemetryRecorder(tracer_provider=TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False))


@dataclass
class Point:
    """One call of an instrument: how that was made, and what it was told."""

    make: str
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    call: str
    value: float
    attributes: dict[str, Any]


class _Watched:
    """A provider, meter or instrument whose points are written down as they are passed on."""

    def __init__(
        self, real: Any, points: list[Point], made: tuple[str, tuple[Any, ...], dict[str, Any]] | None
    ) -> None:
        self._real, self._points, self._made = real, points, made

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if name in ("add", "record", "set") and self._made is not None:
            make, *arguments = self._made

            def told(value: float, attributes: Any = None, *rest: Any, **named: Any) -> None:
                self._points.append(Point(make, tuple(arguments), name, value, dict(attributes or {})))  # type: ignore[arg-type]
                real(value, attributes, *rest, **named)

            return told
        if name == "get_meter" or (name.startswith("create_") and "observable" not in name):
            return lambda *args, **named: _Watched(real(*args, **named), self._points, (name, args, named))
        return real


class Watch:
    """A recorder whose last turn can be told again."""

    def __init__(self) -> None:
        self._memory = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._memory))
        self._points: list[Point] = []
        meters = _Watched(_meters(), self._points, None)
        self.recorder = OpenTelemetryRecorder(tracer_provider=provider, meter_provider=meters)  # type: ignore[arg-type]

    def forget(self) -> None:
        """What comes now is what is told again."""
        self._memory.clear()
        self._points.clear()

    def by_hand(self) -> Callable[[Any], None]:
        """What makes the same spans with the same attributes and events, and the same points, through the SDK alone.

        Attributes are set before a span ends, as anybody sets what is only known then.
        """
        spans = sorted(self._memory.get_finished_spans(), key=lambda span: (span.parent is not None, span.start_time))
        tracer = _tracers().get_tracer("by hand")
        meter = _meters().get_meter("by hand")
        instruments: dict[str, Any] = {}
        calls = []
        for point in self._points:
            args, named = point.arguments
            name = args[0] if args else named["name"]
            if name not in instruments:
                instruments[name] = getattr(meter, point.make)(*args, **named)
            calls.append((getattr(instruments[name], point.call), point.value, point.attributes))
        told = [
            (
                span.name,
                dict(span.attributes or {}),
                [(event.name, dict(event.attributes or {})) for event in span.events],
            )
            for span in spans
        ]
        (root, root_attributes, root_events), *steps = told

        def make(_: Any) -> None:
            start = tracer.start_span
            parent = start(root, context=_NOWHERE, start_time=time.time_ns())
            inside = trace.set_span_in_context(parent, _NOWHERE)
            children = [start(name, context=inside, start_time=time.time_ns()) for name, _, _ in steps]
            for call, value, attributes in calls:
                call(value, attributes, inside)
            for child, (_, attributes, events) in zip(children, steps, strict=True):
                child.set_attributes(attributes)
                for name, said in events:
                    child.add_event(name, said)
                child.end(time.time_ns())
            parent.set_attributes(root_attributes)
            for name, said in root_events:
                parent.add_event(name, said)
            parent.end(time.time_ns())

        return make

    @property
    def said(self) -> str:
        """How much is told."""
        spans = self._memory.get_finished_spans()
        attributes = sum(len(span.attributes or ()) for span in spans)
        return f"{len(spans)} spans, {attributes} attributes, {len(self._points)} metric points"


_NOWHERE = trace.set_span_in_context(trace.INVALID_SPAN)
