"""`Draft`: the facts of a message that is more than one text, while its parts are read, whoever's form they have."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.forks import new_lock
from otel_assembly.messages.event_facts import EventFacts, EventKind, ToolCallFacts, own_id, spelled

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

logger = logging.getLogger("otel_assembly")

#: What an image, audio clip or file is counted as, where its size in tokens cannot be read from the message: the cost
#: of a 1024 × 1024 image at high detail in OpenAI's published rule.
MEDIA_TOKENS: Final = 765
#: What an image costs that is looked at with ``detail: low``, by the same rule.
LOW_DETAIL_TOKENS: Final = 85
#: What is encrypted is a text that nobody here can read: of so many characters of base64, one token is made.
_ENCRYPTED_PER_TOKEN: Final = 16 / 3
#: So many unknown types are warned of in a process; a type is named by so many of its characters.
_MOST_WARNINGS: Final = 64
_LONGEST_NAME: Final = 64

_warned: set[str] = set()
_warning = new_lock()


def encrypted_tokens(data: str | bytes) -> int:
    """What something that only the provider can read is counted as; the rule goes by its base64."""
    return int(len(data) / _ENCRYPTED_PER_TOKEN)


class Draft:
    """What is found in the parts of one message, in their order.

    Attributes:
        texts: Each text that the model reads.
        opens: Ids of the tool calls that are asked for.
        calls: The calls, with what they call.
        closes: Ids of the tool calls that are answered.
        awaiting: Those of `opens` that wait for an approval.
        media: Tokens of images, clips, files and what is encrypted, by estimate.
        unknown: Types that nobody knows.
        results: How many parts are results of tools.
        said: Whether anything but results of tools is said.
        provider: The provider whose form the parts have, if no other provider has that form.
        spoken: Whether it holds anything but what a model thought.
        thought: Whether it holds what a model thought.
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
        #: Whether the first of the texts is one that was said, and not the name of a tool.
        self._leads = False

    def text(self, text: Any) -> None:
        """A text that is said; anything else is none."""
        if isinstance(text, str) and text:
            if not self.texts:
                self._leads = True
            self.texts.append(text)
            self.said = self.spoken = True

    def file(self, detail: Any = None) -> None:
        """An image, a clip or a file.

        Args:
            detail: How closely an image is looked at, if the message states it: ``low`` costs the same for any size.
        """
        self.media += LOW_DETAIL_TOKENS if detail == "low" else MEDIA_TOKENS
        self.spoken = True
        self.said = True

    def encrypted(self, data: Any) -> None:
        """Something that only the provider can read."""
        if isinstance(data, (str, bytes)):
            self.media += encrypted_tokens(data)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What is read in this block stands in the message, such as what a tool gave, and nobody says it."""
        said = self.said
        yield
        self.said = said

    @contextmanager
    def thinking(self) -> Iterator[None]:
        """What is read in this block is what a model thought."""
        spoken = self.spoken
        yield
        self.spoken, self.thought = spoken, True

    def spell(self, name: Any, arguments: Any) -> None:
        """The texts of a call."""
        self.spoken = True
        self.texts.append(name if isinstance(name, str) else "")
        if arguments is not None:
            self.texts.append(arguments if isinstance(arguments, str) else spelled(arguments))

    def call(self, call: Any, name: Any, arguments: Any, *, awaiting: bool = False) -> None:
        """A tool's call; one without an id cannot be answered."""
        known = isinstance(call, str)
        if known:
            self.opens.append(call)
            if awaiting:
                self.awaiting.append(call)
        at = len(self.texts)
        self.spell(name, arguments)
        self.calls.append(ToolCallFacts(call if known else "", self.texts[at], "".join(self.texts[at + 1 :])))

    def result(self, call: Any) -> None:
        """A tool's result; one for a call of the same message ends that call."""
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
        """Something of a type that nobody knows: it counts by its JSON, and is told once."""
        name = kind[:_LONGEST_NAME]
        self.unknown.append(name)
        self.text(spelled(part))
        _warn(name)

    def facts(self, kind: EventKind, message: Mapping[str, Any], name: str = "", **known: Any) -> EventFacts:
        """What the engine is told of the message.

        Args:
            kind: What it is.
            message: The message, for its id.
            name: Who speaks.
            known: What else is known of it, by the names of `EventFacts`.
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
