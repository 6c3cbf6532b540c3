"""The order of a prompt's blocks, for the provider's cache and for the model's attention.

What is the same on every turn comes first, so that the cache holds it; the best evidence opens the rest and the second
best closes it, with the weakest in the middle, where attention is poor (Liu et al. 2023, "Lost in the Middle"); the
question comes last, right before the answer.

In a chat that is not enough for the cache: evidence is another on every turn, and all that stands behind it is read
anew, although the profile and the turns so far are what they were. The order for the cache puts those in front of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias, TypeVar, overload

from otel_assembly._internal.arguments import items_of_type, one_of
from otel_assembly._internal.forks import worked_out_once
from otel_assembly.budget.block import Block
from otel_assembly.budget.sections import Section, Zone, is_text, sections, spoken
from otel_assembly.errors import ConfigurationError
from otel_assembly.history.history import text_digest
from otel_assembly.messages.event_facts import EventKind, describe

T = TypeVar("T")
#: Whom the order of a prompt serves beyond its stable prefix: the seed's five zones, or what changes behind all else.
Order: TypeAlias = Literal["attention", "cache"]

#: Stands between the messages of a prompt that is sent as one text.
_BETWEEN: Final = "\n\n"


@dataclass(frozen=True, slots=True)
class Piece:
    """What stands at one place of the prompt.

    Attributes:
        block: The block, holding what of it stands here.
        zone: Where that is.
        messages: What the model is sent of it.
        profile: Whether it is durable facts about somebody, which rarely change.
    """

    block: Block
    zone: Zone
    messages: tuple[Any, ...]
    profile: bool


class OrderedPrompt(Sequence["Block"]):
    """Blocks in the order of the prompt; a block whose parts stand apart is in it once for each part.

    Nothing in it changes. Equal blocks give equal bytes, in every process.
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
        """What a provider is sent: texts as chat messages (``role``, ``content``), events as the very objects.

        The question is the user's; instructions and context are the system's.
        """
        return [
            dict(message) if isinstance(message, _Text) else message
            for piece in self._pieces
            for message in piece.messages
        ]

    @worked_out_once
    def text(self) -> str:
        """The whole prompt as one text, for a model that completes texts."""
        return _BETWEEN.join(_text_of(message) for piece in self._pieces for message in piece.messages)

    @worked_out_once
    def boundary(self) -> int:
        """How many leading messages are the cacheable prefix."""
        return sum(len(piece.messages) for piece in self._pieces if piece.zone is Zone.PREFIX)

    @worked_out_once
    def breakpoints(self) -> tuple[int, ...]:
        """Indexes of the messages after which an explicit cache-control marker pays, at most four, ascending.

        They stand where something begins that changes at another time than what is before it: behind instructions,
        behind schemas, behind other stable blocks, and behind profile facts that follow the prefix directly; in the
        order for the cache also behind the summary and behind the turns, and then the last four of these.
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

    @worked_out_once
    def prefix_hash(self) -> str:
        """16 hex digits that stand for the cacheable prefix, equal in every process."""
        state = hashlib.blake2b(digest_size=8)
        for piece in self._pieces:
            if piece.zone is Zone.PREFIX:
                for message in piece.messages:
                    facts = describe(message)
                    read = (EventKind(facts.kind).value, *facts.texts, *facts.opens, *facts.closes)
                    state.update(text_digest(read).to_bytes(8, "big"))
        return state.hexdigest()


class _Text(dict[str, str]):
    """A message of ours, to be told from a message that the caller gave us as an event."""


#: How many explicit markers a provider takes.
_MARKERS: Final = 4
#: How rarely a piece changes, from what only a release changes to what every turn does.
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
    """Put blocks in the order in which they are sent.

    1. *Prefix*: what is the same on every turn (`Block.stable`): instructions, schemas, few-shot examples.
    2. *Opening*: the best evidence; profile facts.
    3. *Middle*: the rest of the evidence, the weakest innermost, around other memories, the summary, older turns.
    4. *Closing*: the second-best evidence, the application's state, recent turns.
    5. The *query*, with its `Block.restated` instruction at the end.

    With ``order="cache"`` everything that a conversation keeps stands in front of everything that a question brings:

    1. *Prefix*: as above.
    2. *Opening*: profile facts, the summary, older turns, recent turns: what stays, and grows at its end.
    3. *Middle*: the application's state; other memories.
    4. *Closing*: the evidence, the weakest first, the best right in front of the query.
    5. The *query*, as above.

    That goes by what a block is, not by what changed since the last turn, so nothing has to be remembered, and the
    order is the same on every turn and in every process.

    Evidence is ranked over all blocks: by `Block.order`, then a block's best item, its second, and the rest. The order
    of the input changes nothing. Nothing is counted or cut; `allocate` does that, before.

    Args:
        blocks: The blocks to send, such as `Allocation.blocks`.
        query_block: The name of the block that is the question, where that is not the one of priority 3.
        order: ``attention``, the seed's; or ``cache``.

    Raises:
        ConfigurationError: Two blocks share a name, none has the name that `query_block` says, or there is no such
            order; `blocks` is no collection of `Block`.
    """
    one_of("order", order, Order)
    blocks = items_of_type("blocks", blocks, Block)
    return OrderedPrompt(
        _piece(block, section, said, zone)
        for block, section, said, zone in _in_order(
            blocks, query_block, order, lambda block: spoken(block, block.items, range(len(block.items)))
        )
    )


def parts_in_order(blocks: Iterable[Block], order: Order) -> Iterator[tuple[Block, Section]]:
    """In which order the items of blocks are sent, with none of their texts put together.

    Raises:
        ConfigurationError: Two blocks share a name.
    """
    for block, section, _, _ in _in_order(
        blocks,
        None,
        order,
        lambda block: [(one, None) for one in sections(block, block.items, range(len(block.items)))],
    ):
        yield block, section


def _in_order(
    blocks: Iterable[Block],
    query_block: str | None,
    order: Order,
    parts_of: Callable[[Block], Iterable[tuple[Section, T]]],
) -> list[tuple[Block, Section, T, Zone]]:
    """The parts of all blocks, each with its zone, as they are sent."""
    ordered = sorted(blocks, key=lambda block: block.order)
    names = [block.name for block in ordered]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError(f"two blocks are called {twice!r}; each needs a name of its own")
    if query_block is not None and query_block not in names:
        raise ConfigurationError(
            f"no block is called {query_block!r}, so it cannot be the query; there are: {', '.join(names) or 'none'}"
        )
    evidence: list[tuple[Block, Section, T]] = []
    standing: dict[Zone, list[tuple[Block, Section, T]]] = {zone: [] for zone in Zone}
    question: list[tuple[Block, Section, T]] = []
    for block in ordered:
        for section, part in parts_of(block):
            if block.name == query_block:
                question.append((block, section, part))
            elif block.kind is EventKind.EVIDENCE and not block.stable:
                evidence.append((block, section, part))
            else:
                standing[section.zone].append((block, section, part))
    ranked = sorted(evidence, key=lambda one: (one[0].order, one[1].strength))
    zones = _for_attention(ranked, standing) if order == "attention" else _for_cache(ranked, standing)
    zones = {**zones, Zone.PREFIX: standing[Zone.PREFIX], Zone.QUERY: [*standing[Zone.QUERY], *question]}
    return [(block, section, part, zone) for zone in Zone for block, section, part in zones[zone]]


_Part: TypeAlias = tuple["Block", Section, T]
_Standing: TypeAlias = Mapping[Zone, Sequence[_Part[T]]]


def _for_attention(
    ranked: Sequence[_Part[T]], standing: Mapping[Zone, Sequence[_Part[T]]]
) -> dict[Zone, list[_Part[T]]]:
    """The variable zones of the seed: the best evidence opens and closes them."""
    best, second, rest = ranked[:1], ranked[1:2], ranked[2:]
    return {
        Zone.OPENING: [*best, *standing[Zone.OPENING]],
        Zone.MIDDLE: [*rest[::2], *standing[Zone.MIDDLE], *reversed(rest[1::2])],
        Zone.CLOSING: [*second, *standing[Zone.CLOSING]],
    }


#: What a conversation keeps, in the order in which it came to be.
_KEPT: Final = (EventKind.SUMMARY, EventKind.OLDER, EventKind.RECENT)


def _for_cache(ranked: Sequence[_Part[T]], standing: _Standing[T]) -> dict[Zone, list[_Part[T]]]:
    """What a conversation keeps, then what is another on every turn."""
    others = [*standing[Zone.MIDDLE], *standing[Zone.CLOSING]]
    turns = [part for kind in _KEPT for part in others if part[0].kind is kind]
    return {
        Zone.OPENING: [*standing[Zone.OPENING], *turns],
        Zone.MIDDLE: sorted((one for one in others if one[0].kind not in _KEPT), key=lambda one: one[0].order),
        Zone.CLOSING: [*reversed(ranked)],
    }


def _piece(block: Block, section: Section, said: Sequence[Sequence[str]], zone: Zone) -> Piece:
    items = block.items
    restated = block.restated if said and said[-1][-1] is block.restated else ""
    held = block
    if section.items != tuple(range(len(items))) or restated != block.restated:
        held = replace(block, content=[items[index] for index in section.items], restated=restated)
    sent = tuple(_messages(block, section, said, "user" if zone is Zone.QUERY else "system"))
    profile = block.kind is EventKind.MEMORY and all(items[index].profile for index in section.items)
    return Piece(held, zone, sent, profile)


def _messages(block: Block, section: Section, said: Sequence[Sequence[str]], role: str) -> Iterator[Any]:
    """A section's messages; among events, each of its texts is one of its own, at its place."""
    items = block.items
    texts = iter(said)
    if any(not is_text(items[index]) for index in section.items):
        for index in section.items:
            if is_text(items[index]):
                yield _Text(role=role, content=block.separator.join(next(texts)))
            else:
                yield items[index].content
    yield from (_Text(role=role, content=block.separator.join(joined)) for joined in texts)
