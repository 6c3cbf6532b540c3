"""The immutable properties of a session, such as its protocol and participants, and its lifecycle states."""

from __future__ import annotations

import json
from collections.abc import Mapping  # noqa: TC003 - pydantic reads the fields' types
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from otel_assembly.errors import LogDamagedError, ProtocolError

#: The event that an expectation requires; the names are those of AG2's evaluators.
ExpectationKind = Literal["acks_within", "reply_within", "turn_within", "max_silence"]

#: The reaction to a violation; the names are those of AG2's handlers. Each violation is recorded as an envelope, a
#: metric and a log line; ``audit`` and ``warn`` do nothing else.
ViolationAction = Literal["audit", "warn", "notify", "hide", "auto_close"]


class SessionState(StrEnum):
    """The lifecycle state of a session."""

    PENDING = "pending"
    """The session exists, but not all participants have joined yet."""
    ACTIVE = "active"
    """All participants have joined, and the session accepts envelopes."""
    CLOSED = "closed"
    """A participant or the protocol closed the session, or an invited participant rejected the invitation."""
    EXPIRED = "expired"
    """The session's lifetime (`ttl_seconds`) ended."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """An event that a protocol requires within a time limit.

    Attributes:
        kind: ``acks_within``: each invited participant answers the invitation. ``reply_within``: a participant replies
            to an envelope. ``turn_within``: the participant whose turn it is speaks. ``max_silence``: any envelope.
        seconds: The time limit, in seconds.
        action: The reaction if the time limit is exceeded. The violation is always appended to the session's log.
            ``audit`` and ``warn`` do nothing else; ``notify`` delivers it to the participants that have to act and to
            the creator; ``hide`` skips the participants in the order of turns; ``auto_close`` closes the session.
    """

    kind: ExpectationKind
    seconds: float
    action: ViolationAction


@dataclass(frozen=True, slots=True)
class SessionManifest:
    """The name, version and time limits of a protocol, whose code is a `SessionAdapter`.

    A session stores the manifest that it was created with, so a later version never changes a running session.

    Attributes:
        type: The protocol's name.
        version: The protocol's version. A hub finds the adapter of a session by name and version.
        expectations: The events that the protocol requires, with their time limits.
    """

    type: str
    version: int = 1
    expectations: tuple[Expectation, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionMetadata:
    """The immutable properties of a session, set when it is created.

    Attributes:
        session_id: The session's id.
        manifest: The manifest of the session's protocol.
        creator_id: The participant that created the session.
        participants: The ids of all participants in order, including the creator.
        knobs: The protocol's settings for this session; a JSON object.
        created_at: The creation time, in seconds since the epoch.
        ttl_seconds: The session's lifetime, in seconds after `created_at`; None for no limit.
    """

    session_id: str
    manifest: SessionManifest
    creator_id: str
    participants: tuple[str, ...]
    knobs: Mapping[str, Any] = field(default_factory=dict)
    created_at: float = 0.0
    ttl_seconds: float | None = None

    def to_json(self) -> str:
        """Return the metadata as ASCII JSON.

        Raises:
            ProtocolError: A knob cannot be serialized as JSON.
        """
        try:
            return json.dumps(_adapter().dump_python(self), sort_keys=True, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ProtocolError(
                f"the knobs of a session of type {self.manifest.type!r} cannot be written as JSON: {error}"
            ) from error

    @classmethod
    def from_json(cls, text: str) -> SessionMetadata:
        """Parse the output of `to_json`.

        Raises:
            LogDamagedError: The text is not JSON, or a field is missing or invalid.
        """
        try:
            return _adapter().validate_json(text)
        except ValidationError as error:
            problem = error.errors()[0]
            field_path = ".".join(map(str, problem["loc"])) or "its text"
            raise LogDamagedError(
                f"the metadata of a session cannot be read at {field_path}: {problem['msg']}; "
                "restore the log from a backup"
            ) from error


@cache
def _adapter() -> TypeAdapter[SessionMetadata]:
    return TypeAdapter(SessionMetadata)
