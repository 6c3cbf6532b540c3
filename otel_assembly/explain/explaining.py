"""`explain`: combines the decisions that the spans record with a rerun of the turn's policies."""

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
from otel_assembly.telemetry.span_values import ranges_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_assembly.policies.base import AssemblyPolicy
    from otel_assembly.telemetry.ledger_history import LedgerHistory, ReportedBlock, ReportedTurn


def explain(ledger: LedgerHistory, turn: int, item: str, policies: Iterable[type[AssemblyPolicy]] = ()) -> Explanation:
    """Explain what happened to a message (an item of a ledger) on one turn of its conversation.

    Args:
        ledger: A conversation as `read_ledgers` returns it from spans.
        turn: The number of the turn in the ledger, from 0.
        item: The item's id in the ledger: ``0``, ``1``, … for messages of the input, ``m0``, ``m1``, … for messages
            that policies created, such as summaries.
        policies: Classes of custom policies. They are run again if their attribute `replayable` is True.

    Raises:
        AssemblyError: The ledger has no such turn or item.
    """
    return Explainer(ledger, turn, policies).explain(item)


class Explainer:
    """Explains the items of one turn. Use it instead of `explain` for several items: reruns are shared by all items.

    Args:
        ledger: A conversation as `read_ledgers` returns it from spans.
        turn: The number of the turn in the ledger, from 0.
        policies: Classes of custom policies. They are run again if their attribute `replayable` is True.

    Raises:
        AssemblyError: The ledger has no such turn.
    """

    def __init__(self, ledger: LedgerHistory, turn: int, policies: Iterable[type[AssemblyPolicy]] = ()) -> None:
        self.ledger = ledger
        numbers = [recorded.number for recorded in ledger.turns]
        if not numbers or not 0 <= turn <= max(numbers):
            recorded_turns = f"turns {min(numbers)} to {max(numbers)}" if numbers else "no turn"
            raise AssemblyError(f"ledger {ledger.id[:12]} has no turn {turn}; the spans record {recorded_turns}")
        self.number = turn
        self._turn = _TurnExplainer(ledger, ledger.turn(turn), KnownPolicies(policies)) if turn in numbers else None

    def explain(self, item: str) -> Explanation:
        """Explain what happened to the item with this id on the turn.

        Raises:
            AssemblyError: The ledger has no such item.
        """
        ledger = self.ledger
        known = ledger.items.get(item)
        if known is None and not any(turn.lists(item) for turn in ledger.turns):
            recorded_items = f"items {', '.join(ranges_of(ledger.items))}" if ledger.items else "no item"
            raise AssemblyError(f"ledger {ledger.id[:12]} has no item {item}; the spans record {recorded_items}")
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
            return self._explain_missing_turn(answer)
        return self._turn.explain(replace(answer, tokens=ledger.tokens(self.number, item)))

    def absent(self) -> list[DroppedGroup]:
        """Return the items that are not in the turn's prompt, in groups with the same policy and reason.

        The group with the most items comes first. If the turn sent no prompt, these are all items of the input, grouped
        by `DroppedGroup.part`.

        Raises:
            AssemblyError: The turn is not in the spans.
        """
        if self._turn is None:
            raise AssemblyError(f"turn {self.number} is not in the spans, so its dropped items are unknown")
        return self._turn.absent()

    @property
    def unsent(self) -> Unsent | None:
        """The reason why the turn sent no prompt; None if it sent one, or if the turn is not in the spans."""
        turn = self._turn
        return turn.unsent.why if turn is not None and sent_nothing(turn.turn) else None

    def _explain_missing_turn(self, answer: Explanation) -> Explanation:
        """Explain an item on a turn that is not in the spans, from the nearest turns before and after it."""
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
    """Explains the items of a turn whose spans exist; `Explainer` also handles other turns.

    Args:
        ledger: The ledger that contains the turn.
        turn: The turn.
        known: The classes of the chain's policies.
    """

    def __init__(self, ledger: LedgerHistory, turn: ReportedTurn, known: KnownPolicies) -> None:
        self.ledger = ledger
        self.turn = turn
        self.known = known

    @lazy_property
    def remedy(self) -> Remedy:
        """The search for larger limits that would have kept items."""
        return Remedy(self.ledger, self.turn, self.known)

    @lazy_property
    def unsent(self) -> UnsentTurn:
        """The explanation of why the turn sent no prompt."""
        return UnsentTurn(self.ledger, self.turn, self.known)

    def explain(self, answer: Explanation) -> Explanation:
        """Complete an explanation that contains only the ids, the item's size and its first turn."""
        block = self._block_of(answer)
        if block is not None:
            answer = replace(answer, block=self._block_place(block), winner=block.winners.get(answer.item))
        unsent = sent_nothing(self.turn)
        is_input_known = self.turn.offered is not None or not unsent
        later = answer.arrived is not None and answer.arrived > self.turn.number
        if is_input_known and later and not self.turn.lists(answer.item):
            return replace(answer, outcome="not_arrived")
        if unsent:
            return self._explain_unsent(answer)
        since, known = self.ledger.since(self.turn.number, answer.item)
        answer = replace(answer, since=since, since_known=known)
        if answer.item in self.turn.kept:
            return self._explain_kept(answer)
        exit_ = self.ledger.exit(self.turn.number, answer.item)
        if exit_ is None and self.turn.offered is None:
            return unsure(answer, "whether it was in the input: the input of this turn is unknown")
        return self._explain_dropped(answer, exit_) if exit_ is not None else self._explain_not_offered(answer)

    def _block_of(self, answer: Explanation) -> ReportedBlock | None:
        """Return the block of the item; None if no allocator ran or the block is unknown.

        The result is the block that lists the item; otherwise the block of the item's kind that lists no items, if
        there is only one.
        """
        blocks = [block for step in self.turn.steps if step.policy == ALLOCATOR for block in step.blocks]
        for block in blocks:
            if answer.item in block.items:
                return block
        candidates = [block for block in blocks if block.kind == answer.kind and not block.items]
        return candidates[0] if len(candidates) == 1 else None

    def _block_place(self, block: ReportedBlock) -> BlockPlace:
        """Return a block with its numbers and the tokens of the blocks that were decided before it."""
        blocks = next(step.blocks for step in self.turn.steps if any(candidate is block for candidate in step.blocks))
        earlier_blocks = blocks[: next(index for index, candidate in enumerate(blocks) if candidate is block)]
        shares = [
            BlockShare(earlier.name, earlier.priority, tokens)
            for earlier in earlier_blocks
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
        """Return the items that are not in the prompt, in groups with the same policy and reason."""
        if sent_nothing(self.turn):
            return self._unsent_input()
        groups: dict[tuple[str | None, str | None, int | None, str], list[str]] = {}
        for item, exit_ in self.ledger.exits(self.turn.number).items():
            groups.setdefault((exit_.reason, exit_.policy, exit_.index, exit_.outcome), []).append(item)
        dropped_groups = [
            DroppedGroup(*key, tuple(items), self.remedy.tokens_of(items)) for key, items in groups.items()
        ]
        return sorted(dropped_groups, key=lambda group: -len(group.items))

    def _explain_unsent(self, answer: Explanation) -> Explanation:
        """Explain an item on a turn that sent no prompt: the error, the item's part in it, and the policy."""
        why = self.unsent.why
        part = self.unsent.part(answer.item)
        if self.turn.offered is None:
            answer = unsure(answer, "whether it was in the input: the input of this turn is unknown")
        elif not self.turn.lists(answer.item):
            answer = replace(answer, outcome="not_offered")
            return replace(answer, unsent=why)
        answer = replace(answer, outcome="not_sent", unsent=why, part=part)
        exit_ = next((step_exit for step in reversed(self.turn.steps) if (step_exit := step.exit(answer.item))), None)
        if exit_ is not None:
            return replace(answer, reason=exit_.reason, policy=exit_.policy, index=exit_.index)
        if why.error == names.ERROR_CONTEXT_OVERFLOW:
            answer = replace(answer, reason=DecisionReason.OVER_BUDGET.value)
        increase = self.unsent.increase_to_keep(answer.item)
        return replace(answer, policy=why.policy, index=why.index, raises=(increase,) if increase is not None else ())

    def _unsent_input(self) -> list[DroppedGroup]:
        """Group the input of a turn that sent no prompt, by the policy that dropped an item or by the item's part."""
        why = self.unsent.why
        groups: dict[tuple[str | None, str | None, int | None, str, str | None], list[str]] = {}
        for item in self.turn.offered or ():
            exit_ = next((step_exit for step in reversed(self.turn.steps) if (step_exit := step.exit(item))), None)
            exit_or_error = exit_ or ReportedExit(why.error, why.policy, why.index, "not_sent")
            part = "taken" if exit_ is not None else self.unsent.part(item)
            groups.setdefault(
                (exit_or_error.reason, exit_or_error.policy, exit_or_error.index, exit_or_error.outcome, part), []
            ).append(item)
        return [
            DroppedGroup(reason, policy, index, outcome, tuple(items), self.remedy.tokens_of(items), part)
            for (reason, policy, index, outcome, part), items in groups.items()
        ]

    # In the prompt

    def _explain_kept(self, answer: Explanation) -> Explanation:
        """Explain an item in the prompt: its position, the tokens around it, and why it was kept."""
        turn, attributes, kept = self.turn, self.turn.attributes, list(self.turn.kept)
        index = kept.index(answer.item)
        kinds = dict(zip(attributes.get(names.KIND_NAMES, ()), attributes.get(names.KIND_TOKENS, ()), strict=False))
        # With an allocator, `kept` is not in the order of the prompt, and framing is counted for blocks.
        tokens_before = self.remedy.tokens_of(kept[:index]) if not turn.blocks else None
        tokens_after = self.remedy.tokens_of(kept[index + 1 :]) if not turn.blocks else None
        if tokens_before is not None:
            prompts = sum(map(int, attributes.get(names.PROMPT_TOKENS, ())))
            tokens_before += prompts + int(kinds.get(PromptPart.TOOL_SCHEMAS, 0))
        if tokens_after is not None:
            tokens_after += int(kinds.get(PromptPart.FRAMING, 0))
        prefix = attributes.get(names.PREFIX_TOKENS)
        is_known = tokens_before is not None and answer.tokens is not None and isinstance(prefix, int)
        standing = ItemPosition(
            position=index + 1,
            of=len(kept),
            prompts=int(attributes.get(names.PROMPTS_OUT, 0)),
            tokens_before=tokens_before,
            tokens_after=tokens_after,
            cached=(tokens_before or 0) + (answer.tokens or 0) <= prefix
            if is_known and isinstance(prefix, int)
            else None,
        )
        reason, policy, policy_index = self._why_kept(answer.item)
        return replace(answer, outcome="kept", standing=standing, reason=reason, policy=policy, index=policy_index)

    def _why_kept(self, item: str) -> tuple[str, str | None, int | None]:
        """Return the reason, the policy and its index: of the policy that kept the item as an exception, if one did.

        Spans do not record reasons of kept items, so they come from the rerun. Otherwise the reason is ``fits``.
        """
        chain = self.remedy.chain
        for step, ran in zip(self.turn.steps, chain.base, strict=False) if chain.problem is None else ():
            reason = ran.reason_for(item)
            if reason is not None:
                return reason, step.policy, step.index
        return DecisionReason.FITS.value, None, None

    # Not in the prompt

    def _explain_dropped(self, answer: Explanation, exit_: ReportedExit) -> Explanation:
        """Explain an item that a policy dropped or replaced with a summary."""
        answer = replace(answer, outcome="dropped", reason=exit_.reason, policy=exit_.policy, index=exit_.index)
        if exit_.reason is None:
            answer = replace(answer, since=None)
            return unsure(answer, f"which policy dropped it, and why: {self._why_unknown(exit_)}")
        if exit_.outcome == DecisionOutcome.COMPACTED:
            return self._with_limit(self._with_summary(replace(answer, outcome="compacted")), exit_)
        step = next(step for step in self.turn.steps if step.index == exit_.index)
        return self.remedy.with_increases(self.remedy.with_decisive_limit(answer, step), step)

    def _explain_not_offered(self, answer: Explanation) -> Explanation:
        """Explain an item that is not in the turn's input; a summary may have replaced it on an earlier turn."""
        holder = self._covering_summary(answer.item)
        if holder is None or not holder.in_prompt:
            return replace(answer, outcome="not_offered")
        turn = next((turn for turn in self.ledger.turns if turn.number == holder.turn), None)
        exit_ = turn.exit(answer.item) if turn is not None else None
        if exit_ is not None:
            answer = replace(answer, reason=exit_.reason, policy=exit_.policy, index=exit_.index)
        return replace(answer, outcome="compacted", holder=holder, since=holder.turn)

    def _why_unknown(self, exit_: ReportedExit) -> str:
        """Return a text that says why the spans do not tell which policy dropped an item."""
        turn = self.turn
        if exit_.among:
            candidates = ", ".join(f"{step.policy} (policy {step.index}, {step.reason})" for step in exit_.among)
            return f"one of {candidates}; the turn on which it was dropped is not in the spans"
        if turn.missing:
            count = f"{turn.missing} of the {turn.missing + len(turn.steps)} policies of turn {turn.number}"
            return f"{count} {'has' if turn.missing == 1 else 'have'} no span in the spans"
        return f"no span of turn {turn.number} records it"

    def _with_summary(self, answer: Explanation) -> Explanation:
        """Add the summary that replaced the item, or that it is unknown."""
        holder = self._covering_summary(answer.item)
        answer = replace(answer, holder=holder)
        if holder is None:
            return unsure(answer, "which summary covers it: the spans do not record it")
        if not holder.in_prompt:
            return unsure(answer, "what happened to that summary: it is not in this turn's prompt")
        return answer

    def _with_limit(self, answer: Explanation, exit_: ReportedExit) -> Explanation:
        """Add the limit that would have kept the item unchanged, if it was replaced with a summary on this turn."""
        step = next((step for step in self.turn.steps if step.index == exit_.index), None)
        if step is None or (step.policy != ALLOCATOR and self.known.limit(step) is None):
            return answer
        return self.remedy.with_increases(self.remedy.with_decisive_limit(answer, step), step)

    def _covering_summary(self, item: str) -> CoveringSummary | None:
        """Return the summary that replaced the item; None if it is unknown.

        If several summaries list the item among their sources, one that is in this turn's prompt is preferred, else the
        newest. An item that is itself a summary counts as listed if all its own sources are listed. If no summary lists
        the item, this is the only item that the policy injected which compacted the item.
        """
        turn, items = self.turn, self.ledger.items
        leaves = set(items[item].sources) if item in items and items[item].sources else {item}
        summaries = [
            candidate
            for candidate in items.values()
            if candidate.id != item
            and candidate.turn <= turn.number
            and all(leaf in candidate.sources for leaf in leaves)
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
