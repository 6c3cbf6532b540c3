"""What has caused a run, where agents send one another messages: it goes on with the trace in which it was asked for.

A message may be handled in a task that knows nothing of its sender. Where nobody had a span as it was sent, the run
that it causes is a trace of its own, with a link to the run after which it was sent.
"""

from __future__ import annotations

from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace

from otel_assembly._internal.registry import Registry
from otel_assembly.instrumentation.hooks import observe_async_hook
from otel_assembly.instrumentation.instrumented import context_value
from otel_assembly.instrumentation.lazy_runs import LazyRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.trace import Span, SpanContext

    from otel_assembly.instrumentation.conversation import InvokingAgent
    from otel_assembly.instrumentation.hooks import Observation, Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.telemetry.run import OpenRun

#: Messages of which it is remembered who has sent them.
_MESSAGES: Final = 1_000


@dataclass(slots=True)
class _Handled:
    """What has caused a message, while that is handled.

    Attributes:
        parent: The span in which it was sent, where there was one.
        after: The run after which it was sent, likewise.
        run: The run that was begun last for it.
        waiting: What is reported once the run that follows has a span.
    """

    parent: Span | None = None
    after: SpanContext | None = None
    run: SpanContext | None = None
    waiting: list[Callable[[], None]] = field(default_factory=list)


_HANDLED: Final[ContextVar[_Handled | None]] = ContextVar("otel_assembly_handled_message", default=None)


class Causes:
    """Who has sent which message: the hooks of what sends one, and of what handles it.

    Args:
        id_of: The id of the message, which is one in the process, from the arguments of either.
    """

    def __init__(self, id_of: Callable[..., Any]) -> None:
        self._id_of = id_of
        self._of: Registry[str, tuple[Span | None, SpanContext | None]] = Registry(_MESSAGES, clear_after_fork=True)
        #: Of a coroutine function that sends a message, as its sender runs.
        self.sends: Wrap = observe_async_hook(self._sending)
        #: Of one that handles a message: runs that begin in it are caused by that.
        self.handles: Wrap = observe_async_hook(self._handling)

    def _sending(self, _: Instrumentation, /, *args: Any, **kwargs: Any) -> Observation:
        here, handled = trace.get_current_span().get_span_context(), _HANDLED.get()
        parent = trace.NonRecordingSpan(here) if here.is_valid else None
        after = handled.run if handled is not None else None
        self._of.of(str(self._id_of(*args, **kwargs)), lambda: (parent, after))
        yield

    def _handling(self, _: Instrumentation, /, *args: Any, **kwargs: Any) -> Observation:
        handled = _Handled(*(self._of.get(str(self._id_of(*args, **kwargs))) or ()))
        with (
            context_value(_HANDLED, handled),
            nullcontext() if handled.parent is None else trace.use_span(handled.parent),
        ):
            yield


class CausedRun(LazyRun):
    """A run that a message may have caused, which stands in the trace of that or links to it.

    Args:
        instrumentation: Where it is reported.
        invoking_agent: Whose run it is; asked for as it begins.
    """

    def __init__(self, instrumentation: Instrumentation, invoking_agent: Callable[[], InvokingAgent]) -> None:
        super().__init__(instrumentation, "", at_once=True)
        self._asker = invoking_agent

    def begin(self) -> OpenRun | None:
        """Open its span, and report what has waited for that."""
        invoking_agent, handled = self._asker(), _HANDLED.get()
        self.name, self.conversation_id = str(invoking_agent.agent_name), invoking_agent.conversation_id
        link = handled.after if handled is not None and handled.parent is None else None
        run = self.instrumentation.begin_run(
            self.name, conversation_id=self.conversation_id, force_span=not _has_span(), link=link
        )
        if handled is not None and run is not None:
            handled.run = run.run.span.get_span_context()
            with run.current():
                while handled.waiting:
                    handled.waiting.pop(0)()
        return run


def reported_in_run(report: Callable[[], None]) -> None:
    """Report something that is worked out for a run: now, or as soon as the run that a message causes has a span."""
    handled = _HANDLED.get()
    if handled is None or _has_span():
        report()
    else:
        handled.waiting.append(report)


def _has_span() -> bool:
    """Whether a span is current, and not just that of what has caused the run."""
    span, handled = trace.get_current_span(), _HANDLED.get()
    return span.get_span_context().is_valid and (handled is None or span is not handled.parent)
