"""A pytest plugin for the frameworks' own tests: everything is instrumented, and an SDK records it."""

from __future__ import annotations

import os
from pathlib import Path

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import otel_assembly

spans = InMemorySpanExporter()
metrics = InMemoryMetricReader()


def pytest_configure() -> None:
    """Instrument before any test module is imported."""
    tracer_provider = TracerProvider()
    tracer_provider.add_span_processor(SimpleSpanProcessor(spans))
    otel_assembly.instrument(
        os.environ["UPSTREAM_FRAMEWORK"],
        tracer_provider=tracer_provider,
        meter_provider=MeterProvider([metrics]),
    )


def pytest_unconfigure() -> None:
    """Say how many assemblies were recorded, and how often our telemetry failed."""
    assemblies = sum(span.name == "assemble_context" for span in spans.get_finished_spans())
    data = metrics.get_metrics_data()
    failures = sum(
        int(point.value)
        for resource in (data.resource_metrics if data is not None else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "assembly.telemetry.errors"
        for point in metric.data.data_points
    )
    Path(os.environ["UPSTREAM_SEEN"]).write_text(f"{assemblies} {failures}\n", encoding="utf-8")
