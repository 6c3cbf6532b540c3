"""Runs a `BudgetPolicy` with a compactor (a function that shortens texts) again, without calling the compactor.

The spans of a turn record numbers but no texts, so there is nothing to pass to a compactor. If the rerun drops the same
events as the recorded run, it uses the recorded summary. If it drops other events, their summary was never made; then
the summary's length is assumed, see `Answer`.
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

#: The item id of a summary that was never made and whose length is assumed.
_NEW_SUMMARY: Final = "summary"
#: A placeholder for the assistant message after such a summary, which is a user message: providers with alternating
#: roles require it before another user message. It counts 0 tokens, because the summary's assumed length includes it.
_ASSUMED_REPLY: Final = StandIn("reply", EventKind.RESPONSE, 0, 0)
#: The kinds of messages with the role ``user``, for providers that require alternating roles.
_OF_USER: Final = frozenset({EventKind.REQUEST, EventKind.TOOL_RESULT})


class Answer(Enum):
    """The result that a rerun assumes for a compactor, if the spans do not record it.

    Attributes:
        LONGEST: A summary with as many tokens as it may have.
        SHORTEST: A summary of one token.
        FAILED: No summary, because the compactor failed.
    """

    LONGEST = "longest"
    SHORTEST = "shortest"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RecordedCompaction:
    """What the spans of one turn record about a policy's summary.

    Attributes:
        reserve: The tokens that the policy reserves for a summary if it drops events; 0 if no summary is possible; None
            if no turn records the number.
        made: The summary, and the assistant's reply after it if there is one; empty if no summary was made.
        compacted: The ids of the items that the summary replaces.
        shortened: The ids of the tool results that the compactor shortened on an earlier turn.
        is_extractive: Whether the compactor is the built-in extractive one, which needs no model and does not fail.
    """

    reserve: int | None
    made: tuple[StandIn, ...]
    compacted: frozenset[str]
    shortened: frozenset[str]
    is_extractive: bool

    @property
    def may_fail(self) -> bool:
        """Whether the compactor may fail if it is called with other events."""
        return not self.is_extractive


def is_extractive(settings: Mapping[str, Any]) -> bool:
    """Return whether the recorded settings of a policy name the built-in extractive compactor."""
    return settings.get("compact") == EXTRACTIVE


class SummaryState(Enum):
    """Whether a budget with a compactor needs a summary and has room for it.

    The values ascend with the budget: a larger budget never leads to a lower value.

    Attributes:
        NO_ROOM: Events are dropped, and a summary does not fit.
        SUMMARY: Events are dropped, and a summary fits.
        ALL_FITS: No event is dropped.
    """

    NO_ROOM = 0
    SUMMARY = 1
    ALL_FITS = 2


class SummaryRerun:
    """The attributes by which `ChainRun` controls a policy of `summarizing_policy` and reads its result."""

    state: SummaryState = SummaryState.ALL_FITS
    #: The ids of the events that the latest run dropped and that a summary may replace; None if there are none.
    dropped_items: frozenset[str] | None = None
    #: The same ids in the run with the recorded limits.
    recorded_dropped_items: frozenset[str] | None = None
    #: Whether this is the run with the recorded limits.
    is_first_run: bool = True


def summarizing_policy(
    policy: type[BudgetPolicy], settings: Mapping[str, Any], recorded: RecordedCompaction, answer: Answer
) -> BudgetPolicy:
    """Create a policy that decides like the recorded one, but does not call a compactor.

    Args:
        policy: `BudgetPolicy`, or a class derived from it.
        settings: The recorded settings of the policy.
        recorded: What the turn's spans record about the summary.
        answer: The assumed result of the compactor if the policy drops other events than recorded.
    """
    summary_tokens = int(settings["summary_tokens"])

    class SummarizingPolicy(policy, SummaryRerun):  # type: ignore[valid-type, misc]  # mypy knows no dynamic base
        async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
            view = as_view(events)
            self.state, self.dropped_items = SummaryState.ALL_FITS, None
            view.history.kept_for[self] = _NoCompactorCache()
            outcome: Outcome = await super().decide(prompts, view, context)
            return outcome

        def reserved(self, plan: BudgetPlan, view: View) -> int:
            if recorded.reserve is None:
                raise UnknownError("how many tokens are reserved for a summary is not in the spans")
            return recorded.reserve

        async def _summary(
            self, plan: BudgetPlan, view: View, cache: CompactionCache, context: Context
        ) -> Compaction | None:
            """Return the recorded summary if the rerun drops the recorded events; otherwise the assumed result.

            None if there is no room for a summary, or nothing to summarize. Also sets `state` and `dropped_items`.
            """
            reserve = self.reserved(plan, view)
            self.state = SummaryState.NO_ROOM
            if not reserve or reserve > plan.free:
                return None
            self.state = SummaryState.SUMMARY
            dropped_events = plan.summarizable(self._selected_with_reserve(plan, view)[1])
            if dropped_events is None:
                return None
            items = self.dropped_items = frozenset(event.item for event in dropped_events)
            if self.is_first_run or items == self.recorded_dropped_items:
                messages = recorded.made
                covered_events = dropped_events.pick_positions(
                    position
                    for position in dropped_events.positions()
                    if _item(dropped_events, position) in recorded.compacted
                )
            else:
                messages = () if answer is Answer.FAILED else (_assumed(answer, reserve, summary_tokens),)
                covered_events = dropped_events
            if not messages:
                return Compaction(dropped_events, None)
            cache.summary, cache.reply = messages[0], messages[1] if len(messages) > 1 else None
            if messages is not recorded.made and context.provider_rules().alternates:
                cache.reply = _ASSUMED_REPLY
            return Compaction(covered_events, messages[0])

    created_policy: BudgetPolicy = SummarizingPolicy(**{**settings, "compact": EXTRACTIVE})
    return created_policy


def _item(view: View, position: int) -> str:
    item: str = view.history.events[position].item
    return item


def _assumed(answer: Answer, reserve: int, summary_tokens: int) -> StandIn:
    """Return a summary of the assumed length.

    Args:
        answer: The assumed result of the compactor.
        reserve: The tokens reserved for the summary: `summary_tokens` for its text, the rest for the framing.
        summary_tokens: The most tokens of the summary's text.
    """
    tokens = reserve if answer is Answer.LONGEST else max(1, reserve - summary_tokens + 1)
    return StandIn(_NEW_SUMMARY, EventKind.SUMMARY, tokens, 0)


class _NoCompactorCache(CompactionCache):
    """The compaction cache of a policy that is run again on the numbers of a recorded turn.

    Spans record no texts, so no compactor can be called. The summary is the recorded or an assumed one, and `reply` is
    the recorded assistant message after the summary, or `_ASSUMED_REPLY`.
    """

    __slots__ = ()

    async def shorten_newest(
        self, view: View, plan: BudgetPlan, budget: int, compactors: Compactors, context: Context
    ) -> list[Compaction]:
        """Return no compactions.

        Raises:
            UnknownError: The newest tool call has a result. This method is called if the call and its results do not
                fit, and a compactor would shorten the results to an unknown length, on which the decision depends.
        """
        if any(view.history.kind(position) is EventKind.TOOL_RESULT for position in plan.newest):
            raise UnknownError("a tool result would be shortened; its length is unknown")
        return []

    def with_reply(self, summary: Compaction, kept: View, leading: int) -> Compaction:
        """Return the summary with `reply` after it; with `_ASSUMED_REPLY` only if a user message follows."""
        if self.reply is _ASSUMED_REPLY:
            is_needed = leading < len(kept) and kept.history.kind(kept.position(leading)) in _OF_USER
            return replace(summary, reply=self.reply) if is_needed else summary
        return summary if self.reply is None else replace(summary, reply=self.reply)
