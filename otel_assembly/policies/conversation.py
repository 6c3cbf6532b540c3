"""`ConversationPolicy`: keeps only the kinds of events that belong to the conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from otel_assembly.decision import DecisionOutcome, DecisionReason, Outcome, Verdict
from otel_assembly.history.history import CONVERSATION_KINDS
from otel_assembly.history.view import to_ranges
from otel_assembly.messages.event_facts import EventKind
from otel_assembly.policies.base import CLASS_REASONS, DecidingPolicy, as_view, keep, never_waits, start_with_user

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.context import Context


class ConversationPolicy(DecidingPolicy):
    """Keep the kinds of events that belong to the conversation (as in AG2).

    These are requests, responses, tool calls and results, summaries and system messages. Alerts, lifecycle events,
    observers' events and events of any other kind are dropped with the reason ``not_conversation``.

    Like every reduction, the policy also drops messages that providers reject because their counterpart is missing:
    tool calls without results (except calls that may still get one), results without calls, and reasoning without the
    text or call that the model wrote after it.
    """

    name: str = "conversation"
    filters: ClassVar[frozenset[str] | None] = frozenset(EventKind) - CONVERSATION_KINDS
    replayable: ClassVar[bool] = True

    @never_waits
    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return the events that belong to the conversation, with verdicts on the dropped events."""
        view = as_view(events)
        history = view.history
        classes = history.by_class(view.end) if view.whole else None
        kept, verdicts = view, list[Verdict]()  # also if `classes` is empty: all events may be sent
        if classes:
            kept = classes[0]
            verdicts += (
                Verdict(events, DecisionOutcome.DROPPED, reason)
                for events, reason in zip(classes, CLASS_REASONS, strict=True)
                if events and reason is not None
            )
        elif classes is None:
            ranges = to_ranges(
                index for index, position in enumerate(view.positions()) if history.kind(position) in CONVERSATION_KINDS
            )
            kept, verdicts = keep(view, ranges, DecisionReason.NOT_CONVERSATION)
        if context.provider_rules(view.history.provider).is_user_first:
            kept, verdicts = start_with_user(kept, verdicts)
        return Outcome(prompts, kept, verdicts)
