"""Telemetry: the one place, with the instrumentation, that knows OpenTelemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly.recorder import default_recorder, set_default_recorder
from otel_assembly.telemetry.recorder import OpenTelemetryRecorder
from otel_assembly.telemetry.settings import AlertSignal, ContentCapture, TelemetrySettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from opentelemetry._logs import LoggerProvider
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider


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


__all__ = [
    "AlertSignal",
    "ContentCapture",
    "OpenTelemetryRecorder",
    "TelemetrySettings",
    "configure",
    "invoke_agent",
]
