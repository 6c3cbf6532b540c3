"""Which messages of a list are compared with the content that was read: all, or of a long list those that matter.

See ``docs/decisions/0055-of-a-long-list-the-sent-messages-are-compared-and-the-rest-in-rotation.md``.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Up to this length, all messages of a list are compared at each assembly.
COMPARED_WHOLE: Final = 1_024
#: The number of older messages of a longer list that are compared at each assembly, in rotation.
_BLOCK: Final = 256


@dataclass(frozen=True, slots=True)
class ComparedMessages:
    """The messages of one assembly's input that are compared.

    Attributes:
        start: All messages from this position on are compared; 0, the default: all messages.
        block: The positions in front of `start` that the rotation has reached.
        sent: The positions in front of `start` of messages that the previous assembly sent, ascending; some can also be
            in `block`.
    """

    start: int = 0
    block: range = range(0)
    sent: Sequence[int] = ()

    def following(self, start: int, sent: Sequence[int]) -> ComparedMessages:
        """Return the messages that are compared at the next assembly: the next block, and all from `start` on."""
        block = range(self.block.stop if self.block.stop < start else 0, start)[:_BLOCK]
        return ComparedMessages(start, block, sent[: bisect_left(sent, start)])

    def select(self, stop: int, *lists: list[Any]) -> list[list[Any]]:
        """Return the items of each list at the compared positions: from `start` to `stop`, of `block`, of `sent`."""
        newer, older, sent = slice(self.start, stop), slice(self.block.start, self.block.stop), self.sent
        return [items[newer] + items[older] + [*map(items.__getitem__, sent)] for items in lists]

    def others(self, positions: Sequence[int]) -> list[int]:
        """Return those of the positions whose messages are not compared."""
        start, block, sent = self.start, self.block, {*self.sent}
        return [at for at in positions if at < start and at not in block and at not in sent]
