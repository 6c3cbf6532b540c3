"""The one rule by which a budget is shared out, among the blocks of `allocate` and in the chain of a `BudgetPolicy`.

What may not be cut comes first; where that alone is over the budget, nothing is sent. Then floors are reserved, so that
no part of higher priority takes what a lower one cannot do without. Then each part is asked, the one of highest
priority first: it may take what is free but for the floors behind it. A part that fits is kept whole. Of one that does
not, atoms are kept in the order in which they survive, up to the first that does not fit: nothing that is ranked worse
is kept where something that is ranked better is not.

Turns of one conversation may be in several blocks (``recent``, ``older``). They are one sequence: once a turn is
dropped for lack of room, every older turn is dropped, in its own block and in the blocks behind it, and a block of
newer turns may take the floors of the blocks of older turns. Otherwise a small older turn would stay before a gap.

Blocks are decided with all their items in hand (`budget.plan`), and their atoms are asked one by one. Of a chain's
events, the sums of all atoms are known (`policies.budget_plan`), and the last that survives is found by bisection, so
that a turn costs what its window holds and not what the conversation does. A property holds that both keep the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Bytes of text in a token, by rule of thumb; a step of a cut is so many bytes long for each of its tokens.
BYTES_PER_TOKEN: Final = 4


@dataclass(slots=True)
class Sharing:
    """A budget while it is shared out: each part that is asked takes what it needs of what is free.

    Attributes:
        free: Tokens that nobody has taken: at first what the fixed content leaves, below 0 where that is too much.
        reserved: The floors among them of parts that are yet to be asked; a chain has none.
    """

    free: int
    reserved: int = 0

    def reserve(self, floors: Iterable[int]) -> list[int]:
        """Reserve the floor of each part, in order of priority; −1 in the place of one for which there is no room."""
        reserved: list[int] = []
        for floor in floors:
            fits = self.reserved + floor <= self.free
            reserved.append(floor if fits else -1)
            self.reserved += floor if fits else 0
        return reserved

    def room(self, floor: int) -> int:
        """The tokens that the next part may take, of which `floor` were reserved for it."""
        self.reserved -= max(0, floor)
        return self.free - self.reserved
