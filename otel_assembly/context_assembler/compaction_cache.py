"""Caches the shortened texts of a conversation from turn to turn.

Without the cache, each turn would call the compactor's model again for the same text. The model may return a different
result, which would also make the provider's cache of the prompt useless.
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

#: The maximum number of cached results of a conversation: one for each block, and a few more for texts that alternate.
_MOST: Final = 16
#: If the new target is larger than a result's target by more than this factor, the text is compacted again.
_MUCH_LARGER: Final = 1.5
_Original = tuple[str, bytes]


@dataclass(slots=True)
class _Result:
    #: The compacted text, and the target with which it was requested.
    text: str | None = None
    target: int = 0
    #: The target of the latest compaction whose attempts all failed.
    failed: int | None = None


class CompactionResults:
    """The latest shortened texts of one conversation, by block and original text."""

    __slots__ = ("_results",)

    def __init__(self) -> None:
        self._results: OrderedDict[_Original, _Result] = OrderedDict()

    def find(self, request: CompactionRequest) -> Compacted | None:
        """Return the cached result for a request; None if a compactor must be called.

        A cached text is used if it fits and the target is not much larger than the one for which it was made. If all
        attempts failed before with the same target, the result is a failure again, without calling the compactor.
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
    """Return the key of a request's result: the block's name and a digest of the original text."""
    text = request.text.encode("utf-8", "surrogatepass")
    return request.block.name, hashlib.blake2b(text, digest_size=16).digest()


def compact_with_cache(
    compactors: Compactors, watch: Callable[[Block], Watch | None], results: CompactionResults
) -> Callable[[CompactionRequest], Awaitable[Compacted]]:
    """Return an async function that answers a compaction request from the cache, or else calls the compactors."""
    compact = compact_requests_with(compactors, watch)

    async def answer(request: CompactionRequest) -> Compacted:
        compacted = results.find(request)
        if compacted is None:
            compacted = await compact(request)
            results.keep(request, compacted)
        return compacted

    return answer
