"""`Layout`: converts the items of blocks to the events of an ordinary assembly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.budget.ordering import parts_in_order
from otel_assembly.budget.read_block import ReadBlock
from otel_assembly.budget.sections import is_text, item_text
from otel_assembly.context_assembler.block_event import BlockEvent, facts_in
from otel_assembly.context_assembler.turn_log import TurnLog, TurnsBlock
from otel_assembly.history.read_events import ReadEvents
from otel_assembly.history.tool_pairs import echoes_stand
from otel_assembly.history.view import View

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from otel_assembly.budget.block import Block, BlockItem
    from otel_assembly.budget.measure import Measure
    from otel_assembly.budget.ordering import Order
    from otel_assembly.context_assembler.turn_log import Turns
    from otel_assembly.history.read_events import Part
    from otel_assembly.history.view import Range

#: Identifies an item across turns: a text by its block, source, id, version and content; a message by its identity.
_Name = tuple[Any, ...]


class PreviousEvents:
    """The events of a conversation's previous task, which are used again for items that did not change.

    Args:
        step_tokens: The tokens of a step of stepwise cutting; see `in_steps`.

    Attributes:
        turns: The turns of the conversation, with their cached facts.
        others: The events of all other items, by the items' identity.
    """

    def __init__(self, step_tokens: int) -> None:
        self.turns = TurnLog(step_tokens)
        self.others: Mapping[_Name, BlockEvent] = {}


class Layout:
    """The items of all blocks as one list of events, in the order in which they would be sent if all of them fit.

    Args:
        blocks: The blocks.
        order: The order of the prompt: ``attention`` or ``cache``.
        previous: The events of the conversation's previous task; they are replaced by those of this task.
        turns: The conversation's turns from its `TurnLog`, with the index of the first turn of each block of turns, by
            the block's name. None if the log does not support the turns.

    Attributes:
        events: The events.
        places: For each block, by its name, the positions of its items in `events`.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        order: Order,
        previous: PreviousEvents,
        turns: tuple[Turns, Mapping[str, int]] | None,
    ) -> None:
        self.blocks = [block for block in blocks if block.items]
        self._turns = turns
        self._turn_log = previous.turns
        parts: list[Part] = []
        self.places: dict[str, Sequence[int]] = {}
        previous_others = dict(previous.others)
        others: dict[_Name, BlockEvent] = {}
        first = 0
        for block, section in parts_in_order(blocks, order):
            count = len(section.items)
            if turns is not None and block.name in turns[1]:
                start = turns[1][block.name]
                parts.append((turns[0].view.history.events, start, start + count))
                self.places[block.name] = range(first, first + count)
                first += count
                continue
            own: list[BlockEvent] = []
            places = self.places.setdefault(block.name, [-1] * len(block.items))
            for position, index in enumerate(section.items, first):
                name, event = _event(block, block.items[index], previous_others)
                others.setdefault(name, event)
                own.append(event)
                places[index] = position  # type: ignore[index]  # a list for blocks that are not turns
            parts.append((own, 0, count))
            first += count
        self.events = ReadEvents(parts)
        previous.others = others

    @property
    def turns(self) -> View | None:
        """The turns of the conversation from its `TurnLog`; None if the log does not support them."""
        return self._turns[0].view if self._turns is not None else None

    def read(self, block: Block, measure: Measure) -> ReadBlock:
        """Create the `ReadBlock` of a block; for turns of the `TurnLog`, a `TurnsBlock` with cached counts."""
        if self._turns is not None and block.name in self._turns[1]:
            return TurnsBlock(block, measure, self._turns[0], self._turns[1][block.name])
        return _WholeBlock(block, measure)

    def ranges(self, block: Block, kept: Iterable[Range]) -> list[Range]:
        """Convert ranges of indexes of a block's items to ranges of positions in `events`."""
        places = self.places[block.name]
        if isinstance(places, range):
            return [(places.start + start, places.start + stop) for start, stop in kept]
        return [(places[index], places[index] + 1) for start, stop in kept for index in range(start, stop)]

    def keeps_echoed_events(self, kept: Mapping[str, Sequence[Range]]) -> bool:
        """Return whether each kept echo (an event that repeats an earlier event) still follows the repeated event.

        If the turns are not from a `TurnLog`, the result is False as soon as they contain an echo.

        Args:
            kept: The ranges of kept items, by the block's name.
        """
        if self._turns is None:
            return not any(item.echo for block in self.blocks for item in block.items)
        history = self._turns[0].view.history
        return not history.echoes or echoes_stand(View(history, history.all, self._turn_ranges(kept)))

    def is_current(self, kept: Mapping[str, Sequence[Range]]) -> bool:
        """Return whether the kept turns have the content that the allocator decided on.

        Args:
            kept: The ranges of kept items, by the block's name.
        """
        return self._turns is None or self._turn_log.verify(self._turns[0], self._turn_ranges(kept))

    def _turn_ranges(self, kept: Mapping[str, Sequence[Range]]) -> list[Range]:
        """Return the ranges of kept turns in the conversation, ascending."""
        starts = self._turns[1] if self._turns is not None else {}
        return sorted((start + low, start + high) for name, start in starts.items() for low, high in kept.get(name, ()))


class _WholeBlock(ReadBlock):
    """A block whose `whole` is needed in any case, so that `cost` need not join and count its texts again."""

    __slots__ = ()

    def cost(self, excluded: Collection[int]) -> int:
        return super().cost(excluded) if excluded else self.whole().tokens


def _event(block: Block, item: BlockItem, previous_others: dict[_Name, BlockEvent]) -> tuple[_Name, BlockEvent]:
    """Return an item's identity and its event: that of the previous task if the content is equal, else a new one."""
    if is_text(item):
        name: _Name = (block.name, block.kind, item.source, item.id, str(item.version or ""), item_text(item))
        event = previous_others.pop(name, None) if block.name not in TURNS else None
        return name, event or BlockEvent(item, facts_in(block, item))
    name = block.name, id(item.content)
    facts = facts_in(block, item)
    event = previous_others.pop(name, None) if block.name not in TURNS else None
    return name, event if event is not None and event.facts == facts else BlockEvent(item, facts)


#: The names of the blocks of turns. Their events are not looked up by identity, because two turns may be equal.
TURNS = frozenset({"recent", "older"})
