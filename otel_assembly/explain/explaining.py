"""`explain`: what happened to an item, put together from its ledger and from the chain run again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from otel_assembly._internal.forks import worked_out_once
from otel_assembly.decision import DecisionOutcome, DecisionReason, PromptPart
from otel_assembly.errors import AssemblyError
from otel_assembly.explain.chain import KnownPolicies
from otel_assembly.explain.explanation import (
    Absence,
    BlockPlace,
    BlockShare,
    Explanation,
    Holder,
    Standing,
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
    """What happened to an item at a turn.

    Args:
        ledger: As `read_ledgers` gives it.
        turn: The assembly's number in its ledger, from 0.
        item: The item's id in its ledger: ``0``, ``1``, … of what came in, ``m0``, … of what policies made.
        policies: Classes of policies of your own, to be run again where they are `replayable`; ours are known.

    Raises:
        AssemblyError: The ledger has no such turn or item.
    """
    return Explainer(ledger, turn, policies).explain(item)


class Explainer:
    """Explains the items of one turn; its chain is run again once for all of them.

    Args:
        ledger: As `read_ledgers` gives it.
        turn: The assembly's number in its ledger, from 0.
        policies: Classes of policies of your own, to be run again where they are `replayable`; ours are known.

    Raises:
        AssemblyError: The ledger has no such turn.
    """

    def __init__(self, ledger: LedgerHistory, turn: int, policies: Iterable[type[AssemblyPolicy]] = ()) -> None:
        self.ledger = ledger
        numbers = [one.number for one in ledger.turns]
        if not numbers or not 0 <= turn <= max(numbers):
            there = f"turns {min(numbers)} to {max(numbers)}" if numbers else "no turn"
            raise AssemblyError(f"ledger {ledger.id[:12]} has no turn {turn}; the traces tell of {there}")
        self.number = turn
        self._told = _OfTurn(ledger, ledger.turn(turn), KnownPolicies(policies)) if turn in numbers else None

    def explain(self, item: str) -> Explanation:
        """What happened to one item.

        Raises:
            AssemblyError: The ledger has no such item.
        """
        ledger = self.ledger
        known = ledger.items.get(item)
        if known is None and not any(turn.lists(item) for turn in ledger.turns):
            there = f"items {', '.join(runs_of(ledger.items))}" if ledger.items else "no item"
            raise AssemblyError(f"ledger {ledger.id[:12]} has no item {item}; the traces tell of {there}")
        answer = Explanation(
            ledger=ledger.id,
            conversation=next(iter(ledger.turns)).attributes.get(names.GEN_AI_CONVERSATION_ID),
            turn=self.number,
            item=item,
            kind=known.kind if known is not None else None,
            arrived=known.turn if known is not None else None,
        )
        if known is None:
            answer = unsure(answer, "its kind and its size: its arrival is not in the traces")
        if self._told is None:
            return self._between(answer)
        return self._told.explain(replace(answer, tokens=ledger.tokens(self.number, item)))

    def absent(self) -> list[Absence]:
        """What is out of the turn's prompt, by policy and reason; the largest group first.

        Where nothing was sent, that is all that came in, by what it was to the turn.

        Raises:
            AssemblyError: The turn is not in the traces.
        """
        if self._told is None:
            raise AssemblyError(f"turn {self.number} is not in the traces, so that what was out is not known")
        return self._told.absent()

    @property
    def unsent(self) -> Unsent | None:
        """Why nothing was sent on the turn; None where a prompt was, or where the turn is not in the traces."""
        told = self._told
        return told.unsent.why if told is not None and sent_nothing(told.turn) else None

    def _between(self, answer: Explanation) -> Explanation:
        """The turn itself is not there: what the turns around it say is all there is."""
        said = [f"what happened on turn {self.number}: it is not in the traces"]
        sent = [turn for turn in self.ledger.turns if turn.sent]
        earlier = [turn for turn in sent if turn.number < self.number]
        later = [turn for turn in sent if turn.number > self.number]
        for turn in (*earlier[-1:], *later[:1]):
            exit_ = self.ledger.exit(turn.number, answer.item)
            if answer.item in turn.kept:
                said.append(f"on turn {turn.number} it was in the prompt")
            elif exit_ is None:
                said.append(f"on turn {turn.number} it was not offered")
            else:
                why = f" ({exit_.policy}, {exit_.reason})" if exit_.reason else ", and no span says why"
                said.append(f"on turn {turn.number} it was out{why}")
        return unsure(answer, "; ".join(said))


class _OfTurn:
    """The answers of a turn that is in the traces."""

    def __init__(self, ledger: LedgerHistory, turn: ReportedTurn, known: KnownPolicies) -> None:
        self.ledger = ledger
        self.turn = turn
        self.known = known

    @worked_out_once
    def remedy(self) -> Remedy:
        """The turn's limits, with its chain run again."""
        return Remedy(self.ledger, self.turn, self.known)

    @worked_out_once
    def unsent(self) -> UnsentTurn:
        """The turn, where it sent nothing."""
        return UnsentTurn(self.ledger, self.turn, self.known)

    def explain(self, answer: Explanation) -> Explanation:
        """What happened to the item."""
        block = self._block(answer)
        if block is not None:
            answer = replace(answer, block=self._place(block), winner=block.winners.get(answer.item))
        unsent = sent_nothing(self.turn)
        told = self.turn.offered is not None or not unsent
        later = answer.arrived is not None and answer.arrived > self.turn.number
        if told and later and not self.turn.lists(answer.item):
            return replace(answer, outcome="not_arrived")
        if unsent:
            return self._nothing_sent(answer)
        since, known = self.ledger.since(self.turn.number, answer.item)
        answer = replace(answer, since=since, since_known=known)
        if answer.item in self.turn.kept:
            return self._kept(answer)
        exit_ = self.ledger.exit(self.turn.number, answer.item)
        if exit_ is None and self.turn.offered is None:
            return unsure(answer, "whether it came in: the input of this turn could not be known")
        return self._out(answer, exit_) if exit_ is not None else self._not_offered(answer)

    def _block(self, answer: Explanation) -> ReportedBlock | None:
        """The block that holds the item: the one that lists it, else the only one of its kind."""
        blocks = [block for step in self.turn.steps if step.policy == ALLOCATOR for block in step.blocks]
        for block in blocks:
            if answer.item in block.items:
                return block
        found = [block for block in blocks if block.kind == answer.kind and not block.items]
        return found[0] if len(found) == 1 else None

    def _place(self, block: ReportedBlock) -> BlockPlace:
        blocks = next(step.blocks for step in self.turn.steps if any(one is block for one in step.blocks))
        before = blocks[: next(at for at, one in enumerate(blocks) if one is block)]
        shares = [
            BlockShare(one.name, one.priority, tokens)
            for one in before
            if isinstance(tokens := one.attributes.get(names.TOKENS_OUT), int) and tokens
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

    def absent(self) -> list[Absence]:
        """What is out, in groups."""
        if sent_nothing(self.turn):
            return self._all_of_it()
        groups: dict[tuple[str | None, str | None, int | None, str], list[str]] = {}
        for item, exit_ in self.ledger.exits(self.turn.number).items():
            groups.setdefault((exit_.reason, exit_.policy, exit_.index, exit_.outcome), []).append(item)
        found = [Absence(*key, tuple(items), self.remedy.tokens_of(items)) for key, items in groups.items()]
        return sorted(found, key=lambda group: -len(group.items))

    def _nothing_sent(self, answer: Explanation) -> Explanation:
        """Why nothing was sent, what the item was to the turn, and whether an earlier policy had left it out."""
        why = self.unsent.why
        part = self.unsent.part(answer.item)
        if self.turn.offered is None:
            answer = unsure(answer, "whether it came in: the input of this turn could not be known")
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

    def _all_of_it(self) -> list[Absence]:
        """What came in, where nothing was sent: by the policy that had taken it, or by what it was to the turn."""
        why = self.unsent.why
        groups: dict[tuple[str | None, str | None, int | None, str, str | None], list[str]] = {}
        for item in self.turn.offered or ():
            exit_ = next((found for step in reversed(self.turn.steps) if (found := step.exit(item))), None)
            how = exit_ or ReportedExit(why.error, why.policy, why.index, "not_sent")
            part = "taken" if exit_ is not None else self.unsent.part(item)
            groups.setdefault((how.reason, how.policy, how.index, how.outcome, part), []).append(item)
        return [
            Absence(reason, policy, index, outcome, tuple(items), self.remedy.tokens_of(items), part)
            for (reason, policy, index, outcome, part), items in groups.items()
        ]

    # In the prompt

    def _kept(self, answer: Explanation) -> Explanation:
        turn, held, kept = self.turn, self.turn.attributes, list(self.turn.kept)
        at = kept.index(answer.item)
        kinds = dict(zip(held.get(names.KIND_NAMES, ()), held.get(names.KIND_TOKENS, ()), strict=False))
        # Where the allocator ran alone, the items are in decision order, and the framing is not an item's.
        before = self.remedy.tokens_of(kept[:at]) if not turn.blocks else None
        after = self.remedy.tokens_of(kept[at + 1 :]) if not turn.blocks else None
        if before is not None:
            before += sum(map(int, held.get(names.PROMPT_TOKENS, ()))) + int(kinds.get(PromptPart.TOOL_SCHEMAS, 0))
        if after is not None:
            after += int(kinds.get(PromptPart.FRAMING, 0))
        prefix = held.get(names.PREFIX_TOKENS)
        known = before is not None and answer.tokens is not None and isinstance(prefix, int)
        standing = Standing(
            position=at + 1,
            of=len(kept),
            prompts=int(held.get(names.PROMPTS_OUT, 0)),
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

    # Out of it

    def _out(self, answer: Explanation, exit_: ReportedExit) -> Explanation:
        answer = replace(answer, outcome="dropped", reason=exit_.reason, policy=exit_.policy, index=exit_.index)
        if exit_.reason is None:
            answer = replace(answer, since=None)
            return unsure(answer, f"which policy took it, and why: {self._why_unknown(exit_)}")
        if exit_.outcome == DecisionOutcome.COMPACTED:
            return self._as_it_is(self._compacted(replace(answer, outcome="compacted")), exit_)
        step = next(step for step in self.turn.steps if step.index == exit_.index)
        return self.remedy.with_raises(self.remedy.with_room(answer, step), step)

    def _not_offered(self, answer: Explanation) -> Explanation:
        """What came in may be a summary that was made of it on an earlier turn."""
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
            some = ", ".join(f"{one.policy} (policy {one.index}, {one.reason})" for one in exit_.among)
            return f"one of {some}; the turn on which it left, which says it, is not in the traces"
        if turn.missing:
            count = f"{turn.missing} of the {turn.missing + len(turn.steps)} policies of turn {turn.number}"
            return f"{count} {'has' if turn.missing == 1 else 'have'} no span in the traces"
        return f"no span of turn {turn.number} says so"

    def _compacted(self, answer: Explanation) -> Explanation:
        """The summary that stands for the item."""
        holder = self._holder(answer.item)
        answer = replace(answer, holder=holder)
        if holder is None:
            return unsure(answer, "which summary holds it: the traces do not say")
        if not holder.in_prompt:
            return unsure(answer, "where that summary went: it is not in this turn's prompt")
        return answer

    def _as_it_is(self, answer: Explanation, exit_: ReportedExit) -> Explanation:
        """What would have kept a compacted item as it is, where an allocator compacted it on this turn."""
        step = next((step for step in self.turn.steps if step.index == exit_.index), None)
        if step is None or (step.policy != ALLOCATOR and self.known.limit(step) is None):
            return answer
        return self.remedy.with_raises(self.remedy.with_room(answer, step), step)

    def _holder(self, item: str) -> Holder | None:
        """The newest summary that says it stands for all that the item is; else the only one made as it went out."""
        turn, items = self.turn, self.ledger.items
        own = set(items[item].sources) if item in items and items[item].sources else {item}
        made = [
            one
            for one in items.values()
            if one.id != item and one.turn <= turn.number and all(leaf in one.sources for leaf in own)
        ]
        if made:
            best = max(made, key=lambda one: (one.id in turn.kept, one.turn))
            return Holder(best.id, best.turn, best.id in turn.kept, len(best.sources))
        for step in turn.steps:
            if item in step.compacted and len(step.injected) == 1:
                (summary,) = step.injected
                since = items[summary].turn if summary in items else turn.number
                return Holder(summary, since, summary in turn.kept, len(step.compacted))
        return None
