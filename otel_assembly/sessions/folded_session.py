"""`FoldedSession`: a session's state, computed from the envelopes in its log."""

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
from otel_assembly.sessions.expectations import PendingWaits
from otel_assembly.sessions.metadata import SessionState

if TYPE_CHECKING:
    from otel_assembly.sessions.adapter import ExpectedTurn, SessionAdapter
    from otel_assembly.sessions.metadata import SessionMetadata


@dataclass(frozen=True, slots=True)
class FoldedSession:
    """A session's state after one row of its log, as an immutable object: `after` returns a new one.

    Every hub that reads the same rows computes the same value.

    Attributes:
        adapter_state: The state that the session's adapter computed.
        state: The session's lifecycle state.
        joined: The participants that have joined, in the order of the metadata.
        addressed: The number of envelopes addressed to each participant so far, in the order of the metadata.
        seq: The number of the newest row that the state includes; 0 for none.
        envelope_id: The envelope id of that row.
        created_at: The time at which that row was accepted, in seconds since the epoch.
        waits: The participants that the session is waiting for; the protocol's time limits apply to them.
    """

    adapter_state: Any
    state: SessionState
    joined: tuple[str, ...]
    addressed: tuple[int, ...]
    seq: int = 0
    envelope_id: str = ""
    created_at: float = 0.0
    waits: PendingWaits = field(default_factory=PendingWaits)

    @classmethod
    def fresh(cls, metadata: SessionMetadata, adapter: SessionAdapter) -> FoldedSession:
        """Return the state of a session whose log is empty.

        Raises:
            AdapterError: The adapter's ``initial_state`` raised an error.
        """
        try:
            state = adapter.initial_state(metadata)
        except Exception as error:
            raise AdapterError(metadata.manifest.type, metadata.manifest.version, "initial_state", error) from error
        who = metadata.participants
        return cls(state, SessionState.PENDING, (metadata.creator_id,), (0,) * len(who))

    def after(self, envelope: Envelope, metadata: SessionMetadata, adapter: SessionAdapter) -> FoldedSession:
        """Return the session's state after one more envelope of its log.

        Raises:
            AdapterError: The adapter's ``fold`` raised an error.
        """
        who = metadata.participants
        try:
            adapter_state = adapter.fold(envelope, _modifiable(self.adapter_state))
        except Exception as error:
            manifest = metadata.manifest
            place = f"session {metadata.session_id!r}, row {envelope.seq}"
            raise AdapterError(manifest.type, manifest.version, "fold", error, place) from error
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
        """Return the session with only `joined` and `state` updated for one more envelope.

        Args:
            envelope: The envelope.
            who: The ids of all participants, in the order of the metadata.
        """
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
        """Return the session with this end state; a session that has already ended keeps its own."""
        return self if self.over else replace(self, state=state)

    @property
    def over(self) -> bool:
        """True if the session has ended: closed or expired."""
        return self.state not in (SessionState.PENDING, SessionState.ACTIVE)

    def addressed_to(self, participant_id: str, metadata: SessionMetadata) -> int:
        """Return the number of envelopes addressed to a participant so far."""
        return self.addressed[metadata.participants.index(participant_id)]


def expected_turn(adapter: SessionAdapter, metadata: SessionMetadata, adapter_state: Any) -> ExpectedTurn | None:
    """Return the next turn; None if any participant may speak, or the adapter has no ``expected_next``.

    Raises:
        AdapterError: The adapter's ``expected_next`` raised an error.
    """
    expected_next = getattr(adapter, "expected_next", None)
    if expected_next is None:
        return None
    try:
        turn: ExpectedTurn | None = expected_next(metadata, adapter_state)
    except Exception as error:
        place = f"session {metadata.session_id!r}"
        raise AdapterError(metadata.manifest.type, metadata.manifest.version, "expected_next", error, place) from error
    return turn


def is_for(envelope: Envelope, participant_id: str) -> bool:
    """Return True if an envelope is delivered to a participant: it may see the envelope and did not send it.

    Envelopes of the type ``EV_ENVELOPE_EXPIRED`` are only recorded in the log and never delivered.
    """
    return (
        envelope.sender_id != participant_id
        and envelope.event_type != EV_ENVELOPE_EXPIRED
        and envelope.visible_to(participant_id)
    )


def _modifiable(state: Any) -> Any:
    """Return a state that ``fold`` may modify: a deep copy, or the state itself if its type is frozen."""
    if isinstance(state, BaseModel):
        return state if state.model_config.get("frozen") else state.model_copy(deep=True)
    if is_dataclass(state) and getattr(type(state), "__dataclass_params__").frozen:  # noqa: B009 - typeshed has no such name
        return state
    return copy.deepcopy(state)
