"""Splits messages into parts, for frameworks in which a message grows during a run.

An event is then a group of blocks of a message, a `MessagePart`. `MessageParts` returns the same part object for
unchanged content each time, also if the framework has copied the message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from otel_assembly.messages.content_snapshot import contents, copied, read_from
from otel_assembly.messages.event_facts import EventFacts, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Self

    #: The place of a part: its message or None, the index of its first block, its blocks, and whether the provider
    #: receives it as a separate message.
    PartPlace: TypeAlias = tuple[Any, int, tuple[Any, ...], bool]


@dataclass(slots=True, eq=False, weakref_slot=True)
class MessagePart:
    """A group of blocks of one message, as an event. Each framework derives a class for its own messages.

    Attributes:
        message: The message; None if the blocks are stored elsewhere, such as a summary.
        blocks: The blocks, which are the message's own objects.
        facts: The facts of the blocks at the time when they were read. The blocks may be changed in place later.
    """

    message: Any
    blocks: tuple[Any, ...]
    facts: EventFacts

    @property
    def id(self) -> str | None:
        """The id of the part, which is equal for another object with the same name and content."""
        return self.facts.id

    @classmethod
    def named(cls, name: str, message: Any, blocks: Sequence[Any], facts: EventFacts, *, framed: bool = True) -> Self:
        """Return a part whose id consists of a name, which is unique in the conversation, and a hash of the content.

        If a block is changed in place, the next part of the same name has another id. The part is `framed` if the
        provider receives it as a separate message.
        """
        content_hash = hash((*facts.texts, facts.media_tokens)) & 0xFFFFFFFFFFFFFFFF
        return cls(message, tuple(blocks), facts._replace(id=f"{name}/{content_hash:x}", framed=framed))


read_from(MessagePart, "facts")


@describe.register
def _(part: MessagePart) -> EventFacts:
    return part.facts


P = TypeVar("P", bound=MessagePart)


class MessageParts(Generic[P]):
    """The parts of one conversation's messages.

    Unchanged content at the same place has the same part object, also if its message was copied.

    Args:
        split: Splits messages, which have an attribute ``id``, into the places of their parts.
        part_of: Creates a part from a message and its blocks; ``framed`` is True if the provider receives the part as a
            separate message.
    """

    def __init__(self, split: Callable[[Iterable[Any]], Sequence[PartPlace]], part_of: Callable[..., P]) -> None:
        self._split = split
        self._part_of = part_of
        #: The part at each place, and a copy of its content.
        self._parts_by_place: dict[tuple[Any, ...], tuple[P, Sequence[Any]]] = {}

    def of(self, messages: Iterable[Any], in_front: Sequence[Any] = (), *, forgets: bool = True) -> list[P]:
        """Return the parts of the blocks `in_front` and of messages. With `forgets`, all other parts are forgotten."""
        leading: list[PartPlace] = [(None, 0, tuple(in_front), True)] if in_front else []
        places = [*leading, *self._split(messages)]
        all_contents = contents([block for _, _, blocks, _ in places for block in blocks])
        parts_by_place: dict[tuple[Any, ...], tuple[P, Sequence[Any]]] = {}
        end = 0
        for message, number, blocks, framed in places:  # hot path: no function is called for unchanged content
            key: tuple[Any, ...] = (None if message is None else message.id, number, framed)
            while key in parts_by_place:  # the same message occurs again
                key = (*key, "again")
            start, end = end, end + len(blocks)
            content, entry = all_contents[start:end], self._parts_by_place.get(key)
            if entry is None or entry[1] != content:
                entry = self._part_of(message, blocks, framed=framed), copied(content)
            part, _ = parts_by_place[key] = entry
            part.message, part.blocks = message, blocks  # those of the newest copy
        if forgets:
            self._parts_by_place = parts_by_place
        return [part for part, _ in parts_by_place.values()]
