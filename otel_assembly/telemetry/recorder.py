"""What is recorded beside assemblies: runs of agents, allocations, views, sources, calibration, and halts.

Assemblies themselves are recorded in `recording`; nothing in either can hurt the agent.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.instrumentation.utils import is_instrumentation_enabled

from otel_assembly._internal.activity import ACTIVITY
from otel_assembly.recorder import Whose, default_recorder
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry import conventions_metrics as catalogue
from otel_assembly.telemetry.allocation import OpenAllocation
from otel_assembly.telemetry.attempts import OpenCompaction
from otel_assembly.telemetry.project_view import put_projection
from otel_assembly.telemetry.recording import OPEN, AssemblyRecorder
from otel_assembly.telemetry.run import RUN, OpenRun
from otel_assembly.telemetry.sessions import SessionTelemetry
from otel_assembly.telemetry.signals import Trail, put_halts, put_refusal, put_resumed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.trace import SpanContext

    from otel_assembly.conversation_state import HaltGuard
    from otel_assembly.events import HaltEvent
    from otel_assembly.recorder import Projection


class OpenTelemetryRecorder(AssemblyRecorder):
    """Records assemblies, and what happens beside them, through OpenTelemetry.

    Args:
        tracer_provider: Instead of the global one.
        meter_provider: Instead of the global one.
        logger_provider: Instead of the global one.
        settings: What is exported beside numbers; by default as the environment says.
    """

    def _records(self) -> bool:
        """Whether what happens now is recorded."""
        return self.listening() and is_instrumentation_enabled() and self.emitter.prepare()

    def begin_allocation(self) -> OpenAllocation | None:
        """The allocator begins, outside of any chain."""
        with self.emitter.contained("begin"):
            if self._records():
                ACTIVITY.has_assembly = True
                return OpenAllocation(self.emitter)
        return None

    def begin_compaction(self, policy: str, agent_name: str | None) -> OpenCompaction | None:
        """A policy is to compact ahead of need, while no assembly is open."""
        with self.emitter.contained("begin"):
            if self._records():
                return OpenCompaction(self.emitter, policy, agent_name)
        return None

    def calibrated(self, model: str | None, counted: int, billed: int) -> None:
        """The provider billed `billed` tokens for a prompt that was counted as `counted`."""
        with self.emitter.contained("metrics"):
            if billed > 0 and model is not None and self.listening() and self.emitter.prepare():
                instruments = self.emitter.metrics
                attributes = {names.MODEL: instruments.model_name(model)}
                instruments.record(catalogue.TOKENS_CALIBRATION, counted / billed, attributes)

    def refused(self, whose: Whose, window: int | None, tokens: int | None) -> None:
        """The provider refused a prompt: on the model call's span, if that is the current one; else in a log record."""
        with self.emitter.contained("refused"):
            if self._records():
                run = RUN.get()
                if run is not None:
                    whose = Whose(whose.agent_name or run.whose.agent_name, whose.framework or run.whose.framework)
                put_refusal(self.emitter, trace.get_current_span(), otel_context.get_current(), whose, window, tokens)

    def declined(self, policy: str, agent_name: str | None, framework: str | None) -> None:
        """A reducer looked whether there was anything to do, and there was not: a count, and no span."""
        with self.emitter.contained("metrics"):
            if self._records():
                instruments = self.emitter.metrics
                _, both = instruments.agent(agent_name, framework)
                instruments.add(
                    catalogue.POLICY_DECLINED, 1, {**both, names.POLICY_NAME: instruments.policy_name(policy)}
                )

    def projected(self, projection: Projection) -> None:
        """What one agent sees of what a network of agents has said was worked out."""
        with self.emitter.contained("span"):
            if self._records():
                put_projection(self.emitter, projection)

    def sessions(self) -> SessionTelemetry | None:
        """What records sessions between agents; None where nothing is recorded."""
        with self.emitter.contained("begin"):
            if self._records():
                return SessionTelemetry(self.emitter)
        return None

    def source_failed(self, role: str, source: str, error_type: str, agent_name: str | None) -> None:
        """A source failed, which counts as a policy's error: for whoever watches over a service it is the same."""
        with self.emitter.contained("metrics"):
            if self._records():
                instruments = self.emitter.metrics
                run = RUN.get()
                attributes = {
                    **instruments.named(agent_name or (run.whose.agent_name if run is not None else None)),
                    names.POLICY_NAME: instruments.policy_name(f"{role} {source}"),
                    names.ERROR_TYPE: instruments.error_type(error_type),
                }
                instruments.add(catalogue.POLICY_ERRORS, 1, attributes)

    def begin_run(
        self,
        agent_name: str,
        *,
        framework: str | None = None,
        conversation_id: str | None = None,
        anew: bool = False,
        link: SpanContext | None = None,
    ) -> OpenRun | None:
        """One ask of an agent begins, as `OpenRun.begin` says. None where nothing is recorded."""
        try:
            if self._records():
                return OpenRun.begin(self.emitter, Whose(agent_name, framework, conversation_id), anew=anew, link=link)
        except Exception as error:  # noqa: BLE001  # nothing of ours reaches the agent
            self.emitter.failed("invoke_agent", error)
        return None

    @contextmanager
    def invoke_agent(
        self, agent_name: str, *, framework: str | None = None, conversation_id: str | None = None
    ) -> Iterator[None]:
        """One ask of an agent that would have no span otherwise, so that its run is one trace.

        Where a span is current already, none is added.
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


def halted(halt: HaltEvent, guard: HaltGuard, by: Whose | None = None) -> None:
    """A guard closed; `by` is on whose behalf somebody closed it, where that is known."""
    emit_halt(halt, guard.last, by, guard.whose)


def emit_halt(
    halt: HaltEvent, last: object, *known: Whose | None, recorder: OpenTelemetryRecorder | None = None
) -> None:
    """Emit a halt with the open assembly; where none is open, with the run, else with what the last assembly had.

    Args:
        halt: What halted a conversation.
        last: The `Trail` of the conversation's last assembly, if there is one.
        known: Whose conversation it is, by those who may know; the first one who knows before the run, the others
            after it.
        recorder: What emits it if there is neither a run nor a last assembly.
    """
    recording = OPEN.get()
    if recording is not None and not recording.finished:
        recording.halts.append((halt, time.time_ns()))
        return
    run, trail = RUN.get(), last if isinstance(last, Trail) else None
    emitter = run.emitter if run is not None else trail.emitter if trail is not None else None
    if emitter is None:
        default = recorder or default_recorder()
        if not isinstance(default, OpenTelemetryRecorder) or not default.listening():
            return
        emitter = default.emitter
    of_run, of_last = run.whose if run is not None else None, trail.whose if trail is not None else None
    whoses = [one for one in (*known[:1], of_run, of_last, *known[1:]) if one is not None]
    whose = Whose(
        next((one.agent_name for one in whoses if one.agent_name is not None), None),
        next((one.framework for one in whoses if one.framework is not None), None),
        next((one.conversation_id for one in whoses if one.conversation_id is not None), None),
    )
    with emitter.contained("halt"):
        if not emitter.prepare():
            return
        halts, span, around = [(halt, time.time_ns())], trace.get_current_span(), otel_context.get_current()
        put_halts(emitter, halts, span, run, around, whose, trail.span if trail is not None else None)


def resumed(guard: HaltGuard) -> None:
    """A guard was opened again, or the conversation's next run has begun; told as soon as there is a span for it."""
    event, default = guard.resumed, default_recorder()
    if event is None or not isinstance(default, OpenTelemetryRecorder) or not default.listening():
        guard.resumed = None
        return
    if RUN.get() is None and not trace.get_current_span().is_recording():
        return
    guard.resumed = None
    with default.emitter.contained("resumed"):
        if default.emitter.prepare():
            put_resumed(default.emitter, event, guard.lifted)


__all__ = ["OpenTelemetryRecorder", "emit_halt", "halted", "resumed"]
