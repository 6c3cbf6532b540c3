"""`RecordedTelemetry`: an OpenTelemetry SDK for tests that keeps spans, metrics and log records in memory."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from otel_assembly.errors import ConfigurationError
from otel_assembly.recorder import using_recorder
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.conventions_check import event_violations, metric_violations, violations
from otel_assembly.telemetry.recorder import OpenTelemetryRecorder
from otel_assembly.telemetry.settings import TelemetrySettings
from otel_assembly.telemetry.span_values import children_of
from otel_assembly.telemetry.store_reader import SpanNode, span_tree
from otel_assembly.testing.recorded_span import RecordedSpan, plain, recorded_span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from opentelemetry.sdk.trace.sampling import Sampler
    from opentelemetry.trace import Tracer


@dataclass(frozen=True, slots=True)
class RecordedLog:
    """A log record.

    Attributes:
        name: The name of the event that the record contains.
        attributes: The record's attributes.
        severity: The severity's name, such as ``WARN``.
        trace_id: The id of the trace in which the record was emitted, as hexadecimal digits.
        span_id: The id of the span in which the record was emitted, as hexadecimal digits.
        body: The record's body; None if it has none.
    """

    name: str
    attributes: dict[str, Any]
    severity: str
    trace_id: str
    span_id: str
    body: Any = None


@dataclass(frozen=True, slots=True)
class Distribution:
    """The data of a histogram.

    Attributes:
        count: The number of values.
        sum: The sum of the values.
        min: The smallest value.
        max: The largest value.
        bounds: The upper bounds of the buckets, ascending; the last bucket has none.
        counts: The number of values in each bucket. A value belongs to the first bucket whose bound is not below it.
    """

    count: int
    sum: float
    min: float
    max: float
    bounds: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """The value of a metric for one set of attributes.

    Attributes:
        attributes: The attributes.
        value: A number for a counter, a `Distribution` for a histogram.
        exemplars: The trace id and the span id of each exemplar.
    """

    attributes: dict[str, Any]
    value: float | Distribution
    exemplars: tuple[tuple[str, str], ...] = ()


class RecordedTelemetry:
    """An OpenTelemetry SDK for tests: nothing is exported, ids are sequential, environment variables are ignored.

    Pass `recorder` to an `Assembler`, or use it for all assemblers without a recorder with `as_default`.

    Args:
        sampler: The sampler of the SDK; by default every span is recorded.
        settings: The settings of the telemetry; by default `TelemetrySettings()`, regardless of the environment.

    Raises:
        ConfigurationError: The OpenTelemetry SDK is not installed.
    """

    def __init__(self, *, sampler: Sampler | None = None, settings: TelemetrySettings | None = None) -> None:
        try:
            from opentelemetry.sdk._logs import LoggerProvider
            from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import InMemoryMetricReader
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import SimpleSpanProcessor
            from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
            from opentelemetry.sdk.trace.sampling import ALWAYS_ON
        except ImportError as missing:
            raise ConfigurationError(
                "recording telemetry in a test needs the OpenTelemetry SDK; install it: "
                "pip install 'otel-assembly[otlp]'"
            ) from missing

        self._spans = InMemorySpanExporter()
        self._logs: InMemoryLogRecordExporter = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
        self._metrics = InMemoryMetricReader()
        with _without_otel_variables():
            self.tracer_provider = TracerProvider(
                sampler=sampler or ALWAYS_ON,
                resource=Resource.get_empty(),
                shutdown_on_exit=False,
                id_generator=_sequential_ids(),
            )
            self.meter_provider = MeterProvider([self._metrics], resource=Resource.get_empty(), shutdown_on_exit=False)
            self.logger_provider = LoggerProvider(resource=Resource.get_empty(), shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._spans))
        self.logger_provider.add_log_record_processor(SimpleLogRecordProcessor(self._logs))
        self.recorder = OpenTelemetryRecorder(
            tracer_provider=self.tracer_provider,
            meter_provider=self.meter_provider,
            logger_provider=self.logger_provider,
            settings=settings or TelemetrySettings(),
        )

    @contextmanager
    def as_default(self) -> Iterator[RecordedTelemetry]:
        """Use `recorder` for all assemblers without a recorder of their own, until the block ends."""
        with using_recorder(self.recorder):
            yield self

    def tracer(self, name: str = "test") -> Tracer:
        """Return a tracer for spans of the test itself."""
        return self.tracer_provider.get_tracer(name)

    def clear(self) -> None:
        """Remove the recorded spans and log records; metrics keep their values."""
        self._spans.clear()
        self._logs.clear()

    def shutdown(self) -> None:
        """Shut the SDK down; recorded spans and log records stay available, metrics do not."""
        self.tracer_provider.shutdown()
        self.meter_provider.shutdown()
        self.logger_provider.shutdown()

    @property
    def spans(self) -> list[RecordedSpan]:
        """All ended spans, in the order of their end."""
        among: dict[tuple[str, str | None], list[RecordedSpan]] = {}
        spans = [recorded_span(span, among) for span in self._spans.get_finished_spans()]
        among.update(children_of(spans))
        return spans

    def spans_named(self, name: str) -> list[RecordedSpan]:
        """Return the spans with this name, in the order of their end."""
        return [span for span in self.spans if span.name == name]

    def span(self, name: str) -> RecordedSpan:
        """Return the last ended span with this name.

        Raises:
            AssertionError: There is no such span; the message lists the existing names.
        """
        spans = self.spans
        matching = [span for span in spans if span.name == name]
        if not matching:
            counted = Counter(span.name for span in spans)
            existing = ", ".join(f"{span_name!r}" + (f" × {n}" if n > 1 else "") for span_name, n in counted.items())
            raise AssertionError(f"no span is named {name!r}; there are: {existing or 'none at all'}")
        return matching[-1]

    def tree(self) -> str:
        """Return the names of all spans, each indented under its parent."""
        return "\n".join(line for node in span_tree(self.spans) for line in _branch(node, 0))

    @property
    def logs(self) -> list[RecordedLog]:
        """All log records, in order."""
        records: list[RecordedLog] = []
        for data in self._logs.get_finished_logs():
            record = data.log_record
            records.append(
                RecordedLog(
                    name=record.event_name or "",
                    attributes=plain(record.attributes),
                    severity=record.severity_number.name if record.severity_number is not None else "UNSPECIFIED",
                    trace_id=f"{record.trace_id or 0:032x}",
                    span_id=f"{record.span_id or 0:016x}",
                    body=record.body,
                )
            )
        return records

    def logs_named(self, name: str) -> list[RecordedLog]:
        """Return the log records with this event name, in order."""
        return [log for log in self.logs if log.name == name]

    @property
    def metrics(self) -> dict[str, list[Point]]:
        """All metrics of this package by name, with a `Point` for each set of attributes."""
        data = self._metrics.get_metrics_data()
        points_by_name: dict[str, list[Point]] = {}
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                if scope.scope.name == names.SCOPE:
                    for metric in scope.metrics:
                        points_by_name[metric.name] = [_point(point) for point in metric.data.data_points]
        return points_by_name

    def metric(self, name: str, **attributes: Any) -> Any:
        """Return the value of a metric: the sum of a counter, or the `Distribution` of a histogram.

        Args:
            name: The name, such as ``assembly.items.dropped``.
            attributes: Attributes of the series: ``policy_name`` is ``assembly.policy.name``, ``agent_name`` is
                ``gen_ai.agent.name``, ``error_type`` is ``error.type``.

        Raises:
            AssertionError: There is no such metric or series, or there are several histograms.
        """
        metrics = self.metrics
        points = metrics.get(name)
        if points is None:
            raise AssertionError(f"no metric is named {name!r}; there are: {', '.join(sorted(metrics)) or 'none'}")
        matching = [point for point in points if attributes.items() <= _short(point.attributes).items()]
        if not matching:
            existing = "; ".join(str(_short(point.attributes)) for point in points)
            raise AssertionError(f"{name} has no series with {attributes}; there are: {existing}")
        if not isinstance(matching[0].value, Distribution):
            return sum(point.value for point in matching if not isinstance(point.value, Distribution))
        if len(matching) > 1:
            existing = "; ".join(str(_short(point.attributes)) for point in matching)
            raise AssertionError(f"{name} has several series with {attributes}: {existing}")
        return matching[0].value

    def violations(self) -> list[str]:
        """Return a sentence for each violation of this package's semantic conventions in the telemetry."""
        sentences: list[str] = []
        for span in self.spans:
            if span.scope == names.SCOPE:
                sentences += violations(span.name, span.attributes, [(e.name, e.attributes) for e in span.events])
        for log in self.logs:
            sentences += event_violations(log.name, log.attributes)
        for name, points in self.metrics.items():
            for point in points:
                kind = "histogram" if isinstance(point.value, Distribution) else "counter"
                sentences += metric_violations(name, kind, point.attributes)
        return sentences


def _branch(node: SpanNode, depth: int) -> Iterable[str]:
    yield "  " * depth + node.span.name
    for child in node.children:
        yield from _branch(child, depth + 1)


def _point(point: Any) -> Point:
    attributes = plain(point.attributes)
    exemplars = tuple(
        (f"{exemplar.trace_id or 0:032x}", f"{exemplar.span_id or 0:016x}") for exemplar in point.exemplars
    )
    if not hasattr(point, "bucket_counts"):
        return Point(attributes, point.value, exemplars)
    counts, bounds = tuple(point.bucket_counts), tuple(point.explicit_bounds)
    return Point(attributes, Distribution(point.count, point.sum, point.min, point.max, bounds, counts), exemplars)


def _short(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Rename attributes to keywords: remove the prefixes ``assembly.`` and ``gen_ai.``, replace dots by underscores."""
    return {
        name.removeprefix("assembly.").removeprefix("gen_ai.").replace(".", "_"): value
        for name, value in attributes.items()
    }


@contextmanager
def _without_otel_variables() -> Iterator[None]:
    """Hide ``OTEL_*`` environment variables during the block, so that a test has the same result everywhere."""
    removed_variables = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("OTEL_")}
    try:
        yield
    finally:
        os.environ.update(removed_variables)


def _sequential_ids() -> Any:
    """Return a generator of trace and span ids that count from 1, so that every run of a test has the same ids."""
    from itertools import count

    from opentelemetry.sdk.trace.id_generator import IdGenerator

    class SequentialIds(IdGenerator):
        def __init__(self) -> None:
            self._traces, self._spans = count(1), count(1)

        def generate_trace_id(self) -> int:
            return next(self._traces)

        def generate_span_id(self) -> int:
            return next(self._spans)

    return SequentialIds()
