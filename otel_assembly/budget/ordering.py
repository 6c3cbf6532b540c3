"""Orders a prompt's blocks for the provider's cache and for the model's attention.

In the order ``attention``, content that is equal on every turn comes first, so that the provider caches it. The best
evidence follows, then the weakest evidence, then the second best, because models attend least to the middle of a prompt
(Liu et al. 2023, "Lost in the Middle"). The query is last, right before the answer.

In a chat, evidence changes on every turn, so the provider cannot cache the earlier turns that follow it, although they
did not change. In the order ``cache``, facts about the user and the turns therefore precede the evidence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias, TypeVar, overload

from otel_assembly._internal.arguments import items_of_type, one_of
from otel_assembly._internal.fork_safety import lazy_property
from otel_assembly.budget.block import Block
from otel_assembly.budget.sections import Section, Zone, is_text, sections, sections_with_texts
from otel_assembly.errors import ConfigurationError
from otel_assembly.history.history import text_digest
from otel_assembly.messages.event_facts import EventKind, describe

T = TypeVar("T")
#: What the order of the content after the stable prefix is optimized for: the model's attention or the provider's
#: cache.
Order: TypeAlias = Literal["attention", "cache"]

#: The separator of messages in a prompt that is sent as one text.
_MESSAGE_SEPARATOR: Final = "\n\n"
_CONTENT: Final = attrgetter("content")
_ORDER: Final = attrgetter("order")
_ZONES: Final = tuple(Zone)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an ordered prompt: items of one block that are next to each other.

    Attributes:
        block: A block with only the items of this part.
        zone: The zone of the prompt that contains the part.
        messages: The messages into which the part is rendered.
        profile: Whether the part consists of durable facts about the user, which rarely change.
    """

    block: Block
    zone: Zone
    messages: tuple[Any, ...]
    profile: bool


class OrderedPrompt(Sequence["Block"]):
    """An immutable sequence of blocks in the order in which they are sent.

    If the items of a block are placed at several positions (such as its best and its weakest evidence), the sequence
    contains one block for each position. Equal blocks result in an equal prompt, byte for byte, in every process.
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
        """The zone of each block of this sequence."""
        return tuple(piece.zone for piece in self._pieces)

    @property
    def messages(self) -> list[Any]:
        """The messages to send to a provider.

        A text is a dict with ``role`` and ``content``; a message object is returned as it was passed. The query has the
        role ``user``, and other texts have the role ``system``.
        """
        return [
            dict(message) if isinstance(message, _Text) else message
            for piece in self._pieces
            for message in piece.messages
        ]

    @lazy_property
    def text(self) -> str:
        """The whole prompt as one text, for models whose input is a text and not a list of messages."""
        return _MESSAGE_SEPARATOR.join(_text_of(message) for piece in self._pieces for message in piece.messages)

    @lazy_property
    def boundary(self) -> int:
        """The number of messages at the beginning that are equal on every turn, so that the provider can cache them."""
        return sum(len(piece.messages) for piece in self._pieces if piece.zone is Zone.PREFIX)

    @lazy_property
    def breakpoints(self) -> tuple[int, ...]:
        """The indexes of the messages after which to set cache-control markers, ascending and at most four.

        A marker belongs before content that changes more often than the content before it: after instructions, after
        schemas, after other stable blocks, and after facts about the user that follow these directly. In the order
        ``cache``, also after the summary and after the turns. If there are more than four such positions, the last four
        are returned, because providers accept four markers.
        """
        last_message_by_level: dict[int, int] = {}
        message_count = 0
        for piece in self._pieces:
            level = _level(piece)
            if level == _VARIABLE:
                break
            message_count += len(piece.messages)
            last_message_by_level[level] = message_count - 1
        return tuple(sorted(set(last_message_by_level.values()))[-_MARKERS:])

    @lazy_property
    def prefix_hash(self) -> str:
        """A hash of the messages that `boundary` counts, as 16 hex digits; it is equal in every process."""
        state = hashlib.blake2b(digest_size=8)
        for piece in self._pieces:
            if piece.zone is Zone.PREFIX:
                for message in piece.messages:
                    facts = describe(message)
                    content = (EventKind(facts.kind).value, *facts.texts, *facts.opens, *facts.closes)
                    state.update(text_digest(content).to_bytes(8, "big"))
        return state.hexdigest()


class _Text(dict[str, str]):
    """A message dict that this module created from the texts of blocks.

    The class distinguishes such messages from the caller's own message objects: only these dicts are copied before they
    are returned, so that callers may change the copies.
    """


#: The maximum number of cache-control markers that a provider accepts.
_MARKERS: Final = 4
#: Levels of pieces by how often they change, from instructions (once per release) to variable content (every turn).
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
    """Order the content of blocks for a prompt.

    With ``order="attention"``, important content is at the beginning and at the end of the prompt:

    1. *Prefix*: content that is equal on every turn (`Block.stable`): instructions, schemas, few-shot examples.
    2. *Opening*: the best evidence; facts about the user (`BlockItem.profile`).
    3. *Middle*: other memories, the summary and older turns. The other evidence is before and after them, with the
       weakest next to them.
    4. *Closing*: the second-best evidence, the application's state, recent turns.
    5. The *query*, with its `Block.restated` instruction at the end.

    With ``order="cache"``, the conversation precedes content that depends on the query, so that it can be cached:

    1. *Prefix*: as above.
    2. *Opening*: facts about the user, the summary, older turns, recent turns. New content is only appended to them.
    3. *Middle*: the application's state; other memories.
    4. *Closing*: the evidence, the weakest first and the best right before the query.
    5. The *query*, as above.

    The order depends only on the blocks and not on earlier turns. Evidence of all blocks is ranked together: by
    `Block.order`, then the best item of each block, its second best, and the rest. The order of `blocks` has no effect.
    No tokens are counted and nothing is cut; call `allocate` before.

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
    """Yield each block with one of its sections at a time, in the order of the prompt; texts are not joined.

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
    """Return the sections of all blocks with their zones, in the order of the prompt.

    Args:
        blocks: The blocks.
        query_block: The name of the query's block, if its priority is not 3.
        order: ``attention`` or ``cache``.
        parts_of: Returns the sections of a block, each with an object that is returned with it.
    """
    ordered = sorted(blocks, key=_ORDER)
    names = [block.name for block in ordered]
    if len(set(names)) < len(names):
        duplicate = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError(f"two blocks are named {duplicate!r}; give each block a unique name")
    if query_block is not None and query_block not in names:
        raise ConfigurationError(
            f"query_block: no block is named {query_block!r}; the blocks are: {', '.join(names) or 'none'}"
        )
    evidence: list[tuple[Block, Section, T]] = []
    by_zone: dict[Zone, list[tuple[Block, Section, T]]] = {zone: [] for zone in _ZONES}
    query_parts: list[tuple[Block, Section, T]] = []
    for block in ordered:
        for section, part in parts_of(block):
            if block.name == query_block:
                query_parts.append((block, section, part))
            elif block.kind is EventKind.EVIDENCE and not block.stable:
                evidence.append((block, section, part))
            else:
                by_zone[section.zone].append((block, section, part))
    ranked = sorted(evidence, key=lambda part: (part[0].order, part[1].strength)) if evidence else []
    zones = _for_attention(ranked, by_zone) if order == "attention" else _for_cache(ranked, by_zone)
    zones = {**zones, Zone.PREFIX: by_zone[Zone.PREFIX], Zone.QUERY: [*by_zone[Zone.QUERY], *query_parts]}
    return [(block, section, part, zone) for zone in _ZONES for block, section, part in zones[zone]]


_Part: TypeAlias = tuple["Block", Section, T]
_ByZone: TypeAlias = Mapping[Zone, Sequence[_Part[T]]]


def _for_attention(
    ranked: Sequence[_Part[T]], by_zone: Mapping[Zone, Sequence[_Part[T]]]
) -> dict[Zone, list[_Part[T]]]:
    """Return the contents of the zones between prefix and query, with the best evidence at both ends.

    Args:
        ranked: The sections of evidence, the best first.
        by_zone: The sections of all other content by their default zone.
    """
    best, second, rest = ranked[:1], ranked[1:2], ranked[2:]
    return {
        Zone.OPENING: [*best, *by_zone[Zone.OPENING]],
        Zone.MIDDLE: [*rest[::2], *by_zone[Zone.MIDDLE], *reversed(rest[1::2])],
        Zone.CLOSING: [*second, *by_zone[Zone.CLOSING]],
    }


#: The kinds of blocks with content of the conversation, from old to new.
_CONVERSATION: Final = (EventKind.SUMMARY, EventKind.OLDER, EventKind.RECENT)


def _for_cache(ranked: Sequence[_Part[T]], by_zone: _ByZone[T]) -> dict[Zone, list[_Part[T]]]:
    """Return the contents of the zones between prefix and query, with the conversation before other content.

    The arguments are those of `_for_attention`.
    """
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
    everything = range(len(items))
    is_whole = section.items in (everything, tuple(everything))
    if not is_whole or restated != block.restated:
        part = replace(block, content=[items[index] for index in section.items], restated=restated)
    messages = tuple(_messages(block, section, texts, "user" if zone is Zone.QUERY else "system"))
    profile = block.kind is EventKind.MEMORY and all(items[index].profile for index in section.items)
    return Piece(part, zone, messages, profile)


def _messages(block: Block, section: Section, texts: Sequence[Sequence[str]], role: str) -> list[Any]:
    """Return the messages of a section: `texts` as messages with the given role, and message objects as they are."""
    items = block.items
    rendered = [_Text(role=role, content=block.separator.join(joined)) for joined in texts]
    if not block.has_texts:
        return [*map(_CONTENT, map(items.__getitem__, section.items)), *rendered]
    if not block.has_events or all(is_text(items[index]) for index in section.items):
        return rendered
    remaining = iter(rendered)
    messages = [next(remaining) if is_text(item) else item.content for item in map(items.__getitem__, section.items)]
    return [*messages, *remaining]
