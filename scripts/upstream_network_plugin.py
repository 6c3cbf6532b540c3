"""A pytest plugin that has AG2's own network tests run on our adapters, graphs and expectations.

AG2's names are put in front of ours: its channels are our sessions. Its hub, its clients and its views stay, so that a
test that opens a channel folds every envelope of it with us. What was folded and decided is counted, and written to the
file that ``UPSTREAM_SEEN`` names.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ag2 import network
from ag2.events import DataInput, ToolCallEvent, ToolResultEvent
from ag2.network import adapters, errors, handoff, transitions
from ag2.network.adapters import consulting, conversation, discussion, workflow
from ag2.network.adapters.base import AdapterResult, ExpectedTurn
from ag2.network.channel import ChannelState
from ag2.network.hub import core, expectations
from ag2.network.views import builtin

from otel_assembly import events as our_events
from otel_assembly import sessions
from otel_assembly.errors import ConfigurationError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator

SEEN: Counter[str] = Counter()


@contextmanager
def as_ag2_raises() -> Iterator[None]:
    """What we refuse, AG2 refuses."""
    try:
        yield
    except ProtocolError as error:
        raise errors.ProtocolError(str(error)) from error


def seconds(moment: str) -> float:
    """AG2's moment as ours; 0 where it is none."""
    try:
        return datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return 0.0


def our_metadata(channel: Any, manifest: sessions.SessionManifest) -> sessions.SessionMetadata:
    """AG2's channel as our session."""
    participants = tuple(
        participant.agent_id for participant in sorted(channel.participants, key=lambda value: value.order)
    )
    return sessions.SessionMetadata(
        channel.channel_id, manifest, channel.creator_id, participants, channel.knobs, seconds(channel.created_at)
    )


def our_envelope(envelope: Any, seq: int = 0) -> sessions.Envelope:
    """AG2's envelope as ours."""
    kind = envelope.event_type.replace("ag2.channel.", "ag2.session.")
    audience = None if envelope.audience is None else tuple(envelope.audience)
    return sessions.Envelope(
        envelope.channel_id,
        envelope.sender_id,
        kind,
        envelope.event_data,
        audience=audience,
        envelope_id=envelope.envelope_id,
        seq=seq,
        created_at=seconds(envelope.created_at),
    )


def on_ours(theirs: type[Any], ours: sessions.TextAdapter[Any]) -> type[Any]:
    """AG2's adapter, its protocol ours; the tools that it offers to a model stay its own."""

    class OnOurs(theirs):  # type: ignore[misc]
        def initial_state(self, metadata: Any) -> Any:
            state = ours.initial_state(our_metadata(metadata, ours.manifest))
            if not hasattr(state, "participant_order"):
                return state
            return replace(state, participant_order=list(state.participant_order))  # a list there, and a tuple here

        def fold(self, envelope: Any, state: Any) -> Any:
            SEEN["folds"] += 1
            return ours.fold(our_envelope(envelope), state)

        def validate_create(self, metadata: Any) -> None:
            SEEN["decisions"] += 1
            with as_ag2_raises():
                ours.validate_create(our_metadata(metadata, ours.manifest))

        def validate_send(self, metadata: Any, envelope: Any, state: Any) -> None:
            SEEN["decisions"] += 1
            with as_ag2_raises():
                ours.validate_send(our_metadata(metadata, ours.manifest), our_envelope(envelope), state)

        def on_accepted(self, metadata: Any, envelope: Any, state: Any) -> AdapterResult:
            result = ours.on_accepted(our_metadata(metadata, ours.manifest), our_envelope(envelope), state)
            state_after = None if result.next_state is None else ChannelState(result.next_state.value)
            return AdapterResult(state_after, result.auto_close_reason)

        def expected_next(self, metadata: Any, state: Any) -> ExpectedTurn | None:
            turn = ours.expected_next(our_metadata(metadata, ours.manifest), state)
            return None if turn is None else ExpectedTurn(turn.participant_id, turn.triggering_envelope_id)

        def default_view_policy(self, metadata: Any, participant_id: str) -> Any:
            view = ours.default_view_policy(our_metadata(metadata, ours.manifest), participant_id)
            recent = getattr(view, "recent_n", None)
            kind = getattr(builtin, type(view).__name__)
            return kind() if recent is None else kind(recent_n=recent)

        def extract_turn_input(self, envelope: Any) -> Any:
            return ours.extract_turn_input(our_envelope(envelope)) or None

    OnOurs.__name__ = theirs.__name__
    return OnOurs


def build_packet(
    channel_id: str,
    sender_id: str,
    body: str,
    *,
    handoff: Any = None,
    context_set: dict[str, Any] | None = None,
    audience: list[str] | None = None,
    causation_id: str | None = None,
) -> Any:
    """AG2's helper for packets: what ours says, with the routing and the variables where a fold reads them."""
    asked = [] if handoff is None else [sessions.Handoff(handoff.target, handoff.reason)]
    data = sessions.packet_data(body, sessions.routing_of_round(asked, frozenset()), context_set)
    kind = network.EV_PACKET
    return network.Envelope(channel_id, sender_id, audience, kind, data, causation_id=causation_id)


def resolve_routing(events: list[Any], graph: Any, name_to_id: dict[str, str]) -> dict[str, Any]:
    """AG2's search for a round's routing, done by ours over the same events in our vocabulary."""
    SEEN["decisions"] += 1
    if graph is None:
        return {"kind": "text"}
    said: list[Any] = []
    for event in events:
        if isinstance(event, ToolCallEvent):
            said.append(our_events.ToolCallEvent(id=event.id, name=event.name, arguments=event.arguments))
        elif isinstance(event, ToolResultEvent):
            found = [part.data for part in event.result.parts if isinstance(part, DataInput)]
            returned = next((item for item in found if isinstance(item, handoff.Handoff | handoff.Finish)), None)
            said.append(our_events.ToolResultEvent(parent_id=event.parent_id, content=result_text(returned)))
    tools = (
        transition.when.tool_name
        for transition in graph.transitions
        if isinstance(transition.when, sessions.ToolCalled)
    )
    routing = sessions.routing_of_round(said, frozenset(tools))
    if "target" in routing:
        routing["target"] = name_to_id.get(routing["target"], routing["target"])
    return routing


def result_text(returned: Any) -> str:
    """What our agent's model would read of it."""
    if isinstance(returned, handoff.Handoff):
        return json.dumps({"target": returned.target, "reason": returned.reason, "routing": "handoff"})
    if isinstance(returned, handoff.Finish):
        return json.dumps({"summary": returned.summary, "reason": returned.reason, "routing": "finish"})
    return "ok"


def evaluator(kind: str) -> type[Any]:
    """AG2's evaluator of one kind: our deadlines, over the log that AG2 hands it."""

    class Evaluator:
        name = kind

        def evaluate(self, expectation: Any, context: Any) -> Any:
            SEEN["decisions"] += 1
            allowed = float(expectation.params["seconds"])
            expected = sessions.Expectation(kind, allowed, "audit")  # type: ignore[arg-type]
            metadata = our_metadata(context.metadata, sessions.SessionManifest("ag2", 1, (expected,)))
            waits = opened(context.metadata, metadata)
            for seq, envelope in enumerate(context.wal, 2):
                waits = waits.after(our_envelope(envelope, seq), metadata, None)
            standing = sessions.deadlines(metadata, sessions.SessionState(context.metadata.state.value), waits)
            due = [item for item in standing if item.due_at <= context.now_seconds]
            if not due:
                return None
            elapsed = context.now_seconds - min(deadline.since.at for deadline in due)
            detail = {"elapsed_seconds": elapsed, "threshold_seconds": allowed}
            late = {who for deadline in due for who in deadline.waited_for}
            return expectations.Violation(expectation, [p for p in metadata.participants if p in late], detail)

    Evaluator.__name__ = {"acks_within": "AcksWithinEvaluator", "reply_within": "ReplyWithinEvaluator"}.get(
        kind, "MaxSilenceEvaluator"
    )
    return Evaluator


def opened(channel: Any, metadata: sessions.SessionMetadata) -> sessions.PendingWaits:
    """What AG2's metadata says of invitations, which our log does: who was invited, or that all have joined."""
    pending = channel.state is ChannelState.PENDING
    kind = sessions.EV_SESSION_INVITE if pending else sessions.EV_SESSION_OPENED
    first = sessions.Envelope(
        metadata.session_id,
        metadata.creator_id,
        kind,
        audience=tuple(channel.pending_acks) if pending else None,
        envelope_id="first",
        seq=1,
        created_at=metadata.created_at,
    )
    return sessions.PendingWaits().after(first, metadata, None)


def put(name: str, ours: Any, *modules: Any) -> None:
    """Put ours where AG2 has a name."""
    for module in modules:
        if hasattr(module, name):
            setattr(module, name, ours)


def pytest_configure(config: Any) -> None:
    """Before any test is imported."""
    everywhere = (network, adapters, core, consulting, conversation, discussion, workflow, transitions)
    for module, name in (
        (consulting, "Consulting"),
        (conversation, "Conversation"),
        (discussion, "Discussion"),
        (workflow, "Workflow"),
    ):
        ours = getattr(sessions, f"{name}Adapter")()
        put(f"{name}Adapter", on_ours(getattr(module, f"{name}Adapter"), ours), *everywhere)
        put(f"{name}State", getattr(sessions, f"{name}State"), *everywhere)
    for name in transitions.__all__:
        if hasattr(sessions, name):
            put(name, getattr(sessions, name), *everywhere)
    put("WorkflowGraphError", ConfigurationError, *everywhere)
    put("default_build_packet_envelope", build_packet, adapters.base, *everywhere)
    put("_resolve_routing", resolve_routing, workflow)
    for kind in ("acks_within", "reply_within", "max_silence"):
        made = evaluator(kind)
        put(made.__name__, made, network, network.hub, expectations, core)


def pytest_unconfigure(config: Any) -> None:
    """Say what was seen."""
    if path := os.environ.get("UPSTREAM_SEEN"):
        Path(path).write_text(json.dumps(SEEN), encoding="utf-8")
