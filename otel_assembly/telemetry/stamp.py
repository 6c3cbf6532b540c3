"""The link from a model call's span to the assembly that made its prompt.

The current span is stamped where it is the model call itself (AG2's telemetry opens it before the prompt is assembled);
else the next model call with the same trace and parent is, once. A summariser's call inside an assembly has another
parent, and so is never taken for it.

Many a span says only after its start that it is a model call, and a span that ends takes no attributes any more. So one
that has not said what it is, and may be the call that an assembly waits for, is looked at until it has.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.forks import new_lock
from otel_assembly.telemetry import conventions as names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from opentelemetry.trace import Span, SpanContext

MODEL_CALLS: Final = frozenset({"chat", "generate_content", "text_completion"})
#: OpenInference's name for what a span is, and its word for a model call.
_OPENINFERENCE_KIND: Final = "openinference.span.kind"
_OPENINFERENCE_MODEL_CALL: Final = "LLM"
#: The attributes by which a span says what it is.
_IDENTIFYING: Final = frozenset({names.GEN_AI_OPERATION_NAME, _OPENINFERENCE_KIND})
_SETTERS: Final = ("set_attribute", "set_attributes")
#: Assemblies that wait for their model call; the oldest give up.
_WAITING: Final = 1_024


#: The parent of the assembly that was last made here.
_MADE: Final[ContextVar[tuple[int, int] | None]] = ContextVar("otel_assembly_made", default=None)
#: The same, of the assembly whose prompt a framework's model is called with here.
_CALLED: Final[ContextVar[tuple[int, int] | None]] = ContextVar("otel_assembly_called", default=None)


class CalledModel:
    """A framework's call of its model, where that is hooked: the prompt is the one that was last made here.

    A model call's span that is opened in it is that assembly's, whatever its parent is in the same trace: OpenInference
    gives LangChain's spans parents that are never current.

    Args:
        prepared: False for a reducer's own call, whose prompt no assembly has made.
    """

    def __init__(self, *, prepared: bool = True) -> None:
        self._made = _MADE.get() if prepared else None

    @contextmanager
    def current(self) -> Iterator[None]:
        """The model is called in this block; never left open across a ``yield``."""
        token = _CALLED.set(self._made)
        try:
            yield
        finally:
            with suppress(ValueError):  # a coroutine that nobody awaited to its end is closed in another context
                _CALLED.reset(token)

    def end(self, error: BaseException | None = None) -> None:
        """The model has answered."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a model call is to know of its assembly."""

    assembly_id: str
    span: SpanContext
    reduced: bool

    def put_on(self, span: Span) -> None:
        """Stamp a model call's span."""
        span.set_attribute(names.ID, self.assembly_id)
        if self.reduced:
            span.set_attribute(names.GEN_AI_CONVERSATION_COMPACTED, True)
        if self.span.is_valid and self.span.trace_flags.sampled:
            span.add_link(self.span)


def _key(span: SpanContext) -> tuple[int, int]:
    return span.trace_id, span.span_id


def is_model_call(span: Any) -> bool:
    """Whether a span is one of GenAI's model calls, or one of OpenInference's; only an SDK's span says so."""
    return _is_model_call(span) is True


def _is_model_call(span: Any) -> bool | None:
    """None where the span has not said what it is."""
    attributes: Mapping[str, Any] = getattr(span, "attributes", None) or {}
    operation = attributes.get(names.GEN_AI_OPERATION_NAME)
    if operation is not None:
        return operation in MODEL_CALLS
    kind = attributes.get(_OPENINFERENCE_KIND)
    return None if kind is None else kind == _OPENINFERENCE_MODEL_CALL


class _WatchedSpan:
    """A span of the SDK whose attributes are looked at as they are set, until one says what it is, or it ends."""

    __slots__ = ("_before", "_identified", "_span")

    def __init__(self, span: Any, identified: Callable[[Any], None]) -> None:
        self._span = span
        self._identified = identified
        self._before = {name: vars(span).get(name) for name in _SETTERS}
        with suppress(AttributeError):  # a span of another make goes without a stamp
            for name in _SETTERS:
                setattr(span, name, getattr(self, name))

    def set_attribute(self, key: str, value: Any) -> None:
        """As the span's own."""
        self._set("set_attribute", key, value)
        self._look((key,))

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """As the span's own."""
        self._set("set_attributes", attributes)
        self._look(attributes)

    def _set(self, name: str, *given: Any) -> None:
        before = self._before[name]
        if before is not None:
            before(*given)
        else:
            getattr(type(self._span), name)(self._span, *given)

    def _look(self, given: Iterable[Any]) -> None:
        try:
            identifies = not _IDENTIFYING.isdisjoint(given)
        except TypeError:  # no attributes at all, which is the caller's affair
            return
        if identifies:
            self._identified(self._span)

    def leave(self) -> None:
        """The span is as it was, unless somebody else has come over it since."""
        own = vars(self._span)
        for name, before in self._before.items():
            if own.get(name) == getattr(self, name):
                del own[name]
                if before is not None:
                    own[name] = before


def _watch_of(span: Any) -> _WatchedSpan | None:
    own = getattr(vars(span).get(_SETTERS[0]), "__self__", None)
    return own if isinstance(own, _WatchedSpan) else None


def _leave(span: Any) -> None:
    watch = _watch_of(span)
    if watch is not None:
        watch.leave()


def is_opened_since(span: Any, earlier: Any) -> bool:
    """Whether a span of the same trace began after another."""
    began, other = getattr(span, "start_time", None), getattr(earlier, "start_time", None)
    if began is None or other is None or began <= other:
        return False
    return bool(span.get_span_context().trace_id == earlier.get_span_context().trace_id)


class StampingProcessor:
    """A span processor of the SDK, by its shape: it looks at spans as they start, and where one may be waited for."""

    def __init__(self, failed: Callable[[str, BaseException], None]) -> None:
        self._failed = failed
        self._lock = new_lock()
        self._waiting: OrderedDict[tuple[int, int], Stamp] = OrderedDict()

    def await_call(self, parent: Span, opened: Span | None, stamp: Stamp) -> None:
        """Stamp the next model call under this parent; or it, or what has opened since, if that says it is one."""
        key = _key(parent.get_span_context())
        _MADE.set(key)
        with self._lock:
            earlier = self._waiting.get(key)
            if earlier is not None and earlier.reduced and not stamp.reduced:
                # Several assemblies made one prompt, as a framework's reducers and a plug-in of ours behind them: what
                # one of them reduced stays reduced.
                stamp = replace(stamp, reduced=True)
            self._waiting[key] = stamp
            self._waiting.move_to_end(key)
            if len(self._waiting) > _WAITING:
                self._waiting.popitem(last=False)
        self._watch(parent, key)
        if opened is not None:
            self._watch(opened, key)

    def _watch(self, span: Any, key: tuple[int, int]) -> None:
        while hasattr(span, "__wrapped__"):  # by another instrumentation: what takes attributes is inside
            span = span.__wrapped__
        if span.is_recording() and _is_model_call(span) is None and _watch_of(span) is None:
            _WatchedSpan(span, partial(self._identified, key))

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Stamp a model call that an assembly waits for."""
        if not self._waiting or span.parent is None:
            return
        key, called = _key(span.parent), _CALLED.get()
        if key not in self._waiting:
            if called is None or called not in self._waiting or called[0] != key[0]:
                return
            key = called
        try:
            if _is_model_call(span) is not None:
                self._identified(key, span)
            elif span.instrumentation_scope.name != names.SCOPE:
                _WatchedSpan(span, partial(self._identified, key))
        except Exception as error:  # noqa: BLE001  # nothing of ours reaches the agent
            self._failed("stamp", error)

    def _identified(self, key: tuple[int, int], span: Any) -> None:
        """A span has said what it is."""
        try:
            _leave(span)
            if is_model_call(span):
                with self._lock:
                    stamp = self._waiting.pop(key, None)
                if stamp is not None:
                    stamp.put_on(span)
        except Exception as error:  # noqa: BLE001
            self._failed("stamp", error)

    def _on_ending(self, span: Any) -> None:
        """A span that never said what it is, or has now, is not looked at any more."""
        _leave(span)

    def on_end(self, span: Any) -> None:
        """Nothing is done as a span ends."""

    def shutdown(self) -> None:
        """Forget what waits."""
        self._waiting.clear()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is held back."""
        return True
