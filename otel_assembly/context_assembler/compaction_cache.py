"""What compaction made in a conversation, kept from turn to turn: the same original is not compacted again.

Another text each turn would cost a call of the model each time, and break the cached prefix where it stands.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_assembly.budget.allocator import compact_requests_with
from otel_assembly.budget.attempt import Compacted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from otel_assembly.budget.attempt import Watch
    from otel_assembly.budget.block import Block
    from otel_assembly.budget.compaction import Compactors
    from otel_assembly.budget.plan import CompactionRequest

#: Texts of one conversation that are kept: a block has one at a time, and a few more for turns that go back and forth.
_MOST: Final = 16
#: With more than half as much room again, a longer text says so much more that it is worth being made.
_MUCH_LARGER: Final = 1.5
_Original = tuple[str, bytes]


@dataclass(slots=True)
class _Kept:
    #: What was made, and what was asked for then.
    made: str | None = None
    target: int = 0
    #: What was asked for last where every attempt failed.
    failed: int | None = None


class KeptCompactions:
    """What became of the compactions of one conversation, the latest few."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: OrderedDict[_Original, _Kept] = OrderedDict()

    def find(self, request: CompactionRequest) -> Compacted | None:
        """What was made of this text in this block, where it still serves; None where it is to be compacted.

        It serves where it fits, and not much more is asked for than then. What has failed is not tried again for the
        same.
        """
        name = _original(request)
        kept = self._kept.get(name)
        if kept is None:
            return None
        if kept.made is not None and request.target <= kept.target * _MUCH_LARGER:
            tokens = request.measure.text(kept.made)
            if tokens <= request.target:
                self._touch(name, kept)
                return Compacted(kept.made, tokens, ())
        return Compacted(None, 0, ()) if kept.failed == request.target else None

    def keep(self, request: CompactionRequest, compacted: Compacted) -> None:
        """Keep what a compaction came to, also where that is nothing."""
        name = _original(request)
        kept = self._kept.setdefault(name, _Kept())
        if compacted.text is None:
            kept.failed = request.target
        else:
            kept.made, kept.target, kept.failed = compacted.text, request.target, None
        self._touch(name, kept)
        while len(self._kept) > _MOST:
            self._kept.popitem(last=False)

    def _touch(self, name: _Original, kept: _Kept) -> None:
        self._kept[name] = kept  # another turn of the conversation may just have pushed it out
        self._kept.move_to_end(name)


def _original(request: CompactionRequest) -> _Original:
    """A text as it is known here: by a digest, so that a large original is not held."""
    text = request.text.encode("utf-8", "surrogatepass")
    return request.block.name, hashlib.blake2b(text, digest_size=16).digest()


def answered_keeping(
    compactors: Compactors, watch: Callable[[Block], Watch | None], kept: KeptCompactions
) -> Callable[[CompactionRequest], Awaitable[Compacted]]:
    """What answers with what is kept, and asks the compactors only for the rest."""
    ask = compact_requests_with(compactors, watch)

    async def answer(request: CompactionRequest) -> Compacted:
        compacted = kept.find(request)
        if compacted is None:
            compacted = await ask(request)
            kept.keep(request, compacted)
        return compacted

    return answer
