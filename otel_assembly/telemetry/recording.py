"""Record one assembly: its spans, metrics and events. A failure in this module never reaches the agent.

An assembly is the preparation of the prompt for one model call by a chain of policies. What is recorded outside an
assembly (requests to agents, views, sources, later halts) is in `recorder`.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from weakref import finalize

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.instrumentation.utils import is_instrumentation_enabled

from otel_assembly._internal.activity import ACTIVITY
from otel_assembly._internal.current_recorder import DEFAULT
from otel_assembly.context import Context
from otel_assembly.decision import DecisionOutcome, PrefixBreak
from otel_assembly.errors import HaltedError, error_type, is_failure
from otel_assembly.ledger.record import departures_of, prefix_of, totals_of
from otel_assembly.ledger.snapshot import item_text
from otel_assembly.messages.event_facts import sendable
from otel_assembly.recorder import AgentIdentity
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry import conventions_metrics as catalogue
from otel_assembly.telemetry.attempts import AttemptSpans
from otel_assembly.telemetry.attributes import (
    StepItems,
    assembly_arrays,
    assembly_attributes,
    mark_exported,
    put_budget,
    step_arrays,
    step_attributes,
    texts_of,
)
from otel_assembly.telemetry.emitter import Emitter, sendable_values, set_status
from otel_assembly.telemetry.model_span_links import AssemblyLink, is_opened_since, running_calls
from otel_assembly.telemetry.providers import Providers
from otel_assembly.telemetry.run import RUN
from otel_assembly.telemetry.settings import TelemetrySettings
from otel_assembly.telemetry.signals import (
    AssemblyReference,
    mark_overflow,
    put_alert,
    put_halts,
    put_overflow,
    put_provider_edits,
    severity_of,
)
from otel_assembly.tokens import input_price

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextvars import Token
    from types import TracebackType

    from opentelemetry._logs import LoggerProvider
    from opentelemetry.context import Context as OtelContext
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

    from otel_assembly._internal.slices import Slices
    from otel_assembly.budget.attempt import Watch
    from otel_assembly.conversation_state import AlertFacts
    from otel_assembly.decision import Overflow
    from otel_assembly.events import HaltEvent
    from otel_assembly.ledger.figures import Prefix, Totals
    from otel_assembly.ledger.record import Departures, Record
    from otel_assembly.ledger.snapshot import ItemGroup, Step
    from otel_assembly.recorder import ProviderEdit
    from otel_assembly.telemetry.emitter import Attributes, Point

#: Causes that are not counted as prefix breaks: the previous prompt is unknown, or there is none.
_NO_BREAK: Final = frozenset({PrefixBreak.FIRST, PrefixBreak.RESUMED})
#: The number of assemblies and of policies whose attributes at the start are cached.
_STARTS: Final = 512

#: The assembly whose policy or observer is running in this context.
OPEN: Final[ContextVar[OpenRecording | None]] = ContextVar("otel_assembly_open", default=None)


class AssemblyRecorder:
    """Records assemblies through OpenTelemetry; the base class of `OpenTelemetryRecorder`."""

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        logger_provider: LoggerProvider | None = None,
        settings: TelemetrySettings | None = None,
    ) -> None:
        self.settings = settings if settings is not None else TelemetrySettings.from_environment()
        #: Exports everything that this recorder records.
        self.emitter = Emitter(Providers(tracer_provider, meter_provider, logger_provider), self.settings)

    def is_enabled(self) -> bool:
        """Return whether a provider is configured; once True, always True."""
        providers = self.emitter.providers
        return providers.configured or providers.are_configured(self.emitter.failed)

    def begin(
        self, name: str | None, model: str | None, context: Context | AgentIdentity, started_ns: int
    ) -> OpenRecording | None:
        """Begin to record an assembly.

        Return None if no OpenTelemetry provider is configured, if instrumentation is suppressed in the current context,
        or if the recording cannot start.

        Args:
            name: The assembler's name; None if it has none.
            model: The model that the prompt is for; None if unknown.
            context: The `Context` of the run, or the identity of the agent.
            started_ns: When the assembly began, in nanoseconds since 1970.
        """
        emitter, providers = self.emitter, self.emitter.providers
        try:
            if (
                (providers.configured or providers.are_configured(emitter.failed))
                and is_instrumentation_enabled()
                and (emitter.ready or emitter.prepare())
            ):
                ACTIVITY.has_assembly = True
                # If the conversation is halted after this assembly, this recorder records the halt. If this recorder
                # is the default one, the recorder that is the default at the time of the halt records it (None).
                halt_emitter = None if vars(DEFAULT).get("recorder") is self else emitter
                return OpenRecording(emitter, halt_emitter, name, model, context, started_ns)
        except Exception as error:  # noqa: BLE001  # telemetry must not fail the agent
            emitter.failed("begin", error)
        return None

    def failed(self, component: str, error: BaseException) -> None:
        """Count a failure of telemetry, and log the first one of each component."""
        self.emitter.failed(component, error)


@dataclass(slots=True, eq=False)
class _PolicyTiming:
    """Times a policy or the observers of an assembly; a context manager whose span is current in the block.

    Attributes:
        recording: The assembly.
        span: The policy's span; for observers, the assembly's span.
        context: The context of that span.
        ago_ns: How long before the start of the block the policy began, in nanoseconds.
        seconds: The duration of the policy or observers.
        ended_ns: When the policy or the observers ended, in nanoseconds since 1970; 0 until then.
        halts: After the block: how many halts were emitted in it.
    """

    recording: OpenRecording
    span: Span
    context: OtelContext
    ago_ns: int = 0
    seconds: float = 0.0
    ended_ns: int = 0
    halts: int = 0
    _started: int | None = None
    _tokens: tuple[Token[OpenRecording | None], Token[OtelContext]] | None = None

    def __enter__(self) -> None:
        self.halts = len(self.recording.halts)
        self._tokens = OPEN.set(self.recording), otel_context.attach(self.context)
        self._started = time.perf_counter_ns() - self.ago_ns

    def stop(self) -> None:
        """Stop the clock; the rest of the block does not count."""
        if self._started is not None:
            self.seconds = (time.perf_counter_ns() - self._started) / 1e9
            self.ended_ns = time.time_ns()
            self._started = None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()
        self.halts = len(self.recording.halts) - self.halts
        if self._tokens is not None:
            open_token, token = self._tokens
            try:
                OPEN.reset(open_token)
            except ValueError:  # a coroutine that is closed before its end is often closed in another context
                return
            otel_context.detach(token)


@lru_cache(_STARTS)
def _assembly_start(
    name: str | None, model: str | None, conversation_id: str | None, agent_name: str | None, framework: str | None
) -> Attributes:
    """Return the attributes that an assembly's span has from its start: the same ones on each turn."""
    return sendable_values(
        {
            names.NAME: name,
            names.MODEL: model,
            names.GEN_AI_CONVERSATION_ID: conversation_id,
            names.GEN_AI_AGENT_NAME: agent_name,
            names.FRAMEWORK: framework,
        }
    )


@lru_cache(_STARTS)
def _policy_start(name: str, index: int) -> tuple[str, Attributes]:
    """Return the name of a policy's span, and the attributes that the span has from its start."""
    verb = f"{names.SPAN_APPLY_POLICY} {name}"
    return sendable(verb), sendable_values({names.POLICY_NAME: name, names.POLICY_INDEX: index})


def _end_span(emitter: Emitter, span: Span, at_ns: int) -> None:
    try:
        span.end(at_ns)
    except Exception as error:  # noqa: BLE001  # telemetry must not fail the agent
        emitter.failed("span", error)


class OpenRecording:
    """Records one assembly, from its start to `finish` or `abandon`.

    Args:
        emitter: Exports the spans, metrics and events.
        halt_emitter: The emitter that records later halts: `emitter`, or None for that of the default recorder.
        name: The assembler's name.
        model: The model that the prompt is for.
        context: The agent, its framework and the conversation.
        started_ns: When the assembly began, in nanoseconds since 1970.

    Attributes:
        identity: The agent, its framework and the conversation, from the context or else from the current run.
        halts: Each halt that was emitted during the assembly, with its time.
        finished: Whether the assembly has ended.
        assembly_reference: A reference to the assembly, for a halt that is emitted after its end.
        measured: Whether the span or a metric is recorded, so that totals are needed.
    """

    def __init__(
        self,
        emitter: Emitter,
        halt_emitter: Emitter | None,
        name: str | None,
        model: str | None,
        context: Context | AgentIdentity,
        started_ns: int,
    ) -> None:
        self._emitter = emitter
        self._model = model
        self._started_ns = started_ns
        self._run = run = RUN.get()
        self.identity = identity = AgentIdentity(context.agent_name, context.framework, context.conversation_id)
        if run is not None:
            identity.agent_name = identity.agent_name or run.identity.agent_name
            identity.framework = identity.framework or run.identity.framework
            identity.conversation_id = identity.conversation_id or run.identity.conversation_id
        self.halts: list[tuple[HaltEvent, int]] = []
        self.finished = False
        self._end_span: finalize[Any, Any] | None = None
        self._policies: list[_PolicyTiming] = []
        self._attempts: AttemptSpans | None = None
        around = otel_context.get_current()
        self._caller = trace.get_current_span(around)
        attributes = _assembly_start(
            name, model, identity.conversation_id, identity.agent_name, identity.framework
        ).copy()
        self._span, self._context = emitter.open_span(names.SPAN_ASSEMBLE_CONTEXT, around, started_ns, attributes)
        self.assembly_reference = AssemblyReference(halt_emitter, self._span.get_span_context(), identity)
        if isinstance(context, Context):
            context.guard.last = self.assembly_reference
        self.measured = self._span.is_recording() or emitter.providers.measure()

    def policy(self, name: str, index: int, started_ns: int | None = None) -> _PolicyTiming:
        """Start a policy's span, and return the context manager that times the policy; call it in the chain's order."""
        now_ns = time.time_ns()
        began_ns = started_ns or now_ns
        span_name, attributes = _policy_start(name, index)
        span, context = self._emitter.open_span(span_name, self._context, began_ns, attributes.copy())
        timing = _PolicyTiming(self, span, context, max(0, now_ns - began_ns))
        self._policies.append(timing)
        return timing

    def watch(self, kind: str) -> Watch:
        """Return a function that records an attempt to compact content of this kind: a context manager around it."""
        if self._attempts is None:
            self._attempts = AttemptSpans(self._emitter)
        return self._attempts.watch(kind)

    def observers(self) -> _PolicyTiming:
        """Return a context manager for calls of observers, whose halts are then recorded on the assembly's span."""
        return _PolicyTiming(self, self._span, self._context)

    def finish(self, record: Record) -> Slices[None]:
        """Emit the assembly's events, metrics and attributes, and end its spans."""
        emitter, ended_ns = self._emitter, record.ended_ns or time.time_ns()
        self.finished = True
        try:
            self._signal(record, ended_ns)
        except Exception as error:  # noqa: BLE001
            emitter.failed("events", error)
        if self.halts:
            self._put_halts(ended_ns)
        if self.measured:
            try:
                totals, prefix, departures = totals_of(record), prefix_of(record), departures_of(record)
            except Exception as error:  # noqa: BLE001
                emitter.failed("totals", error)
            else:
                if totals.overflow is not None and record.overflow is None:  # the model window was exceeded
                    put_overflow(emitter, [self._span], self._context, totals.overflow, ended_ns)
                try:  # a failure of one signal must not prevent the others
                    self._measure(record, totals, prefix, departures, ended_ns)
                except Exception as error:  # noqa: BLE001
                    emitter.failed("metrics", error)
                try:
                    if self._span.is_recording():
                        yield from self._describe(record, totals, prefix, departures, ended_ns)
                except Exception as error:  # noqa: BLE001
                    emitter.failed("span", error)
                try:
                    if record.error is None and record.called:
                        self._link_model_call(record, totals)
                except Exception as error:  # noqa: BLE001
                    emitter.failed("link", error)
        self._end(ended_ns, awaits_answer=bool(record.allowed_edits))

    def signal(self, alerts: Sequence[AlertFacts], overflow: Overflow | None) -> None:
        """Emit alerts and an overflow as log records now; used if neither the span nor metrics are recorded."""
        now_ns = time.time_ns()
        for alert in alerts:
            put_alert(self._emitter, self._span, self._context, alert, now_ns)
        if overflow is not None:
            put_overflow(self._emitter, [self._span], self._context, overflow, now_ns)

    def abandon(self) -> None:
        """End the spans without attributes, because the observation of the assembly failed."""
        self.finished = True
        now_ns = time.time_ns()
        if self.halts:
            self._put_halts(now_ns)
        self._end(now_ns)

    def _end(self, at_ns: int, *, awaits_answer: bool = False) -> None:
        """End the spans, the inner ones first; the assembly's own span later if it waits for the provider's answer."""
        if self._attempts is not None:
            self._attempts.end()
        for timing in self._policies:
            _end_span(self._emitter, timing.span, timing.ended_ns or at_ns)
        self._policies = []  # the objects refer to this one, and only the garbage collector would free the spans
        if awaits_answer:  # the span also ends if the program never reads the answer, or exits before
            self._end_span = finalize(self, _end_span, self._emitter, self._span, at_ns)
        else:
            _end_span(self._emitter, self._span, at_ns)

    def answered(self, edits: Sequence[ProviderEdit]) -> None:
        """Emit the edits that the provider made to the request, and end the assembly's span if it is still open."""
        if edits:
            with self._emitter.suppress_errors("events"):
                put_provider_edits(self._emitter, self._span, self._context, edits, time.time_ns())
        if self._end_span is not None:
            self._end_span()

    def _measure(self, record: Record, totals: Totals, prefix: Prefix, departures: Departures, ended_ns: int) -> None:
        """Record the metrics of the assembly and of its steps."""
        instruments, around, error = self._emitter.metrics, self._context, record.error
        agent, both = instruments.agent(self.identity.agent_name, self.identity.framework)
        seconds = max(0, ended_ns - self._started_ns) / 1e9
        points: list[Point] = [(catalogue.DURATION, seconds, both, around)]
        if not record.unknown:
            points.append((catalogue.INPUT_TOKENS, totals.tokens_in, both, around))
        if error is None:
            points.append((catalogue.OUTPUT_TOKENS, totals.tokens_out, both, around))
            if prefix.reuse is not None:
                points.append((catalogue.PREFIX_REUSE, prefix.reuse, agent, around))
            if prefix.cause is not None and prefix.cause not in _NO_BREAK:
                points.append((catalogue.PREFIX_BREAKS, 1, {**agent, names.PREFIX_BREAK: prefix.cause}, around))
        if totals.utilization is not None:
            points.append((catalogue.BUDGET_UTILIZATION, totals.utilization, agent, around))
        if totals.fixed is not None and totals.budget is not None and totals.budget > 0:
            points.append((catalogue.BUDGET_FIXED_UTILIZATION, totals.fixed / totals.budget, agent, around))
        if totals.overflow is not None:
            points.append((catalogue.BUDGET_OVERFLOWS, 1, both, around))
        left_out = 0
        for step, timing in zip(record.steps, self._policies, strict=False):
            left_out += self._measure_step(record, step, timing, agent, departures.now.get(step.index, ()), points)
        # The prompt's estimated cost, and the cost avoided by removing items.
        model = self._model if record.called and error is record.maintenance_error is None else None
        price = input_price(model) if model is not None else None
        if model is not None and price is not None:
            attributes = {**agent, names.MODEL: instruments.model_name(model)}
            cost = price.of_prompt(totals.tokens_out, prefix.tokens)
            for part, dollars in zip(cost._fields, cost, strict=True):
                if dollars:
                    points.append((catalogue.COST, dollars, {**attributes, names.COST_PART: part}, around))
            if left_out:
                dollars = price.of_left_out(left_out, totals.tokens_out)
                points.append((catalogue.COST_AVOIDED, dollars, attributes, around))
        instruments.put(points)

    def _measure_step(
        self,
        record: Record,
        step: Step,
        timing: _PolicyTiming,
        agent: Attributes,
        left: Sequence[ItemGroup],
        points: list[Point],
    ) -> int:
        """Append a step's metric points, and return the tokens of the items that left the prompt."""
        instruments, context = self._emitter.metrics, timing.context
        policy = {names.POLICY_NAME: instruments.policy_name(step.policy)}
        points.append((catalogue.POLICY_DURATION, timing.seconds, policy, context))
        if step.error is not None:
            if step.overflow is None and not isinstance(step.error, HaltedError) and is_failure(step.error):
                attributes = {**agent, **policy, names.ERROR_TYPE: instruments.error_type(error_type(step.error))}
                points.append((catalogue.POLICY_ERRORS, 1, attributes, context))
            return 0
        for alert in step.alerts if record.error is None else ():
            severity, source = severity_of(alert), instruments.alert_source(alert.source)
            attributes = {**agent, names.ALERT_SEVERITY: severity, names.ALERT_SOURCE: source}
            points.append((catalogue.ALERTS_DELIVERED, 1, attributes, context))
        left_tokens = 0
        for group in left:
            tokens = record.items_tokens(group.view)
            left_tokens += tokens
            if group.outcome is DecisionOutcome.DROPPED:
                attributes = {**agent, **policy, names.DECISION_REASON: group.reason.value}
                points.append((catalogue.ITEMS_DROPPED, group.view.length, attributes, context))
                points.append((catalogue.TOKENS_DROPPED, tokens, attributes, context))
        return left_tokens

    def _put_halts(self, ended_ns: int) -> None:
        """Record the halts on the spans of the assembly and the run."""
        halts = [(halt, min(at_ns, ended_ns)) for halt, at_ns in self.halts]
        put_halts(self._emitter, halts, self._span, self._run, self._context, self.identity)

    def _signal(self, record: Record, ended_ns: int) -> None:
        """Emit the delivered alerts and the overflows of the steps."""
        for step, timing in zip(record.steps, self._policies, strict=False):
            for alert in step.alerts if record.error is None else ():
                put_alert(self._emitter, timing.span, timing.context, alert, timing.ended_ns or ended_ns)
            if step.overflow is not None:
                at_ns = min(timing.ended_ns or ended_ns, ended_ns)
                put_overflow(self._emitter, [timing.span, self._span], self._context, step.overflow, at_ns)

    def _describe(
        self, record: Record, totals: Totals, prefix: Prefix, departures: Departures, ended_ns: int
    ) -> Slices[None]:
        """Set the attributes and arrays of the assembly's span and of its steps' spans."""
        halts = max(totals.halts_emitted, len(self.halts))
        content, error = self._emitter.content, record.error or record.maintenance_error
        arrays = yield from assembly_arrays(record, departures, content)
        attributes = assembly_attributes(record, totals, prefix, departures, halts, content)
        if error is not None or halts or totals.overflow is not None:
            set_status(self._span, error, overflow=totals.overflow, halted=bool(halts))
        yield from self._emitter.putting(self._span, self._context, attributes, arrays, ended_ns)
        mark_exported(record)  # if an exception came before, the ledger's next assembly describes the items again
        for step, timing in zip(record.steps, self._policies, strict=False):
            if timing.span.is_recording():
                try:
                    yield from self._describe_step(record, step, timing, departures)
                except Exception as failure:  # noqa: BLE001  # a failure in one step must not prevent the others
                    self._emitter.failed("span", failure)

    def _describe_step(self, record: Record, step: Step, timing: _PolicyTiming, departures: Departures) -> Slices[None]:
        halts = max(step.halts, timing.halts)
        attributes = step_attributes(record, step, departures.now.get(step.index, ()), halts)
        arrays = step_arrays(record, step)
        yield from self._emitter.putting(timing.span, timing.context, attributes, arrays, timing.ended_ns)
        for compaction in step.compactions if record.error is None else ():
            provenance = texts_of(compaction.provenance)
            if self._attempts is not None:
                self._attempts.explain(compaction.attempts, provenance, item_text(compaction.result))
        report = step.report
        if report is not None:
            started_ns = timing.ended_ns - int(timing.seconds * 1e9)
            span, context = self._emitter.open_span(names.SPAN_ALLOCATE_BUDGET, timing.context, started_ns, {})
            put_budget(self._emitter, span, context, report, StepItems(step, report), started_ns)
            if report.overflow is not None:
                mark_overflow(self._emitter, span, report.overflow, timing.ended_ns)
            set_status(span, step.error, overflow=report.overflow, halted=False)
            span.end(timing.ended_ns)
        if step.error is not None or halts or step.overflow is not None:
            set_status(timing.span, step.error, overflow=step.overflow, halted=bool(halts))

    def _link_model_call(self, record: Record, totals: Totals) -> None:
        """Link the span of the model call to this assembly, now or when that span starts."""
        reduced = bool(totals.dropped or totals.compacted)
        link = AssemblyLink(record.assembly_id, self.assembly_reference.span, reduced)
        caller, running = self._caller, trace.get_current_span()
        # The call's span may have started during the assembly, possibly below other new spans.
        opened = running if running is not caller and is_opened_since(running, self._span) else None
        if calls := running_calls(caller) or (running_calls(opened) if opened is not None else []):
            link.put_on_all(calls)
            return
        processor = self._emitter.linking_processor()
        if processor is None:
            return
        if caller.get_span_context().is_valid:
            processor.await_call(caller, opened, link)
        elif link.span.is_valid:
            processor.await_root_call(link)
