"""`Delivery`: an envelope as it is handed to one participant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_assembly.sessions.envelope import Envelope


@dataclass(frozen=True, slots=True)
class Delivery:
    """An envelope as it is handed to one participant.

    Attributes:
        envelope: The envelope.
        participant_id: Whom it is handed to.
        count: How many envelopes were addressed to the participant up to here.
        expired: Whether its time was over when it was first to be delivered: it is no turn's input then.
    """

    envelope: Envelope
    participant_id: str
    count: int
    expired: bool = False
