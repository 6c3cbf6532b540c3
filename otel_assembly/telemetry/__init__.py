"""Export assemblies through OpenTelemetry, and read exported spans back.

The assembler works without this package: everything that needs the OpenTelemetry API is here or in
`otel_assembly.instrumentation`.
"""

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
    from otel_assembly.telemetry.otlp_json import StoredEvent, StoredLogEvent, StoredSpan, read_line
    from otel_assembly.telemetry.span_values import as_list
    from otel_assembly.telemetry.store import LogFileExporter, SpanFileExporter
    from otel_assembly.telemetry.store_reader import SpanNode, read_spans, span_tree
    from otel_assembly.telemetry.tracing_middleware import TracingMiddleware

#: Public names that are imported on first access, each with its module. A process that only exports needs none of them.
_MODULE_NAMES: Final = {
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
    "StoredLogEvent": "otlp_json",
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
    """Set the default recorder, which records all assemblies that have no recorder of their own.

    An assembly is the preparation of the prompt for one model call. If you do not call this function, assemblies are
    recorded through OpenTelemetry's global providers, with the settings in the environment.

    Args:
        tracer_provider: The tracer provider; None: the global one.
        meter_provider: The meter provider; None: the global one.
        logger_provider: The logger provider; None: the global one.
        redact: Called with each text before it is exported (captured content, messages of alerts, reasons of halts);
            the text that it returns is exported. None: texts are exported unchanged. Ignored if `settings` is given.
        settings: Which texts are exported, and how; None: the settings in the environment.

    Returns:
        The new default recorder.
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
    """Record one request to an agent as one trace, with a context manager.

    Put the whole loop that answers the request in the ``with`` block. If no span is current, an ``invoke_agent`` span
    is started. Assemblies and halts in the block become part of the same trace.

    Args:
        agent_name: The agent's name; also part of the span's name.
        framework: The framework that the agent is written with; None if unknown.
        conversation_id: The conversation's id; None if it has none.
    """
    recorder = default_recorder()
    if not isinstance(recorder, OpenTelemetryRecorder):
        recorder = OpenTelemetryRecorder()
    return recorder.invoke_agent(agent_name, framework=framework, conversation_id=conversation_id)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_NAMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_NAMES})


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
    "StoredLogEvent",
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
