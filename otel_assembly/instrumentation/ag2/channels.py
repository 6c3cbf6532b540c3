"""Channels of AG2's networks: what an agent gets to see of one, and whose run has caused a turn in it.

A turn in a channel goes on with the trace in which the envelope was sent that asks for it. Where nobody had a span
there, it is a trace of its own, with a link to the run of the agent that has sent it. A turn has no span while its view
is worked out: the view is reported as soon as the run that follows has one.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace

from otel_assembly._internal.registry import Registry
from otel_assembly.instrumentation.hooks import around, around_awaited
from otel_assembly.instrumentation.instrumented import argument, bound, ending

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.trace import Span, SpanContext

    from otel_assembly.instrumentation.conversation import Asker
    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.telemetry.run import OpenRun

#: Envelopes of which it is remembered who has sent them.
_ENVELOPES: Final = 1_000


@dataclass(slots=True)
class _Received:
    """What has caused an envelope, while it is handled.

    Attributes:
        parent: The span in which it was sent, where there was one.
        after: The run after which it was sent, likewise.
        run: The run that was begun last for it.
        waiting: What the projections for its turn have to report, once that has a span.
    """

    parent: Span | None = None
    after: SpanContext | None = None
    run: SpanContext | None = None
    waiting: list[Callable[[], None]] = field(default_factory=list)


_CAUSES: Final[Registry[str, tuple[Span | None, SpanContext | None]]] = Registry(_ENVELOPES, anew_in_child=True)
_RECEIVED: Final[ContextVar[_Received | None]] = ContextVar("otel_assembly_ag2_received", default=None)
#: Whether a projection is none of its own: a view that asks another one reports for both, and the message that asks for
#: a turn, for which AG2 asks the view once more, is no part of the history.
_PROJECTING: Final[ContextVar[bool]] = ContextVar("otel_assembly_ag2_projecting", default=False)


def channel_of(context: Any, agent: Any) -> str | None:
    """The id of the network's channel in which it is this agent's turn; an agent that it asks has its own stream."""
    channel = context.dependencies.get("ag2.network.channel")
    client = context.dependencies.get("ag2.network.agent_client")
    return str(channel.channel_id) if channel is not None and getattr(client, "agent", None) is agent else None


def _has_span() -> bool:
    """Whether a span is current, and not just that of what has caused the turn."""
    span, received = trace.get_current_span(), _RECEIVED.get()
    return span.get_span_context().is_valid and (received is None or span is not received.parent)


def begun(instrumentation: Instrumentation, asker: Asker) -> OpenRun | None:
    """A run begins, in a channel or not."""
    received = _RECEIVED.get()
    link = received.after if received is not None and received.parent is None else None
    run = instrumentation.begin_run(
        str(asker.agent_name), conversation_id=asker.conversation_id, anew=not _has_span(), link=link
    )
    if received is not None and run is not None:
        received.run = run.run.span.get_span_context()
        with run.current():
            while received.waiting:
                received.waiting.pop(0)()
    return run


@around_awaited
def dispatched(instrumentation: Instrumentation, hub: Any, envelope: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around the hub's handing out of an envelope, where that has its id, as its sender runs."""
    sent_in, received = trace.get_current_span().get_span_context(), _RECEIVED.get()
    parent = trace.NonRecordingSpan(sent_in) if sent_in.is_valid else None
    after = received.run if received is not None else None
    _CAUSES.of(str(envelope.envelope_id), lambda: (parent, after))
    yield


@around_awaited
def received(instrumentation: Instrumentation, client: Any, envelope: Any, /) -> Observation:
    """Around an agent's receiving of an envelope, in a task of the network's own."""
    handled = _Received(*(_CAUSES.get(str(envelope.envelope_id)) or ()))
    with bound(_RECEIVED, handled), nullcontext() if handled.parent is None else trace.use_span(handled.parent):
        yield


@around_awaited
def project(
    instrumentation: Instrumentation, view: Any, /, *args: Any, participant_id: Any, channel: Any, **rest: Any
) -> Observation:
    """Around a view's ``project``."""
    if _PROJECTING.get():
        return
    started_ns, events, name_for = time.time_ns(), (), rest.get("name_for")

    def projected(error: BaseException | None) -> None:
        report = partial(
            instrumentation.observed.project,
            str(getattr(view, "name", "") or type(view).__name__),
            f"{channel.channel_id}\0{participant_id}",
            envelopes_in=len(argument(args, rest, 0, "wal")),
            events=events,
            agent_name=str(name_for(participant_id)) if name_for is not None else None,
            conversation_id=str(channel.channel_id),
            started_ns=started_ns,
            error=error,
        )
        received = _RECEIVED.get()
        if received is None or error is not None or _has_span():
            report()
        else:
            received.waiting.append(report)

    with ending(projected), bound(_PROJECTING, True):
        events = yield


@around_awaited
def current_input(instrumentation: Instrumentation, /, *args: Any, **kwargs: Any) -> Observation:
    """Around the rendering of the message that asks for a turn."""
    with bound(_PROJECTING, True):
        yield


@around
def view_policy(instrumentation: Instrumentation, /, *args: Any, **kwargs: Any) -> Observation:
    """Around what finds the view for a turn: the views of users are known when they are met."""
    instrumentation.take(type((yield)), "project", project)
