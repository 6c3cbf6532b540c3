"""Histories in stores of a framework's, of which only the newest items may be read: what was left in the store.

A store is not read for it. What this process has read of a history before, and added to it, is known; what comes to
light by that has happened outside of any model call, and waits for the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.registry import Registry
from otel_assembly.decision import DecisionReason
from otel_assembly.instrumentation.deferred import DEFERRED_REDUCTIONS, DeferredReduction
from otel_assembly.instrumentation.message_alignment import locate, same

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.instrumentation.conversation import InvokingAgent
    from otel_assembly.instrumentation.reductions import Reduction

#: Histories that are known; beyond it the least recently used ones are forgotten.
_HISTORIES: Final = 1_000
#: Items that all of them hold together, as in `observe.conversations`; beyond it the same. A history is forgotten as a
#: whole: a list of which only the oldest items are forgotten reports too few items, and each turn moves all its items.
_ITEMS: Final = 200_000


@dataclass(slots=True)
class _Stored:
    items: list[Any] = field(default_factory=list)
    change: Reduction | None = None


class StoredHistories:
    """What is known of stored histories, by their names.

    Args:
        policy: The name of the step in which a limit has left items in the store.
    """

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self._of: Registry[str, _Stored] = Registry(_HISTORIES, clear_after_fork=True)

    def read(self, name: str, items: Sequence[Any], invoking_agent: InvokingAgent, limit: int | None) -> None:
        """These items were read of a history, for the next call of this asker: the newest ones, up to a limit."""
        stored = self._of.of(name, _Stored)
        held, change, stored.change = stored.items, stored.change, None
        if change is not None and locate(held, items) is None:  # what only lost items was not changed by a reducer
            change.before = held
            change.done(items, invoking_agent=invoking_agent)
        elif limit is not None and limit == len(items) < len(held) and same(held[-limit:], items):
            said = {"reason": DecisionReason.OUTSIDE_WINDOW}
            DEFERRED_REDUCTIONS.put(
                invoking_agent, DeferredReduction(self._policy, held, list(items), config={"limit": limit}, said=said)
            )
            return
        stored.items = list(items)
        self._of.weigh(name, len(stored.items), _ITEMS)

    def added(self, name: str, items: Sequence[Any]) -> None:
        """These items were added to a history, of which something was read before."""
        stored = self._of.get(name)
        if stored is not None:
            stored.items = [*stored.items, *items]
            self._of.weigh(name, len(stored.items), _ITEMS)

    def changed(self, name: str, change: Reduction) -> None:
        """A reducer may have changed what is stored: if it has, that shows as the history is next read."""
        stored = self._of.get(name)
        if stored is not None and (stored.change is None or change.attempt is not None):
            stored.change = change
