"""Views of AG2's networks: what one participant gets to see of a channel, as spans of their own.

A turn of a network has no span while its view is worked out: what there is to tell waits for the ask that follows.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace

from otel_assembly.instrumentation.wrapping import argument, bound

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_assembly.instrumentation.instrumentor import Instrumentation

#: Whether what is projected is the message that asks for this turn: it is no part of the history.
_CURRENT_INPUT: Final[ContextVar[bool]] = ContextVar("otel_assembly_ag2_current_input", default=False)
#: Whether a view runs already: one that asks another tells of both.
_PROJECTING: Final[ContextVar[bool]] = ContextVar("otel_assembly_ag2_projecting", default=False)
#: What this turn's projections have to tell, once it has a span; None outside of a turn.
_WAITING: Final[ContextVar[list[Callable[[], None]] | None]] = ContextVar("otel_assembly_ag2_waiting", default=None)


def tell_what_waits() -> None:
    """The turn has its span: what was projected for it is told there."""
    waiting = _WAITING.get()
    while waiting:
        waiting.pop(0)()


def project(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around a view's ``project``."""

    @wraps(original)
    async def projected(self: Any, *args: Any, participant_id: Any, channel: Any, **rest: Any) -> Any:
        if not instrumentation.listening() or _CURRENT_INPUT.get() or _PROJECTING.get():
            return await original(self, *args, participant_id=participant_id, channel=channel, **rest)
        started_ns = time.time_ns()
        events: Any = ()
        error: BaseException | None = None
        try:
            with bound(_PROJECTING, True):
                events = await original(self, *args, participant_id=participant_id, channel=channel, **rest)
        except BaseException as raised:
            error = raised
            raise
        finally:
            with instrumentation.contained():
                envelopes = len(argument(args, rest, 0, "wal"))
                name_for = rest.get("name_for")
                tell = partial(
                    instrumentation.observed.project,
                    str(getattr(self, "name", "") or type(self).__name__),
                    f"{channel.channel_id}\0{participant_id}",
                    envelopes_in=envelopes,
                    events=events,
                    agent_name=str(name_for(participant_id)) if name_for is not None else None,
                    conversation_id=str(channel.channel_id),
                    started_ns=started_ns,
                    error=error,
                )
                waiting = _WAITING.get()
                if waiting is None or error is not None or trace.get_current_span().get_span_context().is_valid:
                    tell()
                else:
                    waiting.append(tell)
        return events

    return projected


def current_input(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around the rendering of the message that asks for a turn, for which AG2 asks the view once more."""

    @wraps(original)
    async def rendered(*args: Any, **kwargs: Any) -> Any:
        if not instrumentation.listening():
            return await original(*args, **kwargs)
        with bound(_CURRENT_INPUT, True):
            return await original(*args, **kwargs)

    return rendered


def view_policy(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around what finds the view for a turn: the views of users are known when they are met."""

    @wraps(original)
    def resolved(*args: Any, **kwargs: Any) -> Any:
        view = original(*args, **kwargs)
        if instrumentation.listening():
            with instrumentation.contained():
                instrumentation.patches.take(type(view), "project", lambda method: project(method, instrumentation))
                _WAITING.set([])
        return view

    return resolved
