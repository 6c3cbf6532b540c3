"""One ask of an agent, while it runs: the span that its assemblies and its halts belong to."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Status, StatusCode

from otel_assembly.errors import HaltedError, error_type
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.emitter import HALTED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.context import Context as OtelContext
    from opentelemetry.trace import Span, SpanContext

    from otel_assembly.recorder import Whose
    from otel_assembly.telemetry.emitter import Emitter


@dataclass(slots=True)
class Run:
    """One ask of an agent."""

    emitter: Emitter
    span: Span
    whose: Whose
    halted: bool = False


RUN: Final[ContextVar[Run | None]] = ContextVar("otel_assembly_run", default=None)


class OpenRun:
    """One ask of an agent that an instrumentation follows; its span, where it has one of ours, ends with `end`."""

    __slots__ = ("_context", "run")

    def __init__(self, run: Run, context: OtelContext | None) -> None:
        self.run = run
        #: The context in our own span; None where the caller's span serves.
        self._context = context

    @classmethod
    def begin(cls, emitter: Emitter, whose: Whose, *, anew: bool = False, link: SpanContext | None = None) -> OpenRun:
        """Begin an ask; a span is opened only where none is current.

        Args:
            emitter: What it is told by.
            whose: Whose ask it is.
            anew: Open one also where a span is current, which is then its parent: that of what has caused it.
            link: What has caused it, where that is no parent of it; for a span that is opened.
        """
        emitter.metrics.agent(whose.agent_name, whose.framework)
        run = Run(emitter, trace.get_current_span(), whose)
        if run.span.get_span_context().is_valid and not anew:
            return cls(run, None)
        attributes = {
            names.GEN_AI_OPERATION_NAME: names.SPAN_INVOKE_AGENT,
            names.GEN_AI_AGENT_NAME: whose.agent_name,
            names.FRAMEWORK: whose.framework,
            names.GEN_AI_CONVERSATION_ID: whose.conversation_id,
        }
        name = f"{names.SPAN_INVOKE_AGENT} {whose.agent_name}"
        run.span = emitter.start_span(name, otel_context.get_current(), None, attributes)
        if link is not None:
            run.span.add_link(link)
        return cls(run, trace.set_span_in_context(run.span))

    @contextmanager
    def current(self) -> Iterator[None]:
        """What runs in this block belongs to the run; where no span is current any more, it goes on with the run's.

        It must never be left open across the ``yield`` of a generator: whoever reads that one would run in it.
        """
        run_token = RUN.set(self.run)
        context = self._context
        if context is None and not trace.get_current_span().get_span_context().is_valid:
            context = trace.set_span_in_context(self.run.span)
        token = otel_context.attach(context) if context is not None else None
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
        with run.emitter.contained("invoke_agent"):
            if error is not None and not run.halted:
                span.set_attribute(names.ERROR_TYPE, error_type(error))
                span.set_status(HALTED if isinstance(error, HaltedError) else Status(StatusCode.ERROR))
            span.end()
