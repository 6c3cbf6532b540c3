"""Find the smallest larger window with which the allocator keeps an item, by running its rule again.

The rule is not monotone: with a larger window, a block of higher priority may grow and displace others. So the windows
are tried in ascending order, from each one at which anything changes to the next, until the item is kept.

A larger window may need a compaction that was never recorded. Its summary may have any length from 0 to the target. A
window counts only if it keeps the item for all lengths that are tried; the result is then "at most".
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

#: Assumed lengths of a summary, in tokens, by target: the target, half of it, 1, or 0 for a failure.
_ANSWERS: Final[tuple[Answer, ...]] = (
    lambda target: target,
    lambda target: (target + 1) // 2,
    lambda target: 1,
    lambda target: 0,
)
#: The most windows that are tried for one item.
_TRIES: Final = 20_000


class AllocatorRun:
    """An allocation that can be run again with a larger window.

    Attributes:
        problem: Why a run with the recorded window does not reproduce the spans; None if it does.
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
        """Return the smallest increase of the window that keeps the item, and whether a smaller one might suffice.

        Raises:
            UnknownError: The spans do not record enough, or no window keeps the item.
        """
        blocks = self.blocks
        place = blocks.place_of(item)
        if place is None:
            raise UnknownError("its block is not in the spans")
        more, less_might_do = 0, False
        needed = blocks.numbers[place].least_room(item)
        everything = max(
            0, blocks.fixed + sum(block.cost for block in blocks.numbers if block.cuttable) - blocks.budget
        )
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
        raise UnknownError("no larger window keeps it for every possible summary length")

    def _at(self, more: int) -> list[BlocksRun]:
        """Return the runs of the rule: one, or if a summary's length has to be assumed, one for each length."""
        if more not in self._runs:
            first = self.blocks.run(more, _ANSWERS[0])
            rest = () if first.assumed is None else _ANSWERS[1:]
            self._runs[more] = [first, *(self.blocks.run(more, answer) for answer in rest)]
        return self._runs[more]

    def _trouble(self, ran: BlocksRun, place: int) -> int | None:
        """Return the first block up to this one whose tokens have to be assumed; None if there is none."""
        first = min((at for at in (ran.assumed, self._vague(ran, place)) if at is not None), default=place + 1)
        return first if first <= place else None

    def _vague(self, ran: BlocksRun, place: int) -> int | None:
        """Return the first block up to this one whose tokens may differ from its charged tokens; None if none."""
        numbers = self.blocks.numbers[: place + 1]
        vague = (
            block.cuttable and block.is_vague(len(ran.kept[at]), ran.rooms[at]) for at, block in enumerate(numbers)
        )
        return next((at for at, found in enumerate(vague) if found), None)

    def _holds(self, item: str, runs: Sequence[BlocksRun], place: int, trouble: int | None) -> bool:
        """Return whether a kept item would be kept for all assumed tokens of the blocks up to its own."""
        if trouble is None or any(self._vague(ran, place) is not None for ran in runs):
            return trouble is None
        return trouble == place or all(self.blocks.keeps_with_its_floor_alone(item, answer) for answer in _ANSWERS)

    def _most_room(self, ran: BlocksRun, place: int, trouble: int, more: int) -> int:
        """Return the room of a block if the blocks from `trouble` on used nothing."""
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
        """Return the smallest further increase with which anything changes in the blocks up to this one."""
        blocks = self.blocks
        floors, step = blocks.floors(more)
        for ran in self._at(more) if more else [blocks.base]:
            if ran.asked is not None and ran.asked <= place and ran.assumed is None:
                return 1  # the recorded summary answers that target only
            for at, block in enumerate(blocks.numbers[: place + 1]):
                if block.cuttable and floors[at] >= 0:
                    step = min(step, block.next_change(ran.rooms[at]))
        return max(1, step)
