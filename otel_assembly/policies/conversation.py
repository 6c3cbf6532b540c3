"""`ConversationPolicy`: only what the model needs to see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from otel_assembly._internal.intervals import complement, to_runs
from otel_assembly.decision import DecisionOutcome, DecisionReason, Outcome, Verdict
from otel_assembly.history.history import CONVERSATION_KINDS
from otel_assembly.history.view import View
from otel_assembly.messages.describe import EventKind
from otel_assembly.policies.base import DecidingPolicy, as_view, keep, orphan_verdicts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.context import Context


class ConversationPolicy(DecidingPolicy):
    """Keeps requests, responses, tool calls and results, summaries and system messages (seed 000).

    Alerts, lifecycle events and what observers put on the stream are dropped, reason ``not_conversation``. It is an
    allow-list: a kind of event that does not say it is conversation is filtered out. Like every reducer it drops calls
    and results that have lost their other half.
    """

    name: str = "conversation"
    filters: ClassVar[frozenset[str] | None] = frozenset(EventKind) - CONVERSATION_KINDS
    replayable: ClassVar[bool] = True

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return the conversation in `events`."""
        view = as_view(events)
        history = view.history
        if view.whole and view.end == len(history):
            return self._of_all(prompts, view)
        runs = to_runs(
            index for index, position in enumerate(view.positions()) if history.kind(position) in CONVERSATION_KINDS
        )
        kept, verdicts = keep(view, runs, DecisionReason.NOT_CONVERSATION)
        return Outcome(prompts, kept, verdicts)

    def _of_all(self, prompts: Sequence[str], view: View) -> Outcome:
        """The history keeps these classes apart as events arrive, so that a turn touches none of them again."""
        history, end = view.history, view.end
        lost = history.pairing.orphaned_calls(end)
        if history.conversational.index(end) == end and not lost:
            return Outcome(prompts, view)
        kept = View(history, [(history.conversational, 0, history.conversational.index(end))])
        verdicts = [
            Verdict(left, DecisionOutcome.DROPPED, reason)
            for column, reason in (
                (history.non_conversation, DecisionReason.NOT_CONVERSATION),
                (history.orphans, DecisionReason.ORPHANED_TOOL_RESULT),
            )
            if (left := View(history, [(column, 0, column.index(end))]))
        ]
        if lost:
            verdicts += orphan_verdicts(kept, lost)
            indexes = sorted(index for position in lost if (index := kept.index_of(position)) >= 0)
            kept = kept.pick(complement(len(kept), [(index, index + 1) for index in indexes]))
        return Outcome(prompts, kept.mended(), verdicts)
