"""`FoldedSession`: what a log says of a session, as one value that every hub that reads it comes to."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from otel_assembly.errors import AdapterError
from otel_assembly.sessions.envelope import (
    EV_ENVELOPE_EXPIRED,
    EV_SESSION_CLOSED,
    EV_SESSION_EXPIRED,
    EV_SESSION_INVITE_ACK,
    EV_SESSION_INVITE_REJECT,
    Envelope,
)
from otel_assembly.sessions.expectations import Waits
from otel_assembly.sessions.metadata import SessionState

if TYPE_CHECKING:
    from otel_assembly.sessions.adapter import ExpectedTurn, SessionAdapter
    from otel_assembly.sessions.metadata import SessionMetadata


@dataclass(frozen=True, slots=True)
class FoldedSession:
    """A session up to one row of its log. Values only: what follows from a row is another one.

    Attributes:
        adapter_state: What the session's adapter folded.
        state: Where the session stands.
        joined: The participants who have joined, in the order of the metadata.
        addressed: How many envelopes were ever addressed to each participant, in the order of the metadata.
        seq: The row it is folded up to; 0 for none.
        envelope_id: That row's envelope.
        created_at: When that was accepted, in seconds since the epoch.
        waits: What the session waits for, and since when.
    """

    adapter_state: Any
    state: SessionState
    joined: tuple[str, ...]
    addressed: tuple[int, ...]
    seq: int = 0
    envelope_id: str = ""
    created_at: float = 0.0
    waits: Waits = field(default_factory=Waits)

    @classmethod
    def fresh(cls, metadata: SessionMetadata, adapter: SessionAdapter) -> FoldedSession:
        """A session of which nothing is logged yet.

        Raises:
            AdapterError: The adapter could not make a state.
        """
        try:
            state = adapter.initial_state(metadata)
        except Exception as error:
            raise AdapterError(metadata.manifest.type, metadata.manifest.version, "initial_state", error) from error
        who = metadata.participants
        return cls(state, SessionState.PENDING, (metadata.creator_id,), (0,) * len(who))

    def after(self, envelope: Envelope, metadata: SessionMetadata, adapter: SessionAdapter) -> FoldedSession:
        """The session after one more envelope.

        Raises:
            AdapterError: The adapter's ``fold`` raised.
        """
        who = metadata.participants
        try:
            adapter_state = adapter.fold(envelope, _own(self.adapter_state))
        except Exception as error:
            manifest = metadata.manifest
            where = f"session {metadata.session_id!r}, row {envelope.seq}"
            raise AdapterError(manifest.type, manifest.version, "fold", error, where) from error
        turn = expected_turn(adapter, metadata, adapter_state)
        folded = replace(
            self,
            adapter_state=adapter_state,
            waits=self.waits.after(envelope, metadata, turn),
            addressed=tuple(n + is_for(envelope, p) for n, p in zip(self.addressed, who, strict=True)),
            seq=envelope.seq,
            envelope_id=envelope.envelope_id,
            created_at=envelope.created_at,
        )
        return folded.moved(envelope, who)

    def moved(self, envelope: Envelope, who: tuple[str, ...]) -> FoldedSession:
        """The session after a step of the protocol: who joined, and where it stands."""
        kind, pending = envelope.event_type, self.state is SessionState.PENDING
        if kind == EV_SESSION_INVITE_ACK:
            joined = tuple(p for p in who if p in self.joined or p == envelope.sender_id)
            if pending and len(joined) == len(who):
                return replace(self, joined=joined, state=SessionState.ACTIVE)
            return replace(self, joined=joined)
        if kind == EV_SESSION_CLOSED or (kind == EV_SESSION_INVITE_REJECT and pending):
            return self.ended(SessionState.CLOSED)
        if kind == EV_SESSION_EXPIRED:
            return self.ended(SessionState.EXPIRED)
        return self

    def ended(self, state: SessionState) -> FoldedSession:
        """The session in the state that it ended in; the first end is the one that stays."""
        return self if self.over else replace(self, state=state)

    @property
    def over(self) -> bool:
        """Whether the session has ended, whichever way."""
        return self.state not in (SessionState.PENDING, SessionState.ACTIVE)

    def addressed_to(self, participant_id: str, metadata: SessionMetadata) -> int:
        """How many envelopes were ever addressed to a participant."""
        return self.addressed[metadata.participants.index(participant_id)]


def expected_turn(adapter: SessionAdapter, metadata: SessionMetadata, adapter_state: Any) -> ExpectedTurn | None:
    """Whose turn it is, as an adapter says; None where it does not say, or nobody in particular is to speak.

    Raises:
        AdapterError: Its ``expected_next`` raised.
    """
    expected_next = getattr(adapter, "expected_next", None)
    if expected_next is None:
        return None
    try:
        turn: ExpectedTurn | None = expected_next(metadata, adapter_state)
    except Exception as error:
        where = f"session {metadata.session_id!r}"
        raise AdapterError(metadata.manifest.type, metadata.manifest.version, "expected_next", error, where) from error
    return turn


def is_for(envelope: Envelope, participant_id: str) -> bool:
    """Whether an envelope is delivered to a participant: it may see it, and did not send it.

    That an envelope had expired is a note for the log alone; it is delivered to nobody.
    """
    return (
        envelope.sender_id != participant_id
        and envelope.event_type != EV_ENVELOPE_EXPIRED
        and envelope.visible_to(participant_id)
    )


def _own(state: Any) -> Any:
    """A state that a fold may do with as it likes; what is frozen is handed over as it is."""
    if isinstance(state, BaseModel):
        return state if state.model_config.get("frozen") else state.model_copy(deep=True)
    if is_dataclass(state) and getattr(type(state), "__dataclass_params__").frozen:  # noqa: B009 - typeshed has no such name
        return state
    return copy.deepcopy(state)
