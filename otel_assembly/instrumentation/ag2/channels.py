"""Wrappers for the channels of AG2's networks.

They record each view of a channel that an agent is given (a view policy's ``project``), and connect the turn that an
envelope causes (`AgentClient.receive`) to the run that sent it (`Hub._dispatch`).
"""

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
#: Wraps `Hub._dispatch`, which runs in the sender's context, after the envelope has been given its id.
hub_dispatch: Final = _ENVELOPES.sends
#: Wraps `AgentClient.receive`, which runs in a task of the network, outside of the sender's context.
client_receive: Final = _ENVELOPES.handles


def _view_of(policy: Any, /, *args: Any, participant_id: Any, channel: Any, name_for: Any = None, **rest: Any) -> View:
    """Return the view that a call of ``project`` with these arguments computes."""
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
