"""`Draft` collects the facts of a message with several parts, in the format of any framework."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.fork_safety import new_lock
from otel_assembly.messages.event_facts import EventFacts, EventKind, ToolCallFacts, own_id, spelled

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

logger = logging.getLogger("otel_assembly")

#: Tokens of an image, audio clip or file of unknown size: by OpenAI's published rule, those of a 1024 × 1024 image at
#: high detail.
MEDIA_TOKENS: Final = 765
#: Tokens of an image with ``detail: low``, by the same rule.
LOW_DETAIL_TOKENS: Final = 85
#: Characters of base64 per token of encrypted text. Only the provider can decrypt it, so this is an estimate.
_ENCRYPTED_PER_TOKEN: Final = 16 / 3
#: The most unknown types for which a process logs a warning, and the most characters of a type's name in a warning.
_MOST_WARNINGS: Final = 64
_LONGEST_NAME: Final = 64

_warned: set[str] = set()
_warning = new_lock()


def encrypted_tokens(data: str | bytes) -> int:
    """Return the estimated tokens of encrypted data in base64."""
    return int(len(data) / _ENCRYPTED_PER_TOKEN)


class Draft:
    """Collects the properties of one message (its `EventFacts`) while the message's parts are read in order.

    Attributes:
        texts: Each text that the model reads.
        opens: Ids of the tool calls that the message requests.
        calls: The tool calls that the message requests, with the tool's name and arguments.
        closes: Ids of the tool calls that the message answers.
        awaiting: Ids in `opens` that wait for an approval.
        media: Estimated tokens of images, audio clips, files and encrypted data.
        unknown: The names of unknown types of parts.
        results: The number of tool results.
        said: True if the message contains text or files outside of tool results.
        provider: The provider, if the format of the parts is unique to it.
        spoken: True if the message contains anything but reasoning.
        thought: True if the message contains reasoning.
    """

    __slots__ = (
        "_leads",
        "awaiting",
        "calls",
        "closes",
        "media",
        "opens",
        "provider",
        "results",
        "said",
        "spoken",
        "texts",
        "thought",
        "unknown",
    )

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.opens: list[str] = []
        self.calls: list[ToolCallFacts] = []
        self.closes: list[str] = []
        self.awaiting: list[str] = []
        self.media = 0
        self.unknown: list[str] = []
        self.results = 0
        self.said = False
        self.provider = ""
        self.spoken = self.thought = False
        #: True if the first text is part of the message's content, and not the name of a tool.
        self._leads = False

    def text(self, text: Any) -> None:
        """Add a text. Empty texts and other types are ignored."""
        if isinstance(text, str) and text:
            if not self.texts:
                self._leads = True
            self.texts.append(text)
            self.said = self.spoken = True

    def file(self, detail: Any = None) -> None:
        """Add an image, a clip or a file.

        Args:
            detail: The detail of an image, if the message has it. ``low`` costs the same for images of any size.
        """
        self.media += LOW_DETAIL_TOKENS if detail == "low" else MEDIA_TOKENS
        self.spoken = True
        self.said = True

    def encrypted(self, data: Any) -> None:
        """Add encrypted data, which only the provider can read."""
        if isinstance(data, (str, bytes)):
            self.media += encrypted_tokens(data)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Return a context manager that leaves `said` unchanged while parts of a tool result are added."""
        said = self.said
        yield
        self.said = said

    @contextmanager
    def thinking(self) -> Iterator[None]:
        """Return a context manager; parts that are added in its ``with`` block count as reasoning."""
        spoken = self.spoken
        yield
        self.spoken, self.thought = spoken, True

    def spell(self, name: Any, arguments: Any) -> None:
        """Add the texts of a tool call (the tool's name and the arguments), without the call itself."""
        self.spoken = True
        self.texts.append(name if isinstance(name, str) else "")
        if arguments is not None:
            self.texts.append(arguments if isinstance(arguments, str) else spelled(arguments))

    def call(self, call: Any, name: Any, arguments: Any, *, awaiting: bool = False) -> None:
        """Add a tool call.

        Args:
            call: The call's id. Without an id, the call cannot be answered and is not added to `opens`.
            name: The tool's name.
            arguments: The arguments, as text or as JSON values.
            awaiting: True if the call waits for an approval.
        """
        has_id = isinstance(call, str)
        if has_id:
            self.opens.append(call)
            if awaiting:
                self.awaiting.append(call)
        at = len(self.texts)
        self.spell(name, arguments)
        self.calls.append(ToolCallFacts(call if has_id else "", self.texts[at], "".join(self.texts[at + 1 :])))

    def result(self, call: Any) -> None:
        """Add a tool result.

        Args:
            call: The id of the call that the result answers. If the same message contains this call, it is removed from
                `opens` and `awaiting`.
        """
        self.results += 1
        self.spoken = True
        if isinstance(call, str):
            if call in self.opens:
                self.opens.remove(call)
                if self.awaiting.count(call) > self.opens.count(call):
                    self.awaiting.remove(call)
            else:
                self.closes.append(call)

    def other(self, kind: str, part: Any) -> None:
        """Add a part of an unknown type as its JSON, and log one warning per type."""
        name = kind[:_LONGEST_NAME]
        self.unknown.append(name)
        self.text(spelled(part))
        _warn(name)

    def facts(self, kind: EventKind, message: Mapping[str, Any], name: str = "", **known: Any) -> EventFacts:
        """Return the collected facts of the message.

        Args:
            kind: The kind of message.
            message: The message, or a mapping with its ``id``.
            name: The name of the speaker.
            known: Further fields of `EventFacts`.
        """
        lead = self.texts[0] if self._leads else ""
        return EventFacts(
            kind,
            lead,
            fields=self.texts[1:] if self._leads else self.texts,
            opens=self.opens,
            closes=self.closes,
            awaiting=self.awaiting,
            id=own_id(message),
            name=name,
            media_tokens=self.media,
            calls=self.calls,
            unknown=tuple(self.unknown) if self.unknown else (),
            is_reasoning=self.thought and not self.spoken and kind == EventKind.RESPONSE,
            **known,
        )


def _warn(kind: str) -> None:
    with _warning:
        if kind in _warned or len(_warned) >= _MOST_WARNINGS:
            return
        _warned.add(kind)
    logger.warning(
        "a part of a message has a type that is not known, %r: it is counted by its JSON; Assembler(strict=True) and "
        "History(strict=True) refuse it",
        kind,
    )
