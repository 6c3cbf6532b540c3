"""Run a `BudgetPolicy` with a compactor again, without calling the compactor.

If the policy drops the same events as recorded, the summary is the recorded one. If it drops others, the length of the
summary is assumed: see `Answer`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import Compaction, Outcome
from otel_assembly.explain.skeleton import StandIn, UnknownError
from otel_assembly.messages.event_facts import EventKind
from otel_assembly.policies.base import as_view
from otel_assembly.policies.budget import EXTRACTIVE
from otel_assembly.policies.compaction_cache import CompactionCache

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.budget.compaction import Compactors
    from otel_assembly.context import Context
    from otel_assembly.history.view import View
    from otel_assembly.policies import BudgetPolicy
    from otel_assembly.policies.budget_plan import BudgetPlan

#: The id of a summary that no turn recorded.
_NEW_SUMMARY: Final = "summary"
#: The reply behind such a summary; its tokens are a part of the summary's.
_ASSUMED_REPLY: Final = StandIn("reply", EventKind.RESPONSE, 0, 0)
#: Kinds of messages that have the user's role where roles alternate.
_OF_USER: Final = frozenset({EventKind.REQUEST, EventKind.TOOL_RESULT})


class Answer(Enum):
    """The assumed result of a compaction that was not recorded."""

    LONGEST = "longest"
    SHORTEST = "shortest"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RecordedCompaction:
    """The recorded compactions of one policy on one turn.

    Attributes:
        reserve: Tokens that are reserved for a summary once something is dropped; 0 if these events allow no summary;
            None if no turn records it.
        made: The summary, and the reply after it if there is one; empty if no summary was made.
        compacted: The items that the summary covers.
        shortened: The tool results that were shortened on an earlier turn.
        is_extractive: Whether the compactor is extractive; it needs no model, so it does not fail.
    """

    reserve: int | None
    made: tuple[StandIn, ...]
    compacted: frozenset[str]
    shortened: frozenset[str]
    is_extractive: bool

    @property
    def may_fail(self) -> bool:
        """Return whether a compaction that was not recorded may fail."""
        return not self.is_extractive


def is_extractive(settings: Mapping[str, Any]) -> bool:
    """Return whether a policy's settings name the extractive compactor."""
    return settings.get("compact") == EXTRACTIVE


class SummaryState(Enum):
    """The state of a budget with a compactor, in ascending order of the budget."""

    NO_ROOM = 0
    SUMMARY = 1
    ALL_FITS = 2


class Summarising:
    """The part of a rerun policy that `ChainRun` reads."""

    state: SummaryState = SummaryState.ALL_FITS
    #: The events that the last run dropped and a summary may cover; None if there were none.
    gone: frozenset[str] | None = None
    #: The events that the recorded run dropped.
    recorded_gone: frozenset[str] | None = None
    #: Whether this is the run with the recorded limits.
    is_first_run: bool = True


def summarised(
    policy: type[BudgetPolicy], settings: Mapping[str, Any], recorded: RecordedCompaction, answer: Answer
) -> BudgetPolicy:
    """Return a policy with the settings of the recorded one, and with its recorded summary or an assumed one.

    Args:
        policy: `BudgetPolicy`, or a class derived from it.
        settings: The recorded settings of the policy.
        recorded: The recorded compactions of the turn.
        answer: The assumed result of other compactions.
    """
    summary_tokens = int(settings["summary_tokens"])

    class Summarised(policy, Summarising):  # type: ignore[valid-type, misc]  # mypy knows no dynamic base
        async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
            view = as_view(events)
            self.state, self.gone = SummaryState.ALL_FITS, None
            view.history.kept_for[self] = _Cache()
            outcome: Outcome = await super().decide(prompts, view, context)
            return outcome

        def reserved(self, plan: BudgetPlan, view: View) -> int:
            if recorded.reserve is None:
                raise UnknownError("how many tokens are reserved for a summary is not in the spans")
            return recorded.reserve

        async def _summary(
            self, plan: BudgetPlan, view: View, cache: CompactionCache, context: Context
        ) -> Compaction | None:
            room = self.reserved(plan, view)
            self.state = SummaryState.NO_ROOM
            if not room or room > plan.sharing.free:
                return None
            self.state = SummaryState.SUMMARY
            gone = plan.summarizable(self._selected_with_reserve(plan, view)[1])
            if gone is None:
                return None
            items = self.gone = frozenset(event.item for event in gone)
            if self.is_first_run or items == self.recorded_gone:
                made = recorded.made
                stands_for = gone.pick_positions(at for at in gone.positions() if _item(gone, at) in recorded.compacted)
            else:
                made = () if answer is Answer.FAILED else (_assumed(answer, room, summary_tokens),)
                stands_for = gone
            if not made:
                return Compaction(gone, None)
            cache.summary, cache.reply = made[0], made[1] if len(made) > 1 else None
            if made is not recorded.made and context.provider_rules().alternates:
                cache.reply = _ASSUMED_REPLY
            return Compaction(stands_for, made[0])

    made: BudgetPolicy = Summarised(**{**settings, "compact": EXTRACTIVE})
    return made


def _item(view: View, position: int) -> str:
    item: str = view.history.event(position).item
    return item


def _assumed(answer: Answer, reserve: int, summary_tokens: int) -> StandIn:
    tokens = reserve if answer is Answer.LONGEST else max(1, reserve - summary_tokens + 1)
    return StandIn(_NEW_SUMMARY, EventKind.SUMMARY, tokens, 0)


class _Cache(CompactionCache):
    """A cache that calls no compactor."""

    __slots__ = ()

    async def shorten_newest(
        self, view: View, plan: BudgetPlan, budget: int, compactors: Compactors, context: Context
    ) -> list[Compaction]:
        if any(view.history.kind(position) is EventKind.TOOL_RESULT for position in plan.newest):
            raise UnknownError("a tool result would be shortened; its length is unknown")
        return []

    def with_reply(self, summary: Compaction, kept: View, leading: int) -> Compaction:
        if self.reply is _ASSUMED_REPLY:  # needed only between the summary and another user message
            stands = leading < len(kept) and kept.history.kind(kept.position(leading)) in _OF_USER
            return replace(summary, reply=self.reply) if stands else summary
        return summary if self.reply is None else replace(summary, reply=self.reply)
