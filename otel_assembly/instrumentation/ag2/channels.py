"""Channels of AG2's networks: what an agent gets to see of one, and whose run has caused a turn in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.ag2.message_causality import Causes
from otel_assembly.instrumentation.ag2.views import View, unseen, view
from otel_assembly.instrumentation.hooks import observe_hook
from otel_assembly.instrumentation.instrumented import argument

if TYPE_CHECKING:
    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation

_ENVELOPES: Final = Causes(lambda _, envelope, /, *args, **kwargs: envelope.envelope_id)
#: Around the hub's handing out of an envelope, where that has its id, as its sender runs.
dispatched: Final = _ENVELOPES.sends
#: Around an agent's receiving of an envelope, in a task of the network's own.
received: Final = _ENVELOPES.handles


def _viewed(policy: Any, /, *args: Any, participant_id: Any, channel: Any, name_for: Any = None, **rest: Any) -> View:
    return View(
        str(getattr(policy, "name", "") or type(policy).__name__),
        str(channel.channel_id),
        str(participant_id),
        len(argument(args, rest, 0, "wal")),
        None if name_for is None else str(name_for(participant_id)),
    )


#: Around a view's ``project``.
project: Final = view(_viewed)
#: Around the rendering of the message that asks for a turn, for which AG2 asks the view once more.
current_input: Final = unseen


@observe_hook
def view_policy(instrumentation: Instrumentation, /, *args: Any, **kwargs: Any) -> Observation:
    """Around what finds the view for a turn: the views of users are known when they are met."""
    instrumentation.take(type((yield)), "project", project)
