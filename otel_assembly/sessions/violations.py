"""Appends reports of violated expectations, such as a missed deadline for an answer, to a session's log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from otel_assembly.errors import ProtocolError
from otel_assembly.sessions.expectations import deadlines, violation
from otel_assembly.sessions.post import HUB_ID, Post
from otel_assembly.sessions.session_recorder import record_violated, recorded_post

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_assembly.sessions.envelope import Envelope
    from otel_assembly.sessions.hub_session import HubSession
    from otel_assembly.sessions.log import SessionLog

_log = logging.getLogger(__name__)


async def append_violations(session: HubSession, log: SessionLog, clock: Callable[[], float]) -> list[Envelope]:
    """Append an envelope for each expectation whose deadline has passed, the earliest deadline first.

    Returns:
        The envelopes that this call appended, without those that another hub appended first.

    Raises:
        NetworkError: The log failed, or the adapter raised.
    """
    metadata = session.metadata
    appended: list[Envelope] = []
    while True:
        pending = deadlines(metadata, session.folded.state, session.folded.waits)
        if not pending or pending[0].due_at > clock():
            return appended
        due = pending[0]
        envelope = violation(metadata, due, HUB_ID)
        try:
            with recorded_post(envelope) as recording:
                recording.known(metadata)
                post = Post(session, recording.carried(envelope), log=log, clock=clock, inbox_limit=None)
                recording.watch(post)
                accepted = await post.run(0.0)
                recording.accepted(accepted)
                if post.repeated:
                    continue
                record_violated(metadata, due.kind)
        except ProtocolError as error:
            # The expected envelope was appended meanwhile.
            _log.debug("session %r: %s", metadata.session_id, error)
            return appended
        appended.append(accepted)
        _log.warning(
            "session %r: %s of %g s was not met by %s; %s",
            metadata.session_id,
            due.kind,
            due.seconds,
            ", ".join(map(repr, due.waited_for)) or "any participant",
            due.action,
        )
