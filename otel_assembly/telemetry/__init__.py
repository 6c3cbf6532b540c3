"""Telemetry: the one place, with the instrumentation, that knows OpenTelemetry."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.recorder import default_recorder, set_default_recorder
from otel_assembly.telemetry.recorder import OpenTelemetryRecorder
from otel_assembly.telemetry.settings import AlertSignal, ContentCapture, TelemetrySettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from opentelemetry._logs import LoggerProvider
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from otel_assembly.telemetry.conventions_check import event_violations, metric_violations, span_type, violations
    from otel_assembly.telemetry.emitter import Arrays, Bounded, Metrics
    from otel_assembly.telemetry.flushing import FlushOnShutdown, flush, flush_on_sigterm
    from otel_assembly.telemetry.jaeger import read_jaeger
    from otel_assembly.telemetry.ledger_reader import read_ledgers
    from otel_assembly.telemetry.otlp_json import StoredEvent, StoredSpan, read_line
    from otel_assembly.telemetry.span_values import as_list
    from otel_assembly.telemetry.store import LogFileExporter, SpanFileExporter
    from otel_assembly.telemetry.store_reader import SpanNode, read_spans, span_tree
    from otel_assembly.telemetry.tracing_middleware import TracingMiddleware

#: What writes spans to files, reads them back and checks them; loaded when asked for, for an agent needs none of it.
_HOMES: Final = {
    "FlushOnShutdown": "flushing",
    "flush": "flushing",
    "flush_on_sigterm": "flushing",
    "LogFileExporter": "store",
    "SpanFileExporter": "store",
    "SpanNode": "store_reader",
    "read_spans": "store_reader",
    "span_tree": "store_reader",
    "read_ledgers": "ledger_reader",
    "read_jaeger": "jaeger",
    "StoredEvent": "otlp_json",
    "StoredSpan": "otlp_json",
    "read_line": "otlp_json",
    "as_list": "span_values",
    "TracingMiddleware": "tracing_middleware",
    "event_violations": "conventions_check",
    "metric_violations": "conventions_check",
    "span_type": "conventions_check",
    "violations": "conventions_check",
    "Arrays": "emitter",
    "Bounded": "emitter",
    "Metrics": "emitter",
}


def configure(
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    logger_provider: LoggerProvider | None = None,
    redact: Callable[[str], str] | None = None,
    settings: TelemetrySettings | None = None,
) -> OpenTelemetryRecorder:
    """Set where assemblies are recorded that are given no recorder of their own.

    Without a call of this, the global providers are used as they are when the first assembly runs.

    Args:
        tracer_provider: Instead of the global one.
        meter_provider: Instead of the global one.
        logger_provider: Instead of the global one.
        redact: Runs on every text (captured content, alerts' messages, halts' reasons) before it leaves.
        settings: What is exported beside numbers; by default as the environment says.
    """
    chosen = settings if settings is not None else TelemetrySettings.from_environment(redact=redact)
    recorder = OpenTelemetryRecorder(
        tracer_provider=tracer_provider,
        meter_provider=meter_provider,
        logger_provider=logger_provider,
        settings=chosen,
    )
    set_default_recorder(lambda: recorder)
    return recorder


def invoke_agent(
    agent_name: str, *, framework: str | None = None, conversation_id: str | None = None
) -> AbstractContextManager[None]:
    """One ask of an agent, as one trace: a span is opened only where none is current.

    Use it around the whole loop of one request; assemblies, and halts, inside it belong to it.

    Args:
        agent_name: The agent's name, also that of the span.
        framework: The framework that the agent is written on.
        conversation_id: The conversation's real id, if it has one.
    """
    recorder = default_recorder()
    if not isinstance(recorder, OpenTelemetryRecorder):
        recorder = OpenTelemetryRecorder()
    return recorder.invoke_agent(agent_name, framework=framework, conversation_id=conversation_id)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


__all__ = [
    "AlertSignal",
    "Arrays",
    "Bounded",
    "ContentCapture",
    "FlushOnShutdown",
    "LogFileExporter",
    "Metrics",
    "OpenTelemetryRecorder",
    "SpanFileExporter",
    "SpanNode",
    "StoredEvent",
    "StoredSpan",
    "TelemetrySettings",
    "TracingMiddleware",
    "as_list",
    "configure",
    "event_violations",
    "flush",
    "flush_on_sigterm",
    "invoke_agent",
    "metric_violations",
    "read_jaeger",
    "read_ledgers",
    "read_line",
    "read_spans",
    "span_tree",
    "span_type",
    "violations",
]
