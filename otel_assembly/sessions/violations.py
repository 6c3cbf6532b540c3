"""Sweeping: appends violations of expectations to a session's log."""

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
    """Append a violation for each expectation whose time is over, the earliest first.

    Returns:
        The violations that this call appended, without those of other hubs.

    Raises:
        NetworkError: The log failed, or the adapter raised.
    """
    metadata = session.metadata
    found: list[Envelope] = []
    while True:
        standing = deadlines(metadata, session.folded.state, session.folded.waits)
        if not standing or standing[0].due_at > clock():
            return found
        due = standing[0]
        envelope = violation(metadata, due, HUB_ID)
        try:
            with recorded_post(envelope) as recording:
                recording.known(metadata)
                post = Post(session, recording.carried(envelope), log=log, clock=clock, inbox_limit=None)
                recording.watch(post)
                told = await post.run(0.0)
                recording.accepted(told)
                if post.repeated:
                    continue
                record_violated(metadata, due.kind)
        except ProtocolError as error:
            # The expected envelope came first.
            _log.debug("session %r: %s", metadata.session_id, error)
            return found
        found.append(told)
        _log.warning(
            "session %r: %s of %g s was not met by %s; %s",
            metadata.session_id,
            due.kind,
            due.seconds,
            ", ".join(map(repr, due.waited_for)) or "anybody",
            due.action,
        )
