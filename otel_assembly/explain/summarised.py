"""A `BudgetPolicy` with a compactor, run again: where the summary stood, and what room was kept free for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.decision import Compaction
from otel_assembly.explain.skeleton import UnknownError
from otel_assembly.policies import BudgetPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_assembly.context import Context
    from otel_assembly.explain.skeleton import StandIn
    from otel_assembly.history.view import View
    from otel_assembly.policies.budget_plan import BudgetPlan
    from otel_assembly.policies.compaction_cache import CompactionCache


class SummarisedBudget(BudgetPolicy):
    """Cuts as the policy did, with the summary that it made; a new one is taken to be made as well.

    Args:
        settings: The policy's, as its span states them.
        reserve: Tokens that are kept free for a summary once something is cut.
        summary: The summary; None where none was in the prompt.
    """

    def __init__(self, settings: Mapping[str, Any], reserve: int, summary: StandIn | None) -> None:
        super().__init__(**{**settings, "compact": _unasked})
        self._reserved = reserve
        self._made = summary

    def reserved(self, plan: BudgetPlan, view: View) -> int:
        """What is kept free for a summary."""
        return self._reserved

    async def _summary(
        self, plan: BudgetPlan, view: View, cache: CompactionCache, context: Context
    ) -> Compaction | None:
        if self._made is None or self._reserved > plan.sharing.free:
            return None
        gone = plan.gone(self._beside_summary(plan, view)[1])
        cache.summary = self._made
        return Compaction(gone, self._made) if gone else None


def _unasked(text: str, target_tokens: int) -> str:
    raise UnknownError("a tool's result was shortened, and what a compactor makes of it is not known")
