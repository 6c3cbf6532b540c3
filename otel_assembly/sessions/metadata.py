"""What a session is: its protocol, who takes part, and where it stands."""

from __future__ import annotations

import json
from collections.abc import Mapping  # noqa: TC003 - pydantic reads the fields' types
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from otel_assembly.errors import LogDamagedError, ProtocolError

#: What an expectation waits for (AG2's evaluators).
ExpectationKind = Literal["acks_within", "reply_within", "turn_within", "max_silence"]

#: What follows when it was not met (AG2's handlers). Every violation is an envelope of the log, a metric and a log
#: line; ``audit`` and ``warn`` are that and no more.
ViolationAction = Literal["audit", "warn", "notify", "hide", "auto_close"]


class SessionState(StrEnum):
    """Where a session stands."""

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
    """What a protocol expects within a time.

    Attributes:
        kind: What it waits for.
        seconds: How long it waits.
        action: What follows.
    """

    kind: ExpectationKind
    seconds: float
    action: ViolationAction


@dataclass(frozen=True, slots=True)
class SessionManifest:
    """The data half of a protocol; its `SessionAdapter` is the code half.

    A session keeps the manifest that it was created with: a later version never changes one in flight.

    Attributes:
        type: The protocol's name.
        version: Its version; adapters are looked up by both.
        expectations: What it expects within which times.
    """

    type: str
    version: int = 1
    expectations: tuple[Expectation, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionMetadata:
    """What was settled when a session was created, and never changes.

    Attributes:
        session_id: The session's id.
        manifest: Its protocol, as it was then.
        creator_id: The participant who created it.
        participants: All who take part, its creator among them, in order.
        knobs: The protocol's settings for this session; JSON.
        created_at: When, in seconds since the epoch.
        ttl_seconds: How long it lives, in seconds after `created_at`; None for ever.
    """

    session_id: str
    manifest: SessionManifest
    creator_id: str
    participants: tuple[str, ...]
    knobs: Mapping[str, Any] = field(default_factory=dict)
    created_at: float = 0.0
    ttl_seconds: float | None = None

    def to_json(self) -> str:
        """The metadata as JSON in ASCII.

        Raises:
            ProtocolError: A knob is no JSON.
        """
        try:
            return json.dumps(_adapter().dump_python(self), sort_keys=True, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ProtocolError(
                f"the knobs of a session of type {self.manifest.type!r} are no JSON: {error}"
            ) from error

    @classmethod
    def from_json(cls, text: str) -> SessionMetadata:
        """Read what `to_json` wrote.

        Raises:
            LogDamagedError: It is no metadata of a session.
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
