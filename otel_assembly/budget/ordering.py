"""Orders a prompt's blocks for the provider's cache and for the model's attention.

Content that is the same on every turn comes first, so that the provider caches it. The best evidence opens the rest
and the second best closes it. The weakest evidence is in the middle, where attention is poor (Liu et al. 2023, "Lost
in the Middle"). The query is last, right before the answer.

In a chat, this order limits the cache: evidence changes on every turn, so the profile and the earlier turns after it
are read again although they did not change. The order ``cache`` puts them in front of the evidence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias, TypeVar, overload

from otel_assembly._internal.arguments import items_of_type, one_of
from otel_assembly._internal.fork_safety import lazy_property
from otel_assembly.budget.block import Block
from otel_assembly.budget.sections import Section, Zone, is_text, sections, sections_with_texts
from otel_assembly.errors import ConfigurationError
from otel_assembly.history.history import text_digest
from otel_assembly.messages.event_facts import EventKind, describe

T = TypeVar("T")
#: The purpose of the order behind the stable prefix: the model's attention, or the provider's cache.
Order: TypeAlias = Literal["attention", "cache"]

#: The separator of messages in a prompt that is sent as one text.
_BETWEEN: Final = "\n\n"


@dataclass(frozen=True, slots=True)
class Piece:
    """One part of a block at its place in the prompt.

    Attributes:
        block: The block, with the items of this part.
        zone: The zone of the part.
        messages: The messages of the part.
        profile: Whether the part consists of durable facts about a user, which rarely change.
    """

    block: Block
    zone: Zone
    messages: tuple[Any, ...]
    profile: bool


class OrderedPrompt(Sequence["Block"]):
    """Blocks in the order of the prompt.

    A block with separated parts occurs once for each part. The object is immutable. Equal blocks give equal bytes in
    every process.
    """

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._pieces = tuple(pieces)

    @overload
    def __getitem__(self, index: int) -> Block: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Block, ...]: ...
    def __getitem__(self, index: int | slice) -> Block | tuple[Block, ...]:
        if isinstance(index, slice):
            return tuple(piece.block for piece in self._pieces[index])
        return self._pieces[index].block

    def __len__(self) -> int:
        return len(self._pieces)

    def __iter__(self) -> Iterator[Block]:
        return (piece.block for piece in self._pieces)

    def __repr__(self) -> str:
        zones = ", ".join(f"{piece.zone.name.lower()} {piece.block.name}" for piece in self._pieces)
        return f"OrderedPrompt({zones})"

    @property
    def zones(self) -> tuple[Zone, ...]:
        """The zone of each block, in the same order."""
        return tuple(piece.zone for piece in self._pieces)

    @property
    def messages(self) -> list[Any]:
        """The messages for a provider.

        Texts are dicts (``role``, ``content``), events are the original objects. The query has the role ``user``; other
        texts have the role ``system``.
        """
        return [
            dict(message) if isinstance(message, _Text) else message
            for piece in self._pieces
            for message in piece.messages
        ]

    @lazy_property
    def text(self) -> str:
        """The whole prompt as one text, for models that complete texts."""
        return _BETWEEN.join(_text_of(message) for piece in self._pieces for message in piece.messages)

    @lazy_property
    def boundary(self) -> int:
        """How many leading messages belong to the cacheable prefix."""
        return sum(len(piece.messages) for piece in self._pieces if piece.zone is Zone.PREFIX)

    @lazy_property
    def breakpoints(self) -> tuple[int, ...]:
        """Indexes of the messages after which to set cache-control markers.

        There are at most four, ascending. A marker is set where content begins that changes more often than the content
        before it: after instructions, after schemas, after other stable blocks, and after profile facts that follow the
        prefix directly. In the order ``cache``, also after the summary and after the turns. If there are more than four
        such places, the last four are returned.
        """
        ends: dict[int, int] = {}
        sent = 0
        for piece in self._pieces:
            level = _level(piece)
            if level == _VARIABLE:
                break
            sent += len(piece.messages)
            ends[level] = sent - 1
        return tuple(sorted(set(ends.values()))[-_MARKERS:])

    @lazy_property
    def prefix_hash(self) -> str:
        """A hash of the cacheable prefix, as 16 hex digits, equal in every process."""
        state = hashlib.blake2b(digest_size=8)
        for piece in self._pieces:
            if piece.zone is Zone.PREFIX:
                for message in piece.messages:
                    facts = describe(message)
                    read = (EventKind(facts.kind).value, *facts.texts, *facts.opens, *facts.closes)
                    state.update(text_digest(read).to_bytes(8, "big"))
        return state.hexdigest()


class _Text(dict[str, str]):
    """A message made from texts, not one that the caller passed as an event."""


#: The most explicit cache markers that a provider accepts.
_MARKERS: Final = 4
#: How often a piece changes, from once per release to once per turn.
_INSTRUCTIONS, _SCHEMAS, _OTHER_STABLE, _PROFILE, _SUMMARY, _TURNS, _VARIABLE = range(1, 8)
_OPENING_LEVELS: Final = {EventKind.SUMMARY: _SUMMARY, EventKind.OLDER: _TURNS, EventKind.RECENT: _TURNS}


def _level(piece: Piece) -> int:
    if piece.zone is Zone.PREFIX:
        return {EventKind.SYSTEM: _INSTRUCTIONS, EventKind.SCHEMA: _SCHEMAS}.get(piece.block.kind, _OTHER_STABLE)
    if piece.zone is Zone.OPENING:
        return _PROFILE if piece.profile else _OPENING_LEVELS.get(piece.block.kind, _VARIABLE)
    return _VARIABLE


def _text_of(message: Any) -> str:
    return "\n".join(describe(message).texts)


def order_for_attention_and_cache(
    blocks: Iterable[Block], query_block: str | None = None, *, order: Order = "attention"
) -> OrderedPrompt:
    """Return blocks in the order in which they are sent.

    1. *Prefix*: content that is the same on every turn (`Block.stable`): instructions, schemas, few-shot examples.
    2. *Opening*: the best evidence; profile facts.
    3. *Middle*: the other evidence, the weakest innermost, around other memories, the summary, older turns.
    4. *Closing*: the second-best evidence, the application's state, recent turns.
    5. The *query*, with its `Block.restated` instruction at the end.

    With ``order="cache"``, content of the conversation precedes content that depends on the query:

    1. *Prefix*: as above.
    2. *Opening*: profile facts, the summary, older turns, recent turns: content that stays, and grows at its end.
    3. *Middle*: the application's state; other memories.
    4. *Closing*: the evidence, the weakest first and the best right before the query.
    5. The *query*, as above.

    The order depends on the kinds of blocks, and not on changes since the last turn. So it needs no memory, and is the
    same on every turn and in every process.

    Evidence is ranked over all blocks: by `Block.order`, then each block's best item, its second, and the rest. The
    order of `blocks` has no effect. Nothing is counted or cut; call `allocate` before.

    Args:
        blocks: The blocks to send, such as `Allocation.blocks`.
        query_block: The name of the block that is the query, if it is not the block of priority 3.
        order: ``attention`` or ``cache``.

    Raises:
        ConfigurationError: Two blocks have the same name, no block is named `query_block`, `order` is unknown, or
            `blocks` is not a collection of `Block`.
    """
    one_of("order", order, Order)
    blocks = items_of_type("blocks", blocks, Block)
    return OrderedPrompt(
        _piece(block, section, messages, zone)
        for block, section, messages, zone in _in_order(
            blocks, query_block, order, lambda block: sections_with_texts(block, block.items, range(len(block.items)))
        )
    )


def parts_in_order(blocks: Iterable[Block], order: Order) -> Iterator[tuple[Block, Section]]:
    """Yield the parts of blocks in the order of the prompt, without joining texts.

    Raises:
        ConfigurationError: Two blocks have the same name.
    """
    for block, section, _, _ in _in_order(
        blocks,
        None,
        order,
        lambda block: [(part, None) for part in sections(block, block.items, range(len(block.items)))],
    ):
        yield block, section


def _in_order(
    blocks: Iterable[Block],
    query_block: str | None,
    order: Order,
    parts_of: Callable[[Block], Iterable[tuple[Section, T]]],
) -> list[tuple[Block, Section, T, Zone]]:
    """Return the parts of all blocks with their zones, in the order of the prompt."""
    ordered = sorted(blocks, key=lambda block: block.order)
    names = [block.name for block in ordered]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError(f"two blocks are named {twice!r}; give each block a unique name")
    if query_block is not None and query_block not in names:
        raise ConfigurationError(
            f"query_block: no block is named {query_block!r}; the blocks are: {', '.join(names) or 'none'}"
        )
    evidence: list[tuple[Block, Section, T]] = []
    by_zone: dict[Zone, list[tuple[Block, Section, T]]] = {zone: [] for zone in Zone}
    question: list[tuple[Block, Section, T]] = []
    for block in ordered:
        for section, part in parts_of(block):
            if block.name == query_block:
                question.append((block, section, part))
            elif block.kind is EventKind.EVIDENCE and not block.stable:
                evidence.append((block, section, part))
            else:
                by_zone[section.zone].append((block, section, part))
    ranked = sorted(evidence, key=lambda part: (part[0].order, part[1].strength))
    zones = _for_attention(ranked, by_zone) if order == "attention" else _for_cache(ranked, by_zone)
    zones = {**zones, Zone.PREFIX: by_zone[Zone.PREFIX], Zone.QUERY: [*by_zone[Zone.QUERY], *question]}
    return [(block, section, part, zone) for zone in Zone for block, section, part in zones[zone]]


_Part: TypeAlias = tuple["Block", Section, T]
_ByZone: TypeAlias = Mapping[Zone, Sequence[_Part[T]]]


def _for_attention(
    ranked: Sequence[_Part[T]], by_zone: Mapping[Zone, Sequence[_Part[T]]]
) -> dict[Zone, list[_Part[T]]]:
    """Return the variable zones: the best evidence opens and closes them."""
    best, second, rest = ranked[:1], ranked[1:2], ranked[2:]
    return {
        Zone.OPENING: [*best, *by_zone[Zone.OPENING]],
        Zone.MIDDLE: [*rest[::2], *by_zone[Zone.MIDDLE], *reversed(rest[1::2])],
        Zone.CLOSING: [*second, *by_zone[Zone.CLOSING]],
    }


#: The kinds of blocks with content of the conversation, from old to new.
_CONVERSATION: Final = (EventKind.SUMMARY, EventKind.OLDER, EventKind.RECENT)


def _for_cache(ranked: Sequence[_Part[T]], by_zone: _ByZone[T]) -> dict[Zone, list[_Part[T]]]:
    """Return the variable zones: the conversation precedes what changes every turn."""
    others = [*by_zone[Zone.MIDDLE], *by_zone[Zone.CLOSING]]
    turns = [part for kind in _CONVERSATION for part in others if part[0].kind is kind]
    return {
        Zone.OPENING: [*by_zone[Zone.OPENING], *turns],
        Zone.MIDDLE: sorted(
            (part for part in others if part[0].kind not in _CONVERSATION), key=lambda part: part[0].order
        ),
        Zone.CLOSING: [*reversed(ranked)],
    }


def _piece(block: Block, section: Section, texts: Sequence[Sequence[str]], zone: Zone) -> Piece:
    items = block.items
    restated = block.restated if texts and texts[-1][-1] is block.restated else ""
    part = block
    if section.items != tuple(range(len(items))) or restated != block.restated:
        part = replace(block, content=[items[index] for index in section.items], restated=restated)
    messages = tuple(_messages(block, section, texts, "user" if zone is Zone.QUERY else "system"))
    profile = block.kind is EventKind.MEMORY and all(items[index].profile for index in section.items)
    return Piece(part, zone, messages, profile)


def _messages(block: Block, section: Section, texts: Sequence[Sequence[str]], role: str) -> Iterator[Any]:
    """Yield a section's messages; next to events, each text is a separate message."""
    items = block.items
    remaining = iter(texts)
    if any(not is_text(items[index]) for index in section.items):
        for index in section.items:
            if is_text(items[index]):
                yield _Text(role=role, content=block.separator.join(next(remaining)))
            else:
                yield items[index].content
    yield from (_Text(role=role, content=block.separator.join(joined)) for joined in remaining)
