"""What a `BudgetPolicy` with a compactor puts in the place of what does not fit, and remembers from turn to turn."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import Compaction, DecisionOutcome, DecisionReason, Verdict
from otel_assembly.history.edited import Edited
from otel_assembly.history.tool_pairs import ECHO
from otel_assembly.history.view import View
from otel_assembly.knowledge.rendering import render_events
from otel_assembly.messages.event_facts import EventKind, describe
from otel_assembly.messages.replacements import result_texts, shortened, summary_like, summary_reply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.budget.attempt import Attempt
    from otel_assembly.budget.compaction import Compactors
    from otel_assembly.context import Context
    from otel_assembly.decision import Outcome
    from otel_assembly.policies.budget_plan import BudgetPlan
    from otel_assembly.tokens import TokenMeter

logger = logging.getLogger("otel_assembly")

_COMPACTED: Final = (DecisionOutcome.COMPACTED, DecisionReason.COMPACTED)


@dataclass(slots=True)
class CompactionCache:
    """What stands for events of one conversation, from turn to turn.

    It goes with the conversation and not with the policy, which may serve many. What it covers is known by its events
    and not by their text, so that a turn on which the cut stood still reads none of them.
    """

    #: The events that the summary covers, the summary and its text.
    covered: View | None = None
    summary: Any = None
    text: str = ""
    #: The assistant's message between the summary and a user's message, where the provider requires one.
    reply: Any = None
    #: What was to be covered last, where compaction came to nothing: it is not tried again for the same.
    failed: View | None = None
    #: Shorter results of tools, by the position of the whole one.
    short: dict[int, Any] = field(default_factory=dict)

    def tokens(self, meter: TokenMeter) -> dict[int, int]:
        """The tokens of each shorter result, by the position of the whole one."""
        return {position: meter.event(describe(event)) for position, event in self.short.items()}

    async def shorten_newest(
        self, view: View, plan: BudgetPlan, budget: int, compactors: Compactors, context: Context
    ) -> list[Compaction]:
        """Shorten results of the newest atom, the longest most, to half of what is free beside the fixed content.

        To the brim, the next turn would have no room for what is said of it.
        """
        history, count = view.history, plan.meter.text
        made: list[Compaction] = []
        results = {
            position: result_texts(history.event(position))
            for position in plan.newest
            if history.kind(position) is EventKind.TOOL_RESULT and not history.flags(position) & ECHO
        }
        room = (budget - plan.fixed) // 2
        lengths = [count(text) for texts in results.values() for text in texts]
        most = _level(lengths, plan.newest_tokens - room)
        if most < 1:
            # A client that sends a text within JSON sends more tokens than the text has (Gemini's results).
            empty = [shortened(history.event(position), [""] * len(texts)) for position, texts in results.items()]
            around = sum(plan.meter.event(describe(event)) for event in empty if event is not None)
            around += plan.newest_tokens - sum(map(plan.tokens, results))
            whole, sent = sum(lengths), plan.newest_tokens - around
            if sent > whole > 0:
                most = _level(lengths, whole - (room - around) * whole // sent)
        for position in sorted(results, key=plan.tokens, reverse=True):
            texts = list(results[position])
            attempts: list[Attempt] = []
            for place, text in enumerate(texts):
                if most < 1 or count(text) <= most:
                    continue
                compacted = await compactors.run_async(text, most, count, context.watch(EventKind.RECENT.value))
                attempts += compacted.attempts
                texts[place] = compacted.text if compacted.text is not None else text
            if not attempts:
                continue
            stand_in = shortened(history.event(position), texts) if texts != list(results[position]) else None
            if stand_in is not None:
                self.short[position] = stand_in
                plan.shorten(position, plan.meter.event(describe(stand_in)))
            made.append(Compaction(view.pick_positions([position]), stand_in, attempts))
        return made

    async def summarise(
        self, gone: View, tokens: int, room: int, compactors: Compactors, context: Context
    ) -> Compaction:
        """Put a summary in the place of what is gone: the one there is, or one of it and what has gone since.

        Where no new one can be made, the one there is goes on standing for what it covers.

        Args:
            gone: What it stands for.
            tokens: Tokens of its text at most.
            room: Tokens of the whole event at most.
            compactors: What makes it.
            context: The assembly's.
        """
        covered = self.covered if self.covered is not None and not self.covered.minus(gone) else None
        if covered is not None and covered.current == gone.current:
            return Compaction(gone, self.summary)
        attempts: Sequence[Attempt] = ()
        if self.failed is None or self.failed.current != gone.current:
            text = render_events(gone if covered is None else gone.minus(covered))
            if covered is not None:
                text = f"{self.text}\n\n{text}"
            watch = context.watch(EventKind.OLDER.value)
            compacted = await compactors.run_async(text, tokens, context.meter.text, watch)
            attempts = compacted.attempts
            event = summary_like(gone[0], compacted.text, gone) if compacted.text is not None else None
            # A text can merge badly with what the row puts around it.
            if event is not None and compacted.text is not None and context.meter.event(describe(event)) <= room:
                self.covered, self.summary, self.text, self.failed = gone, event, compacted.text, None
                return Compaction(gone, event, attempts)
            self.failed = gone
        if covered is None:
            return Compaction(gone, None, attempts)
        return Compaction(covered, self.summary, attempts)

    def with_reply(self, summary: Compaction, kept: View, leading: int) -> Compaction:
        """Return a summary with the reply that has to stand between it and the first event behind it, if any."""
        reply = summary_reply(summary.into, kept[leading]) if leading < len(kept) else None
        if reply is None:
            return summary
        self.reply = self.reply or reply  # the same object on each turn, so that the ledger knows it again
        return replace(summary, reply=self.reply)

    def edited(self, outcome: Outcome, kept: View, leading: int, compactions: Sequence[Compaction]) -> Outcome:
        """A budget's outcome with what stands for others in their place; a summary comes behind what leads."""
        short = {position: event for position, event in self.short.items() if kept.holds(position)}
        summary = next((one for one in compactions if one.events and one.into is self.summary is not None), None)
        if not short and summary is None:
            return replace(outcome, compactions=compactions)
        placed: list[tuple[Any, int | None]] = [
            (short[position], None) if position in short else (kept.history.event(position), position)
            for position in kept.positions()
        ]
        verdicts = list(outcome.decisions)
        if summary is not None:
            made = [summary.into] if summary.reply is None else [summary.into, summary.reply]
            placed[leading:leading] = [(event, None) for event in made]
            verdicts = [_but(verdict, summary.events) for verdict in verdicts]
            verdicts.append(Verdict(summary.events, *_COMPACTED, summary.into))
        verdicts += (Verdict(kept.pick_positions([at]), *_COMPACTED, event) for at, event in short.items())
        events, positions = zip(*placed, strict=True)
        return replace(
            outcome,
            events=Edited(kept, events, positions),
            decisions=[verdict for verdict in verdicts if len(verdict.events)],
            compactions=compactions,
        )


def _but(verdict: Verdict, gone: Sequence[Any]) -> Verdict:
    """A verdict without the events for which a summary stands."""
    view = verdict.events
    if verdict.reason is not DecisionReason.OVER_BUDGET or not isinstance(view, View) or not isinstance(gone, View):
        return verdict
    return replace(verdict, events=view.minus(gone))


def _level(tokens: Sequence[int], excess: int) -> int:
    """How long a text may be, so that all of them are `excess` shorter together where those above it are cut to it."""
    room = sum(tokens) - excess
    left = len(tokens)
    for one in sorted(tokens):
        if one * left > room:
            return room // left
        room -= one
        left -= 1
    return max(tokens, default=0)


def takes_summary(event: Any) -> bool:
    """Return whether a summary can stand for an event; if not, one warning for each type reports it."""
    if summary_like(event, "", ()) is not None:
        return True
    kind = type(event)
    if kind not in _warned:
        _warned.add(kind)
        logger.warning(
            "budget: no summary can stand for events of type %s, so that they are dropped; register a row with "
            "otel_assembly.messages.replacements.summary_like.register",
            kind.__qualname__,
        )
    return False


_warned: set[type] = set()


def compaction_cache_of(view: View, policy: object) -> CompactionCache:
    """What stands for events of this conversation, for one policy."""
    kept: dict[Any, Any] = view.history.kept_for  # type: ignore[assignment]  # a weak-keyed mapping
    cache = kept.get(policy)
    if not isinstance(cache, CompactionCache):
        cache = kept[policy] = CompactionCache()
    return cache
