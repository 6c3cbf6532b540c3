"""Sessions between agents: a log that loses nothing, and views of it that are assemblies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly._internal.faces import face, homes

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
    from otel_assembly.sessions.folded import FoldedSession
    from otel_assembly.sessions.hub import (
        Delivery,
        Hub,
    )
    from otel_assembly.sessions.log import (
        Cursor,
        LogPosition,
        LogRow,
        SessionLog,
        Snapshot,
    )
    from otel_assembly.sessions.memory_log import MemorySessionLog
    from otel_assembly.sessions.metadata import (
        Expectation,
        SessionManifest,
        SessionMetadata,
        SessionState,
    )
    from otel_assembly.sessions.postgres_log import PostgresSessionLog
    from otel_assembly.sessions.sqlite_log import SqliteSessionLog

__getattr__, __dir__ = face(
    __name__,
    homes(
        {
            "adapter": (
                "AdapterResult AdapterState AgentReply ExpectedTurn Input SessionAdapter "
                "default_build_round_envelope default_expected_next default_extract_turn_input "
                "default_render_envelope"
            ),
            "envelope": (
                "EV_CONTEXT_SET EV_ENVELOPE_EXPIRED EV_EXPECTATION_VIOLATED EV_PACKET EV_SESSION_CLOSED "
                "EV_SESSION_EXPIRED EV_SESSION_INVITE EV_SESSION_INVITE_ACK EV_SESSION_INVITE_REJECT "
                "EV_SESSION_OPENED EV_TEXT Envelope"
            ),
            "folded": "FoldedSession",
            "hub": "Delivery Hub",
            "log": "Cursor LogPosition LogRow SessionLog Snapshot",
            "memory_log": "MemorySessionLog",
            "metadata": "Expectation SessionManifest SessionMetadata SessionState",
            "postgres_log": "PostgresSessionLog",
            "sqlite_log": "SqliteSessionLog",
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
    "AdapterResult",
    "AdapterState",
    "AgentReply",
    "Cursor",
    "Delivery",
    "Envelope",
    "Expectation",
    "ExpectedTurn",
    "FoldedSession",
    "Hub",
    "Input",
    "LogPosition",
    "LogRow",
    "MemorySessionLog",
    "PostgresSessionLog",
    "SessionAdapter",
    "SessionLog",
    "SessionManifest",
    "SessionMetadata",
    "SessionState",
    "Snapshot",
    "SqliteSessionLog",
    "default_build_round_envelope",
    "default_expected_next",
    "default_extract_turn_input",
    "default_render_envelope",
]
