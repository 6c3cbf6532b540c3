"""`Envelope`: one entry of a session's log, and the types of entries that the protocol knows.

The event types are AG2's, from before it called sessions channels; ``ag2.channel.*`` is read as
``ag2.session.*``, so that what a later AG2 wrote folds alike.
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

#: The types that say where a session stands. Only the protocol may send them; no inbox holds them back.
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

#: The longest id and idempotency key, in characters.
MAX_ID_CHARACTERS: Final = 256

_LATER_PREFIX: Final = "ag2.channel."
_OUR_PREFIX: Final = "ag2.session."
#: A NUL, which PostgreSQL's texts cannot hold, and halves of surrogate pairs, which UTF-8 cannot.
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Envelope:
    """One entry of a session's log: what somebody said to everybody, or to an audience.

    Who posts gives the first four fields and, where wanted, `audience`, `causation_id`, `idempotency_key` and
    `ttl_seconds`; the hub stamps the others when it accepts.

    Attributes:
        session_id: The session whose log it stands in.
        sender_id: The participant who sent it.
        event_type: What it is: one of the ``EV_*`` strings, or a type of the adapter's own.
        event_data: What it says; a JSON object.
        audience: The participants it is for, besides its sender; None where it is for all.
        envelope_id: Its id, which grows strictly within a session; stamped where it is empty.
        seq: Its place in the session's log, from 1, without gaps; 0 until it is accepted.
        created_at: When it was accepted, in seconds since the epoch; it never goes back within a session.
        causation_id: The id of the envelope that caused it.
        idempotency_key: The sender's name for this post: a second post of the same content under it returns the first.
        ttl_seconds: How long it is worth delivering, in seconds after `created_at`; None for ever.
        trace: The trace it was posted in, as W3C's headers (``traceparent``, ``tracestate``).
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
        """Whether a participant may see it: its sender, its audience, or everybody where it has none."""
        return self.audience is None or participant_id == self.sender_id or participant_id in self.audience

    def same_content(self, other: Envelope) -> bool:
        """Whether the other one says the same thing to the same participants; what a hub stamped is not compared."""
        return _content(self) == _content(other)

    def to_json(self) -> str:
        """The envelope as a JSON object in ASCII, its keys sorted; `from_json` reads it back.

        Raises:
            ProtocolError: It says something that JSON has no form for.
        """
        try:
            return json.dumps({name: getattr(self, name) for name in _FIELDS}, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ProtocolError(f"an envelope of type {self.event_type!r} is no JSON: {error}") from error

    @classmethod
    def from_json(cls, text: str | bytes) -> Envelope:
        """Read what `to_json` wrote; fields that a later release added are left out.

        Raises:
            ProtocolError: The text is no envelope.
        """
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"an envelope is no JSON: {error}") from error
        return cls.from_dict(found)

    @classmethod
    def from_dict(cls, found: Any) -> Envelope:
        """Read the object that `to_json` writes.

        Raises:
            ProtocolError: It is no envelope.
        """
        if not isinstance(found, dict):
            raise ProtocolError(f"an envelope is a JSON object, not {type(found).__name__}")
        known = {name: found[name] for name in _FIELDS if name in found}
        if isinstance(audience := known.get("audience"), list):
            known["audience"] = tuple(audience)
        if isinstance(kind := known.get("event_type"), str) and kind.startswith(_LATER_PREFIX):
            known["event_type"] = _OUR_PREFIX + kind.removeprefix(_LATER_PREFIX)
        try:
            envelope = cls(**known)
        except TypeError as error:
            raise ProtocolError(f"an envelope lacks a field: {error}") from error
        check_envelope(envelope)
        return envelope


_FIELDS: Final = tuple(f.name for f in fields(Envelope))


def _content(envelope: Envelope) -> tuple[Any, ...]:
    said = json.dumps(envelope.event_data, sort_keys=True)
    return envelope.event_type, said, envelope.audience, envelope.causation_id, envelope.ttl_seconds


def check_envelope(envelope: Envelope) -> None:
    """Raise a `ProtocolError` that names the first field which no log could hold.

    Types, lengths of ids and what texts may hold are looked at here; what the session allows is its adapter's affair.
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


def check_id(what: str, given: Any) -> None:
    """Raise a `ProtocolError` where this is no id: a text of 1 to 256 characters that every store can hold."""
    if not isinstance(given, str):
        raise ProtocolError(f"{what} is a text, not {type(given).__name__}")
    if not 0 < len(given) <= MAX_ID_CHARACTERS:
        raise ProtocolError(f"{what} has {len(given)} characters; it takes 1 to {MAX_ID_CHARACTERS}")
    if _UNSTORABLE.search(given):
        raise ProtocolError(f"{what} has a NUL or half of a surrogate pair in it, which no store can hold")
