"""The one rule by which a budget is shared out, among the blocks of `allocate` and in the chain of a `BudgetPolicy`.

What may not be cut comes first; where that alone is over the budget, nothing is sent. Then floors are reserved, so that
no part of higher priority takes what a lower one cannot do without. Then each part is asked, the one of highest
priority first: it may take what is free but for the floors behind it. A part that fits is kept whole. Of one that does
not, atoms are kept in the order in which they survive, up to the first that does not fit: nothing that is ranked worse
is kept where something that is ranked better is not.

Blocks are decided with all their items in hand (`budget.plan`), and their atoms are asked one by one. Of a chain's
events, the sums of all atoms are known (`policies.budget_plan`), and the last that survives is found by bisection, so
that a turn costs what its window holds and not what the conversation does. A property holds that both keep the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Bytes of text in a token, by rule of thumb; a step of a cut is so many bytes long for each of its tokens.
BYTES_PER_TOKEN: Final = 4


class Sharing:
    """A budget while it is shared out.

    Args:
        budget: The tokens that there are.
        fixed: Tokens of what may not be cut.

    Attributes:
        free: Tokens that nobody has taken; below 0 where what may not be cut is over the budget.
    """

    __slots__ = ("_reserved", "free")

    def __init__(self, budget: int, fixed: int) -> None:
        self.free = budget - fixed
        self._reserved = 0

    def reserve(self, floors: Iterable[int]) -> list[int]:
        """Reserve the floor of each part, in order of priority; −1 in the place of one for which there is no room."""
        reserved: list[int] = []
        for floor in floors:
            fits = self._reserved + floor <= self.free
            reserved.append(floor if fits else -1)
            self._reserved += floor if fits else 0
        return reserved

    def room(self, floor: int = 0) -> int:
        """The tokens that the next part may take, of which `floor` were reserved for it."""
        self._reserved -= max(0, floor)
        return self.free - self._reserved

    def take(self, tokens: int) -> None:
        """The part that was asked takes so many."""
        self.free -= tokens


class Survivors:
    """The atoms of a part that fit a room, which are told one by one in the order in which they survive.

    Args:
        room: The tokens that they may take.
        none: What `last` is where no atom is kept.

    Attributes:
        last: The last atom that is kept, as the caller named it.
    """

    __slots__ = ("_left", "last")

    def __init__(self, room: int, none: int) -> None:
        self.last = none
        self._left = room

    def take(self, atom: int, tokens: int) -> bool:
        """Whether the next atom, of so many tokens, is kept; after the first that is not, none is asked any more."""
        if tokens > self._left:
            return False
        self._left -= tokens
        self.last = atom
        return True
