"""`Envelope`: one entry of a session's log, and the event types of the session protocol.

The event types are those of AG2 before it renamed sessions to channels. `Envelope.from_dict` reads ``ag2.channel.*``
as ``ag2.session.*``, because later AG2 releases write the newer names.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from otel_assembly.errors import ProtocolError
from otel_assembly.events.finish_reasons import CUT_OFF, finish_reason

EV_TEXT: Final = "ag2.msg.text"
EV_PACKET: Final = "ag2.packet"
EV_CONTEXT_SET: Final = "ag2.context.set"
EV_SESSION_INVITE: Final = "ag2.session.invite"
EV_SESSION_INVITE_ACK: Final = "ag2.session.invite.ack"
EV_SESSION_INVITE_REJECT: Final = "ag2.session.invite.reject"
EV_SESSION_OPENED: Final = "ag2.session.opened"
EV_SESSION_CLOSED: Final = "ag2.session.closed"
EV_SESSION_EXPIRED: Final = "ag2.session.expired"
EV_ENVELOPE_EXPIRED: Final = "ag2.envelope.expired"
EV_EXPECTATION_VIOLATED: Final = "ag2.expectation.violated"

#: The types that change a session's state. Participants cannot post them directly, and inbox limits do not apply.
SYSTEM_TYPES: Final = frozenset(
    {
        EV_SESSION_INVITE,
        EV_SESSION_INVITE_ACK,
        EV_SESSION_INVITE_REJECT,
        EV_SESSION_OPENED,
        EV_SESSION_CLOSED,
        EV_SESSION_EXPIRED,
        EV_ENVELOPE_EXPIRED,
        EV_EXPECTATION_VIOLATED,
    }
)

#: The maximum length of ids and idempotency keys, in characters.
MAX_ID_CHARACTERS: Final = 256

_CHANNEL_PREFIX: Final = "ag2.channel."
_SESSION_PREFIX: Final = "ag2.session."
#: PostgreSQL cannot store NUL characters, and UTF-8 cannot encode unpaired surrogates.
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message or event of a session: one entry of its log, addressed to all participants or to an audience.

    The sender sets the first four fields and optionally `audience`, `causation_id`, `idempotency_key` and
    `ttl_seconds`. The hub sets the others when it accepts the envelope.

    Attributes:
        session_id: The id of the session.
        sender_id: The id of the participant that sent the envelope.
        event_type: One of the ``EV_*`` strings, or a type that the adapter defines.
        event_data: The content; a JSON object.
        audience: The recipients, in addition to the sender; None addresses all participants.
        envelope_id: The envelope's id, which increases strictly within a session; set by the hub if empty.
        seq: The row number in the session's log, from 1, without gaps; 0 before the envelope is accepted.
        created_at: The time of acceptance, in seconds since the epoch; it never decreases within a session.
        causation_id: The id of the envelope that caused this one; None if no envelope did.
        idempotency_key: The sender's key for this post; None for no key. If the sender posts the same content with the
            same key again, nothing is appended, and the envelope of the first post is returned.
        ttl_seconds: The time limit for the first delivery, in seconds after `created_at`; None for no limit.
        trace: The trace context of the post, as W3C headers (``traceparent``, ``tracestate``).
    """

    session_id: str
    sender_id: str
    event_type: str
    event_data: Mapping[str, Any] = field(default_factory=dict)
    audience: tuple[str, ...] | None = None
    envelope_id: str = ""
    seq: int = 0
    created_at: float = 0.0
    causation_id: str | None = None
    idempotency_key: str | None = None
    ttl_seconds: float | None = None
    trace: Mapping[str, str] = field(default_factory=dict)

    @property
    def finish_reason(self) -> str | None:
        """Why the sender's model stopped, if `serve` posted an incomplete answer; else None.

        The values are those of `ModelResponse.finish_reason`; ``event_data`` has it under the same name.
        """
        reason = self.event_data.get("finish_reason")
        return finish_reason(reason) if isinstance(reason, str) else None

    @property
    def is_truncated(self) -> bool:
        """True if the text is incomplete: the sender's model was cut off at a token limit, filtered or interrupted."""
        return self.finish_reason in CUT_OFF

    def visible_to(self, participant_id: str) -> bool:
        """Return True if a participant may see the envelope: its sender and audience, or all if `audience` is None."""
        return self.audience is None or participant_id == self.sender_id or participant_id in self.audience

    def same_content(self, other: Envelope) -> bool:
        """Return True if type, data, audience, causation id and TTL are equal; other fields may differ."""
        return _content(self) == _content(other)

    def to_json(self) -> str:
        """Return the envelope as a JSON object in ASCII with sorted keys; `from_json` reads it.

        Raises:
            ProtocolError: `event_data` contains a value that JSON cannot represent.
        """
        try:
            return json.dumps({name: getattr(self, name) for name in _FIELDS}, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ProtocolError(f"an envelope of type {self.event_type!r} is not valid JSON: {error}") from error

    @classmethod
    def from_json(cls, text: str | bytes) -> Envelope:
        """Parse the output of `to_json`; unknown fields, such as those of a later release, are ignored.

        Raises:
            ProtocolError: The text is not JSON, lacks a field, or a field is invalid.
        """
        try:
            decoded = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"an envelope is not valid JSON: {error}") from error
        return cls.from_dict(decoded)

    @classmethod
    def from_dict(cls, found: Any) -> Envelope:
        """Build an envelope from the JSON object that `to_json` writes; unknown fields are ignored.

        Raises:
            ProtocolError: `found` is not a JSON object, lacks a field, or a field is invalid.
        """
        if not isinstance(found, dict):
            raise ProtocolError(f"an envelope is a JSON object, not {type(found).__name__}")
        values = {name: found[name] for name in _FIELDS if name in found}
        if isinstance(audience := values.get("audience"), list):
            values["audience"] = tuple(audience)
        if isinstance(kind := values.get("event_type"), str) and kind.startswith(_CHANNEL_PREFIX):
            values["event_type"] = _SESSION_PREFIX + kind.removeprefix(_CHANNEL_PREFIX)
        try:
            envelope = cls(**values)
        except TypeError as error:
            raise ProtocolError(f"an envelope lacks a field: {error}") from error
        check_envelope(envelope)
        return envelope


_FIELDS: Final = tuple(f.name for f in fields(Envelope))


def _content(envelope: Envelope) -> tuple[Any, ...]:
    data = json.dumps(envelope.event_data, sort_keys=True)
    return envelope.event_type, data, envelope.audience, envelope.causation_id, envelope.ttl_seconds


def check_envelope(envelope: Envelope) -> None:
    """Raise a `ProtocolError` that names the first field with an invalid type, length or character.

    This function does not check the protocol's rules; `SessionAdapter.validate_send` does.
    """
    for name in ("session_id", "sender_id", "event_type"):
        check_id(name, getattr(envelope, name))
    for name in ("causation_id", "idempotency_key"):
        if getattr(envelope, name) is not None:
            check_id(name, getattr(envelope, name))
    if envelope.envelope_id != "":
        check_id("envelope_id", envelope.envelope_id)
    if not isinstance(envelope.event_data, Mapping):
        raise ProtocolError(f"event_data of an envelope is a mapping, not {type(envelope.event_data).__name__}")
    if envelope.audience is not None:
        if not isinstance(envelope.audience, tuple):
            raise ProtocolError(f"audience of an envelope is a tuple of ids, not {type(envelope.audience).__name__}")
        for participant_id in envelope.audience:
            check_id("audience", participant_id)
    ttl: Any = envelope.ttl_seconds
    if ttl is not None and not (type(ttl) in (int, float) and 0 < ttl < math.inf):
        raise ProtocolError(f"ttl_seconds of an envelope is {ttl!r}; give seconds above 0, or None")


def check_id(name: str, value: Any) -> None:
    """Raise a `ProtocolError` unless the value is a text of 1 to 256 characters that every log can store.

    Args:
        name: The name of the field, for the error message.
        value: The value of the field.
    """
    if not isinstance(value, str):
        raise ProtocolError(f"{name} is a text, not {type(value).__name__}")
    if not 0 < len(value) <= MAX_ID_CHARACTERS:
        raise ProtocolError(f"{name} has {len(value)} characters; it takes 1 to {MAX_ID_CHARACTERS}")
    if _UNSTORABLE.search(value):
        raise ProtocolError(f"{name} contains a NUL or an unpaired surrogate, which logs cannot store; remove it")
