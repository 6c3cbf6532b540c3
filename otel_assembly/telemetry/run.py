"""One ask of an agent, while it runs: the span that its assemblies and its halts belong to."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from opentelemetry.trace import Status, StatusCode

from otel_assembly.telemetry import conventions as names

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from otel_assembly.telemetry.recorder import OpenTelemetryRecorder

HALTED: Final = Status(StatusCode.ERROR, names.STATUS_ASSEMBLY_HALT)


@dataclass(slots=True)
class Run:
    """One ask of an agent."""

    recorder: OpenTelemetryRecorder
    span: Span
    agent_name: str | None
    framework: str | None
    conversation_id: str | None
    halted: bool = False


RUN: Final[ContextVar[Run | None]] = ContextVar("otel_assembly_run", default=None)


def mark_halted(span: Span) -> None:
    """The status of a span that a halt stands on; one that has ended stays as it is."""
    if span.is_recording():
        span.set_attribute(names.ERROR_TYPE, names.ERROR_ASSEMBLY_HALT)
        span.set_status(HALTED)
