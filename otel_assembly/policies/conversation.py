"""`ConversationPolicy`: only what the model needs to see."""

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


#: Why what is in a class goes; in the first one is what stays.
_REASONS: Final = (
    DecisionReason.NOT_CONVERSATION,
    DecisionReason.ORPHANED_TOOL_RESULT,
    DecisionReason.ORPHANED_TOOL_CALL,
    DecisionReason.ORPHANED_TOOL_RESULT,
    DecisionReason.ORPHANED_REASONING,
)


class ConversationPolicy(DecidingPolicy):
    """Keeps requests, responses, tool calls and results, summaries and system messages (as in AG2).

    Alerts, lifecycle events and what observers put on the stream are dropped, reason ``not_conversation``. It is an
    allow-list: a kind of event that does not say it is conversation is filtered out. Like every reducer it drops calls
    and results that have lost their other half, and reasoning that lost the item behind it.
    """

    name: str = "conversation"
    filters: ClassVar[frozenset[str] | None] = frozenset(EventKind) - CONVERSATION_KINDS
    replayable: ClassVar[bool] = True

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return the conversation in `events`."""
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
        """The history keeps these classes apart as events arrive, so that a turn touches none of them again."""
        kept = classes[0]
        if len(kept) == len(view):
            return view, []
        verdicts = [
            Verdict(left, DecisionOutcome.DROPPED, reason)
            for left, reason in zip(classes[1:], _REASONS, strict=True)
            if left
        ]
        return kept, verdicts
