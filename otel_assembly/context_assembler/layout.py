"""Lays out blocks as the events of an ordinary assembly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.budget.ordering import parts_in_order
from otel_assembly.budget.read_block import ReadBlock
from otel_assembly.budget.sections import is_text, item_text
from otel_assembly.context_assembler.block_event import BlockEvent, facts_in
from otel_assembly.context_assembler.turn_log import TurnLog, TurnsBlock
from otel_assembly.history.broken_pairs import echoes_stand
from otel_assembly.history.read_events import ReadEvents

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from otel_assembly.budget.block import Block, BlockItem
    from otel_assembly.budget.measure import Measure
    from otel_assembly.budget.ordering import Order
    from otel_assembly.context_assembler.turn_log import Turns
    from otel_assembly.history.view import Run, View

#: Identifies an item from turn to turn: a text by its origin and content, an event by its object.
_Name = tuple[Any, ...]


class PreviousEvents:
    """The events of a conversation's last task.

    With them, an unchanged item is the same event again.

    Args:
        step_tokens: The tokens of a step of turns.

    Attributes:
        turns: The turns that were read.
        others: The other events, by name.
    """

    def __init__(self, step_tokens: int) -> None:
        self.turns = TurnLog(step_tokens)
        self.others: Mapping[_Name, BlockEvent] = {}


class Layout:
    """The items of blocks, in the order in which they would be sent if all fitted.

    Args:
        blocks: The blocks.
        order: The order of the prompt: ``attention`` or ``cache``.
        previous: The events of the conversation's last task.
        turns: The conversation's turns if they were read before, with the index of each block's first turn.

    Attributes:
        events: The items as events.
        places: The positions of each block's items among the events.
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
        self.events = ReadEvents()
        self.places: dict[str, Sequence[int]] = {}
        before = dict(previous.others)
        others: dict[_Name, BlockEvent] = {}
        for block, section in parts_in_order(blocks, order):
            first = len(self.events)
            if turns is not None and block.name in turns[1]:
                start = turns[1][block.name]
                self.events += turns[0].view.history.events[start : start + len(block.items)]
                self.places[block.name] = range(first, len(self.events))
                continue
            places = self.places.setdefault(block.name, [-1] * len(block.items))
            for at, place in enumerate(section.items, first):
                name, event = _event(block, block.items[place], before)
                others.setdefault(name, event)
                self.events.append(event)
                places[place] = at  # type: ignore[index]  # a list for blocks that are not turns
        previous.others = others

    @property
    def turns(self) -> View | None:
        """The turns that were read, if they are remembered."""
        return self._turns[0].view if self._turns is not None else None

    def read(self, block: Block, measure: Measure) -> ReadBlock:
        """Return the `ReadBlock` of a block."""
        if self._turns is not None and block.name in self._turns[1]:
            return TurnsBlock(block, measure, self._turns[0], self._turns[1][block.name])
        return ReadBlock(block, measure)

    def runs(self, block: Block, kept: Iterable[Run]) -> list[Run]:
        """Return the positions of ranges of a block's items among the events, as ranges."""
        places = self.places[block.name]
        if isinstance(places, range):
            return [(places.start + start, places.start + stop) for start, stop in kept]
        return [(places[at], places[at] + 1) for start, stop in kept for at in range(start, stop)]

    def keeps_echoed_events(self, kept: Mapping[str, Sequence[Run]]) -> bool:
        """Return whether every kept echo still follows the event that it repeats.

        It is False for turns that were not read before, if they contain an echo.

        Args:
            kept: The kept ranges of each block's items.
        """
        if self._turns is None:
            return not any(item.echo for block in self.blocks for item in block.items)
        if not self._turns[0].view.history.echoes:
            return True
        runs = [
            (start + low, start + high) for name, start in self._turns[1].items() for low, high in kept.get(name, ())
        ]
        return echoes_stand(self._turns[0].view.history, sorted(runs))


def _event(block: Block, item: BlockItem, before: dict[_Name, BlockEvent]) -> tuple[_Name, BlockEvent]:
    """Return an item as an event: that of the last task if its content is equal."""
    if is_text(item):
        name: _Name = (block.name, block.kind, item.source, item.id, str(item.version or ""), item_text(item))
        event = before.pop(name, None) if block.name not in TURNS else None
        return name, event or BlockEvent(item, facts_in(block, item))
    name = block.name, id(item.content)
    facts = facts_in(block, item)
    event = before.pop(name, None) if block.name not in TURNS else None
    return name, event if event is not None and event.facts == facts else BlockEvent(item, facts)


#: The blocks that contain turns. Turns that were not read before may differ only in their order.
TURNS = frozenset({"recent", "older"})
