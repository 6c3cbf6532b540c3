"""Link a model call's span to the assembly that made its prompt.

The model call's span is found as follows:

1. The current span, if it is a model call. AG2's telemetry starts this span before the assembly.
2. Else the next model call in the same trace with the same parent. A summarizer's model call within the assembly has
   another parent, so it does not match.
3. If the assembly's span has no parent, it is the root of a trace. Then the next model call without a parent that
   starts in the same context is linked, across the two traces.

Several spans can describe one model call: Anthropic's client opens one, and so does an instrumentation of the client.
If the current span is a model call, all model calls directly around it are linked too. So is an open one that never
became current (OpenLLMetry for Anthropic), if its parent is the current span or that of one of these model calls. If an
instrumentation creates the span after the answer (OpenLLMetry for Responses), its start time shows that it belongs to
the call.

A summarizer's model call is never linked to an assembly. Its parent is its ``compact_block`` span, or that span links
to it if the compaction is recorded later.

Many instrumentations set the attributes that identify a model call after the span's start, and an ended span accepts no
attributes. So this module watches each span that may be the model call until such an attribute is set or the span ends.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet, ref

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
    """An assembly that waits for its model call's span: the attributes and the link that the span gets.

    Attributes:
        assembly_id: The assembly's id.
        span: The assembly's span.
        reduced: Whether the assembly dropped or compacted anything.
        key: The trace id and span id of the expected parent; those of the assembly's own span if that has no parent.
        is_root: Whether the assembly's span has no parent.
        used: Whether the model call's span was found.
        ended_ns: When the client answered, in nanoseconds since 1970; None before.
        summarizer: True if the model call is a reducer's own call (to make a summary), whose prompt no assembly made.
        model_spans: The spans of a summarizer's model calls.
    """

    assembly_id: str
    span: SpanContext
    reduced: bool
    key: tuple[int, int] = (0, 0)
    is_root: bool = False
    used: bool = False
    ended_ns: int | None = None
    summarizer: bool = False
    model_spans: list[SpanContext] = field(default_factory=list)

    def put_on_all(self, spans: Iterable[Span]) -> None:
        """Call `put_on` for the open spans of the model call, so that no later span is linked to the assembly."""
        self.used = True
        _LAST_LINK.set(self)
        for span in spans:
            self.put_on(span)

    def put_on(self, span: Span) -> None:
        """Set the assembly's id on the span of its model call, and link that span to the assembly's span."""
        span.set_attribute(names.ID, self.assembly_id)
        if self.reduced:
            span.set_attribute(names.GEN_AI_CONVERSATION_COMPACTED, True)
        if self.span.is_valid and self.span.trace_flags.sampled:
            span.add_link(self.span)


#: The link of the last assembly in this context.
_LAST_LINK: Final[ContextVar[AssemblyLink | None]] = ContextVar("otel_assembly_made", default=None)
#: The link for the framework's model call that runs in this context.
_CALL_LINK: Final[ContextVar[AssemblyLink | None]] = ContextVar("otel_assembly_called", default=None)


class CalledModel:
    """A framework's call of its model, whose prompt comes from the last assembly in this context.

    The first span of a model call that starts during this call is linked to that assembly, even if the span has another
    parent or trace than expected: OpenInference gives LangChain's spans parents that are never current.

    Args:
        prepared: False for a reducer's own model call, whose prompt comes from no assembly.
    """

    def __init__(self, *, prepared: bool = True) -> None:
        self._link = (
            _LAST_LINK.get() if prepared else AssemblyLink("", INVALID_SPAN_CONTEXT, reduced=False, summarizer=True)
        )

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the call current in this block; never keep the block open across a ``yield``."""
        token = _CALL_LINK.set(self._link)
        try:
            yield
        finally:
            with suppress(ValueError):  # a coroutine that is closed before its end is often closed in another context
                _CALL_LINK.reset(token)

    @property
    def model_spans(self) -> Sequence[SpanContext]:
        """The spans of a summarizer's model calls."""
        return self._link.model_spans if self._link is not None else ()

    def end(self, error: BaseException | None = None) -> None:
        """Record that the client has answered; a call without a parent that starts later belongs to no assembly."""
        if self._link is not None:
            self._link.ended_ns = time.time_ns()


def _key(span: SpanContext) -> tuple[int, int]:
    return span.trace_id, span.span_id


def is_model_call(span: Any) -> bool:
    """Return whether an SDK's span is a model call, by the attributes of the GenAI conventions or OpenInference."""
    return _is_model_call(span) is True


def _is_model_call(span: Any) -> bool | None:
    """Return whether a span is a model call; None if it has no attribute yet that shows this."""
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
        """Call the span's own method, then check whether the attribute identifies a model call."""
        self._call("set_attribute", key, value)
        self._check((key,))

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Call the span's own method, then check whether the attributes identify a model call."""
        self._call("set_attributes", attributes)
        self._check(attributes)

    def _call(self, name: str, *arguments: Any) -> None:
        before = self._before[name]
        if before is not None:
            before(*arguments)
        else:
            getattr(type(self._span), name)(self._span, *arguments)

    def _check(self, attribute_names: Iterable[Any]) -> None:
        try:
            identifies = not _IDENTIFYING.isdisjoint(attribute_names)
        except TypeError:  # the caller passed no mapping; the span's own method has handled that
            return
        if identifies:
            self._identified(self._span)

    def leave(self) -> None:
        """Restore the span's own setters, unless another library has replaced them since."""
        attributes = vars(self._span)
        for name, before in self._before.items():
            if attributes.get(name) == getattr(self, name):
                del attributes[name]
                if before is not None:
                    attributes[name] = before


def _watch_of(span: Any) -> _WatchedSpan | None:
    owner = getattr(vars(span).get(_SETTERS[0]), "__self__", None)
    return owner if isinstance(owner, _WatchedSpan) else None


def _stop_watching(span: Any) -> None:
    watch = _watch_of(span)
    if watch is not None:
        watch.leave()


def is_opened_since(span: Any, earlier: Any) -> bool:
    """Return whether a span of the same trace began after an earlier one."""
    start, earlier_start = getattr(span, "start_time", None), getattr(earlier, "start_time", None)
    if start is None or earlier_start is None or start <= earlier_start:
        return False
    return bool(span.get_span_context().trace_id == earlier.get_span_context().trace_id)


#: The model calls that opened in this context and have no assembly yet, as weak references.
_OPEN_CALLS: Final[ContextVar[tuple[ref[Any], ...]]] = ContextVar("otel_assembly_open_model_calls", default=())


def _open_calls() -> list[Any]:
    spans = [found for reference in _OPEN_CALLS.get() if (found := reference()) is not None]
    return [span for span in spans if span.is_recording() and names.ID not in (span.attributes or {})]


def running_calls(current: Any) -> list[Any]:
    """Return the open spans of the model call that is running, if an instrumentation has opened them already.

    Args:
        current: The current span, which may be one of them.
    """
    calls: dict[tuple[int, int], Any] = {}
    for span in enclosing_spans(current) if current.is_recording() else ():
        if not (span.is_recording() and is_model_call(span)):
            break
        calls[_key(span.get_span_context())] = span
    if _OPEN_CALLS.get():
        context = current.get_span_context()
        parents = [context if context.is_valid else None, *(span.parent for span in calls.values())]
        calls |= {_key(span.get_span_context()): span for span in _open_calls() if span.parent in parents}
    return [*calls.values()]


#: The processors of all tracer providers.
_PROCESSORS: Final[WeakSet[LinkingProcessor]] = WeakSet()
#: The most spans that `enclosing_spans` returns.
_DEPTH: Final = 64


def enclosing_spans(span: Any) -> Iterator[Any]:
    """Yield a span, its parent, the parent's parent and so on, as far as they are known in this process.

    A parent is known if it started after the tracer provider got this library's span processor.
    """
    for _ in range(_DEPTH):
        if span is None:
            return
        yield span
        parent = getattr(span, "parent", None)
        if parent is None:
            return
        span = next((known for processor in _PROCESSORS if (known := processor.span(parent)) is not None), None)


class LinkingProcessor:
    """A span processor that links the spans of model calls to the assemblies that wait for them.

    The class does not inherit from the SDK's class, because the SDK need not be installed.
    """

    def __init__(self, failed: Callable[[str, BaseException], None]) -> None:
        self._failed = failed
        self._lock = new_lock()
        #: The spans of this process by their ids, as long as they exist; see `enclosing_spans`. A `WeakValueDictionary`
        #: does the same in 1 µs more per span.
        self._spans: dict[tuple[int, int], ref[Any]] = {}
        _PROCESSORS.add(self)
        self._waiting: OrderedDict[tuple[int, int], AssemblyLink] = OrderedDict()

    def span(self, context: SpanContext) -> Any:
        """Return the span of this process with these ids; None if it is unknown or does not exist any more."""
        reference = self._spans.get(_key(context))
        return None if reference is None else reference()

    def await_call(self, parent: Span, opened: Span | None, link: AssemblyLink) -> None:
        """Wait for the next model call below a parent, and link its span to the assembly of `link`.

        The parent itself, or the span that opened during the assembly, may also turn out to be the model call.
        """
        link.key = _key(parent.get_span_context())
        self._await(link)
        self._watch(parent, link.key)
        if opened is not None:
            self._watch(opened, link.key)

    def await_root_call(self, link: AssemblyLink) -> None:
        """Wait for a model call without a parent that starts in this context, and link its span."""
        link.key, link.is_root = _key(link.span), True
        self._await(link)

    def _await(self, link: AssemblyLink) -> None:
        earlier = _LAST_LINK.get()
        # Only this processor's links are replaced; another provider may have a processor of its own.
        if earlier is not None and self._waiting.get(earlier.key) is not earlier:
            earlier = None
        if earlier is not None and not earlier.used:
            if earlier.key == link.key or (earlier.is_root and link.is_root):
                # Several assemblies can make one prompt, for example a framework's reducers and then a built-in
                # plug-in. If any of them reduced the prompt, the prompt is reduced.
                link.reduced = link.reduced or earlier.reduced
                earlier.used = True
            else:
                earlier = None
        _LAST_LINK.set(link)
        with self._lock:
            if earlier is not None:  # else a program whose model calls have no spans would fill the dict
                self._waiting.pop(earlier.key, None)
            self._waiting[link.key] = link
            self._waiting.move_to_end(link.key)
            if len(self._waiting) > _WAITING:
                self._waiting.popitem(last=False)

    def _watch(self, span: Any, key: tuple[int, int]) -> None:
        while hasattr(span, "__wrapped__"):  # another instrumentation wraps the SDK's span
            span = span.__wrapped__
        if span.is_recording() and _is_model_call(span) is None and _watch_of(span) is None:
            _WatchedSpan(span, partial(self._identified, partial(self._waiting_link, key)))

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Link a started model call, or watch a span that may become one."""
        try:
            is_own, context = span.instrumentation_scope.name == names.SCOPE, span.get_span_context()
            try:
                key = context.trace_id, context.span_id
                self._spans[key] = ref(span, partial(self._spans.pop, key))
                if not is_own and _is_model_call(span):
                    _OPEN_CALLS.set((*map(ref, _open_calls()), ref(span)))
            except TypeError:  # another SDK's span may not support weak references
                pass
            if is_own and span.parent is not None:  # this library's spans are no model calls
                return
            find_link = self._link_finder(span) if self._waiting or _CALL_LINK.get() is not None else None
            if find_link is None or is_own:
                return
            if _is_model_call(span) is not None:
                self._identified(find_link, span)
            else:
                _WatchedSpan(span, partial(self._identified, find_link))
        except Exception as error:  # noqa: BLE001  # telemetry must not fail the agent
            self._failed("link", error)

    def _link_finder(self, span: Any) -> Callable[[], AssemblyLink | None] | None:
        """Return a function that finds the link for a started span; None if no assembly waits for such a span."""
        call_link, last_link = _CALL_LINK.get(), _LAST_LINK.get()
        if call_link is not None and not call_link.used:
            return lambda: call_link
        parent = None if span.parent is None else _key(span.parent)
        if parent is not None:
            return partial(self._waiting_link, parent) if self._waiting_link(parent) is not None else None
        if call_link is not None or last_link is None or not last_link.is_root or last_link.used:
            return None
        if last_link.ended_ns is not None and (getattr(span, "start_time", None) or 0) > last_link.ended_ns:
            last_link.used = True
            return None
        return lambda: last_link

    def _waiting_link(self, key: tuple[int, int]) -> AssemblyLink | None:
        link = self._waiting.get(key)
        return None if link is None or link.used else link

    def _identified(self, find_link: Callable[[], AssemblyLink | None], span: Any) -> None:
        """Link a span to its assembly if it is a model call; called when an attribute shows whether it is one."""
        try:
            _stop_watching(span)
            if is_model_call(span):
                with self._lock:
                    link = find_link()
                    if link is not None and link.summarizer:
                        link.model_spans.append(span.get_span_context())
                    if link is None or link.used or link.summarizer:
                        return
                    link.used = True
                    if self._waiting.get(link.key) is link:
                        del self._waiting[link.key]
                link.put_on(span)
        except Exception as error:  # noqa: BLE001
            self._failed("link", error)

    def _on_ending(self, span: Any) -> None:
        """Stop watching a span that ends."""
        if _SETTERS[0] in vars(span):
            _stop_watching(span)

    def on_end(self, span: Any) -> None:
        """Do nothing; `_on_ending` does the work while the span still accepts attributes."""

    def shutdown(self) -> None:
        """Forget the waiting assemblies."""
        self._waiting.clear()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Return True, because the processor exports nothing."""
        return True
