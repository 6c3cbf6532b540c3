"""`ConversationPolicy`: keeps only the kinds of events that belong to the conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from otel_assembly.decision import DecisionOutcome, DecisionReason, Outcome, Verdict
from otel_assembly.history.history import CONVERSATION_KINDS
from otel_assembly.history.view import View, to_runs
from otel_assembly.messages.event_facts import EventKind
from otel_assembly.policies.base import DecidingPolicy, as_view, is_user_first, keep, start_with_user

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.context import Context


#: The reason of each class that `History.by_class` separates, except the first, which is kept.
_REASONS: Final = (
    DecisionReason.NOT_CONVERSATION,
    DecisionReason.ORPHANED_TOOL_RESULT,
    DecisionReason.ORPHANED_TOOL_CALL,
    DecisionReason.ORPHANED_TOOL_RESULT,
    DecisionReason.ORPHANED_REASONING,
)


class ConversationPolicy(DecidingPolicy):
    """Keep the kinds of events that belong to the conversation (as in AG2).

    These are requests, responses, tool calls and results, summaries and system messages. Alerts, lifecycle events and
    events of observers are dropped with the reason ``not_conversation``. The policy is an allowlist: it drops a kind of
    event that is not declared as conversation. Like every reduction, it also drops orphaned tool calls and results, and
    reasoning whose item is missing.
    """

    name: str = "conversation"
    filters: ClassVar[frozenset[str] | None] = frozenset(EventKind) - CONVERSATION_KINDS
    replayable: ClassVar[bool] = True

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return the events that belong to the conversation."""
        view = as_view(events)
        history = view.history
        classes = history.by_class(view.end) if view.whole else None
        if classes is not None:
            kept, verdicts = self._of_all(view, classes)
        else:
            runs = to_runs(
                index for index, position in enumerate(view.positions()) if history.kind(position) in CONVERSATION_KINDS
            )
            kept, verdicts = keep(view, runs, DecisionReason.NOT_CONVERSATION)
        if is_user_first(view, context):
            kept, verdicts = start_with_user(kept, verdicts)
        return Outcome(prompts, kept, verdicts)

    def _of_all(self, view: View, classes: Sequence[View]) -> tuple[View, list[Verdict]]:
        """Select from the classes that the history maintains as events arrive.

        No event is read again.
        """
        kept = classes[0]
        if len(kept) == len(view):
            return view, []
        verdicts = [
            Verdict(events, DecisionOutcome.DROPPED, reason)
            for events, reason in zip(classes[1:], _REASONS, strict=True)
            if events
        ]
        return kept, verdicts
