"""The link from a model call's span to the assembly that made its prompt.

The current span is stamped where it is the model call itself (AG2's telemetry opens it before the prompt is assembled);
else the next model call with the same trace and parent is, once. A summariser's call inside an assembly has another
parent, and so is never taken for it. An assembly without a parent is a trace of its own: the next model call without a
parent that starts in the same context is its call, and gets the id and the link across traces.

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

from opentelemetry.trace import INVALID_SPAN_CONTEXT

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


@dataclass(slots=True, eq=False)
class Stamp:
    """What a model call is to know of its assembly.

    Attributes:
        assembly_id: The assembly's id.
        span: Its span.
        reduced: Whether anything was dropped or compacted.
        key: Where its model call is waited for: its parent, or itself where it has none.
        is_root: Whether it has no parent.
        used: Whether its model call was found.
    """

    assembly_id: str
    span: SpanContext
    reduced: bool
    key: tuple[int, int] = (0, 0)
    is_root: bool = False
    used: bool = False

    def put_on(self, span: Span) -> None:
        """Stamp a model call's span."""
        span.set_attribute(names.ID, self.assembly_id)
        if self.reduced:
            span.set_attribute(names.GEN_AI_CONVERSATION_COMPACTED, True)
        if self.span.is_valid and self.span.trace_flags.sampled:
            span.add_link(self.span)


#: The stamp of the assembly that was last made here.
_MADE: Final[ContextVar[Stamp | None]] = ContextVar("otel_assembly_made", default=None)
#: The same, of the assembly whose prompt a framework's model is called with here.
_CALLED: Final[ContextVar[Stamp | None]] = ContextVar("otel_assembly_called", default=None)
#: Of a call whose prompt no assembly has made.
_NO_ASSEMBLY: Final = Stamp("", INVALID_SPAN_CONTEXT, reduced=False, used=True)


class CalledModel:
    """A framework's call of its model, where that is hooked: the prompt is the one that was last made here.

    A model call's span that is opened in it is that assembly's, whatever its parent is, and in whichever trace:
    OpenInference gives LangChain's spans parents that are never current.

    Args:
        prepared: False for a reducer's own call, whose prompt no assembly has made.
    """

    def __init__(self, *, prepared: bool = True) -> None:
        self._made = _MADE.get() if prepared else _NO_ASSEMBLY

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
        self._await(replace(stamp, key=key))
        self._watch(parent, key)
        if opened is not None:
            self._watch(opened, key)

    def await_root_call(self, stamp: Stamp) -> None:
        """Stamp the next model call that starts in this context and has no parent, as the assembly has none."""
        self._await(replace(stamp, key=_key(stamp.span), is_root=True))

    def _await(self, stamp: Stamp) -> None:
        earlier = _MADE.get()
        # Another provider's processor may look at the same spans: what waits there is its affair.
        waits = earlier is not None and self._waits_for(earlier.key) is earlier
        if earlier is not None and waits and (earlier.key == stamp.key or (earlier.is_root and stamp.is_root)):
            # Several assemblies made one prompt, as a framework's reducers and a plug-in of ours behind them: what
            # one of them reduced stays reduced.
            stamp.reduced = stamp.reduced or earlier.reduced
            earlier.used = True
        else:
            earlier = None
        _MADE.set(stamp)
        with self._lock:
            if earlier is not None:  # a program that never calls a model below us would fill this otherwise
                self._waiting.pop(earlier.key, None)
            self._waiting[stamp.key] = stamp
            self._waiting.move_to_end(stamp.key)
            if len(self._waiting) > _WAITING:
                self._waiting.popitem(last=False)

    def _watch(self, span: Any, key: tuple[int, int]) -> None:
        while hasattr(span, "__wrapped__"):  # by another instrumentation: what takes attributes is inside
            span = span.__wrapped__
        if span.is_recording() and _is_model_call(span) is None and _watch_of(span) is None:
            _WatchedSpan(span, partial(self._identified, partial(self._waits_for, key)))

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Stamp a model call that an assembly waits for."""
        waits_for = self._assembly_of(span) if self._waiting or _CALLED.get() is not None else None
        if waits_for is None:
            return
        try:
            if _is_model_call(span) is not None:
                self._identified(waits_for, span)
            elif span.instrumentation_scope.name != names.SCOPE:
                _WatchedSpan(span, partial(self._identified, waits_for))
        except Exception as error:  # noqa: BLE001  # nothing of ours reaches the agent
            self._failed("stamp", error)

    def _assembly_of(self, span: Any) -> Callable[[], Stamp | None] | None:
        """Return what finds the assembly that a span may be the call of; None if it is no assembly's."""
        called, made = _CALLED.get(), _MADE.get()
        if called is not None and not called.used:
            return lambda: called
        parent = None if span.parent is None else _key(span.parent)
        if parent is not None:
            return partial(self._waits_for, parent) if self._waits_for(parent) is not None else None
        if called is None and made is not None and made.is_root and not made.used:
            return lambda: made
        return None

    def _waits_for(self, key: tuple[int, int]) -> Stamp | None:
        stamp = self._waiting.get(key)
        return None if stamp is None or stamp.used else stamp

    def _identified(self, waits_for: Callable[[], Stamp | None], span: Any) -> None:
        """A span has said what it is."""
        try:
            _leave(span)
            if is_model_call(span):
                with self._lock:
                    stamp = waits_for()
                    if stamp is None or stamp.used:
                        return
                    stamp.used = True
                    if self._waiting.get(stamp.key) is stamp:
                        del self._waiting[stamp.key]
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
