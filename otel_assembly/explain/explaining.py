"""`explain`: combine the recorded decisions of a ledger with a rerun of its chain."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from otel_assembly._internal.fork_safety import lazy_property
from otel_assembly.decision import DecisionOutcome, DecisionReason, PromptPart
from otel_assembly.errors import AssemblyError
from otel_assembly.explain.chain import KnownPolicies
from otel_assembly.explain.explanation import (
    BlockPlace,
    BlockShare,
    CoveringSummary,
    DroppedGroup,
    Explanation,
    ItemPosition,
    Unsent,
    unsure,
)
from otel_assembly.explain.remedy import Remedy
from otel_assembly.explain.unsent import UnsentTurn, sent_nothing
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.ledger_history import ALLOCATOR, ReportedExit
from otel_assembly.telemetry.span_values import runs_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_assembly.policies.base import AssemblyPolicy
    from otel_assembly.telemetry.ledger_history import LedgerHistory, ReportedBlock, ReportedTurn


def explain(ledger: LedgerHistory, turn: int, item: str, policies: Iterable[type[AssemblyPolicy]] = ()) -> Explanation:
    """Explain what happened to an item on a turn.

    Args:
        ledger: A ledger of `read_ledgers`.
        turn: The assembly's index in its ledger, from 0.
        item: The item's id in its ledger: ``0``, ``1``, … for input items, ``m0``, … for items that policies made.
        policies: Classes of custom policies, which are run again if they are `replayable`.

    Raises:
        AssemblyError: The ledger has no such turn or item.
    """
    return Explainer(ledger, turn, policies).explain(item)


class Explainer:
    """Explains the items of one turn; the chain is run again once for all items.

    Args:
        ledger: A ledger of `read_ledgers`.
        turn: The assembly's index in its ledger, from 0.
        policies: Classes of custom policies, which are run again if they are `replayable`.

    Raises:
        AssemblyError: The ledger has no such turn.
    """

    def __init__(self, ledger: LedgerHistory, turn: int, policies: Iterable[type[AssemblyPolicy]] = ()) -> None:
        self.ledger = ledger
        numbers = [recorded.number for recorded in ledger.turns]
        if not numbers or not 0 <= turn <= max(numbers):
            there = f"turns {min(numbers)} to {max(numbers)}" if numbers else "no turn"
            raise AssemblyError(f"ledger {ledger.id[:12]} has no turn {turn}; the spans record {there}")
        self.number = turn
        self._turn = _TurnExplainer(ledger, ledger.turn(turn), KnownPolicies(policies)) if turn in numbers else None

    def explain(self, item: str) -> Explanation:
        """Explain what happened to one item.

        Raises:
            AssemblyError: The ledger has no such item.
        """
        ledger = self.ledger
        known = ledger.items.get(item)
        if known is None and not any(turn.lists(item) for turn in ledger.turns):
            there = f"items {', '.join(runs_of(ledger.items))}" if ledger.items else "no item"
            raise AssemblyError(f"ledger {ledger.id[:12]} has no item {item}; the spans record {there}")
        answer = Explanation(
            ledger=ledger.id,
            conversation=next(iter(ledger.turns)).attributes.get(names.GEN_AI_CONVERSATION_ID),
            turn=self.number,
            item=item,
            kind=known.kind if known is not None else None,
            arrived=known.turn if known is not None else None,
        )
        if known is None:
            answer = unsure(answer, "its kind and size: its arrival is not in the spans")
        if self._turn is None:
            return self._between(answer)
        return self._turn.explain(replace(answer, tokens=ledger.tokens(self.number, item)))

    def absent(self) -> list[DroppedGroup]:
        """Return the items that are not in the turn's prompt, by policy and reason; the largest group first.

        If nothing was sent, these are all input items, by their part in the turn.

        Raises:
            AssemblyError: The turn is not in the spans.
        """
        if self._turn is None:
            raise AssemblyError(f"turn {self.number} is not in the spans, so its dropped items are unknown")
        return self._turn.absent()

    @property
    def unsent(self) -> Unsent | None:
        """Why nothing was sent on the turn; None if a prompt was sent, or if the turn is not in the spans."""
        turn = self._turn
        return turn.unsent.why if turn is not None and sent_nothing(turn.turn) else None

    def _between(self, answer: Explanation) -> Explanation:
        """Explain a turn that is not in the spans, from the turns before and after it."""
        sentences = [f"what happened on turn {self.number}: it is not in the spans"]
        sent = [turn for turn in self.ledger.turns if turn.sent]
        earlier = [turn for turn in sent if turn.number < self.number]
        later = [turn for turn in sent if turn.number > self.number]
        for turn in (*earlier[-1:], *later[:1]):
            exit_ = self.ledger.exit(turn.number, answer.item)
            if answer.item in turn.kept:
                sentences.append(f"on turn {turn.number} it was in the prompt")
            elif exit_ is None:
                sentences.append(f"on turn {turn.number} it was not offered")
            else:
                why = f" ({exit_.policy}, {exit_.reason})" if exit_.reason else ", and no span records why"
                sentences.append(f"on turn {turn.number} it was not in the prompt{why}")
        return unsure(answer, "; ".join(sentences))


class _TurnExplainer:
    """Explains the items of a turn that is in the spans."""

    def __init__(self, ledger: LedgerHistory, turn: ReportedTurn, known: KnownPolicies) -> None:
        self.ledger = ledger
        self.turn = turn
        self.known = known

    @lazy_property
    def remedy(self) -> Remedy:
        """The limits of the turn's policies, with a rerun of the chain."""
        return Remedy(self.ledger, self.turn, self.known)

    @lazy_property
    def unsent(self) -> UnsentTurn:
        """The explanation of why the turn sent nothing."""
        return UnsentTurn(self.ledger, self.turn, self.known)

    def explain(self, answer: Explanation) -> Explanation:
        """Explain what happened to the item."""
        block = self._block(answer)
        if block is not None:
            answer = replace(answer, block=self._place(block), winner=block.winners.get(answer.item))
        unsent = sent_nothing(self.turn)
        is_input_known = self.turn.offered is not None or not unsent
        later = answer.arrived is not None and answer.arrived > self.turn.number
        if is_input_known and later and not self.turn.lists(answer.item):
            return replace(answer, outcome="not_arrived")
        if unsent:
            return self._nothing_sent(answer)
        since, known = self.ledger.since(self.turn.number, answer.item)
        answer = replace(answer, since=since, since_known=known)
        if answer.item in self.turn.kept:
            return self._kept(answer)
        exit_ = self.ledger.exit(self.turn.number, answer.item)
        if exit_ is None and self.turn.offered is None:
            return unsure(answer, "whether it was in the input: the input of this turn is unknown")
        return self._out(answer, exit_) if exit_ is not None else self._not_offered(answer)

    def _block(self, answer: Explanation) -> ReportedBlock | None:
        """Return the item's block: the one that lists the item, else the only block of its kind."""
        blocks = [block for step in self.turn.steps if step.policy == ALLOCATOR for block in step.blocks]
        for block in blocks:
            if answer.item in block.items:
                return block
        found = [block for block in blocks if block.kind == answer.kind and not block.items]
        return found[0] if len(found) == 1 else None

    def _place(self, block: ReportedBlock) -> BlockPlace:
        blocks = next(step.blocks for step in self.turn.steps if any(other is block for other in step.blocks))
        before = blocks[: next(at for at, other in enumerate(blocks) if other is block)]
        shares = [
            BlockShare(earlier.name, earlier.priority, tokens)
            for earlier in before
            if isinstance(tokens := earlier.attributes.get(names.TOKENS_OUT), int) and tokens
        ]
        floor = block.attributes.get(names.BLOCK_MIN_TOKENS)
        return BlockPlace(
            block.name,
            block.kind,
            block.priority,
            block.remaining,
            floor if isinstance(floor, int) and block.attributes.get(names.BLOCK_CUTTABLE) else 0,
            tuple(shares),
        )

    def absent(self) -> list[DroppedGroup]:
        """Return the items that are not in the prompt, in groups."""
        if sent_nothing(self.turn):
            return self._unsent_input()
        groups: dict[tuple[str | None, str | None, int | None, str], list[str]] = {}
        for item, exit_ in self.ledger.exits(self.turn.number).items():
            groups.setdefault((exit_.reason, exit_.policy, exit_.index, exit_.outcome), []).append(item)
        found = [DroppedGroup(*key, tuple(items), self.remedy.tokens_of(items)) for key, items in groups.items()]
        return sorted(found, key=lambda group: -len(group.items))

    def _nothing_sent(self, answer: Explanation) -> Explanation:
        """Add why nothing was sent, the item's part in the turn, and an earlier policy that dropped the item."""
        why = self.unsent.why
        part = self.unsent.part(answer.item)
        if self.turn.offered is None:
            answer = unsure(answer, "whether it was in the input: the input of this turn is unknown")
        elif not self.turn.lists(answer.item):
            answer = replace(answer, outcome="not_offered")
            return replace(answer, unsent=why)
        answer = replace(answer, outcome="not_sent", unsent=why, part=part)
        exit_ = next((found for step in reversed(self.turn.steps) if (found := step.exit(answer.item))), None)
        if exit_ is not None:
            return replace(answer, reason=exit_.reason, policy=exit_.policy, index=exit_.index)
        if why.error == names.ERROR_CONTEXT_OVERFLOW:
            answer = replace(answer, reason=DecisionReason.OVER_BUDGET.value)
        kept = self.unsent.keeps(answer.item)
        return replace(answer, policy=why.policy, index=why.index, raises=(kept,) if kept is not None else ())

    def _unsent_input(self) -> list[DroppedGroup]:
        """Return the input of a turn that sent nothing, by the policy that dropped it, or by its part in the turn."""
        why = self.unsent.why
        groups: dict[tuple[str | None, str | None, int | None, str, str | None], list[str]] = {}
        for item in self.turn.offered or ():
            exit_ = next((found for step in reversed(self.turn.steps) if (found := step.exit(item))), None)
            how = exit_ or ReportedExit(why.error, why.policy, why.index, "not_sent")
            part = "taken" if exit_ is not None else self.unsent.part(item)
            groups.setdefault((how.reason, how.policy, how.index, how.outcome, part), []).append(item)
        return [
            DroppedGroup(reason, policy, index, outcome, tuple(items), self.remedy.tokens_of(items), part)
            for (reason, policy, index, outcome, part), items in groups.items()
        ]

    # In the prompt

    def _kept(self, answer: Explanation) -> Explanation:
        turn, attributes, kept = self.turn, self.turn.attributes, list(self.turn.kept)
        at = kept.index(answer.item)
        kinds = dict(zip(attributes.get(names.KIND_NAMES, ()), attributes.get(names.KIND_TOKENS, ()), strict=False))
        # With an allocator, the items are in decision order, not in prompt order, and framing belongs to blocks.
        before = self.remedy.tokens_of(kept[:at]) if not turn.blocks else None
        after = self.remedy.tokens_of(kept[at + 1 :]) if not turn.blocks else None
        if before is not None:
            prompts = sum(map(int, attributes.get(names.PROMPT_TOKENS, ())))
            before += prompts + int(kinds.get(PromptPart.TOOL_SCHEMAS, 0))
        if after is not None:
            after += int(kinds.get(PromptPart.FRAMING, 0))
        prefix = attributes.get(names.PREFIX_TOKENS)
        known = before is not None and answer.tokens is not None and isinstance(prefix, int)
        standing = ItemPosition(
            position=at + 1,
            of=len(kept),
            prompts=int(attributes.get(names.PROMPTS_OUT, 0)),
            tokens_before=before,
            tokens_after=after,
            cached=(before or 0) + (answer.tokens or 0) <= prefix if known and isinstance(prefix, int) else None,
        )
        reason, policy, index = self._why_kept(answer.item)
        return replace(answer, outcome="kept", standing=standing, reason=reason, policy=policy, index=index)

    def _why_kept(self, item: str) -> tuple[str, str | None, int | None]:
        chain = self.remedy.chain
        for step, ran in zip(self.turn.steps, chain.base, strict=False) if chain.problem is None else ():
            reason = ran.reason_for(item)
            if reason is not None:
                return reason, step.policy, step.index
        return DecisionReason.FITS.value, None, None

    # Not in the prompt

    def _out(self, answer: Explanation, exit_: ReportedExit) -> Explanation:
        answer = replace(answer, outcome="dropped", reason=exit_.reason, policy=exit_.policy, index=exit_.index)
        if exit_.reason is None:
            answer = replace(answer, since=None)
            return unsure(answer, f"which policy dropped it, and why: {self._why_unknown(exit_)}")
        if exit_.outcome == DecisionOutcome.COMPACTED:
            return self._as_it_is(self._compacted(replace(answer, outcome="compacted")), exit_)
        step = next(step for step in self.turn.steps if step.index == exit_.index)
        return self.remedy.with_raises(self.remedy.with_room(answer, step), step)

    def _not_offered(self, answer: Explanation) -> Explanation:
        """Explain an item that is not in the input: a summary of an earlier turn may have replaced it."""
        holder = self._holder(answer.item)
        if holder is None or not holder.in_prompt:
            return replace(answer, outcome="not_offered")
        turn = next((turn for turn in self.ledger.turns if turn.number == holder.turn), None)
        exit_ = turn.exit(answer.item) if turn is not None else None
        if exit_ is not None:
            answer = replace(answer, reason=exit_.reason, policy=exit_.policy, index=exit_.index)
        return replace(answer, outcome="compacted", holder=holder, since=holder.turn)

    def _why_unknown(self, exit_: ReportedExit) -> str:
        turn = self.turn
        if exit_.among:
            some = ", ".join(f"{step.policy} (policy {step.index}, {step.reason})" for step in exit_.among)
            return f"one of {some}; the turn on which it was dropped is not in the spans"
        if turn.missing:
            count = f"{turn.missing} of the {turn.missing + len(turn.steps)} policies of turn {turn.number}"
            return f"{count} {'has' if turn.missing == 1 else 'have'} no span in the spans"
        return f"no span of turn {turn.number} records it"

    def _compacted(self, answer: Explanation) -> Explanation:
        """Add the summary that covers the item."""
        holder = self._holder(answer.item)
        answer = replace(answer, holder=holder)
        if holder is None:
            return unsure(answer, "which summary covers it: the spans do not record it")
        if not holder.in_prompt:
            return unsure(answer, "what happened to that summary: it is not in this turn's prompt")
        return answer

    def _as_it_is(self, answer: Explanation, exit_: ReportedExit) -> Explanation:
        """Add the limit that would have kept a compacted item unchanged, if it was compacted on this turn."""
        step = next((step for step in self.turn.steps if step.index == exit_.index), None)
        if step is None or (step.policy != ALLOCATOR and self.known.limit(step) is None):
            return answer
        return self.remedy.with_raises(self.remedy.with_room(answer, step), step)

    def _holder(self, item: str) -> CoveringSummary | None:
        """Return the summary that covers the item: one in this turn's prompt if there is one, else the newest.

        If no recorded sources contain the item, return the summary of the step that compacted it, if that step injected
        only one item. A summary is covered if all its sources are.
        """
        turn, items = self.turn, self.ledger.items
        leaves = set(items[item].sources) if item in items and items[item].sources else {item}
        summaries = [
            other
            for other in items.values()
            if other.id != item and other.turn <= turn.number and all(leaf in other.sources for leaf in leaves)
        ]
        if summaries:
            best = max(summaries, key=lambda summary: (summary.id in turn.kept, summary.turn))
            return CoveringSummary(best.id, best.turn, best.id in turn.kept, len(best.sources))
        for step in turn.steps:
            if item in step.compacted and len(step.injected) == 1:
                (summary,) = step.injected
                since = items[summary].turn if summary in items else turn.number
                return CoveringSummary(summary, since, summary in turn.kept, len(step.compacted))
        return None
