"""Finds the smallest larger window with which the allocator keeps an item, by running the allocator again.

A larger window does not always keep more: a block of higher priority may grow and displace others. So the search cannot
be binary. It tries all windows in ascending order at which a decision changes, until the item is kept.

With a larger window, the allocator may need a summary that was never made. Such a summary may have any length from 0 to
the target, so several lengths are tried. A window is accepted only if it keeps the item for all of them. Then a smaller
window may suffice, and the result is reported as "at most".
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

#: The assumed lengths of a summary in tokens, as functions of the target: the target, half of it, 1, and 0 (no
#: summary).
_ANSWERS: Final[tuple[Answer, ...]] = (
    lambda target: target,
    lambda target: (target + 1) // 2,
    lambda target: 1,
    lambda target: 0,
)
#: The maximum number of windows that are tried for one item.
_TRIES: Final = 20_000


class AllocatorRun:
    """An allocation of one turn, which can be run again with a larger window.

    Attributes:
        problem: Why a rerun with the recorded window does not make the recorded decisions; None if it does.
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
        """Find the smallest known increase of the window with which the allocator keeps the item.

        Returns:
            The increase in tokens; and True if a smaller one may suffice, because the length of a summary is unknown.

        Raises:
            UnknownError: The spans lack a number, or no window keeps the item.
        """
        blocks = self.blocks
        place = blocks.place_of(item)
        if place is None:
            raise UnknownError("its block is not in the spans")
        increase, may_need_less = 0, False
        needed = blocks.numbers[place].least_room(item)
        increase_to_fit_all = max(
            0, blocks.fixed + sum(block.cost for block in blocks.numbers if block.cuttable) - blocks.budget
        )
        for _ in range(_TRIES):
            increase += self._next_step(place, increase)
            if increase > increase_to_fit_all:
                increase = increase_to_fit_all
            runs = self._runs_with(increase)
            uncertain = self._first_uncertain(runs[0], place)
            if all(item in ran.kept[place] for ran in runs) and self._is_kept_for_sure(item, runs, place, uncertain):
                return increase, may_need_less
            may_need_less |= uncertain is not None and self._most_room(runs[0], place, uncertain, increase) >= needed
            if increase >= increase_to_fit_all:
                break
        raise UnknownError("no larger window keeps it for every possible summary length")

    def _runs_with(self, more: int) -> list[BlocksRun]:
        """Run the allocator with an increased window: once, or once for each assumed length of a summary."""
        if more not in self._runs:
            first = self.blocks.run(more, _ANSWERS[0])
            rest = () if first.assumed is None else _ANSWERS[1:]
            self._runs[more] = [first, *(self.blocks.run(more, answer) for answer in rest)]
        return self._runs[more]

    def _first_uncertain(self, ran: BlocksRun, place: int) -> int | None:
        """Return the index of the first block up to `place` with assumed or inexact tokens; None if there is none."""
        first = min(
            (index for index in (ran.assumed, self._first_inexact(ran, place)) if index is not None), default=place + 1
        )
        return first if first <= place else None

    def _first_inexact(self, ran: BlocksRun, place: int) -> int | None:
        """Return the index of the first block up to `place` whose tokens may differ from its charges; None if none."""
        numbers = self.blocks.numbers[: place + 1]
        inexact = (
            block.cuttable and block.is_inexact(len(ran.kept[index]), ran.rooms[index])
            for index, block in enumerate(numbers)
        )
        return next((index for index, is_inexact in enumerate(inexact) if is_inexact), None)

    def _is_kept_for_sure(self, item: str, runs: Sequence[BlocksRun], place: int, uncertain: int | None) -> bool:
        """Return whether the item is kept even if blocks before it use more or fewer tokens than assumed.

        Args:
            item: The item, which all `runs` keep.
            runs: The results of the rerun, one for each assumed length of a summary.
            place: The index of the item's block.
            uncertain: The result of `_first_uncertain`.
        """
        if uncertain is None or any(self._first_inexact(ran, place) is not None for ran in runs):
            return uncertain is None
        return uncertain == place or all(self.blocks.keeps_with_floor_only(item, answer) for answer in _ANSWERS)

    def _most_room(self, ran: BlocksRun, place: int, uncertain: int, more: int) -> int:
        """Return the room of the block at `place` if the blocks from `uncertain` on used no tokens."""
        blocks = self.blocks
        floors, _ = blocks.floors(more)
        # The room of a block of newer turns already includes the floors of blocks of older turns.
        more_rooms = [
            max(0, floors[index])
            for index in range(uncertain + 1, place + 1)
            if not (blocks.has_cuttable_turns(uncertain) and blocks.has_cuttable_turns(index))
        ]
        return ran.rooms[uncertain] + sum(more_rooms)

    def _next_step(self, place: int, more: int) -> int:
        """Return the smallest further increase of the window that changes a decision on the blocks up to `place`."""
        blocks = self.blocks
        floors, step = blocks.floors(more)
        for ran in self._runs_with(more) if more else [blocks.base]:
            if ran.asked is not None and ran.asked <= place and ran.assumed is None:
                return 1  # the recorded summary is known only for its own target
            for index, block in enumerate(blocks.numbers[: place + 1]):
                if block.cuttable and floors[index] >= 0:
                    step = min(step, block.next_change(ran.rooms[index]))
        return max(1, step)
