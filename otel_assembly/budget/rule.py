"""The rule that distributes a budget, in `allocate` and in `BudgetPolicy`.

1. Content that cannot be cut comes first. If it exceeds the budget, an error is raised.
2. Floors are reserved, so that no part of higher priority takes the tokens that a lower part needs.
3. The parts are decided by priority, the highest first. Each may take the free tokens except the floors of later parts.
   A part that fits is kept whole. Of a part that does not fit, atoms are kept in the order of survival, up to the first
   that does not fit. So no atom is kept if a better one is dropped.

Turns of one conversation may be in several blocks (``recent``, ``older``). They are one sequence: once a turn is
dropped for lack of room, every older turn is dropped, in its own block and in later blocks. A block of newer turns may
take the floors of blocks of older turns. Otherwise a small older turn would be kept after a gap.

Blocks are decided with all their items in memory (`budget.plan`), and their atoms one by one. For a chain, the sums of
all atoms are known (`policies.budget_plan`), and the last surviving atom is found by bisection. So the cost of a turn
depends on the window and not on the conversation. A property test checks that both keep the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The assumed bytes of text per token; a step of a cut has this many bytes for each of its tokens.
BYTES_PER_TOKEN: Final = 4


@dataclass(slots=True)
class Sharing:
    """The free tokens of a budget while it is distributed.

    Attributes:
        free: Tokens that no part has taken. Initially, the tokens that the fixed content leaves, below 0 if it exceeds
            the budget.
        reserved: The floors, within `free`, of parts that are not decided yet. A chain has none.
    """

    free: int
    reserved: int = 0

    def reserve(self, floors: Iterable[int]) -> list[int]:
        """Reserve the floor of each part, in order of priority.

        Returns:
            Each floor, or −1 if there is no room for it.
        """
        reserved: list[int] = []
        for floor in floors:
            fits = self.reserved + floor <= self.free
            reserved.append(floor if fits else -1)
            self.reserved += floor if fits else 0
        return reserved

    def room(self, floor: int) -> int:
        """Return the tokens that the next part may take.

        Args:
            floor: The tokens that were reserved for the part.
        """
        self.reserved -= max(0, floor)
        return self.free - self.reserved
