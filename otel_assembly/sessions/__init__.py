"""Sessions: durable logs of messages that several agents share.

A `Hub` creates sessions, accepts messages (`Envelope`) and delivers them. A `SessionLog` stores the messages, and a
`SessionAdapter` contains the rules of a protocol. `serve` runs an agent as a participant of sessions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly._internal.lazy_imports import lazy_attributes, modules_of

if TYPE_CHECKING:
    from otel_assembly.sessions.adapter import (
        AdapterResult,
        AdapterState,
        AgentReply,
        ExpectedTurn,
        Input,
        SessionAdapter,
        default_build_round_envelope,
        default_expected_next,
        default_extract_turn_input,
        default_render_envelope,
    )
    from otel_assembly.sessions.consultation import (
        ConsultingAdapter,
        ConsultingState,
    )
    from otel_assembly.sessions.conversation import (
        ConversationAdapter,
        ConversationState,
    )
    from otel_assembly.sessions.delivery import Delivery
    from otel_assembly.sessions.discussion import (
        ORDERING_ROUND_ROBIN,
        DiscussionAdapter,
        DiscussionState,
    )
    from otel_assembly.sessions.envelope import (
        EV_CONTEXT_SET,
        EV_ENVELOPE_EXPIRED,
        EV_EXPECTATION_VIOLATED,
        EV_PACKET,
        EV_SESSION_CLOSED,
        EV_SESSION_EXPIRED,
        EV_SESSION_INVITE,
        EV_SESSION_INVITE_ACK,
        EV_SESSION_INVITE_REJECT,
        EV_SESSION_OPENED,
        EV_TEXT,
        Envelope,
    )
    from otel_assembly.sessions.expectations import (
        Deadline,
        PendingWaits,
        Since,
        deadlines,
        violation,
    )
    from otel_assembly.sessions.folded_session import FoldedSession
    from otel_assembly.sessions.graph import (
        TransitionGraph,
        TransitionRegistry,
        register_condition,
        register_target,
    )
    from otel_assembly.sessions.hub import Hub
    from otel_assembly.sessions.log import (
        Cursor,
        LogPosition,
        LogRow,
        SessionLog,
        Snapshot,
        StoredTurn,
        TurnClaim,
        WorkEntry,
    )
    from otel_assembly.sessions.log_opening import open_log
    from otel_assembly.sessions.log_reader import LogReader, StoredSession
    from otel_assembly.sessions.memory_log import MemorySessionLog
    from otel_assembly.sessions.metadata import (
        Expectation,
        SessionManifest,
        SessionMetadata,
        SessionState,
    )
    from otel_assembly.sessions.packets import (
        Finish,
        Handoff,
        packet_data,
        routing_of_round,
    )
    from otel_assembly.sessions.participant_view import ParticipantView
    from otel_assembly.sessions.postgres_log import PostgresSessionLog
    from otel_assembly.sessions.server import serve
    from otel_assembly.sessions.session_recorder import PostOutcome
    from otel_assembly.sessions.sqlite_log import SqliteSessionLog
    from otel_assembly.sessions.text_adapter import TextAdapter
    from otel_assembly.sessions.transitions import (
        AgentTarget,
        Always,
        ContextEquals,
        FromSpeaker,
        RevertToInitiatorTarget,
        RoundRobinTarget,
        StayTarget,
        TerminateTarget,
        ToolCalled,
        Transition,
        TransitionCondition,
        TransitionDecision,
        TransitionTarget,
        Turns,
    )
    from otel_assembly.sessions.views import (
        BudgetedView,
        FullTranscript,
        NamedTranscript,
        NamedWindowedSummary,
        ViewPolicy,
        WindowedSummary,
        default_name_resolver,
    )
    from otel_assembly.sessions.workflow import (
        WorkflowAdapter,
        WorkflowState,
    )

__getattr__, __dir__ = lazy_attributes(
    __name__,
    modules_of(
        {
            "adapter": (
                "AdapterResult AdapterState AgentReply ExpectedTurn Input SessionAdapter "
                "default_build_round_envelope default_expected_next default_extract_turn_input "
                "default_render_envelope"
            ),
            "consultation": "ConsultingAdapter ConsultingState",
            "conversation": "ConversationAdapter ConversationState",
            "delivery": "Delivery",
            "discussion": "DiscussionAdapter DiscussionState ORDERING_ROUND_ROBIN",
            "envelope": (
                "EV_CONTEXT_SET EV_ENVELOPE_EXPIRED EV_EXPECTATION_VIOLATED EV_PACKET EV_SESSION_CLOSED "
                "EV_SESSION_EXPIRED EV_SESSION_INVITE EV_SESSION_INVITE_ACK EV_SESSION_INVITE_REJECT "
                "EV_SESSION_OPENED EV_TEXT Envelope"
            ),
            "expectations": "Deadline PendingWaits Since deadlines violation",
            "folded_session": "FoldedSession",
            "graph": "TransitionGraph TransitionRegistry register_condition register_target",
            "hub": "Hub",
            "log": "Cursor LogPosition LogRow SessionLog Snapshot StoredTurn TurnClaim WorkEntry",
            "log_opening": "open_log",
            "log_reader": "LogReader StoredSession",
            "memory_log": "MemorySessionLog",
            "metadata": "Expectation SessionManifest SessionMetadata SessionState",
            "packets": "Finish Handoff packet_data routing_of_round",
            "participant_view": "ParticipantView",
            "postgres_log": "PostgresSessionLog",
            "session_recorder": "PostOutcome",
            "server": "serve",
            "sqlite_log": "SqliteSessionLog",
            "text_adapter": "TextAdapter",
            "transitions": (
                "AgentTarget Always ContextEquals FromSpeaker RevertToInitiatorTarget RoundRobinTarget "
                "StayTarget TerminateTarget ToolCalled Transition TransitionCondition TransitionDecision "
                "TransitionTarget Turns"
            ),
            "views": (
                "BudgetedView FullTranscript NamedTranscript NamedWindowedSummary ViewPolicy WindowedSummary "
                "default_name_resolver"
            ),
            "workflow": "WorkflowAdapter WorkflowState",
        }
    ),
)

__all__ = [
    "EV_CONTEXT_SET",
    "EV_ENVELOPE_EXPIRED",
    "EV_EXPECTATION_VIOLATED",
    "EV_PACKET",
    "EV_SESSION_CLOSED",
    "EV_SESSION_EXPIRED",
    "EV_SESSION_INVITE",
    "EV_SESSION_INVITE_ACK",
    "EV_SESSION_INVITE_REJECT",
    "EV_SESSION_OPENED",
    "EV_TEXT",
    "ORDERING_ROUND_ROBIN",
    "AdapterResult",
    "AdapterState",
    "AgentReply",
    "AgentTarget",
    "Always",
    "BudgetedView",
    "ConsultingAdapter",
    "ConsultingState",
    "ContextEquals",
    "ConversationAdapter",
    "ConversationState",
    "Cursor",
    "Deadline",
    "Delivery",
    "DiscussionAdapter",
    "DiscussionState",
    "Envelope",
    "Expectation",
    "ExpectedTurn",
    "Finish",
    "FoldedSession",
    "FromSpeaker",
    "FullTranscript",
    "Handoff",
    "Hub",
    "Input",
    "LogPosition",
    "LogReader",
    "LogRow",
    "MemorySessionLog",
    "NamedTranscript",
    "NamedWindowedSummary",
    "ParticipantView",
    "PendingWaits",
    "PostOutcome",
    "PostgresSessionLog",
    "RevertToInitiatorTarget",
    "RoundRobinTarget",
    "SessionAdapter",
    "SessionLog",
    "SessionManifest",
    "SessionMetadata",
    "SessionState",
    "Since",
    "Snapshot",
    "SqliteSessionLog",
    "StayTarget",
    "StoredSession",
    "StoredTurn",
    "TerminateTarget",
    "TextAdapter",
    "ToolCalled",
    "Transition",
    "TransitionCondition",
    "TransitionDecision",
    "TransitionGraph",
    "TransitionRegistry",
    "TransitionTarget",
    "TurnClaim",
    "Turns",
    "ViewPolicy",
    "WindowedSummary",
    "WorkEntry",
    "WorkflowAdapter",
    "WorkflowState",
    "deadlines",
    "default_build_round_envelope",
    "default_expected_next",
    "default_extract_turn_input",
    "default_name_resolver",
    "default_render_envelope",
    "open_log",
    "packet_data",
    "register_condition",
    "register_target",
    "routing_of_round",
    "serve",
    "violation",
]
