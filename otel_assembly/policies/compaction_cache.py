"""Summaries and shortened tool results that a `BudgetPolicy` with `compact` makes and reuses in later turns."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, cast

from otel_assembly.decision import Compaction, DecisionOutcome, DecisionReason, Verdict
from otel_assembly.history.tool_pairs import ECHO
from otel_assembly.history.view import Edited
from otel_assembly.knowledge.rendering import render_events
from otel_assembly.messages.event_facts import EventKind, describe
from otel_assembly.messages.replacements import result_texts, shortened, summary_like, summary_reply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.budget.attempt import Attempt
    from otel_assembly.budget.compaction import Compactors
    from otel_assembly.context import Context
    from otel_assembly.decision import Outcome
    from otel_assembly.history.view import View
    from otel_assembly.policies.budget_plan import BudgetPlan

logger = logging.getLogger("otel_assembly")

#: The types of events for which `can_summarize` logged a warning.
_warned: Final = set[type]()
_COMPACTED: Final = (DecisionOutcome.COMPACTED, DecisionReason.COMPACTED)


@dataclass(slots=True)
class CompactionCache:
    """The summary and the shortened tool results of one conversation.

    The cache is stored with the conversation's history, because one policy may serve many conversations. It identifies
    events by their positions and not by their texts, so a turn that drops no further events reads no texts.
    """

    #: The events that the summary covers, the summary and its text.
    covered: View | None = None
    summary: Any = None
    text: str = ""
    #: The assistant's message between the summary and a user's message, if the provider requires that roles alternate.
    reply: Any = None
    #: The events for which the last compaction failed; it is not repeated for the same events.
    failed: View | None = None
    #: Shortened tool results, by the position of the original.
    short: dict[int, Any] = field(default_factory=dict)

    async def shorten_newest(
        self, view: View, plan: BudgetPlan, budget: int, compactors: Compactors, context: Context
    ) -> list[Compaction]:
        """Shorten the tool results of the newest tool call, so that they fit in half of the free tokens.

        The longest results are shortened most. The other half of the free tokens remains for the messages of the next
        turn. The new token counts are stored in the plan.

        Returns:
            One `Compaction` per result that was shortened or whose attempts failed.
        """
        history, count = view.history, plan.meter.text
        compactions: list[Compaction] = []
        results = {
            position: result_texts(history.events[position])
            for position in plan.newest
            if history.kind(position) is EventKind.TOOL_RESULT and not history.pairing.flags[position] & ECHO
        }
        room = (budget - plan.fixed) // 2
        lengths = [count(text) for texts in results.values() for text in texts]
        max_length = _level(lengths, plan.newest_tokens - room)
        if max_length < 1:
            # Some clients send a text inside JSON (Gemini's results), which has more tokens than the text.
            empty = [shortened(history.events[position], [""] * len(texts)) for position, texts in results.items()]
            framing = sum(plan.meter.event(describe(event)) for event in empty if event is not None)
            framing += plan.newest_tokens - sum(map(plan.tokens, results))
            whole, sent = sum(lengths), plan.newest_tokens - framing
            if sent > whole > 0:
                max_length = _level(lengths, whole - (room - framing) * whole // sent)
        for position in sorted(results, key=plan.tokens, reverse=True):
            texts = list(results[position])
            attempts: list[Attempt] = []
            for place, text in enumerate(texts):
                if max_length < 1 or count(text) <= max_length:
                    continue
                compacted = await compactors.run_async(text, max_length, count, context.watch(EventKind.RECENT.value))
                attempts += compacted.attempts
                texts[place] = compacted.text if compacted.text is not None else text
            if not attempts:
                continue
            replacement = shortened(history.events[position], texts) if texts != list(results[position]) else None
            if replacement is not None:
                self.short[position] = replacement
                plan.shorten(position, plan.meter.event(describe(replacement)))
            compactions.append(Compaction(view.pick_positions([position]), replacement, attempts))
        return compactions

    async def summarize(
        self, dropped: View, tokens: int, room: int, compactors: Compactors, context: Context
    ) -> Compaction:
        """Return a summary of the dropped events; a `Compaction` without replacement if every attempt failed.

        If the existing summary covers all dropped events, it is returned. If it covers some of them, the new summary is
        made from the existing one and the other events. If no new summary can be made, the existing summary is
        returned for the events that it covers.

        Args:
            dropped: The events to summarize.
            tokens: The most tokens of the summary's text.
            room: The most tokens of the summary event, including framing.
            compactors: Make the summary.
            context: The assembly's context.
        """
        covered = self.covered if self.covered is not None and not self.covered.minus(dropped) else None
        if covered is not None and len(covered) == len(dropped):
            return Compaction(dropped, self.summary)
        attempts: Sequence[Attempt] = ()
        if self.failed is None or len(self.failed) != len(dropped) or self.failed.minus(dropped):
            text = render_events(dropped if covered is None else dropped.minus(covered))
            if covered is not None:
                text = f"{self.text}\n\n{text}"
            watch = context.watch(EventKind.OLDER.value)
            compacted = await compactors.run_async(text, tokens, context.meter.text, watch)
            attempts = compacted.attempts
            event = summary_like(dropped[0], compacted.text, dropped) if compacted.text is not None else None
            # The function for the event's type may add words to the text, so the event's tokens are counted again.
            if event is not None and compacted.text is not None and context.meter.event(describe(event)) <= room:
                self.covered, self.summary, self.text, self.failed = dropped, event, compacted.text, None
                return Compaction(dropped, event, attempts)
            self.failed = dropped
        if covered is None:
            return Compaction(dropped, None, attempts)
        return Compaction(covered, self.summary, attempts)

    def with_reply(self, summary: Compaction, kept: View, leading: int) -> Compaction:
        """Return a summary, with an assistant message after it if the provider requires one before the next event.

        `leading` is the number of kept events in front of the summary.
        """
        reply = summary_reply(summary.into, kept[leading]) if leading < len(kept) else None
        if reply is None:
            return summary
        self.reply = self.reply or reply  # the same object on each turn, so that the ledger recognizes it
        return replace(summary, reply=self.reply)

    def edited(
        self, outcome: Outcome, kept: View, leading: int, compactions: Sequence[Compaction], summary: Compaction | None
    ) -> Outcome:
        """Return an outcome in which shortened results and the summary replace the original events.

        Args:
            outcome: The outcome without replacements.
            kept: The kept events.
            leading: The number of leading system messages, after which the summary is inserted.
            compactions: The compactions of this turn, for the outcome.
            summary: The one of them that made the summary; None if there is no summary.
        """
        short = {position: event for position, event in self.short.items() if kept.holds(position)}
        if not short and summary is None:
            return replace(outcome, compactions=compactions)
        verdicts, inserted = list(outcome.decisions), []
        if summary is not None:
            inserted = [event for event in (summary.into, summary.reply) if event is not None]
            for index, verdict in enumerate(verdicts):
                if verdict.reason is DecisionReason.OVER_BUDGET:
                    rest = cast("View", verdict.events).minus(cast("View", summary.events))
                    verdicts[index] = replace(verdict, events=rest)
            verdicts.append(Verdict(summary.events, *_COMPACTED, summary.into))
        verdicts += (Verdict(kept.pick_positions([at]), *_COMPACTED, event) for at, event in short.items())
        return replace(
            outcome,
            events=Edited(kept, leading, inserted, short),
            decisions=[verdict for verdict in verdicts if len(verdict.events)],
            compactions=compactions,
        )


def _level(tokens: Sequence[int], excess: int) -> int:
    """Return the maximum length of a text with which texts of these lengths together become `excess` tokens shorter.

    Texts that are shorter than this are not shortened. Below 1, the excess is larger than the texts allow.
    """
    room = sum(tokens) - excess
    remaining = len(tokens)
    for length in sorted(tokens):
        if length * remaining > room:
            return room // remaining
        room -= length
        remaining -= 1
    return max(tokens, default=0)


def can_summarize(event: Any) -> bool:
    """Return whether a function is registered that creates a summary for an event's type.

    If not, one warning per type is logged.
    """
    if summary_like(event, "", ()) is not None:
        return True
    kind = type(event)
    if kind not in _warned:
        _warned.add(kind)
        logger.warning(
            "budget: events of type %s cannot be replaced by a summary, so they are dropped; register a function for "
            "the type with otel_assembly.messages.replacements.summary_like.register",
            kind.__qualname__,
        )
    return False
