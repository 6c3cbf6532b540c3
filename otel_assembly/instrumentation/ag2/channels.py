"""Wrappers for the channels of AG2's networks.

They record each view of a channel that an agent is given (a view policy's ``project``), and connect the turn that an
envelope causes (`AgentClient.receive`) to the run that sent it (`Hub._dispatch`).
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_assembly.instrumentation.ag2.message_causality import Causes, reported_in_run
from otel_assembly.instrumentation.hooks import observe_async_hook, observe_hook
from otel_assembly.instrumentation.instrumented import argument, context_value, on_exit

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_assembly.instrumentation.hooks import Observation, Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation


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


def view(reads: Callable[..., View]) -> Wrap:
    """Return the hook of a coroutine function that computes a view and returns its messages.

    `reads` returns the `View`, from the function's arguments.
    """

    def observe_view(instrumentation: Instrumentation, /, *args: Any, **kwargs: Any) -> Observation:
        if _VIEWING.get():
            return
        started_ns, messages = time.time_ns(), ()

        def record(error: BaseException | None) -> None:  # also called after an exception, then without messages
            read = reads(*args, **kwargs)
            report = partial(
                instrumentation.observed.project,
                read.name,
                f"{read.channel}\0{read.participant}",
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
                report()

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
        str(getattr(policy, "name", "") or type(policy).__name__),
        str(channel.channel_id),
        str(participant_id),
        len(argument(args, rest, 0, "wal")),  # the channel's log of envelopes
        None if name_for is None else str(name_for(participant_id)),
    )


#: Wraps a view policy's ``project``.
project: Final = view(_view_of)
#: Wraps `_render_current_input`, which calls ``project`` again to render the newest envelope alone: not a view.
current_input: Final = unseen


@observe_hook
def view_policy(instrumentation: Instrumentation, /, *args: Any, **kwargs: Any) -> Observation:
    """Wrap `resolve_view_policy`, to wrap ``project`` of the user's own view policies on first use."""
    instrumentation.wrap_once(type((yield)), "project", project)
