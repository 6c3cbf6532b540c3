"""Where what we record leaves: spans, arrays and metrics are given to OpenTelemetry here and nowhere else.

Whatever fails in it is contained: one warning is logged for each part, every failure is counted, and the agent goes on.
"""

from __future__ import annotations

import logging
import traceback
import weakref
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import _logs, metrics, trace
from opentelemetry._logs import NoOpLogger
from opentelemetry.metrics import NoOpMeter
from opentelemetry.trace import INVALID_SPAN, NoOpTracer, SpanKind, Status, StatusCode

from otel_assembly._internal.forks import new_lock
from otel_assembly._internal.slices import LISTED
from otel_assembly._version import __version__
from otel_assembly.decision import OverflowCause
from otel_assembly.errors import HaltedError, PolicyFailedError, class_name, error_type, is_failure
from otel_assembly.messages.event_facts import sendable
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry import conventions_metrics as catalogue
from otel_assembly.telemetry.instruments import INSTRUMENTS
from otel_assembly.telemetry.stamp import StampingProcessor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from opentelemetry._logs import Logger
    from opentelemetry.context import Context as OtelContext
    from opentelemetry.metrics import Counter, Histogram, Meter
    from opentelemetry.trace import Span, Tracer

    from otel_assembly._internal.slices import Slices
    from otel_assembly.decision import Overflow
    from otel_assembly.telemetry.providers import Providers
    from otel_assembly.telemetry.settings import TelemetrySettings

_logger = logging.getLogger("otel_assembly")

Attributes = dict[str, Any]

#: What an element costs in OTLP's protobuf, beside its text; a count costs no more than this, a −1 costs 13.
_OVERHEAD: Final = 8
_NEGATIVE: Final = 13

#: Stands for a text that the redaction hook could not make fit to leave.
NOT_REDACTED: Final = "[redaction failed]"

HALTED: Final = Status(StatusCode.ERROR, names.STATUS_ASSEMBLY_HALT)
_FAILED: Final = Status(StatusCode.ERROR, names.STATUS_POLICY_FAILED)
_CANCELLED: Final = Status(StatusCode.ERROR)


def sendable_values(attributes: Mapping[str, Any]) -> Attributes:
    """Attributes whose strings can be sent; those that have no value are left out."""
    return {
        name: sendable(value) if isinstance(value, str) else value
        for name, value in attributes.items()
        if value is not None
    }


class Emitter:
    """What one recorder emits with.

    Args:
        providers: To which it emits.
        settings: What is exported beside numbers.

    Attributes:
        content: Makes a text of a message fit to leave; None where content is not exported.
        ready: Whether the tracer, the meter and the logger are there, and one of them records.
    """

    tracer: Tracer
    logger: Logger
    metrics: Metrics

    def __init__(self, providers: Providers, settings: TelemetrySettings) -> None:
        self.providers = providers
        self.settings = settings
        self.content: Callable[[str], str] | None = self.redacted if settings.content_on_spans else None
        self.ready = False
        self._prepared = False
        self._stamped: weakref.WeakKeyDictionary[Any, StampingProcessor] = weakref.WeakKeyDictionary()
        self._lock = new_lock()
        self._warning = new_lock()
        self._warned: set[str] = set()

    def prepare(self) -> bool:
        """Get the tracer, the meter and the logger, once; False where none of them records (``OTEL_SDK_DISABLED``)."""
        if not self._prepared:
            with self._lock:
                if not self._prepared:
                    self._prepare()
        return self.ready

    def _prepare(self) -> None:
        """A provider that raises costs its own signal and no other."""
        tracer: Tracer = NoOpTracer()
        meter: Meter = NoOpMeter(names.SCOPE)
        logger: Logger = NoOpLogger(names.SCOPE)
        with self.contained("tracer"):
            tracer = trace.get_tracer(names.SCOPE, __version__, self.providers.tracer)
        with self.contained("logger"):
            logger = _logs.get_logger(names.SCOPE, __version__, self.providers.logger)
        instruments = Metrics(NoOpMeter(names.SCOPE), self.failed)
        with self.contained("meter"):
            meter = metrics.get_meter(names.SCOPE, __version__, self.providers.meter)
            instruments = Metrics(meter, self.failed)
        self.tracer, self.logger, self.metrics = tracer, logger, instruments
        self.ready = (type(tracer), type(meter), type(logger)) != (NoOpTracer, NoOpMeter, NoOpLogger)
        self._prepared = True

    def stamping(self) -> StampingProcessor | None:
        """What stamps later model calls of our tracer provider; None where it is no SDK's."""
        provider = self.providers.tracer or trace.get_tracer_provider()
        processor = self._stamped.get(provider)
        if processor is None and hasattr(provider, "add_span_processor"):
            with self._lock:
                processor = self._stamped.get(provider)
                if processor is None:
                    processor = self._stamped[provider] = StampingProcessor(self.failed)
                    provider.add_span_processor(processor)
        return processor

    # Containment

    @contextmanager
    def contained(self, component: str) -> Iterator[None]:
        """A block whose exception is a failure of this component; what it was recording is lost."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # nothing of ours reaches the agent
            self.failed(component, error)

    def failed(self, component: str, error: BaseException) -> None:
        """Log the first failure of a component, and count every one.

        The exception's message is left out: it can quote what was being exported.
        """
        with self._warning:
            first = component not in self._warned
            self._warned.add(component)
        if first:
            _logger.warning(
                "telemetry of context assembly failed in %s (%s); the agent goes on, and further failures there are "
                "only counted (assembly.telemetry.errors)",
                component,
                type(error).__name__,
            )
        if self._prepared:
            try:
                self.metrics.count_failure(component)
            except Exception:  # noqa: BLE001  # the counter may be what is broken
                _logger.debug("a telemetry failure could not be counted")

    def redacted(self, text: str) -> str:
        """The text as it may leave; where the redaction hook fails, nothing of it does, and nothing else is lost."""
        redact = self.settings.redact
        if redact is None:
            return sendable(text)
        try:
            answer: object = redact(text)
            if not isinstance(answer, str):
                raise TypeError("a redaction hook returns a str")  # contained as any other failure
            return sendable(answer)
        except Exception as error:  # noqa: BLE001
            self.failed("redaction", error)
            return NOT_REDACTED

    # Spans

    def start_span(
        self, name: str, parent: OtelContext, start_ns: int | None, attributes: Mapping[str, Any], /
    ) -> Span:
        """Start a span of ours; no exception's message ever gets onto one by itself."""
        return self.tracer.start_span(
            sendable(name),
            context=parent,
            kind=SpanKind.INTERNAL,
            attributes=sendable_values(attributes),
            start_time=start_ns,
            record_exception=False,
            set_status_on_exception=False,
        )

    def open_span(
        self, name: str, around: OtelContext, start_ns: int, attributes: Mapping[str, Any]
    ) -> tuple[Span, OtelContext]:
        """A span of ours and the context in it; where it cannot be opened, what it is for goes on in the one around."""
        try:
            span = self.start_span(name, around, start_ns, attributes)
            return span, trace.set_span_in_context(span, around)
        except Exception as error:  # noqa: BLE001  # nothing of ours reaches the agent
            self.failed("span", error)
            return INVALID_SPAN, around

    def put(self, span: Span, context: OtelContext, attributes: Attributes | None, arrays: Arrays, at_ns: int) -> None:
        """As `putting`, at once."""
        for _ in self.putting(span, context, attributes, arrays, at_ns):
            pass

    def putting(
        self, span: Span, context: OtelContext, attributes: Attributes | None, arrays: Arrays, at_ns: int
    ) -> Slices[None]:
        """Set a span's attributes and arrays; what of the arrays does not fit goes on `list_items` spans under it.

        Args:
            span: The span.
            context: The context in which it is current.
            attributes: What stands beside the arrays; None where all of the arrays go on `list_items` spans.
            arrays: The arrays.
            at_ns: When the `list_items` spans are.
        """
        for index, chunk in enumerate(arrays.chunks()):
            if index == 0 and attributes is not None:
                span.set_attributes({**attributes, **chunk})
            elif chunk:
                # Apart by enough that their order survives a backend that keeps microseconds.
                start_ns = at_ns + index * names.APART_NS
                self.start_span(names.SPAN_LIST_ITEMS, context, start_ns, chunk).end(start_ns)
                yield


@dataclass(slots=True)
class Arrays:
    """Parallel arrays in groups, cut so that no span holds more than `MAX_ARRAY_BYTES` of them.

    The arrays of a group are cut at the same entry.
    """

    _groups: list[tuple[Sequence[str], Sequence[list[Any]]]] = field(default_factory=list)

    def add(self, keys: Sequence[str], columns: Sequence[list[Any]]) -> None:
        """Add a group: one array for each name, all of one length; nothing where they are empty."""
        if columns[0]:
            self._groups.append((keys, columns))

    def __bool__(self) -> bool:
        return bool(self._groups)

    def chunks(self, limit: int = names.MAX_ARRAY_BYTES) -> Iterator[dict[str, list[Any]]]:
        """The attributes of the span itself, then of each `list_items` span that it needs."""
        chunk: dict[str, list[Any]] = {}
        # No entry costs nothing.
        are_few = all(len(columns[0]) <= limit for _, columns in self._groups)
        if are_few and sum(_at_most(column) for _, columns in self._groups for column in columns) <= limit:
            for keys, columns in self._groups:
                chunk.update(zip(keys, columns, strict=True))
            yield chunk
            return
        room = limit
        for keys, columns in self._groups:
            start = used = 0
            for at, cost in enumerate(_costs_of(columns)):
                # One entry that is over the limit by itself, such as a captured text, is a chunk.
                if used + cost > room and (at > start or chunk):
                    if at > start:
                        chunk.update((key, column[start:at]) for key, column in zip(keys, columns, strict=True))
                    yield chunk
                    chunk, room, start, used = {}, limit, at, 0
                used += cost
            chunk.update((key, column[start:]) for key, column in zip(keys, columns, strict=True))
            room -= used
        yield chunk


def _costs_of(columns: Sequence[list[Any]]) -> Iterator[int]:
    """What each entry of a group costs, worked out as far as somebody asks."""
    for start in range(0, len(columns[0]), LISTED):
        yield from map(sum, zip(*(_costs(column[start : start + LISTED]) for column in columns), strict=True))


def _at_most(column: list[Any]) -> int:
    """What a column costs at most: a character takes no more than four bytes."""
    if isinstance(column[0], str):
        return _OVERHEAD * len(column) + 4 * sum(map(len, column))
    return _NEGATIVE * len(column)


def _costs(column: list[Any]) -> list[int]:
    if isinstance(column[0], str):
        return [
            _OVERHEAD + (len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))) for text in column
        ]
    return [_OVERHEAD if number >= 0 else _NEGATIVE for number in column]


def set_status(span: Span, error: BaseException | None, *, overflow: Overflow | None, halted: bool) -> None:
    """Set how a span's work ended: ERROR with a fixed phrase and numbers, for a message could quote a conversation."""
    if error is not None:
        span.set_attributes(error_attributes(error))
    if halted or isinstance(error, HaltedError):
        span.set_attribute(names.ERROR_TYPE, names.ERROR_ASSEMBLY_HALT)
        span.set_status(HALTED)
    elif overflow is not None:
        span.set_attribute(names.ERROR_TYPE, names.ERROR_CONTEXT_OVERFLOW)
        unit = overflow.unit if overflow.excess != 1 else overflow.unit.removesuffix("s")
        numbers = f"{overflow.excess:,} {unit} over {overflow.budget:,}"
        of_model = overflow.cause is OverflowCause.WINDOW
        phrase = names.STATUS_WINDOW_OVERFLOW if of_model else names.STATUS_CONTEXT_OVERFLOW
        span.set_status(Status(StatusCode.ERROR, f"{phrase}: {numbers}"))
    elif error is not None:
        span.set_status(_FAILED if is_failure(error) else _CANCELLED)


def error_attributes(error: BaseException) -> Attributes:
    """What a span says of an exception: never its message, which can quote what the policy was given."""
    cause = error.__cause__ if isinstance(error, PolicyFailedError) and error.__cause__ is not None else error
    frames = traceback.extract_tb(cause.__traceback__, limit=-32)
    return {
        names.ERROR_TYPE: error_type(error),
        names.EXCEPTION_TYPE: class_name(cause),
        names.EXCEPTION_STACKTRACE: "\n".join(f'File "{f.filename}", line {f.lineno}, in {f.name}' for f in frames),
    }


class Bounded:
    """Lets the first so many values of an open attribute through; later ones are ``_OTHER``."""

    def __init__(self, limit: int = names.MAX_METRIC_NAMES) -> None:
        self._limit = limit
        self._seen: set[str] = set()
        self._lock = new_lock()

    def __call__(self, value: str) -> str:
        if value in self._seen:
            return value
        value = sendable(value)
        with self._lock:
            if len(self._seen) < self._limit:
                self._seen.add(value)
            return value if value in self._seen else names.OTHER


class Metrics:
    """Every metric of the contract; recorded in a span's context, so that exemplars lead to it."""

    def __init__(self, meter: Meter, failed: Callable[[str, BaseException], None]) -> None:
        self._failed = failed
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for name, instrument, unit, brief, boundaries in INSTRUMENTS:
            if instrument == "counter":
                self._counters[name] = meter.create_counter(name, unit, brief)
            else:
                self._histograms[name] = meter.create_histogram(
                    name, unit, brief, explicit_bucket_boundaries_advisory=boundaries
                )
        self._agents: set[tuple[str | None, str | None]] = set()
        self._watched: set[tuple[str, str]] = set()
        self.policy_name = Bounded()
        self.agent_name = Bounded()
        self.framework = Bounded()
        self.model_name = Bounded()
        self.alert_source = Bounded()
        self.error_type = Bounded()
        self.session_type = Bounded()
        self.envelope_type = Bounded()

    def add(self, metric: str, amount: float, attributes: dict[str, Any], context: OtelContext | None = None) -> None:
        """Count."""
        try:
            self._counters[metric].add(amount, attributes, context)
        except Exception as error:  # noqa: BLE001  # one broken instrument costs no other
            self._failed("metrics", error)

    def record(self, metric: str, value: float, attributes: dict[str, Any], context: OtelContext | None = None) -> None:
        """Record a value of a distribution."""
        try:
            self._histograms[metric].record(value, attributes, context)
        except Exception as error:  # noqa: BLE001
            self._failed("metrics", error)

    def count_failure(self, component: str) -> None:
        """Count a failure of telemetry; where even that fails, it raises."""
        self._counters[catalogue.TELEMETRY_ERRORS].add(1, {names.COMPONENT: component})

    def named(self, agent_name: str | None) -> dict[str, Any]:
        """The attribute that names an agent, where it has a name."""
        return {} if agent_name is None else {names.GEN_AI_AGENT_NAME: self.agent_name(agent_name)}

    def agent(self, agent_name: str | None, framework: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """The attributes of an agent: without and with its framework.

        A counter that first appears at 1 has no increase, so the counters that alerts watch start at 0 when an agent is
        first seen.
        """
        agent = self.named(agent_name)
        both = agent if framework is None else {**agent, names.FRAMEWORK: self.framework(framework)}
        key = (agent.get(names.GEN_AI_AGENT_NAME), both.get(names.FRAMEWORK))
        if key not in self._agents:
            self._agents.add(key)
            self.add(catalogue.BUDGET_OVERFLOWS, 0, both)
            self.add(catalogue.HALTS, 0, both)
        return agent, both

    def session(self, session_type: str, expectations: Iterable[str]) -> dict[str, Any]:
        """The attributes of a session; the violations of what it expects start at 0 when it is first seen."""
        session = {names.SESSION_TYPE: self.session_type(session_type)}
        for kind in expectations:
            key = (session[names.SESSION_TYPE], kind)
            if key not in self._watched:
                self._watched.add(key)
                self.add(catalogue.SESSION_VIOLATIONS, 0, {**session, names.VIOLATION_KIND: kind})
        return session
