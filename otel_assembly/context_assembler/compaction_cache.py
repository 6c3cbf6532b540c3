"""The compactions of a conversation, cached from turn to turn.

Without the cache, each turn would call the model again for the same original. Its different result would also break the
cached prefix.
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

#: The most cached texts of a conversation: one for each block, and a few for turns that alternate.
_MOST: Final = 16
#: A cached text is replaced if the target is larger than its own target by more than this factor.
_MUCH_LARGER: Final = 1.5
_Original = tuple[str, bytes]


@dataclass(slots=True)
class _Result:
    #: The compacted text, and the target with which it was requested.
    text: str | None = None
    target: int = 0
    #: The target of the last compaction of which every attempt failed.
    failed: int | None = None


class CompactionResults:
    """The latest results of the compactions of one conversation."""

    __slots__ = ("_results",)

    def __init__(self) -> None:
        self._results: OrderedDict[_Original, _Result] = OrderedDict()

    def find(self, request: CompactionRequest) -> Compacted | None:
        """Return the cached result for a request; None if the text must be compacted.

        A cached text is used if it fits, and if the target is not much larger than before. A failed compaction is not
        repeated with the same target.
        """
        key = _key(request)
        result = self._results.get(key)
        if result is None:
            return None
        if result.text is not None and request.target <= result.target * _MUCH_LARGER:
            tokens = request.measure.text(result.text)
            if tokens <= request.target:
                self._touch(key, result)
                return Compacted(result.text, tokens, ())
        return Compacted(None, 0, ()) if result.failed == request.target else None

    def keep(self, request: CompactionRequest, compacted: Compacted) -> None:
        """Store the result of a compaction, even if it failed."""
        key = _key(request)
        result = self._results.setdefault(key, _Result())
        if compacted.text is None:
            result.failed = request.target
        else:
            result.text, result.target, result.failed = compacted.text, request.target, None
        self._touch(key, result)
        while len(self._results) > _MOST:
            self._results.popitem(last=False)

    def _touch(self, key: _Original, result: _Result) -> None:
        self._results[key] = result  # a concurrent turn of the conversation may have evicted it
        self._results.move_to_end(key)


def _key(request: CompactionRequest) -> _Original:
    """Return the block and a digest of the original, so that no large text is kept in memory."""
    text = request.text.encode("utf-8", "surrogatepass")
    return request.block.name, hashlib.blake2b(text, digest_size=16).digest()


def compact_with_cache(
    compactors: Compactors, watch: Callable[[Block], Watch | None], results: CompactionResults
) -> Callable[[CompactionRequest], Awaitable[Compacted]]:
    """Return a function that answers requests from the cache, and otherwise calls the compactors."""
    compact = compact_requests_with(compactors, watch)

    async def answer(request: CompactionRequest) -> Compacted:
        compacted = results.find(request)
        if compacted is None:
            compacted = await compact(request)
            results.keep(request, compacted)
        return compacted

    return answer
