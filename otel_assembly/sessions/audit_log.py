"""The audit log of sessions: one line for each refused envelope."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from otel_assembly.errors import NetworkError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.sessions.envelope import Envelope

_audit: Final = logging.getLogger("otel_assembly.sessions.audit")


@contextmanager
def audited(envelope: Envelope) -> Iterator[None]:
    """Write to the audit log if the block refuses the envelope: its session, sender, type and the error."""
    try:
        yield
    except NetworkError as error:
        _audit.warning(
            "refused: session=%r sender=%r type=%r error=%s: %s",
            envelope.session_id,
            envelope.sender_id,
            envelope.event_type,
            type(error).__name__,
            error,
        )
        raise
