"""A protocol for tests: nobody speaks twice in a row; a word closes it, and another makes its code raise."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from otel_assembly.errors import ProtocolError
from otel_assembly.sessions import (
    EV_TEXT,
    AdapterResult,
    Envelope,
    Hub,
    SessionManifest,
    SessionState,
    default_build_round_envelope,
    default_extract_turn_input,
    default_render_envelope,
)


@dataclass(frozen=True)
class TalkState:
    turns: int = 0
    last: str | None = None
    seen: tuple[str, ...] = ()
    done: bool = False


class Talk:
    def __init__(self, version: int = 1, *, in_turns: bool = True) -> None:
        self.in_turns = in_turns
        self.manifest = SessionManifest("talk", version)
        self.folds = 0

    def initial_state(self, metadata):
        return TalkState()

    def fold(self, envelope, state):
        self.folds += 1
        if envelope.event_type != EV_TEXT:
            return state
        text = envelope.event_data["text"]
        if text == "break":
            raise RuntimeError("a fold that raises")
        return TalkState(state.turns + 1, envelope.sender_id, (*state.seen, text)[-3:], text == "bye")

    def validate_create(self, metadata):
        if len(metadata.participants) < 2:
            raise ProtocolError("a talk takes two or more")

    def validate_send(self, metadata, envelope, state):
        if self.in_turns and envelope.event_type == EV_TEXT and envelope.sender_id == state.last:
            raise ProtocolError(f"{state.last} spoke last")

    def on_accepted(self, metadata, envelope, state):
        return AdapterResult(SessionState.CLOSED, "said goodbye") if state.done else AdapterResult()

    def default_view_policy(self, metadata, participant_id):
        return None

    def extract_turn_input(self, envelope):
        return default_extract_turn_input(envelope)

    def build_round_envelope(self, metadata, sender_id, reply, events, state, hub):
        return default_build_round_envelope(metadata, sender_id, reply, events, state, hub)

    def render_envelope(self, envelope):
        return default_render_envelope(envelope)


def text(session_id: str, who: str, says: str, **more) -> Envelope:
    return Envelope(session_id, who, EV_TEXT, {"text": says}, **more)


async def opened(hub: Hub, *who: str, **more) -> str:
    """A session that everybody has joined."""
    metadata = await hub.create("talk", who[0], who, **more)
    for participant_id in who[1:]:
        await hub.join(metadata.session_id, participant_id)
    return metadata.session_id


async def said(hub: Hub, session_id: str) -> list[str]:
    return [e.event_data["text"] for e in await hub.envelopes(session_id) if e.event_type == EV_TEXT]


async def assert_in_order(hub: Hub, session_id: str) -> None:
    """Places without gaps, ids that grow, times that never go back."""
    found = await hub.envelopes(session_id)
    assert [e.seq for e in found] == list(range(1, len(found) + 1))
    assert all(a.envelope_id < b.envelope_id and a.created_at <= b.created_at for a, b in pairwise(found))
