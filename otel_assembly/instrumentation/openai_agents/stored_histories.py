"""Finds out which stored items a session's limit or a compaction keeps from a model, without reading the store.

`StoredHistories` remembers the items that this process has read from each stored history or added to it. If a later
read returns fewer or other items, the difference is recorded as a step of the next model call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.registry import Registry
from otel_assembly.decision import DecisionReason
from otel_assembly.instrumentation.message_alignment import locate, same
from otel_assembly.instrumentation.model_call import DEFERRED_REDUCTIONS
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.instrumentation.conversation import InvokingAgent
    from otel_assembly.instrumentation.reductions import Reduction

#: Maximum number of remembered histories; if there are more, the least recently used ones are forgotten.
_HISTORIES: Final = 1_000
#: Maximum number of items of all remembered histories together, as in `observe.conversations`. Whole histories are
#: forgotten, because a history without its oldest items would report too few dropped items.
_ITEMS: Final = 200_000


@dataclass(slots=True)
class _StoredHistory:
    """One remembered history: its items, and a change by a reducer that no read has confirmed yet."""

    items: list[Any] = field(default_factory=list)
    change: Reduction | None = None


class StoredHistories:
    """The remembered items of stored histories, by the histories' names.

    Args:
        policy: The policy name of steps in which a limit drops items.
    """

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self._histories: Registry[str, _StoredHistory] = Registry(_HISTORIES, clear_after_fork=True)

    def record_read(self, name: str, items: Sequence[Any], invoking_agent: InvokingAgent, limit: int | None) -> None:
        """Record that items were read from a history, and compare them with the remembered items.

        If the reducer of `record_change` has changed the history, or the limit excluded older items, that is a step of
        the next model call of the invoking agent. The limit is the number of newest items that were requested; None for
        all.
        """
        history = self._histories.of(name, _StoredHistory)
        known_items, change, history.change = history.items, history.change, None
        # If all items are known, a limit may have left out others; a reducer would have replaced some by a new item.
        if change is not None and locate(known_items, items) is None:
            change.before = known_items
            change.done(items, invoking_agent=invoking_agent)
        elif limit is not None and limit == len(items) < len(known_items) and same(known_items[-limit:], items):
            report = StepReport(
                self._policy, known_items, list(items), config={"limit": limit}, reason=DecisionReason.OUTSIDE_WINDOW
            )
            DEFERRED_REDUCTIONS.put(invoking_agent, report)
            return  # the older items are still stored
        history.items = list(items)
        self._histories.weigh(name, len(history.items), _ITEMS)

    def add_items(self, name: str, items: Sequence[Any]) -> None:
        """Add items to the remembered ones; ignored if the history has never been read."""
        history = self._histories.get(name)
        if history is not None:
            history.items = [*history.items, *items]
            self._histories.weigh(name, len(history.items), _ITEMS)

    def record_change(self, name: str, change: Reduction) -> None:
        """Record that a reducer has run on a history; the next read shows whether it changed the items.

        If several reducers run before that read, the last one that called a model is kept, or else the first.
        """
        history = self._histories.get(name)
        if history is not None and (history.change is None or change.attempt is not None):
            history.change = change
