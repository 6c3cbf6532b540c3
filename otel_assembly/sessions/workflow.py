"""`WorkflowAdapter`: a session protocol in which a graph chooses the next speaker.

Agents can also hand off to another participant, and share variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from otel_assembly.errors import ConfigurationError, ProtocolError
from otel_assembly.sessions.adapter import AdapterResult, AgentReply, ExpectedTurn, Input, default_render_envelope
from otel_assembly.sessions.envelope import EV_CONTEXT_SET, EV_PACKET, EV_TEXT, Envelope
from otel_assembly.sessions.graph import TransitionGraph, TransitionRegistry
from otel_assembly.sessions.metadata import Expectation, SessionMetadata, SessionState
from otel_assembly.sessions.packets import (
    Finish,
    Handoff,
    check_context_set,
    check_packet,
    packet_data,
    packet_text,
    routing_of,
    routing_of_round,
    updated_variables,
)
from otel_assembly.sessions.text_adapter import TextAdapter
from otel_assembly.sessions.transitions import ToolCalled, TransitionDecision
from otel_assembly.sessions.views import BuiltInView, NamedWindowedSummary

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: The types of envelopes that count as a turn: a text, or a packet, which is the result of one round of an agent.
_TURNS = frozenset({EV_TEXT, EV_PACKET})


@dataclass(frozen=True, slots=True)
class WorkflowState:
    """The state of a workflow.

    Attributes:
        participant_order: The ids of the participants, in order.
        expected_next_speaker: The id of the next speaker; None after the end of the workflow.
        last_speaker_id: The id of the participant who took the last turn; None before the first turn.
        last_envelope_id: The id of the envelope of the last turn; None before the first turn.
        turn_count: The number of turns taken.
        pending_close_reason: The session's close reason, if the workflow has ended; else empty.
        creator_id: The id of the participant who created the session.
        graph_data: The graph as JSON, from `TransitionGraph.dumps`.
        context_vars: The workflow's variables by name; their values are JSON.
    """

    participant_order: tuple[str, ...] = ()
    expected_next_speaker: str | None = None
    last_speaker_id: str | None = None
    last_envelope_id: str | None = None
    turn_count: int = 0
    pending_close_reason: str = ""
    creator_id: str = ""
    graph_data: str = ""
    context_vars: Mapping[str, Any] = field(default_factory=dict)


class WorkflowAdapter(TextAdapter[WorkflowState]):
    """A protocol for two or more participants in which a `TransitionGraph` chooses the next speaker.

    A session ends when the graph ends it, after the graph's `max_turns`, or when an agent's tool returns a `Finish`.

    The settings of a session (its ``knobs``) are ``graph`` (from `TransitionGraph.to_dict`), ``context_vars`` (the
    initial variables) and ``names`` (a name for each participant's id, which a `Handoff` can use instead of the id).

    Args:
        expectations: The expected events with their time limits; None for the defaults.
        registry: The types of targets and conditions that graphs can use; None for all that the process has registered.
    """

    type: ClassVar[str] = "workflow"
    default_expectations: ClassVar[tuple[Expectation, ...]] = (
        Expectation("turn_within", 120, "warn"),
        Expectation("turn_within", 600, "auto_close"),
    )

    def __init__(
        self, expectations: Iterable[Expectation] | None = None, *, registry: TransitionRegistry | None = None
    ) -> None:
        super().__init__(expectations)

        def read(graph_data: str) -> TransitionGraph:
            return TransitionGraph.loads(graph_data, registry=registry)

        self._registry = registry
        self._graph = lru_cache(maxsize=128)(read)

    def initial_state(self, metadata: SessionMetadata) -> WorkflowState:
        """Return the state before the first envelope: the graph's first speaker and the initial variables."""
        graph = TransitionGraph.loads(metadata.knobs["graph"], registry=self._registry)
        begin = Envelope(
            metadata.session_id, metadata.creator_id, EV_CONTEXT_SET, {"set": metadata.knobs.get("context_vars", {})}
        )
        return WorkflowState(
            participant_order=metadata.participants,
            expected_next_speaker=graph.initial_speaker,
            creator_id=metadata.creator_id,
            graph_data=graph.dumps(),
            context_vars=updated_variables({}, begin),
        )

    def fold(self, envelope: Envelope, state: WorkflowState) -> WorkflowState:
        """Return the state after one more envelope.

        The changes of variables are applied first. Then the next speaker is chosen by a finish or handoff in the
        envelope, or else by the graph; after the graph's `max_turns`, the workflow ends.
        """
        if envelope.sender_id not in state.participant_order:
            return state
        if envelope.event_type == EV_CONTEXT_SET:
            return replace(state, context_vars=updated_variables(state.context_vars, envelope))
        if envelope.event_type not in _TURNS:
            return state
        after = replace(
            state,
            last_speaker_id=envelope.sender_id,
            last_envelope_id=envelope.envelope_id,
            turn_count=state.turn_count + 1,
            context_vars=updated_variables(state.context_vars, envelope)
            if envelope.event_type == EV_PACKET
            else state.context_vars,
        )
        decision = self._next(after, envelope)
        return replace(after, expected_next_speaker=decision.next_speaker, pending_close_reason=decision.close_reason)

    def _next(self, state: WorkflowState, envelope: Envelope) -> TransitionDecision:
        """Return the next speaker after a turn, or the end of the session with its close reason.

        A finish or a handoff in the envelope takes precedence over the graph.
        """
        routing, graph = routing_of(envelope), self._graph(state.graph_data)
        kind, target = routing.get("kind"), routing.get("target")
        if kind == "finish":
            reason = routing.get("reason")
            return TransitionDecision(None, reason if isinstance(reason, str) and reason else "finished")
        if kind == "handoff" and isinstance(target, str) and target:
            decision = TransitionDecision(target)
        else:
            decision = graph.select(state, envelope)
        if decision.next_speaker is None:
            return TransitionDecision(None, decision.close_reason or "workflow_terminated")
        if decision.next_speaker not in state.participant_order:
            return TransitionDecision(None, f"unknown_speaker:{decision.next_speaker}")
        if graph.max_turns is not None and state.turn_count >= graph.max_turns:
            return TransitionDecision(None, "max_turns")
        return decision

    def validate_create(self, metadata: SessionMetadata) -> None:
        """Check a new session.

        Raises:
            ProtocolError: The graph, the variables, the names or the participants are invalid.
        """
        super().validate_create(metadata)
        where, graph_data = f"workflow {metadata.session_id!r}", metadata.knobs.get("graph")
        if not isinstance(graph_data, Mapping):
            raise ProtocolError(f"{where} takes the knob 'graph'; give TransitionGraph(…).to_dict()")
        try:
            graph = TransitionGraph.loads(graph_data, registry=self._registry)
        except ConfigurationError as error:
            raise ProtocolError(f"{where} cannot read its knob 'graph': {error}") from error
        if unknown_ids := sorted({p for p in graph.named() if p not in metadata.participants}):
            raise ProtocolError(
                f"{where}: its graph names {', '.join(map(repr, unknown_ids))}, not in participants; "
                f"they are {', '.join(map(repr, metadata.participants))}"
            )
        variables = metadata.knobs.get("context_vars", {})
        begin = Envelope(metadata.session_id, metadata.creator_id, EV_CONTEXT_SET, {"set": variables})
        try:
            check_context_set(begin)
        except ProtocolError as error:
            raise ProtocolError(f"{where} takes a JSON object as its knob 'context_vars': {error}") from error
        _check_names(metadata, where)

    def validate_send(self, metadata: SessionMetadata, envelope: Envelope, state: WorkflowState) -> None:
        """Check an envelope before it is accepted.

        Raises:
            ProtocolError: It is not the sender's turn, or the packet or the changes of variables are invalid.
        """
        super().validate_send(metadata, envelope, state)
        if envelope.event_type == EV_CONTEXT_SET:
            self.check_sender(metadata, envelope)
            check_context_set(envelope)
        if envelope.event_type in _TURNS:
            self.check_sender(metadata, envelope)
            self.refuse_out_of_turn(metadata, envelope, state.expected_next_speaker)
        if envelope.event_type == EV_PACKET:
            check_packet(envelope, metadata.participants)

    def on_accepted(self, metadata: SessionMetadata, envelope: Envelope, state: WorkflowState) -> AdapterResult:
        """Return whether an accepted envelope closes its session.

        A participant's turn does if the workflow has no next speaker after it. For other envelopes, see
        `TextAdapter.on_accepted`.
        """
        if envelope.event_type in _TURNS and state.expected_next_speaker is None:
            return AdapterResult(SessionState.CLOSED, state.pending_close_reason)
        return super().on_accepted(metadata, envelope, state)

    def expected_next(self, metadata: SessionMetadata, state: WorkflowState) -> ExpectedTurn | None:
        """Return the next speaker, who can be the last speaker again; None after the end of the workflow."""
        speaker = state.expected_next_speaker
        if speaker is None:
            return None
        return ExpectedTurn(speaker, state.last_envelope_id, again=speaker == state.last_speaker_id)

    def default_view_policy(self, metadata: SessionMetadata, participant_id: str) -> BuiltInView:
        """Return a view with the newest envelopes: two for each participant, at least four.

        One line replaces the earlier envelopes.
        """
        return NamedWindowedSummary(max(2 * len(metadata.participants), 4))

    def extract_turn_input(self, envelope: Envelope) -> str | Input | list[Input] | None:
        """Return the next speaker's input: a text, or a packet's handoff and body; None if there is none."""
        return self.render_envelope(envelope)

    def render_envelope(self, envelope: Envelope) -> str | None:
        """Return an envelope's text for a model: a text, or a packet's handoff and body; None if there is none."""
        return packet_text(envelope) if envelope.event_type == EV_PACKET else default_render_envelope(envelope)

    def build_round_envelope(
        self,
        metadata: SessionMetadata,
        sender_id: str,
        reply: AgentReply,
        events: Sequence[Any],
        state: WorkflowState,
        hub: Any,
    ) -> Envelope | None:
        """Return a packet with the text and the handoff of an agent's round; None if the round has neither.

        The arguments are those of `SessionAdapter.build_round_envelope`.
        """
        graph = self._graph(state.graph_data)
        conditions = [transition.when for transition in graph.transitions]
        tools = frozenset(condition.tool_name for condition in conditions if isinstance(condition, ToolCalled))
        routing = routing_of_round(events, tools)
        if routing["kind"] == "text" and not reply.content:
            return None
        if "target" in routing:
            routing["target"] = resolve_target(metadata, routing["target"])
        return Envelope(metadata.session_id, sender_id, EV_PACKET, packet_data(reply.content, routing))

    def build_packet_envelope(
        self,
        metadata: SessionMetadata,
        sender_id: str,
        body: str,
        *,
        routing: Handoff | Finish | None = None,
        context_set: Mapping[str, Any] | None = None,
        context_delete: Iterable[str] = (),
        audience: tuple[str, ...] | None = None,
        causation_id: str | None = None,
    ) -> Envelope:
        """Return a packet, for participants that are not agents, such as people.

        Args:
            metadata: The metadata of the session.
            sender_id: The id of the sender.
            body: The text.
            routing: The handoff to the next speaker, or the end of the workflow; None if the graph decides.
            context_set: The workflow's variables to set, by name; None for none.
            context_delete: The names of the workflow's variables to delete.
            audience: The ids of the participants who may see the packet; None for all.
            causation_id: The id of the envelope that caused the packet; None if no envelope did.

        Raises:
            ProtocolError: The target of the handoff is not a participant.
        """
        choice = routing_of_round([] if routing is None else [routing], frozenset())
        if "target" in choice:
            choice["target"] = resolve_target(metadata, choice["target"])
        data = packet_data(body, choice, context_set, context_delete)
        envelope = Envelope(
            metadata.session_id, sender_id, EV_PACKET, data, audience=audience, causation_id=causation_id
        )
        check_packet(envelope, metadata.participants)
        return envelope


def resolve_target(metadata: SessionMetadata, target: str) -> str:
    """Return the id of a handoff's target, which can be an id or a name in the session's setting ``names``.

    An unknown target is returned unchanged.
    """
    if target in metadata.participants:
        return target
    names = metadata.knobs.get("names") or {}
    return next((participant for participant, name in names.items() if name == target), target)


def _check_names(metadata: SessionMetadata, where: str) -> None:
    names = metadata.knobs.get("names") or {}
    if not isinstance(names, Mapping) or not all(isinstance(name, str) and name for name in names.values()):
        raise ProtocolError(f"{where} needs {{participant: name}} as its knob 'names'; give each name as a text")
    if unknown_ids := sorted(str(p) for p in names if p not in metadata.participants):
        raise ProtocolError(
            f"{where}: its knob 'names' names {', '.join(map(repr, unknown_ids))}, who are not participants"
        )
    used_names = [*names.values(), *(p for p in metadata.participants if names.get(p) != p)]
    if duplicates := sorted({name for name in used_names if used_names.count(name) > 1}):
        raise ProtocolError(f"{where}: its knob 'names' gives {', '.join(map(repr, duplicates))} to two participants")
