"""The smallest larger window by which the allocator keeps an item, found by running its rule again.

The rule is not monotone: with more room a block of higher priority may grow, and push out what stood behind it. So the
windows are tried upwards, from one at which anything changes to the next, until the item is kept.

Where a compactor is asked for what nobody has asked it before, its answer may be anything from nothing to all of its
target. Of a window it is said that it keeps the item where every such answer does, and then "at most".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_assembly.explain.blocks import BlocksOfTurn
from otel_assembly.explain.skeleton import UnknownError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.explain.blocks import Answer, BlocksRun
    from otel_assembly.telemetry.ledger_history import LedgerHistory, ReportedStep, ReportedTurn

__all__ = ["AllocatorRun"]

#: What compactors may make of a target, in tokens: all of it, half, next to nothing, or they fail.
_ANSWERS: Final[tuple[Answer, ...]] = (
    lambda target: target,
    lambda target: (target + 1) // 2,
    lambda target: 1,
    lambda target: 0,
)
#: Windows that are tried for one item at most.
_TRIES: Final = 20_000


class AllocatorRun:
    """An allocation that can be run again with a larger window.

    Attributes:
        problem: Why a run with the window as it was does not give what the spans state; None where it does.
    """

    def __init__(self, ledger: LedgerHistory, turn: ReportedTurn, step: ReportedStep) -> None:
        self.problem: str | None = None
        self._runs: dict[int, list[BlocksRun]] = {}
        try:
            if not turn.sent:
                raise UnknownError("nothing was sent on this turn")
            self.blocks = BlocksOfTurn(ledger, turn, step)
        except UnknownError as error:
            self.problem = str(error)

    def smallest(self, item: str) -> tuple[int, bool]:
        """How many more tokens keep the item, with which all that is smaller does not; and whether less might do.

        Raises:
            UnknownError: That is not told by the spans.
        """
        blocks = self.blocks
        place = blocks.place_of(item)
        if place is None:
            raise UnknownError("the block that holds it is not in the traces")
        more, less_might_do = 0, False
        needed = blocks.numbers[place].least_room(item)
        everything = max(0, blocks.fixed + sum(one.cost for one in blocks.numbers if one.cuttable) - blocks.budget)
        for _ in range(_TRIES):
            more += self._step(place, more)
            if more > everything:
                more = everything
            runs = self._at(more)
            trouble = self._trouble(runs[0], place)
            if all(item in ran.kept[place] for ran in runs) and self._holds(item, runs, place, trouble):
                return more, less_might_do
            less_might_do |= trouble is not None and self._most_room(runs[0], place, trouble, more) >= needed
            if more >= everything:
                break
        raise UnknownError("no larger window was found for which every answer of a compactor keeps it")

    def _at(self, more: int) -> list[BlocksRun]:
        """The rule, run again: once where no answer of a compactor has to be assumed, else with each that may be."""
        if more not in self._runs:
            first = self.blocks.run(more, _ANSWERS[0])
            rest = () if first.assumed is None else _ANSWERS[1:]
            self._runs[more] = [first, *(self.blocks.run(more, answer) for answer in rest)]
        return self._runs[more]

    def _trouble(self, ran: BlocksRun, place: int) -> int | None:
        """The first block, as far as this one, of which it has to be assumed what it takes; None for none."""
        first = min((at for at in (ran.assumed, self._vague(ran, place)) if at is not None), default=place + 1)
        return first if first <= place else None

    def _vague(self, ran: BlocksRun, place: int) -> int | None:
        """The first block, as far as this one, a part of which may take something else than it is charged."""
        numbers = self.blocks.numbers[: place + 1]
        vague = (one.cuttable and one.is_vague(len(ran.kept[at]), ran.rooms[at]) for at, one in enumerate(numbers))
        return next((at for at, found in enumerate(vague) if found), None)

    def _holds(self, item: str, runs: Sequence[BlocksRun], place: int, trouble: int | None) -> bool:
        """Whether an item that is kept is so whatever the blocks before it take, and its own."""
        if trouble is None or any(self._vague(ran, place) is not None for ran in runs):
            return trouble is None
        return trouble == place or all(self.blocks.keeps_with_its_floor_alone(item, answer) for answer in _ANSWERS)

    def _most_room(self, ran: BlocksRun, place: int, trouble: int, more: int) -> int:
        """The room that a block would have if those from the first doubtful one took nothing."""
        blocks = self.blocks
        floors, _ = blocks.floors(more)
        # The room of a block of turns includes the floors of the blocks of older turns.
        more_rooms = [
            max(0, floors[at])
            for at in range(trouble + 1, place + 1)
            if not (blocks.holds_turns(trouble) and blocks.holds_turns(at))
        ]
        return ran.rooms[trouble] + sum(more_rooms)

    def _step(self, place: int, more: int) -> int:
        """How many tokens more have to be there, at least, for anything to change as far as this block."""
        blocks = self.blocks
        floors, step = blocks.floors(more)
        for ran in self._at(more) if more else [blocks.base]:
            if ran.asked is not None and ran.asked <= place and ran.assumed is None:
                return 1  # what was recorded is an answer to that target alone
            for at, one in enumerate(blocks.numbers[: place + 1]):
                if one.cuttable and floors[at] >= 0:
                    step = min(step, one.next_change(ran.rooms[at]))
        return max(1, step)
