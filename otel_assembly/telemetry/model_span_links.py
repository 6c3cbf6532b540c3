"""Link a model call's span to the assembly that made its prompt.

The model call's span is found as follows:

1. The current span, if it is a model call. AG2's telemetry starts this span before the assembly.
2. Else the next model call in the same trace with the same parent. A summarizer's call within the assembly has another
   parent, so it is not mistaken for it.
3. If the assembly has no parent, it is a trace of its own. Then the next model call without a parent that starts in the
   same context is linked across traces.

A summarizer's call is never stamped. Its ``compact_block`` is its parent, or links to it if it is recorded later.

Many instrumentations set the attributes that identify a model call after the span's start. An ended span accepts no
attributes. So a span that may be the model call is watched until it has such an attribute or ends.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import INVALID_SPAN_CONTEXT

from otel_assembly._internal.fork_safety import new_lock
from otel_assembly.telemetry import conventions as names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from opentelemetry.trace import Span, SpanContext

MODEL_CALLS: Final = frozenset({"chat", "generate_content", "text_completion"})
#: OpenInference's attribute for the kind of a span, and its value for a model call.
_OPENINFERENCE_KIND: Final = "openinference.span.kind"
_OPENINFERENCE_MODEL_CALL: Final = "LLM"
#: The attributes that identify a model call.
_IDENTIFYING: Final = frozenset({names.GEN_AI_OPERATION_NAME, _OPENINFERENCE_KIND})
_SETTERS: Final = ("set_attribute", "set_attributes")
#: The most assemblies that wait for their model calls; the oldest is forgotten first.
_WAITING: Final = 1_024


@dataclass(slots=True, eq=False)
class AssemblyLink:
    """The attributes and the link that a model call's span gets from its assembly.

    Attributes:
        assembly_id: The assembly's id.
        span: The assembly's span.
        reduced: Whether the assembly dropped or compacted anything.
        key: The expected parent of the model call's span; the assembly's own span if it has no parent.
        is_root: Whether the assembly's span has no parent.
        used: Whether the model call's span was found.
        summarizer: Whether a reducer calls its summarizer, so that no assembly made the prompt.
        model_spans: The spans of a summarizer's model calls.
    """

    assembly_id: str
    span: SpanContext
    reduced: bool
    key: tuple[int, int] = (0, 0)
    is_root: bool = False
    used: bool = False
    summarizer: bool = False
    model_spans: list[SpanContext] = field(default_factory=list)

    def put_on(self, span: Span) -> None:
        """Set the assembly's id and the link on a model call's span."""
        span.set_attribute(names.ID, self.assembly_id)
        if self.reduced:
            span.set_attribute(names.GEN_AI_CONVERSATION_COMPACTED, True)
        if self.span.is_valid and self.span.trace_flags.sampled:
            span.add_link(self.span)


#: The stamp of the last assembly in this context.
_MADE: Final[ContextVar[AssemblyLink | None]] = ContextVar("otel_assembly_made", default=None)
#: The stamp for the framework's model call that runs in this context.
_CALLED: Final[ContextVar[AssemblyLink | None]] = ContextVar("otel_assembly_called", default=None)


class CalledModel:
    """A framework's call of its model, whose prompt comes from the last assembly in this context.

    The first model call's span that starts in it is linked to that assembly, even if its parent or trace differs:
    OpenInference gives LangChain's spans parents that are never current.

    Args:
        prepared: False for a reducer's own model call, whose prompt comes from no assembly.
    """

    def __init__(self, *, prepared: bool = True) -> None:
        self._made = _MADE.get() if prepared else AssemblyLink("", INVALID_SPAN_CONTEXT, reduced=False, summarizer=True)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the call current in this block; never keep the block open across a ``yield``."""
        token = _CALLED.set(self._made)
        try:
            yield
        finally:
            with suppress(ValueError):  # a coroutine that is closed before its end is often closed in another context
                _CALLED.reset(token)

    @property
    def model_spans(self) -> Sequence[SpanContext]:
        """The spans of a summarizer's model calls."""
        return self._made.model_spans if self._made is not None else ()

    def end(self, error: BaseException | None = None) -> None:
        """The client has answered: a later model call without a parent is not this assembly's."""
        if self._made is not None and self._made.is_root:
            self._made.used = True


def _key(span: SpanContext) -> tuple[int, int]:
    return span.trace_id, span.span_id


def is_model_call(span: Any) -> bool:
    """Return whether an SDK's span is a model call, by the attributes of the GenAI conventions or OpenInference."""
    return _is_model_call(span) is True


def _is_model_call(span: Any) -> bool | None:
    """Return None if the span has no identifying attribute yet."""
    attributes: Mapping[str, Any] = getattr(span, "attributes", None) or {}
    operation = attributes.get(names.GEN_AI_OPERATION_NAME)
    if operation is not None:
        return operation in MODEL_CALLS
    kind = attributes.get(_OPENINFERENCE_KIND)
    return None if kind is None else kind == _OPENINFERENCE_MODEL_CALL


class _WatchedSpan:
    """Watches the attribute setters of an SDK's span until an identifying attribute is set or the span ends."""

    __slots__ = ("_before", "_identified", "_span")

    def __init__(self, span: Any, identified: Callable[[Any], None]) -> None:
        self._span = span
        self._identified = identified
        self._before = {name: vars(span).get(name) for name in _SETTERS}
        with suppress(AttributeError):  # a span that allows no new attributes gets no link
            for name in _SETTERS:
                setattr(span, name, getattr(self, name))

    def set_attribute(self, key: str, value: Any) -> None:
        """Call the span's own method, then check the attribute."""
        self._set("set_attribute", key, value)
        self._look((key,))

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Call the span's own method, then check the attributes."""
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
        except TypeError:  # the caller passed no mapping; the span's own method has handled that
            return
        if identifies:
            self._identified(self._span)

    def leave(self) -> None:
        """Restore the span's own setters, unless another library has replaced them since."""
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
    """Return whether a span of the same trace began after an earlier one."""
    began, other = getattr(span, "start_time", None), getattr(earlier, "start_time", None)
    if began is None or other is None or began <= other:
        return False
    return bool(span.get_span_context().trace_id == earlier.get_span_context().trace_id)


class LinkingProcessor:
    """A span processor that links the spans of model calls to the assemblies that wait for them.

    It does not inherit from the SDK's class, because the SDK need not be installed.
    """

    def __init__(self, failed: Callable[[str, BaseException], None]) -> None:
        self._failed = failed
        self._lock = new_lock()
        self._waiting: OrderedDict[tuple[int, int], AssemblyLink] = OrderedDict()

    def await_call(self, parent: Span, opened: Span | None, stamp: AssemblyLink) -> None:
        """Link the next model call below a parent.

        The parent itself, or the span that opened during the assembly, may also turn out to be the model call.
        """
        key = _key(parent.get_span_context())
        self._await(replace(stamp, key=key))
        self._watch(parent, key)
        if opened is not None:
            self._watch(opened, key)

    def await_root_call(self, stamp: AssemblyLink) -> None:
        """Link the next model call without a parent that starts in this context."""
        self._await(replace(stamp, key=_key(stamp.span), is_root=True))

    def _await(self, stamp: AssemblyLink) -> None:
        earlier = _MADE.get()
        # Only this processor's stamps are replaced; another provider may have a processor of its own.
        if earlier is not None and self._waiting.get(earlier.key) is not earlier:
            earlier = None
        if earlier is not None and not earlier.used:
            if earlier.key == stamp.key or (earlier.is_root and stamp.is_root):
                # Several assemblies can make one prompt, for example a framework's reducers and then a built-in
                # plug-in. If any of them reduced the prompt, the prompt is reduced.
                stamp.reduced = stamp.reduced or earlier.reduced
                earlier.used = True
            else:
                earlier = None
        _MADE.set(stamp)
        with self._lock:
            if earlier is not None:  # else a program whose model calls have no spans would fill the dict
                self._waiting.pop(earlier.key, None)
            self._waiting[stamp.key] = stamp
            self._waiting.move_to_end(stamp.key)
            if len(self._waiting) > _WAITING:
                self._waiting.popitem(last=False)

    def _watch(self, span: Any, key: tuple[int, int]) -> None:
        while hasattr(span, "__wrapped__"):  # another instrumentation wraps the SDK's span
            span = span.__wrapped__
        if span.is_recording() and _is_model_call(span) is None and _watch_of(span) is None:
            _WatchedSpan(span, partial(self._identified, partial(self._waits_for, key)))

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Link a started model call, or watch a span that may become one."""
        waits_for = self._assembly_of(span) if self._waiting or _CALLED.get() is not None else None
        if waits_for is None:
            return
        try:
            if _is_model_call(span) is not None:
                self._identified(waits_for, span)
            elif span.instrumentation_scope.name != names.SCOPE:
                _WatchedSpan(span, partial(self._identified, waits_for))
        except Exception as error:  # noqa: BLE001  # nothing of ours reaches the agent
            self._failed("link", error)

    def _assembly_of(self, span: Any) -> Callable[[], AssemblyLink | None] | None:
        """Return a function that finds the stamp for a span; None if no assembly waits for such a span."""
        called, made = _CALLED.get(), _MADE.get()
        if called is not None and not called.used:
            return lambda: called
        parent = None if span.parent is None else _key(span.parent)
        if parent is not None:
            return partial(self._waits_for, parent) if self._waits_for(parent) is not None else None
        if called is None and made is not None and made.is_root and not made.used:
            return lambda: made
        return None

    def _waits_for(self, key: tuple[int, int]) -> AssemblyLink | None:
        stamp = self._waiting.get(key)
        return None if stamp is None or stamp.used else stamp

    def _identified(self, waits_for: Callable[[], AssemblyLink | None], span: Any) -> None:
        """Link a span that has an identifying attribute, if it is a model call."""
        try:
            _leave(span)
            if is_model_call(span):
                with self._lock:
                    stamp = waits_for()
                    if stamp is not None and stamp.summarizer:
                        stamp.model_spans.append(span.get_span_context())
                    if stamp is None or stamp.used or stamp.summarizer:
                        return
                    stamp.used = True
                    if self._waiting.get(stamp.key) is stamp:
                        del self._waiting[stamp.key]
                stamp.put_on(span)
        except Exception as error:  # noqa: BLE001
            self._failed("link", error)

    def _on_ending(self, span: Any) -> None:
        """Stop watching a span that ends."""
        _leave(span)

    def on_end(self, span: Any) -> None:
        """Do nothing; `_on_ending` does the work while the span still accepts attributes."""

    def shutdown(self) -> None:
        """Forget the waiting assemblies."""
        self._waiting.clear()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Return True: the processor exports nothing."""
        return True
