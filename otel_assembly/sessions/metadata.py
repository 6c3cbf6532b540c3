"""The metadata of a session: its protocol, participants and state."""

from __future__ import annotations

import json
from collections.abc import Mapping  # noqa: TC003 - pydantic reads the fields' types
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from otel_assembly.errors import LogDamagedError, ProtocolError

#: The event that an expectation requires (AG2's evaluators).
ExpectationKind = Literal["acks_within", "reply_within", "turn_within", "max_silence"]

#: The reaction to a violation (AG2's handlers). Each violation is recorded as an envelope, a metric and a log line;
#: ``audit`` and ``warn`` do nothing else.
ViolationAction = Literal["audit", "warn", "notify", "hide", "auto_close"]


class SessionState(StrEnum):
    """The lifecycle state of a session."""

    PENDING = "pending"
    """Created; somebody who was invited has not answered yet."""
    ACTIVE = "active"
    """Everybody has joined."""
    CLOSED = "closed"
    """It ended, or one who was invited refused."""
    EXPIRED = "expired"
    """Its time was over."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """An event that a protocol requires within a time limit.

    Attributes:
        kind: The kind of event.
        seconds: The time limit.
        action: The reaction to a violation.
    """

    kind: ExpectationKind
    seconds: float
    action: ViolationAction


@dataclass(frozen=True, slots=True)
class SessionManifest:
    """The data half of a protocol; its `SessionAdapter` is the code half.

    A session keeps the manifest that it was created with, so a later version never changes a running session.

    Attributes:
        type: The protocol's name.
        version: Its version; adapters are looked up by both.
        expectations: The events that it requires, with their time limits.
    """

    type: str
    version: int = 1
    expectations: tuple[Expectation, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionMetadata:
    """The immutable properties of a session, set when it is created.

    Attributes:
        session_id: The session's id.
        manifest: Its protocol at creation.
        creator_id: The participant who created it.
        participants: The ids of all participants in order, including the creator.
        knobs: The protocol's settings for this session; JSON.
        created_at: The creation time, in seconds since the epoch.
        ttl_seconds: Its lifetime in seconds after `created_at`; None for no limit.
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
                f"the knobs of a session of type {self.manifest.type!r} are no JSON: {error}"
            ) from error

    @classmethod
    def from_json(cls, text: str) -> SessionMetadata:
        """Parse the output of `to_json`.

        Raises:
            LogDamagedError: The text is not the metadata of a session.
        """
        try:
            return _adapter().validate_json(text)
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(map(str, problem["loc"])) or "its text"
            raise LogDamagedError(f"the metadata of a session cannot be read at {where}: {problem['msg']}") from error


@cache
def _adapter() -> TypeAdapter[SessionMetadata]:
    return TypeAdapter(SessionMetadata)
