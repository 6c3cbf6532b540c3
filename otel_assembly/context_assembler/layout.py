"""Blocks laid out as the events of an ordinary assembly: which item of which block stands where."""

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

#: What an item is known by from turn to turn: where it is from and what it says, or that it is the very event.
_Name = tuple[Any, ...]


class KnownEvents:
    """The events of one conversation's last question, so that what is asked again is the very event that it was.

    Args:
        step_tokens: Tokens of a step of turns.

    Attributes:
        turns: What was read of the turns.
    """

    def __init__(self, step_tokens: int) -> None:
        self.turns = TurnLog(step_tokens)
        self.others: Mapping[_Name, BlockEvent] = {}


class Layout:
    """Every item of some blocks, in the order in which it would be sent if all of it fitted.

    Args:
        blocks: The blocks.
        order: Whom the order serves.
        known: The conversation's events.
        turns: Its turns, where they were read before, and of each block of them the first that it holds.

    Attributes:
        events: The items as events.
        places: By block, where its items stand among those.
    """

    def __init__(
        self, blocks: Sequence[Block], order: Order, known: KnownEvents, turns: tuple[Turns, Mapping[str, int]] | None
    ) -> None:
        self.blocks = [block for block in blocks if block.items]
        self._turns = turns
        self.events = ReadEvents()
        self.places: dict[str, Sequence[int]] = {}
        before = dict(known.others)
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
                places[place] = at  # type: ignore[index]  # a list, of any block but those of turns
        known.others = others

    @property
    def turns(self) -> View | None:
        """What was read of the turns, where that is remembered."""
        return self._turns[0].view if self._turns is not None else None

    def read(self, block: Block, measure: Measure) -> ReadBlock:
        """A block as it was read."""
        if self._turns is not None and block.name in self._turns[1]:
            return TurnsBlock(block, measure, self._turns[0], self._turns[1][block.name])
        return ReadBlock(block, measure)

    def runs(self, block: Block, kept: Iterable[Run]) -> list[Run]:
        """Where runs of a block's items stand among the events, as runs."""
        places = self.places[block.name]
        if isinstance(places, range):
            return [(places.start + start, places.start + stop) for start, stop in kept]
        return [(places[at], places[at] + 1) for start, stop in kept for at in range(start, stop)]

    def echoes_stand(self, kept: Mapping[str, Sequence[Run]]) -> bool:
        """Whether every turn that restates another has that in front of it still, where these stay of each block.

        Of turns that were not read before it is not known, if there are any such.
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
    """An item as an event: the one that it was on the question before, where that says the same."""
    if is_text(item):
        name: _Name = (block.name, block.kind, item.source, item.id, str(item.version or ""), item_text(item))
        event = before.pop(name, None) if block.name not in TURNS else None
        return name, event or BlockEvent(item, facts_in(block, item))
    name = block.name, id(item.content)
    facts = facts_in(block, item)
    event = before.pop(name, None) if block.name not in TURNS else None
    return name, event if event is not None and event.facts == facts else BlockEvent(item, facts)


#: The blocks that hold turns; those that were not read before may be told apart by nothing but their order.
TURNS = frozenset({"recent", "older"})
