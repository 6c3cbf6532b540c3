"""`EventFacts`: what the engine knows of one event, whatever its type."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from otel_assembly.errors import UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Sequence


class EventKind(StrEnum):
    """What an item is, for policies and for telemetry; a closed set.

    Of events: up to ``other``. ``system`` is a system or developer message that stands among the events; the leading
    ones are prompts that the caller chose to pass there, and no policy removes them. Of what blocks hold: ``system``,
    ``summary``, and what follows ``other``.
    """

    REQUEST = "request"
    RESPONSE = "response"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    SUMMARY = "summary"
    ALERT = "alert"
    SYSTEM = "system"
    OTHER = "other"
    SCHEMA = "schema"
    QUERY = "query"
    STATE = "state"
    EVIDENCE = "evidence"
    MEMORY = "memory"
    RECENT = "recent"
    OLDER = "older"


class ToolCallFacts(NamedTuple):
    """One tool call that an event asks for.

    Attributes:
        id: The call's id.
        name: The tool's name.
        arguments: Its arguments as JSON, or as whatever text the model wrote.
    """

    id: str
    name: str
    arguments: str


#: An event's kind as its string. What blocks hold beside these is for blocks alone.
KindName: TypeAlias = Literal["request", "response", "tool_call", "tool_result", "summary", "alert", "system", "other"]


@dataclass(frozen=True, slots=True)
class EventFacts:
    """What the engine knows of one event.

    Attributes:
        kind: One of `EventKind`, or its string; any other raises `UnknownNameError`.
        text: The main text that the model would read.
        fields: Further texts of the same message (parts, tool names, arguments); each is tokenised alone.
        opens: Ids of the tool calls that this event asks for; also those that `fields` spell out.
        closes: Ids of the tool calls that this event answers.
        awaiting: Those of `opens` that explicitly wait for an approval: they stay pending however old they are.
        id: The framework's own id of the event, if it has one.
        id_given: Whether it was given that id. False where every object is made with an id of its own, so that another
            id does not make another event of it.
        name: The name of the speaker that the provider renders beside the role; none where the client sends none, as
            with a tool's result.
        restates: True for a type that may say again what an earlier event of the stream said (AG2 carries a tool call
            three times): where it does, it costs nothing and belongs to the atom that it echoes.
        media_tokens: Tokens of images, audio, files and encrypted reasoning, by estimate.
        billed_tokens: The input tokens the provider billed for the call that this response answers, if it says so.
        output_tokens: The output tokens it billed for this response.
        calls: The calls of `opens`, with what they call; for observers, and for nothing that is counted or cut.
        framed: Whether it is a message of its own; False for a text that is part of one, whose marks are counted there.
        unknown: Types that its row does not know, of its parts or its own: each is counted by its JSON, and an
            `Assembler` or a `History` that is strict refuses it.
    """

    kind: EventKind | KindName
    text: str = ""
    fields: Sequence[str] = ()
    opens: Sequence[str] = ()
    closes: Sequence[str] = ()
    awaiting: Sequence[str] = ()
    id: str | None = None
    name: str = ""
    restates: bool = False
    media_tokens: int = 0
    billed_tokens: int | None = None
    output_tokens: int | None = None
    calls: Sequence[ToolCallFacts] = ()
    framed: bool = True
    id_given: bool = True
    unknown: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise UnknownNameError("kind of event", str(self.kind), [kind.value for kind in EventKind])

    @property
    def texts(self) -> tuple[str, ...]:
        """Every text field that is not empty, in order."""
        if not (self.name or self.fields):
            return (self.text,) if self.text else ()
        return tuple([text for text in (self.text, self.name, *self.fields) if text])

    @property
    def rendered(self) -> bool:
        """Whether the model sees this event as a message at all; alerts and lifecycle notes are not sent."""
        return bool(
            self.kind in _MESSAGE_KINDS or self.text or self.fields or self.opens or self.closes or self.media_tokens
        )


_KINDS = frozenset(EventKind)
_MESSAGE_KINDS = _KINDS - {EventKind.ALERT, EventKind.OTHER}
