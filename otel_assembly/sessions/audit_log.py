"""The audit log of sessions: a logger that receives one line for each refused envelope."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from otel_assembly.errors import NetworkError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.sessions.envelope import Envelope

_audit_log: Final = logging.getLogger("otel_assembly.sessions.audit")


@contextmanager
def audit_refusal(envelope: Envelope) -> Iterator[None]:
    """Log a warning with the envelope's session, sender and type if the block raises `NetworkError`.

    The error is raised again. The logger is ``otel_assembly.sessions.audit``.
    """
    try:
        yield
    except NetworkError as error:
        _audit_log.warning(
            "refused: session=%r sender=%r type=%r error=%s: %s",
            envelope.session_id,
            envelope.sender_id,
            envelope.event_type,
            type(error).__name__,
            error,
        )
        raise
