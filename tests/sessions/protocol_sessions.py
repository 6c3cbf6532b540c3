"""Sessions as an adapter sees them, without a hub: what is posted is validated, numbered and folded."""

from __future__ import annotations

from dataclasses import replace

from otel_assembly.sessions import EV_EXPECTATION_VIOLATED, EV_PACKET, EV_TEXT, AdapterResult, Envelope, SessionMetadata

WHO = ("ann", "bob", "cid")


def metadata_of(adapter, *participants, creator=None, **knobs):
    participants = participants or WHO
    return SessionMetadata("s1", adapter.manifest, creator or participants[0], participants, knobs)


class Played:
    """A session that an adapter alone decides on."""

    def __init__(self, adapter, *participants, creator=None, **knobs):
        self.adapter = adapter
        self.metadata = metadata_of(adapter, *participants, creator=creator, **knobs)
        adapter.validate_create(self.metadata)
        self.state = adapter.initial_state(self.metadata)
        self.log = []
        self.result = AdapterResult()

    def post(self, sender, kind, data, **more):
        envelope = Envelope("s1", sender, kind, data, **more)
        self.adapter.validate_send(self.metadata, envelope, self.state)
        at = len(self.log) + 1
        envelope = replace(envelope, envelope_id=f"e{at}", seq=at, created_at=float(at))
        self.state = self.adapter.fold(envelope, self.state)
        self.log.append(envelope)
        self.result = self.adapter.on_accepted(self.metadata, envelope, self.state)
        return envelope

    def say(self, sender, text="hello"):
        return self.post(sender, EV_TEXT, {"text": text})

    def packet(self, sender, kind="text", body="", **more):
        routing = {"kind": kind, **{name: more.pop(name) for name in ("target", "tool", "reason") if name in more}}
        return self.post(sender, EV_PACKET, {"routing": routing, "body": body, **more})

    def violate(self, action, *waited_for, kind="turn_within"):
        data = {"kind": kind, "action": action, "waited_for": list(waited_for)}
        return self.post("ag2.hub", EV_EXPECTATION_VIOLATED, data)

    @property
    def awaited(self):
        turn = self.adapter.expected_next(self.metadata, self.state)
        return turn.participant_id if turn is not None else None

    def refolded(self):
        state = self.adapter.initial_state(self.metadata)
        for envelope in self.log:
            state = self.adapter.fold(envelope, state)
        return state
