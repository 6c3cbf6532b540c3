"""The one hook for what an agent is shown of what a network of agents has said: no assembly, but what one begins with.

It is worked out before the run that it is for has a span, and is reported as soon as that has one; a view that failed
is reported at once.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_assembly.instrumentation.ag2.message_causality import reported_in_run
from otel_assembly.instrumentation.hooks import observe_async_hook
from otel_assembly.instrumentation.instrumented import context_value, on_exit

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_assembly.instrumentation.hooks import Observation, Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation


class View(NamedTuple):
    """What is known of a view beside the messages that come out.

    Attributes:
        name: Its name, of low cardinality.
        channel: The id of what is looked at.
        participant: Who looks at it.
        envelopes: How many envelopes it is made of.
        agent_name: The name of who looks at it, where that is known.
    """

    name: str
    channel: str
    participant: str
    envelopes: int
    agent_name: str | None = None


#: Whether what is worked out here is no view of its own: one that asks another one reports for both.
_VIEWING: Final[ContextVar[bool]] = ContextVar("otel_assembly_viewing", default=False)


def view(reads: Callable[..., View]) -> Wrap:
    """The hook of a coroutine function that works out what an agent is shown, and returns the messages.

    Args:
        reads: What is known of it, from the function's arguments.
    """

    def viewed(instrumentation: Instrumentation, /, *args: Any, **kwargs: Any) -> Observation:
        if _VIEWING.get():
            return
        started_ns, messages = time.time_ns(), ()

        def over(error: BaseException | None) -> None:
            of = reads(*args, **kwargs)
            report = partial(
                instrumentation.observed.project,
                of.name,
                f"{of.channel}\0{of.participant}",
                envelopes_in=of.envelopes,
                events=messages,
                agent_name=of.agent_name,
                conversation_id=of.channel,
                started_ns=started_ns,
                error=error,
            )
            if error is None:
                reported_in_run(report)
            else:
                report()

        with on_exit(over), context_value(_VIEWING, True):
            messages = yield

    return observe_async_hook(viewed)


@observe_async_hook
def _asked(_: Instrumentation, /, *args: Any, **kwargs: Any) -> Observation:
    with context_value(_VIEWING, True):
        yield


def unseen(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """The hook of a coroutine function that asks a view for what is no part of a history."""
    return _asked(original, instrumentation)
