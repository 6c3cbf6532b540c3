"""Messages that are told part by part, of a framework in which one message grows through a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from otel_assembly.messages.content_snapshot import contents, copied, read_from
from otel_assembly.messages.event_facts import EventFacts, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Self

    #: Of a part its message, if any, the number of its first block, its blocks, and whether it is a message of its own.
    PartPlace: TypeAlias = tuple[Any, int, tuple[Any, ...], bool]


@dataclass(slots=True, eq=False, weakref_slot=True)
class MessagePart:
    """Some blocks of one message: an event. A framework derives its own, for what policies make in its place.

    Attributes:
        message: The message; None for what is held elsewhere, such as a summary.
        blocks: The message's own blocks.
        facts: What the engine knows of them, by its reading at that time: blocks can be changed in place.
    """

    message: Any
    blocks: tuple[Any, ...]
    facts: EventFacts

    @property
    def id(self) -> str | None:
        """What it is known by, also where another object stands for it."""
        return self.facts.id

    @classmethod
    def named(cls, name: str, message: Any, blocks: Sequence[Any], facts: EventFacts, *, framed: bool = True) -> Self:
        """The part of this name that says this: once a block is changed in place, it is another one."""
        said = hash((*facts.texts, facts.media_tokens)) & 0xFFFFFFFFFFFFFFFF
        return cls(message, tuple(blocks), facts._replace(id=f"{name}/{said:x}", framed=framed))


read_from(MessagePart, "facts")


@describe.register
def _(part: MessagePart) -> EventFacts:
    return part.facts


P = TypeVar("P", bound=MessagePart)


class MessageParts(Generic[P]):
    """The parts of one conversation: what says what it said is the part that it was, also in a copy of its message.

    Args:
        split: How messages, which have ids, fall into parts.
        part_of: Makes a part of a message and its blocks; ``framed`` is whether it is a message of its own.
    """

    def __init__(self, split: Callable[[Iterable[Any]], Sequence[PartPlace]], part_of: Callable[..., P]) -> None:
        self._split = split
        self._part_of = part_of
        #: By the place of each: the part, and what its blocks said.
        self._known: dict[tuple[Any, ...], tuple[P, Sequence[Any]]] = {}

    def of(self, messages: Iterable[Any], in_front: Sequence[Any] = (), *, forgets: bool = True) -> list[P]:
        """The parts of messages.

        Args:
            messages: The messages.
            in_front: Blocks of no message, which are sent in front of them.
            forgets: Whether any other part may be forgotten.
        """
        leading: list[PartPlace] = [(None, 0, tuple(in_front), True)] if in_front else []
        places = [*leading, *self._split(messages)]
        all_said = contents([block for _, _, blocks, _ in places for block in blocks])
        known: dict[tuple[Any, ...], tuple[P, Sequence[Any]]] = {}
        end = 0
        for message, number, blocks, framed in places:  # most are as they were: nothing of ours is called for them
            key: tuple[Any, ...] = (None if message is None else message.id, number, framed)
            while key in known:
                key = (*key, "again")
            start, end = end, end + len(blocks)
            said, held = all_said[start:end], self._known.get(key)
            if held is None or held[1] != said:
                held = self._part_of(message, blocks, framed=framed), copied(said)
            held[0].message, held[0].blocks = message, blocks
            known[key] = held
        if forgets:
            self._known = known
        return [part for part, _ in known.values()]
