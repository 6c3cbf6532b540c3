"""Pass spans, arrays and metrics to OpenTelemetry.

A failure of telemetry never reaches the agent. The first failure of each component is logged as a warning, and a metric
counts all failures.
"""

from __future__ import annotations

import logging
import traceback
import weakref
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import _logs, metrics, trace
from opentelemetry._logs import NoOpLogger
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.metrics import NoOpMeter
from opentelemetry.trace import INVALID_SPAN, NoOpTracer, SpanKind, Status, StatusCode

from otel_assembly._internal.fork_safety import new_lock
from otel_assembly._internal.slices import LISTED
from otel_assembly._version import __version__
from otel_assembly.decision import OverflowCause
from otel_assembly.errors import HaltedError, PolicyFailedError, class_name, error_type, is_failure
from otel_assembly.messages.event_facts import sendable
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry import conventions_metrics as catalogue
from otel_assembly.telemetry.instruments import INSTRUMENTS
from otel_assembly.telemetry.model_span_links import LinkingProcessor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from opentelemetry._logs import Logger
    from opentelemetry.context import Context as OtelContext
    from opentelemetry.metrics import Meter
    from opentelemetry.trace import Span, Tracer

    from otel_assembly._internal.slices import Slices
    from otel_assembly.decision import Overflow
    from otel_assembly.telemetry.providers import Providers
    from otel_assembly.telemetry.settings import TelemetrySettings

_logger = logging.getLogger("otel_assembly")

Attributes = dict[str, Any]
#: A metric's name, a number, its attributes, and the context whose span an exemplar refers to.
Point = tuple[str, float, dict[str, Any], "OtelContext | None"]

#: The bytes of an array element in OTLP's protobuf: this overhead plus the text. A count needs no more than the
#: overhead, a negative number 13 bytes.
_OVERHEAD: Final = 8
_NEGATIVE: Final = 13

#: Exported instead of a text for which the redaction hook failed.
NOT_REDACTED: Final = "[redaction failed]"

HALTED: Final = Status(StatusCode.ERROR, names.STATUS_ASSEMBLY_HALT)
_FAILED: Final = Status(StatusCode.ERROR, names.STATUS_POLICY_FAILED)
_CANCELLED: Final = Status(StatusCode.ERROR)


def sendable_values(attributes: Mapping[str, Any]) -> Attributes:
    """Return the attributes without those that are None; characters that UTF-8 cannot encode are replaced."""
    return {
        name: sendable(value) if isinstance(value, str) else value
        for name, value in attributes.items()
        if value is not None
    }


class Emitter:
    """The tracer, meter and logger of one recorder, with its redaction and error handling.

    Args:
        providers: The recorder's providers.
        settings: Which texts are exported, and how.

    Attributes:
        content: Redacts a message's text; None if spans contain no content.
        ready: Whether `prepare` was called and at least one of tracer, meter and logger is not a no-op.
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
        self._linking: weakref.WeakKeyDictionary[Any, LinkingProcessor] = weakref.WeakKeyDictionary()
        self._lock = new_lock()
        self._warning = new_lock()
        self._warned: set[str] = set()

    def prepare(self) -> bool:
        """Create the tracer, meter and logger once; return False if all are no-ops (``OTEL_SDK_DISABLED``)."""
        if not self._prepared:
            with self._lock:
                if not self._prepared:
                    self._prepare()
        return self.ready

    def _prepare(self) -> None:
        """Create the tracer, meter and logger; if one provider raises, the other signals still work."""
        tracer: Tracer = NoOpTracer()
        meter: Meter = NoOpMeter(names.SCOPE)
        logger: Logger = NoOpLogger(names.SCOPE)
        with self.suppress_errors("tracer"):
            tracer = trace.get_tracer(names.SCOPE, __version__, self.providers.tracer)
        with self.suppress_errors("logger"):
            logger = _logs.get_logger(names.SCOPE, __version__, self.providers.logger)
        instruments = Metrics(NoOpMeter(names.SCOPE), self.failed)
        with self.suppress_errors("meter"):
            meter = metrics.get_meter(names.SCOPE, __version__, self.providers.meter)
            instruments = Metrics(meter, self.failed)
        self.tracer, self.logger, self.metrics = tracer, logger, instruments
        self.ready = (type(tracer), type(meter), type(logger)) != (NoOpTracer, NoOpMeter, NoOpLogger)
        self._prepared = True

    def linking_processor(self) -> LinkingProcessor | None:
        """Return the span processor that links spans of model calls to assemblies; add it to the provider if needed.

        None if the tracer provider accepts no span processors.
        """
        provider = self.providers.tracer or trace.get_tracer_provider()
        processor = self._linking.get(provider)
        if processor is None and hasattr(provider, "add_span_processor"):
            with self._lock:
                processor = self._linking.get(provider)
                if processor is None:
                    processor = self._linking[provider] = LinkingProcessor(self.failed)
                    provider.add_span_processor(processor)
        return processor

    # Error handling

    @contextmanager
    def suppress_errors(self, component: str) -> Iterator[None]:
        """Suppress an exception in this block, and count it as a failure of this component."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # telemetry must not fail the agent
            self.failed(component, error)

    def failed(self, component: str, error: BaseException) -> None:
        """Log the first failure of a component, and count every one.

        The log contains the exception's type but not its message, which may quote content.
        """
        with self._warning:
            first = component not in self._warned
            self._warned.add(component)
        if first:
            _logger.warning(
                "telemetry of context assembly failed in %s (%s); the agent is not affected. Further failures of this "
                "component are only counted (assembly.telemetry.errors)",
                component,
                type(error).__name__,
            )
        if self._prepared:
            try:
                self.metrics.count_failure(component)
            except Exception:  # noqa: BLE001  # the counter may be what is broken
                _logger.debug("a telemetry failure could not be counted")

    def redacted(self, text: str) -> str:
        """Return the redacted text; `NOT_REDACTED` if the redaction hook fails."""
        redact = self.settings.redact
        if redact is None:
            return sendable(text)
        try:
            redacted_text: object = redact(text)
            if not isinstance(redacted_text, str):
                raise TypeError("a redaction hook must return a str")  # handled below, as an error of the hook
            return sendable(redacted_text)
        except Exception as error:  # noqa: BLE001
            self.failed("redaction", error)
            return NOT_REDACTED

    # Spans

    def start_span(
        self, name: str, parent: OtelContext, start_ns: int | None, attributes: Mapping[str, Any], /
    ) -> Span:
        """Start a span that does not record exceptions automatically, because their messages may quote content."""
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
        self, name: str, around: OtelContext, start_ns: int, attributes: Attributes
    ) -> tuple[Span, OtelContext]:
        """Start a span, and return it with a context that contains it; if that fails, an invalid span and `around`.

        Args:
            name: The span's name; like the attributes, without characters that UTF-8 cannot encode.
            around: The parent context.
            start_ns: The start time, in nanoseconds since 1970.
            attributes: The attributes that are known at the start, without None; see `sendable_values`.
        """
        try:
            span = self.tracer.start_span(
                name,
                context=around,
                kind=SpanKind.INTERNAL,
                attributes=attributes,
                start_time=start_ns,
                record_exception=False,
                set_status_on_exception=False,
            )
            return span, trace.set_span_in_context(span, around)
        except Exception as error:  # noqa: BLE001  # telemetry must not fail the agent
            self.failed("span", error)
            return INVALID_SPAN, around

    def put(self, span: Span, context: OtelContext, attributes: Attributes | None, arrays: Arrays, at_ns: int) -> None:
        """Set a span's attributes and arrays without a pause; see `putting`."""
        for _ in self.putting(span, context, attributes, arrays, at_ns):
            pass

    def putting(
        self, span: Span, context: OtelContext, attributes: Attributes | None, arrays: Arrays, at_ns: int
    ) -> Slices[None]:
        """Set a span's attributes and arrays; yield between slices of the work. Large arrays continue on child spans.

        Args:
            span: The span.
            context: The context of that span.
            attributes: The attributes other than arrays; None to put all arrays on ``list_items`` child spans.
            arrays: The arrays.
            at_ns: The time of the ``list_items`` spans, in nanoseconds since 1970.
        """
        for index, chunk in enumerate(arrays.chunks()):
            if index == 0 and attributes is not None:
                set_valid_attributes(span, attributes, chunk)
            elif chunk:
                # Different start times keep the order in backends that store microseconds.
                start_ns = at_ns + index * names.SIBLING_INTERVAL_NS
                self.start_span(names.SPAN_LIST_ITEMS, context, start_ns, chunk).end(start_ns)
                yield


@dataclass(slots=True)
class Arrays:
    """Array attributes of a span, in groups of parallel arrays; `chunks` splits them to fit on several spans.

    All arrays of a group are split at the same index.

    Attributes:
        groups: The attribute names and the arrays of each group. Groups of empty arrays are ignored.
    """

    groups: list[tuple[Sequence[str], Sequence[list[Any]]]] = field(default_factory=list)

    def add(self, keys: Sequence[str], columns: Sequence[list[Any]]) -> None:
        """Add a group of parallel arrays: one for each attribute name, all of equal length."""
        self.groups.append((keys, columns))

    def __bool__(self) -> bool:
        return any(columns[0] for _, columns in self.groups)

    def chunks(self, limit: int = names.MAX_ARRAY_BYTES) -> Iterable[dict[str, list[Any]]]:
        """Return dicts of arrays with at most `limit` bytes: for the span, then for each ``list_items`` child span."""
        whole = dict[str, list[Any]]()
        for keys, columns in self.groups:
            if columns[0]:
                whole.update(zip(keys, columns, strict=True))
        entries = sum(map(len, whole.values()))
        # An upper bound: an entry has at most `_NEGATIVE` bytes besides its text, and a character at most four.
        if entries <= limit:
            texts = map(str, chain.from_iterable(whole.values()))
            if _NEGATIVE * entries + 4 * sum(map(len, texts)) <= limit:
                return (whole,)
        return self._split(limit)

    def _split(self, limit: int) -> Iterator[dict[str, list[Any]]]:
        chunk: dict[str, list[Any]] = {}
        room = limit
        for keys, columns in self.groups:
            if not columns[0]:
                continue
            start = used = 0
            for at, cost in enumerate(_costs_of(columns)):
                # A single entry over the limit, such as a captured text, fills a whole chunk.
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
    """Yield, for each index of a group's arrays, the bytes of the entries at that index in all arrays together."""
    for start in range(0, len(columns[0]), LISTED):
        yield from map(sum, zip(*(_costs(column[start : start + LISTED]) for column in columns), strict=True))


def _costs(column: list[Any]) -> list[int]:
    if isinstance(column[0], str):
        return [
            _OVERHEAD + (len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))) for text in column
        ]
    return [_OVERHEAD if number >= 0 else _NEGATIVE for number in column]


def set_valid_attributes(span: Span, attributes: Attributes, arrays: Mapping[str, list[Any]]) -> None:
    """Set attributes whose values are texts, numbers and tuples of these, and arrays.

    The SDK checks each value and each entry of a list: 29 µs for 36 numbers and 12 short lists (SDK 1.45). The values
    are valid, so they are written to the dict of the SDK's span, in 5 µs, unless the span has ended, limits its
    attributes, has one of them already, or has other internals than the SDK's versions 1.39 to 1.45.
    """
    held: Any = getattr(span, "_attributes", None)
    try:
        if (
            type(held) is BoundedAttributes
            and not held._immutable  # noqa: SLF001  # see above
            and held.max_value_len is None
            and (held.maxlen is None or len(held._dict) + len(attributes) + len(arrays) <= held.maxlen)  # noqa: SLF001
            and held._dict.keys().isdisjoint(attributes)  # noqa: SLF001
            and held._dict.keys().isdisjoint(arrays)  # noqa: SLF001
        ):
            with held._lock:  # noqa: SLF001
                held._dict.update(attributes)  # noqa: SLF001
                held._dict.update(zip(arrays, map(tuple, arrays.values()), strict=True))  # noqa: SLF001
            return
    except AttributeError:
        pass
    span.set_attributes({**attributes, **arrays})


def set_status(span: Span, error: BaseException | None, *, overflow: Overflow | None, halted: bool) -> None:
    """Set a span's status and error attributes.

    The status description is a fixed phrase with numbers, because an exception's message may quote content.

    Args:
        span: The span.
        error: The exception that ended the operation; None without an error.
        overflow: The limit that was exceeded; None if none was.
        halted: Whether the conversation was halted.
    """
    if error is not None:
        span.set_attributes(error_attributes(error))
    if halted or isinstance(error, HaltedError):
        span.set_attribute(names.ERROR_TYPE, names.ERROR_ASSEMBLY_HALT)
        span.set_status(HALTED)
    elif overflow is not None:
        span.set_attribute(names.ERROR_TYPE, names.ERROR_CONTEXT_OVERFLOW)
        unit = overflow.unit if overflow.excess != 1 else overflow.unit.removesuffix("s")
        numbers = f"{overflow.excess:,} {unit} over {overflow.budget:,}"
        is_window = overflow.cause is OverflowCause.WINDOW
        phrase = names.STATUS_WINDOW_OVERFLOW if is_window else names.STATUS_CONTEXT_OVERFLOW
        span.set_status(Status(StatusCode.ERROR, f"{phrase}: {numbers}"))
    elif error is not None:
        span.set_status(_FAILED if is_failure(error) else _CANCELLED)


def error_attributes(error: BaseException) -> Attributes:
    """Return the attributes of an exception, without its message and source lines, which may quote content."""
    cause = error.__cause__ if isinstance(error, PolicyFailedError) and error.__cause__ is not None else error
    frames = traceback.extract_tb(cause.__traceback__, limit=-32)
    return {
        names.ERROR_TYPE: error_type(error),
        names.EXCEPTION_TYPE: class_name(cause),
        names.EXCEPTION_STACKTRACE: "\n".join(f'File "{f.filename}", line {f.lineno}, in {f.name}' for f in frames),
    }


class Bounded(dict[str, str]):
    """Limits the number of different values of a metric attribute.

    A call with a value returns the value itself if it is one of the first `limit` different values, else ``_OTHER``.

    Args:
        limit: The maximum number of different values.
    """

    #: No Python function is called for a known value.
    __call__ = dict.__getitem__

    def __init__(self, limit: int = names.MAX_METRIC_NAMES) -> None:
        self._limit = limit
        self._lock = new_lock()

    def __missing__(self, value: str) -> str:
        value = sendable(value)
        with self._lock:
            if len(self) < self._limit:
                self[value] = value
            return value if value in self else names.OTHER


class Metrics:
    """The instruments of all metrics of this package.

    Args:
        meter: Creates the instruments.
        failed: Called with the name of the failed component and the exception if a value cannot be recorded.
    """

    def __init__(self, meter: Meter, failed: Callable[[str, BaseException], None]) -> None:
        self._failed = failed
        #: By metric, the method of its instrument that takes a value, its attributes and a context.
        self._record: dict[str, Callable[[float, Attributes, OtelContext | None], None]] = {}
        for name, instrument, unit, brief, boundaries in INSTRUMENTS:
            if instrument == "counter":
                self._record[name] = meter.create_counter(name, unit, brief).add
            else:
                buckets = meter.create_histogram(name, unit, brief, explicit_bucket_boundaries_advisory=boundaries)
                self._record[name] = buckets.record
        self._agents: dict[tuple[str | None, str | None], tuple[Attributes, Attributes]] = {}
        self._watched: set[tuple[str, str]] = set()
        self.policy_name = Bounded()
        self.agent_name = Bounded()
        self.framework = Bounded()
        self.model_name = Bounded()
        self.alert_source = Bounded()
        self.error_type = Bounded()
        self.session_type = Bounded()
        self.envelope_type = Bounded()

    def record(self, metric: str, value: float, attributes: Attributes, context: OtelContext | None = None) -> None:
        """Record a value of a metric: add it to the counter, or to the distribution of the histogram.

        Args:
            metric: The metric's name.
            value: The value.
            attributes: The attributes of the data point.
            context: The context whose span an exemplar refers to; None for the current context.
        """
        self.put([(metric, value, attributes, context)])

    def put(self, points: Iterable[Point]) -> None:
        """Record several values; the elements of a point are the arguments of `record`."""
        for metric, value, attributes, context in points:
            try:
                self._record[metric](value, attributes, context)
            except Exception as error:  # noqa: BLE001  # a broken instrument must not prevent the others
                self._failed("metrics", error)

    def count_failure(self, component: str) -> None:
        """Count a failure of telemetry; raise if the counter itself fails."""
        self._record[catalogue.TELEMETRY_ERRORS](1, {names.COMPONENT: component}, None)

    def named(self, agent_name: str | None) -> dict[str, Any]:
        """Return the metric attribute for an agent's name; empty if the agent has no name."""
        return {} if agent_name is None else {names.GEN_AI_AGENT_NAME: self.agent_name(agent_name)}

    def agent(self, agent_name: str | None, framework: str | None) -> tuple[Attributes, Attributes]:
        """Return the metric attributes of an agent twice: without and with its framework. Do not change them.

        The first call for an agent starts the counters that alert rules use at 0. Prometheus computes no increase for
        a counter that first appears with the value 1.
        """
        known = self._agents.get((agent_name, framework))
        if known is not None:
            return known
        agent = self.named(agent_name)
        both = agent if framework is None else {**agent, names.FRAMEWORK: self.framework(framework)}
        # A name beyond the limit, which is `_OTHER` here, is no key of its own.
        key = (agent.get(names.GEN_AI_AGENT_NAME), both.get(names.FRAMEWORK))
        if key not in self._agents:
            self._agents[key] = agent, both
            self.record(catalogue.BUDGET_OVERFLOWS, 0, both)
            self.record(catalogue.HALTS, 0, both)
        return self._agents[key]

    def session(self, session_type: str, expectations: Iterable[str]) -> dict[str, Any]:
        """Return the metric attributes of a session; the first call for a type starts its violation counters at 0."""
        session = {names.SESSION_TYPE: self.session_type(session_type)}
        for kind in expectations:
            key = (session[names.SESSION_TYPE], kind)
            if key not in self._watched:
                self._watched.add(key)
                self.record(catalogue.SESSION_VIOLATIONS, 0, {**session, names.VIOLATION_KIND: kind})
        return session
