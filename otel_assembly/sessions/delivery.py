"""`Delivery`: one envelope in one participant's inbox."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_assembly.sessions.envelope import Envelope


@dataclass(frozen=True, slots=True)
class Delivery:
    """One envelope in one participant's inbox, as returned by `Hub.inbox`.

    Attributes:
        envelope: The envelope.
        participant_id: The recipient.
        count: The number of envelopes that the session has addressed to the participant so far, including this one.
        expired: True if the envelope's `ttl_seconds` had passed at its first delivery; `serve` then starts no turn.
    """

    envelope: Envelope
    participant_id: str
    count: int
    expired: bool = False
