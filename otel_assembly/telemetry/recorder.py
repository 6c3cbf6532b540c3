"""`OpenTelemetryRecorder`: record what happens outside an assembly, such as requests to agents, and halts.

An assembly is the preparation of the prompt for one model call; `recording` records it. A failure in either module
never reaches the agent.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.instrumentation.utils import is_instrumentation_enabled

from otel_assembly._internal.activity import ACTIVITY
from otel_assembly.recorder import AgentIdentity, default_recorder
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry import conventions_metrics as catalogue
from otel_assembly.telemetry.allocation import OpenAllocation
from otel_assembly.telemetry.attempts import OpenCompaction
from otel_assembly.telemetry.project_view import put_projection
from otel_assembly.telemetry.recording import OPEN, AssemblyRecorder
from otel_assembly.telemetry.run import RUN, OpenRun
from otel_assembly.telemetry.sessions import SessionTelemetry
from otel_assembly.telemetry.signals import AssemblyReference, put_halts, put_refusal, put_resumed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.trace import SpanContext

    from otel_assembly.conversation_state import HaltGuard
    from otel_assembly.events import HaltEvent
    from otel_assembly.recorder import Projection


class OpenTelemetryRecorder(AssemblyRecorder):
    """Records assemblies, runs, allocations and halts through OpenTelemetry.

    Args:
        tracer_provider: The tracer provider; None: the global one.
        meter_provider: The meter provider; None: the global one.
        logger_provider: The logger provider; None: the global one.
        settings: Which texts are exported, and how; None: the settings in the environment.
    """

    def _records(self) -> bool:
        """Return whether a provider is configured and instrumentation is not suppressed in the current context."""
        return self.is_enabled() and is_instrumentation_enabled() and self.emitter.prepare()

    def begin_allocation(self) -> OpenAllocation | None:
        """Begin to record a call of the budget allocator outside a policy chain; return None if nothing is recorded."""
        with self.emitter.suppress_errors("begin"):
            if self._records():
                ACTIVITY.has_assembly = True
                return OpenAllocation(self.emitter)
        return None

    def begin_compaction(self, policy: str, agent_name: str | None) -> OpenCompaction | None:
        """Begin to record a policy that compacts between assemblies.

        Return None if no OpenTelemetry provider is configured, if instrumentation is suppressed in the current context,
        or if the recording cannot start.

        Args:
            policy: The policy's name.
            agent_name: The agent's name; None if unknown.
        """
        with self.emitter.suppress_errors("begin"):
            if self._records():
                return OpenCompaction(self.emitter, policy, agent_name)
        return None

    def calibrated(self, model: str | None, counted: int, billed: int) -> None:
        """Record, as a metric, a prompt's counted tokens divided by the tokens that the provider billed for it."""
        with self.emitter.suppress_errors("metrics"):
            if billed > 0 and model is not None and self.is_enabled() and self.emitter.prepare():
                instruments = self.emitter.metrics
                attributes = {names.MODEL: instruments.model_name(model)}
                instruments.record(catalogue.TOKENS_CALIBRATION, counted / billed, attributes)

    def refused(self, identity: AgentIdentity, window: int | None, tokens: int | None) -> None:
        """Record that the provider refused a prompt as too long.

        The event is on the model call's span if that is the current span, else in a log record.
        """
        with self.emitter.suppress_errors("refused"):
            if self._records():
                run = RUN.get()
                if run is not None:
                    identity = AgentIdentity(
                        identity.agent_name or run.identity.agent_name, identity.framework or run.identity.framework
                    )
                put_refusal(
                    self.emitter, trace.get_current_span(), otel_context.get_current(), identity, window, tokens
                )

    def declined(self, policy: str, agent_name: str | None, framework: str | None) -> None:
        """Count a call of a framework's reducer that changed nothing; no span is recorded for it."""
        with self.emitter.suppress_errors("metrics"):
            if self._records():
                instruments = self.emitter.metrics
                _, both = instruments.agent(agent_name, framework)
                instruments.record(
                    catalogue.POLICY_DECLINED, 1, {**both, names.POLICY_NAME: instruments.policy_name(policy)}
                )

    def projected(self, projection: Projection) -> None:
        """Record the computation of a view: the part of a session's messages that one agent receives."""
        with self.emitter.suppress_errors("span"):
            if self._records():
                put_projection(self.emitter, projection)

    def sessions(self) -> SessionTelemetry | None:
        """Return an object that records sessions between agents; None if nothing is recorded."""
        with self.emitter.suppress_errors("begin"):
            if self._records():
                return SessionTelemetry(self.emitter)
        return None

    def source_failed(self, role: str, source: str, error_type: str, agent_name: str | None) -> None:
        """Count a failed source of content, such as a memory, as a policy error, so that one alert covers both.

        Args:
            role: What the source provides, such as ``retriever`` or ``state``.
            source: The source's name.
            error_type: The type of the error.
            agent_name: The agent's name; None if unknown.
        """
        with self.emitter.suppress_errors("metrics"):
            if self._records():
                instruments = self.emitter.metrics
                run = RUN.get()
                attributes = {
                    **instruments.named(agent_name or (run.identity.agent_name if run is not None else None)),
                    names.POLICY_NAME: instruments.policy_name(f"{role} {source}"),
                    names.ERROR_TYPE: instruments.error_type(error_type),
                }
                instruments.record(catalogue.POLICY_ERRORS, 1, attributes)

    def begin_run(
        self,
        agent_name: str | None,
        *,
        framework: str | None = None,
        conversation_id: str | None = None,
        force_span: bool = False,
        link: SpanContext | None = None,
    ) -> OpenRun | None:
        """Begin to record a request to an agent; return None if nothing is recorded.

        Args:
            agent_name: The agent's name; None if unknown.
            framework: The framework that the agent is written with; None if unknown.
            conversation_id: The conversation's id; None if it has none.
            force_span: True to start an ``invoke_agent`` span even if a span is current; False to start one only
                otherwise.
            link: A span that caused the request and is not its parent; None for no link.
        """
        try:
            if self._records():
                return OpenRun.begin(
                    self.emitter,
                    AgentIdentity(agent_name, framework, conversation_id),
                    force_span=force_span,
                    link=link,
                )
        except Exception as error:  # noqa: BLE001  # telemetry must not fail the agent
            self.emitter.failed("invoke_agent", error)
        return None

    @contextmanager
    def invoke_agent(
        self, agent_name: str, *, framework: str | None = None, conversation_id: str | None = None
    ) -> Iterator[None]:
        """Record one request to an agent as one trace.

        If no span is current, an ``invoke_agent`` span is started.

        Args:
            agent_name: The agent's name.
            framework: The framework that the agent is written with; None if unknown.
            conversation_id: The conversation's id; None if it has none.
        """
        opened = self.begin_run(agent_name, framework=framework, conversation_id=conversation_id)
        if opened is None:
            yield
            return
        try:
            with opened.current():
                yield
        except BaseException as error:
            opened.end(error)
            raise
        opened.end()


def halted(halt: HaltEvent, guard: HaltGuard, by: AgentIdentity | None = None) -> None:
    """Record that a conversation was halted; `by` is the agent and conversation that requested it, if known."""
    emit_halt(halt, guard.last, by, guard.identity)


def emit_halt(
    halt: HaltEvent, last: object, *known: AgentIdentity | None, recorder: OpenTelemetryRecorder | None = None
) -> None:
    """Record a halt on the open assembly, else on the current run, else on a span linked to the last assembly.

    Args:
        halt: The halt.
        last: The `AssemblyReference` of the conversation's last assembly, if there is one.
        known: Identities of the halted agent. The first identity takes precedence over those of the current run and
            the last assembly; the others are fallbacks.
        recorder: Used if there is neither a run nor a last assembly; None for the default recorder.
    """
    recording = OPEN.get()
    if recording is not None and not recording.finished:
        recording.halts.append((halt, time.time_ns()))
        return
    run, assembly_reference = RUN.get(), last if isinstance(last, AssemblyReference) else None
    emitter = run.emitter if run is not None else assembly_reference.emitter if assembly_reference is not None else None
    if emitter is None:
        default = recorder or default_recorder()
        if not isinstance(default, OpenTelemetryRecorder) or not default.is_enabled():
            return
        emitter = default.emitter
    run_identity, last_identity = (
        run.identity if run is not None else None,
        assembly_reference.identity if assembly_reference is not None else None,
    )
    candidates = (*known[:1], run_identity, last_identity, *known[1:])
    identities = [identity for identity in candidates if identity is not None]
    halted_agent = AgentIdentity(
        next((identity.agent_name for identity in identities if identity.agent_name is not None), None),
        next((identity.framework for identity in identities if identity.framework is not None), None),
        next((identity.conversation_id for identity in identities if identity.conversation_id is not None), None),
    )
    with emitter.suppress_errors("halt"):
        if not emitter.prepare():
            return
        halts, span, around = [(halt, time.time_ns())], trace.get_current_span(), otel_context.get_current()
        put_halts(
            emitter,
            halts,
            span,
            run,
            around,
            halted_agent,
            assembly_reference.span if assembly_reference is not None else None,
        )


def resumed(guard: HaltGuard) -> None:
    """Record on the current span that a halted conversation resumed; if there is none, keep the event for later."""
    event, default = guard.resumed, default_recorder()
    if event is None or not isinstance(default, OpenTelemetryRecorder) or not default.is_enabled():
        guard.resumed = None
        return
    if RUN.get() is None and not trace.get_current_span().is_recording():
        return
    guard.resumed = None
    with default.emitter.suppress_errors("resumed"):
        if default.emitter.prepare():
            put_resumed(default.emitter, event, guard.lifted)


__all__ = ["OpenTelemetryRecorder", "emit_halt", "halted", "resumed"]
