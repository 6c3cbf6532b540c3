"""A `BudgetPolicy` with a compactor, run again: where the summary stood, and what room was kept free for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.decision import Compaction
from otel_assembly.explain.skeleton import UnknownError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_assembly.context import Context
    from otel_assembly.explain.skeleton import StandIn
    from otel_assembly.history.view import View
    from otel_assembly.policies import BudgetPolicy
    from otel_assembly.policies.budget_plan import BudgetPlan
    from otel_assembly.policies.compaction_cache import CompactionCache


def summarised(
    policy: type[BudgetPolicy], settings: Mapping[str, Any], reserve: int, summary: StandIn | None
) -> BudgetPolicy:
    """A policy that cuts as that one did, with the summary that it made; a new one is taken to be made as well.

    Args:
        policy: `BudgetPolicy`, or what derives from it.
        settings: The policy's, as its span states them.
        reserve: Tokens that are kept free for a summary once something is cut.
        summary: The summary; None where none was in the prompt.
    """

    class Summarised(policy):  # type: ignore[valid-type, misc]  # whichever it is
        def reserved(self, plan: BudgetPlan, view: View) -> int:
            return reserve

        async def _summary(
            self, plan: BudgetPlan, view: View, cache: CompactionCache, context: Context
        ) -> Compaction | None:
            if summary is None or reserve > plan.sharing.free:
                return None
            gone = plan.gone(self._beside_summary(plan, view)[1])
            cache.summary = summary
            return Compaction(gone, summary) if gone else None

    made: BudgetPolicy = Summarised(**{**settings, "compact": _unasked})
    return made


def _unasked(text: str, target_tokens: int) -> str:
    raise UnknownError("a tool's result was shortened, and what a compactor makes of it is not known")
