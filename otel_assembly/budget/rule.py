"""The rule by which `allocate` and `BudgetPolicy` distribute a token budget.

The content consists of parts with a priority, such as blocks. A part consists of atoms: messages that are kept or
dropped together, such as a tool call with its results. A part's floor is the fewest tokens with which it is useful.

1. Content that cannot be cut is kept. If it exceeds the budget, an error is raised.
2. Floors are reserved, so that no part of higher priority uses the tokens that a part of lower priority needs.
3. The parts are decided by priority, the highest first. Each may use the free tokens except the floors of later parts.
   A part that fits is kept whole. From a part that does not fit, atoms are kept, the most important first, up to the
   first one that does not fit. So an atom is never kept if a more important one is dropped.

Turns of one conversation may be in several blocks (``recent``, ``older``). They are one sequence: once a turn is
dropped for lack of room, every older turn is dropped, in its own block and in later blocks. Otherwise the prompt could
contain a small old turn after a gap. For the same reason, a block of newer turns may use the floors of blocks of older
turns.

`budget.plan` applies the rule to blocks, one atom after the other. `policies.budget_plan` applies it to a conversation
whose cumulated token counts are known, and finds the last kept atom by bisection. So the cost of a turn depends on the
window and not on the length of the conversation. A property test checks that both keep the same messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The assumed bytes of text per token, by which a step of stepwise cutting is converted from tokens to bytes.
BYTES_PER_TOKEN: Final = 4


@dataclass(slots=True)
class Sharing:
    """The free tokens of a budget while the rule distributes them.

    Attributes:
        free: Tokens that no part uses yet. At the beginning, the budget minus the content that cannot be cut; negative
            if that content exceeds the budget.
        reserved: The part of `free` that is reserved as floors of the parts that are not decided yet.
    """

    free: int
    reserved: int = 0

    def reserve(self, floors: Iterable[int]) -> list[int]:
        """Reserve the floors of all parts.

        Args:
            floors: The floor of each part, in tokens, highest priority first.

        Returns:
            For each part, the reserved tokens, or −1 if the floor does not fit in the free tokens.
        """
        reserved: list[int] = []
        for floor in floors:
            fits = self.reserved + floor <= self.free
            reserved.append(floor if fits else -1)
            self.reserved += floor if fits else 0
        return reserved

    def room(self, floor: int) -> int:
        """Release the floor of the next part, and return the tokens that the part may use.

        Args:
            floor: The number of tokens that `reserve` returned for the part.
        """
        self.reserved -= max(0, floor)
        return self.free - self.reserved
