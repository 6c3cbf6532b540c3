"""One ask of an agent, while it runs: the span that its assemblies and its halts belong to."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from opentelemetry import context as otel_context
from opentelemetry.trace import Status, StatusCode

from otel_assembly.errors import HaltedError, error_type
from otel_assembly.telemetry import conventions as names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.context import Context as OtelContext
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


def mark_halted(span: Span, halts: int = 1) -> None:
    """What a span says that so many halts stand on; one that has ended stays as it is."""
    if span.is_recording():
        before = (getattr(span, "attributes", None) or {}).get(names.HALTS_EMITTED)
        span.set_attribute(names.HALTS_EMITTED, halts + (before if isinstance(before, int) else 0))
        span.set_attribute(names.ERROR_TYPE, names.ERROR_ASSEMBLY_HALT)
        span.set_status(HALTED)


class OpenRun:
    """One ask of an agent that an instrumentation follows; its span, where it has one of ours, ends with `end`."""

    __slots__ = ("_context", "run")

    def __init__(self, run: Run, context: OtelContext | None) -> None:
        self.run = run
        #: The context in our own span; None where the caller's span serves.
        self._context = context

    @contextmanager
    def current(self) -> Iterator[None]:
        """What runs in this block belongs to the run.

        It must never be left open across the ``yield`` of a generator: whoever reads that one would run in it.
        """
        run_token = RUN.set(self.run)
        token = otel_context.attach(self._context) if self._context is not None else None
        try:
            yield
        finally:
            try:
                RUN.reset(run_token)
                if token is not None:
                    otel_context.detach(token)
            except ValueError:  # a generator that nobody read to its end is closed in another context
                pass

    def end(self, error: BaseException | None = None) -> None:
        """The ask came to its end; an error's message goes nowhere."""
        if self._context is None:
            return
        span, run = self.run.span, self.run
        with run.recorder.failures.contained("invoke_agent"):
            if error is not None and not run.halted:
                span.set_attribute(names.ERROR_TYPE, error_type(error))
                span.set_status(HALTED if isinstance(error, HaltedError) else Status(StatusCode.ERROR))
            span.end()
