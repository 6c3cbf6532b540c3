"""The current run: one request to an agent, and the span that contains the spans of its assemblies and halts."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Status, StatusCode

from otel_assembly._internal.tracked_runs import TrackedRun
from otel_assembly.errors import HaltedError, error_type
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.emitter import HALTED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.context import Context as OtelContext
    from opentelemetry.trace import Span, SpanContext

    from otel_assembly.recorder import AgentIdentity
    from otel_assembly.telemetry.emitter import Emitter


@dataclass(slots=True)
class Run:
    """One running request to an agent.

    Attributes:
        emitter: The emitter that records the run.
        span: The span that records the run: an ``invoke_agent`` span, or the span that was current at the start.
        identity: The agent, its framework and the conversation.
        halted: Whether the conversation was halted during the run.
    """

    emitter: Emitter
    span: Span
    identity: AgentIdentity
    halted: bool = False


RUN: Final[ContextVar[Run | None]] = ContextVar("otel_assembly_run", default=None)


class OpenRun(TrackedRun):
    """Records one request to an agent; `end` ends the ``invoke_agent`` span if `begin` started one."""

    __slots__ = ("_context", "run")

    def __init__(self, run: Run, context: OtelContext | None) -> None:
        self.run = run
        #: The context of the ``invoke_agent`` span; None if the caller's span is used.
        self._context = context

    @classmethod
    def begin(
        cls, emitter: Emitter, identity: AgentIdentity, *, force_span: bool = False, link: SpanContext | None = None
    ) -> OpenRun:
        """Begin a run, with an ``invoke_agent`` span if no span is current.

        Args:
            emitter: Starts the span.
            identity: The agent, its framework and the conversation.
            force_span: Start a span even if one is current; the current span becomes its parent.
            link: The span that caused the run, if that is not the parent. Ignored if no span is started.
        """
        emitter.metrics.agent(identity.agent_name, identity.framework)
        run = Run(emitter, trace.get_current_span(), identity)
        if run.span.get_span_context().is_valid and not force_span:
            return cls(run, None)
        attributes = {
            names.GEN_AI_OPERATION_NAME: names.SPAN_INVOKE_AGENT,
            names.GEN_AI_AGENT_NAME: identity.agent_name,
            names.FRAMEWORK: identity.framework,
            names.GEN_AI_CONVERSATION_ID: identity.conversation_id,
        }
        name = f"{names.SPAN_INVOKE_AGENT} {identity.agent_name or ''}".rstrip()
        run.span = emitter.start_span(name, otel_context.get_current(), None, attributes)
        if link is not None:
            run.span.add_link(link)
        return cls(run, trace.set_span_in_context(run.span))

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the run current in this block, and its span too if no span is current.

        Never keep the block open across a generator's ``yield``: the generator's caller would run in it.
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
            except ValueError:  # a generator that is closed before its end is often closed in another context
                pass

    def end(self, error: BaseException | None = None) -> None:
        """End the run's span, if `begin` started one; record the type of an error, but never its message."""
        if self._context is None:
            return
        span, run = self.run.span, self.run
        with run.emitter.suppress_errors("invoke_agent"):
            if error is not None and not run.halted:
                span.set_attribute(names.ERROR_TYPE, error_type(error))
                span.set_status(HALTED if isinstance(error, HaltedError) else Status(StatusCode.ERROR))
            span.end()
