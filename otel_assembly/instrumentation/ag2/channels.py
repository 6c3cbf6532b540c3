"""Wrappers for the channels of AG2's networks, in which agents exchange messages.

They record each view of a channel that an agent is given (a view policy's ``project``), and connect the turn that an
envelope causes (`AgentClient.receive`) to the run that sent it (`Hub._dispatch`).

A message can be handled in another task, which does not inherit the sender's context. The run that handles the message
continues the trace in which the message was sent. If no span was current then, the run starts a trace, with a
link to the run after which the message was sent.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry import trace

from otel_assembly._internal.registry import Registry
from otel_assembly.instrumentation.hooks import observe_async_hook, observe_hook
from otel_assembly.instrumentation.instrumented import argument, context_value, on_exit
from otel_assembly.instrumentation.run_types import LazyRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.trace import Span, SpanContext

    from otel_assembly.instrumentation.conversation import InvokingAgent
    from otel_assembly.instrumentation.hooks import Observation, Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.telemetry.run import OpenRun

#: The maximum number of messages whose senders are remembered.
_MAX_MESSAGES: Final = 1_000


@dataclass(slots=True)
class _MessageHandling:
    """A message that is being handled.

    Attributes:
        parent: The span that was current when the message was sent; None if there was none.
        previous_run: The newest run that was begun for the message that the sender was handling, or None.
        run: The newest run that was begun to handle this message; None before the first.
        pending_reports: Functions to call when the next run has a span.
    """

    parent: Span | None = None
    previous_run: SpanContext | None = None
    run: SpanContext | None = None
    pending_reports: list[Callable[[], None]] = field(default_factory=list)


class _Origin(NamedTuple):
    """Where a message was sent, as in `_MessageHandling`; without values if that was not observed."""

    parent: Span | None = None
    previous_run: SpanContext | None = None


_HANDLING: Final[ContextVar[_MessageHandling | None]] = ContextVar("otel_assembly_handled_message", default=None)


class Causes:
    """Remembers in which span and after which run each message was sent.

    Args:
        id_of: Returns a message's id, unique in the process, from the arguments of the function that sends or handles
            the message.

    Attributes:
        sends: Wraps a coroutine function that sends a message, in the sender's context.
        handles: Wraps a coroutine function that handles a message. Runs that begin in it are connected to the sender.
    """

    def __init__(self, id_of: Callable[..., Any]) -> None:
        self._id_of = id_of
        self._origins: Registry[str, _Origin] = Registry(_MAX_MESSAGES, clear_after_fork=True)
        self.sends: Wrap = observe_async_hook(self._observe_send)
        self.handles: Wrap = observe_async_hook(self._observe_handling)

    def _observe_send(self, _: Instrumentation, /, *args: Any, **kwargs: Any) -> Observation:
        """Remember the sender's span, and the newest run for the message that the sender itself is handling."""
        span_context, handling = trace.get_current_span().get_span_context(), _HANDLING.get()
        parent = trace.NonRecordingSpan(span_context) if span_context.is_valid else None
        previous_run = handling.run if handling is not None else None
        self._origins.of(str(self._id_of(*args, **kwargs)), lambda: _Origin(parent, previous_run))
        yield

    def _observe_handling(self, _: Instrumentation, /, *args: Any, **kwargs: Any) -> Observation:
        """Make the sender's span current, and let a `CausedRun` that begins now find the sender."""
        origin = self._origins.get(str(self._id_of(*args, **kwargs))) or _Origin()
        handling = _MessageHandling(origin.parent, origin.previous_run)
        with (
            context_value(_HANDLING, handling),
            nullcontext() if handling.parent is None else trace.use_span(handling.parent),
        ):
            yield


class CausedRun(LazyRun):
    """A run of an agent, connected to the sender of the message that it handles, if it handles one.

    The run's span is opened with its first step, and none if a span of the framework or the program is current.

    Args:
        invoking_agent: Returns the agent that runs; called when the run begins.
    """

    def __init__(self, instrumentation: Instrumentation, invoking_agent: Callable[[], InvokingAgent]) -> None:
        super().__init__(instrumentation, "", at_once=True)
        self._invoking_agent = invoking_agent

    def begin(self) -> OpenRun | None:
        """Open the run's span, then call the reports that were waiting for it."""
        invoking_agent, handling = self._invoking_agent(), _HANDLING.get()
        self.name, self.conversation_id = str(invoking_agent.agent_name), invoking_agent.conversation_id
        # If no span was current when the message was sent, the runs are in two traces, which a link connects.
        link = handling.previous_run if handling is not None and handling.parent is None else None
        run = self.instrumentation.begin_run(
            self.name, conversation_id=self.conversation_id, force_span=not _has_span(), link=link
        )
        if handling is not None and run is not None:
            handling.run = run.run.span.get_span_context()
            with run.current():
                while handling.pending_reports:
                    handling.pending_reports.pop(0)()
        return run


def reported_in_run(report: Callable[[], None]) -> None:
    """Call a function that records something for a run, in that run's span.

    It is called immediately, unless a message is being handled and its run has no span yet: then when that run begins.
    """
    handling = _HANDLING.get()
    if handling is None or _has_span():
        report()
    else:
        handling.pending_reports.append(report)


def _has_span() -> bool:
    """Return whether a span is current other than the sender's, which `_observe_handling` has made current."""
    span, handling = trace.get_current_span(), _HANDLING.get()
    return span.get_span_context().is_valid and (handling is None or span is not handling.parent)


class View(NamedTuple):
    """A view of a channel, without its messages.

    Attributes:
        participant: The id of the participant that the view is for.
        envelopes: The number of envelopes that the view was computed from.
        agent_name: The participant's name, or None if it is not known.
    """

    name: str
    channel: str
    participant: str
    envelopes: int
    agent_name: str | None = None


#: Whether views are not recorded here: inside of another view, which is recorded for both, or of an `unseen` function.
_VIEWING: Final[ContextVar[bool]] = ContextVar("otel_assembly_viewing", default=False)


def view(read_view: Callable[..., View]) -> Wrap:
    """Return the hook of a coroutine function that computes a view and returns its messages.

    `read_view` returns the `View`, from the function's arguments.
    """

    def observe_view(instrumentation: Instrumentation, /, *args: Any, **kwargs: Any) -> Observation:
        if _VIEWING.get():
            return
        started_ns, messages = time.time_ns(), ()

        def record(error: BaseException | None) -> None:  # also called after an exception, then without messages
            read = read_view(*args, **kwargs)
            report = partial(
                instrumentation.observed.project,
                read.name,
                f"{read.channel}\0{read.participant}",  # each participant has views of its own
                envelopes_in=read.envelopes,
                events=messages,
                agent_name=read.agent_name,
                conversation_id=read.channel,
                started_ns=started_ns,
                error=error,
            )
            if error is None:
                reported_in_run(report)
            else:
                report()  # after an error, no run may begin

        with on_exit(record), context_value(_VIEWING, True):
            messages = yield

    return observe_async_hook(observe_view)


@observe_async_hook
def unseen(_: Instrumentation, /, *args: Any, **kwargs: Any) -> Observation:
    """Wrap a coroutine function so that views which are computed inside of it are not recorded."""
    with context_value(_VIEWING, True):
        yield


_ENVELOPES: Final = Causes(lambda _, envelope, /, *args, **kwargs: envelope.envelope_id)
#: Wraps `Hub._dispatch`, which runs in the sender's context, after the envelope has been given its id.
hub_dispatch: Final = _ENVELOPES.sends
#: Wraps `AgentClient.receive`, which runs in a task of the network, outside of the sender's context.
client_receive: Final = _ENVELOPES.handles


def _view_of(policy: Any, /, *args: Any, participant_id: Any, channel: Any, name_for: Any = None, **rest: Any) -> View:
    return View(
        name=str(getattr(policy, "name", "") or type(policy).__name__),
        channel=str(channel.channel_id),
        participant=str(participant_id),
        envelopes=len(argument(args, rest, 0, "wal")),  # the channel's log of envelopes
        agent_name=None if name_for is None else str(name_for(participant_id)),
    )


#: Wraps a view policy's ``project``.
project: Final = view(_view_of)
#: Wraps `_render_current_input`, which calls ``project`` again to render the newest envelope alone: not a view.
current_input: Final = unseen


@observe_hook
def view_policy(instrumentation: Instrumentation, /, *args: Any, **kwargs: Any) -> Observation:
    """Wrap `resolve_view_policy`, to wrap ``project`` of the user's own view policies on first use."""
    instrumentation.wrap_once(type((yield)), "project", project)
