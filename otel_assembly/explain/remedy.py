"""Finds the limit that dropped an item, the items that were kept instead, and the smallest limit that keeps it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from otel_assembly._internal.fork_safety import lazy_property
from otel_assembly.decision import DecisionReason
from otel_assembly.explain.allocated import AllocatorRun
from otel_assembly.explain.chain import ChainRun, KnownPolicies, settings_of
from otel_assembly.explain.explanation import Competitor, Explanation, Limit, LimitIncrease, unsure
from otel_assembly.explain.skeleton import UnknownError
from otel_assembly.explain.summarised import SummaryState
from otel_assembly.messages.event_facts import EventKind
from otel_assembly.policies.base import USER_FIRST
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.ledger_history import ALLOCATOR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from otel_assembly.telemetry.ledger_history import LedgerHistory, ReportedStep, ReportedTurn

__all__ = ["Remedy"]

#: The texts of `Explanation.never`, by the reason of an item that no larger limit keeps.
_NEVER: Final = {
    DecisionReason.NOT_CONVERSATION.value: "it is not part of the conversation; such events are never sent to a model",
    DecisionReason.ORPHANED_TOOL_CALL.value: "it is a tool call without a result, which no model accepts",
    DecisionReason.ORPHANED_TOOL_RESULT.value: "it is a tool result without its call, which no model accepts",
    DecisionReason.ORPHANED_REASONING.value: "it is reasoning without its next item, which no model accepts",
    DecisionReason.BEFORE_USER_MESSAGE.value: "no user message precedes it, and the provider requires one",
    DecisionReason.DUPLICATE.value: "another item has the same content",
    DecisionReason.STALE.value: "a newer version of it is kept",
    DecisionReason.FORBIDDEN_SCOPE.value: "its scope is not allowed here",
}
_A_REQUEST: Final = "the provider requires a user message before it"
#: The kinds of items that providers accept without a user's request before them.
_OPENING: Final = frozenset(EventKind) - {EventKind.RESPONSE, EventKind.TOOL_CALL, EventKind.TOOL_RESULT}
#: The reasons of items that might be kept with a larger limit.
_LIMITED: Final = frozenset(
    {
        DecisionReason.OVER_BUDGET.value,
        DecisionReason.OUTSIDE_WINDOW.value,
        DecisionReason.ORPHANED_TOOL_CALL.value,
        DecisionReason.ORPHANED_TOOL_RESULT.value,
        DecisionReason.ORPHANED_REASONING.value,
        DecisionReason.BEFORE_USER_MESSAGE.value,
        DecisionReason.BELOW_FLOOR.value,
        DecisionReason.LOW_RANK.value,
        DecisionReason.COMPACTED.value,
    }
)


class Remedy:
    """Adds to an explanation which limit dropped an item, and which larger limits would have kept it.

    Args:
        ledger: The ledger that contains the turn.
        turn: The turn of the explained item.
        known: The classes of the chain's policies.
    """

    def __init__(self, ledger: LedgerHistory, turn: ReportedTurn, known: KnownPolicies) -> None:
        self.ledger = ledger
        self.turn = turn
        self.known = known
        self.chain = ChainRun(ledger, turn, known)
        self._exits = ledger.exits(turn.number)

    @lazy_property
    def allocator(self) -> AllocatorRun:
        """The rerun of the allocator; only for a turn with the allocator as its only policy."""
        (step,) = self.turn.steps
        return AllocatorRun(self.ledger, self.turn, step)

    def limit(self, step: ReportedStep) -> Limit | None:
        """Return the limit of a policy and its usage; None if the policy has no limit or its span lacks the numbers."""
        policy_limit = self.known.limit(step)
        if policy_limit is None:
            return self._allocator_limit(step) or self._framework_limit(step)
        parameter = policy_limit.setting
        setting = self._setting(step, parameter)
        if setting is None:
            return None
        if policy_limit.unit == "events":
            kept_events = step.attributes.get(names.EVENTS_OUT)
            limit = setting + (self._setting(step, policy_limit.additional) or 0)
            return Limit(
                "events", parameter, setting, limit, None, int(kept_events) if isinstance(kept_events, int) else None
            )
        used = step.attributes.get(names.TOKENS_OUT)
        return Limit(
            "tokens",
            parameter,
            setting,
            setting - (self._setting(step, policy_limit.reserve) or 0),
            self._fixed(step),
            used if isinstance(used, int) else None,
            self._setting(step, policy_limit.step) or 0,
        )

    def _allocator_limit(self, step: ReportedStep) -> Limit | None:
        """Return the limit of the allocator and its usage from its span; None for other policies."""
        allocation = step.allocation or {}
        keys = (names.BUDGET_WINDOW, names.BUDGET_LIMIT, names.BUDGET_FIXED, names.BUDGET_USED)
        window, tokens, fixed, used = (allocation.get(key) for key in keys)
        if not isinstance(window, int) or not isinstance(tokens, int):
            return None
        return Limit("tokens", "window", window, tokens, fixed, used)

    def _framework_limit(self, step: ReportedStep) -> Limit | None:
        """Return the limit of a framework's own reducer; None if it is unknown.

        The assembly's span records a budget, and this must be the only policy with a setting of that value.
        """
        attributes = self.turn.attributes
        budget, used_tokens = (attributes.get(key) for key in (names.BUDGET_LIMIT, names.BUDGET_USED))
        if type(budget) is not int or not self.turn.sent or self.known.of(step) is not None:
            return None
        candidates = [
            (candidate, name)
            for candidate in self.turn.steps
            for name, value in settings_of(candidate).items()
            if value == budget
        ]
        if len(candidates) != 1 or candidates[0][0] is not step:
            return None
        used = step.attributes.get(names.TOKENS_OUT) if used_tokens is None else used_tokens
        used = used if isinstance(used, int) else None
        return Limit(
            "tokens", candidates[0][1], budget, budget, None, used, of=None if used_tokens is None else "messages"
        )

    def _setting(self, step: ReportedStep, parameter: str) -> int | None:
        setting = settings_of(step).get(parameter)
        return setting if type(setting) is int else None

    def _fixed(self, step: ReportedStep) -> int | None:
        """Return the tokens of content that a policy cannot drop; None if unknown.

        The rerun of the policy knows them. Otherwise, the assembly's span has one number for the whole chain, which is
        this policy's only if no other policy has a token limit.
        """
        if self.turn.sent and self.chain.problem is None:
            outcome = self.chain.base[self.turn.steps.index(step)].outcome
            if outcome is not None and outcome.fixed is not None:
                return outcome.fixed
        token_steps = [token_step for token_step in self.turn.steps if self._counts_tokens(token_step)]
        fixed = self.turn.attributes.get(names.BUDGET_FIXED)
        return int(fixed) if isinstance(fixed, int) and len(token_steps) == 1 else None

    def _counts_tokens(self, step: ReportedStep) -> bool:
        policy_limit = self.known.limit(step)
        return policy_limit is not None and policy_limit.unit == "tokens"

    def with_decisive_limit(self, answer: Explanation, step: ReportedStep) -> Explanation:
        """Add the limit of the policy that dropped the item, the items kept instead, and others that it dropped."""
        limit = self.limit(step)
        if limit is None or answer.reason not in _LIMITED:
            return answer
        in_blocks = step.policy == ALLOCATOR
        preferred = self._preferred_items(answer.item, step) if in_blocks else frozenset()
        newer_items = self._newer_items(answer.item)
        competitors = [
            Competitor(item, self._kind(item), self.ledger.tokens(self.turn.number, item))
            for item in reversed(list(self.turn.kept))
            if item in (preferred if in_blocks else newer_items)
        ]
        if limit.of is not None and self.tokens_of(self.turn.kept) != limit.used:
            competitors = []  # the limit does not apply to some of them, and the spans do not record to which
        competitors.sort(key=lambda competitor: -(competitor.tokens or 0))
        also_out = tuple(
            item
            for item, exit_ in self._exits.items()
            if exit_.index == step.index and exit_.reason in _LIMITED and item in newer_items and item != answer.item
        )
        return replace(
            answer,
            limit=limit,
            competitors=tuple(competitors),
            competitors_tokens=self.tokens_of(competitor.item for competitor in competitors),
            also_out=() if in_blocks else also_out,
            also_out_tokens=None if in_blocks else self.tokens_of(also_out),
        )

    def _preferred_items(self, item: str, step: ReportedStep) -> frozenset[str]:
        """Return the items that the allocator prefers: those of earlier blocks, and better ones of the item's block."""
        preferred: set[str] = set()
        for block in step.blocks:
            if item in block.order:
                return frozenset(preferred.union(block.order[: block.order.index(item)]))
            preferred.update(block.items)
        return frozenset(preferred)

    def _newer_items(self, item: str) -> frozenset[str]:
        """Return the input items from the item's atom on (such as its tool call), and all injected items."""
        known = self.ledger.items.get(item)
        atom = known.atom if known is not None else item
        offered = list(self.turn.offered or ())
        newer = offered[offered.index(atom) :] if atom in offered else offered
        return frozenset(newer).union(*(step.injected for step in self.turn.steps))

    def _kind(self, item: str) -> str:
        known = self.ledger.items.get(item)
        return known.kind if known is not None else "unknown"

    def tokens_of(self, items: Iterable[str]) -> int | None:
        """Return the sum of the items' tokens; None if the tokens of an item are unknown."""
        tokens = [self.ledger.tokens(self.turn.number, item) for item in items]
        return None if None in tokens else sum(filter(None, tokens))

    def with_increases(self, answer: Explanation, step: ReportedStep) -> Explanation:
        """Add the smallest increases of limits that would have kept the item, or why there are none."""
        if self.known.limit(step) is None:
            if answer.reason == DecisionReason.BEFORE_USER_MESSAGE and step.policy == ALLOCATOR:
                return unsure(answer, f"what would have kept it: {_A_REQUEST}")
            if answer.reason in _NEVER:
                return replace(answer, never=_NEVER[answer.reason])
            if step.policy == ALLOCATOR:
                return self._with_larger_window(answer, step)
            if self.known.of(step) is not None:
                return unsure(answer, f"what would have kept it: {step.policy} has no limit that could be raised")
            return unsure(answer, f"{step.policy} is not a built-in policy, so its rule is unknown")
        chain = self.chain
        problem = chain.problem
        if problem is None and not chain.can_rerun(step):
            problem = f"{step.policy} cannot be run again on recorded token counts"
        if problem is not None:
            return unsure(answer, f"what would have kept it: {problem}")
        try:
            return self._with_increases(answer)
        except UnknownError as error:
            return unsure(answer, f"what would have kept it: {error}")

    def _with_larger_window(self, answer: Explanation, step: ReportedStep) -> Explanation:
        """Add the smallest larger window with which the allocator keeps the item, or why it is unknown."""
        limit = self.limit(step)
        if limit is None:
            return unsure(answer, "what would have kept it: the allocator's span is missing")
        problem = (
            self.allocator.problem
            if self.turn.steps == [step]
            else "the chain has other policies besides the allocator"
        )
        try:
            if problem is not None:
                raise UnknownError(problem)
            extra, may_need_less = self.allocator.smallest(answer.item)
        except UnknownError as error:
            return unsure(answer, f"what would have kept it: {error}")
        to = limit.setting + extra
        raised = LimitIncrease(step.policy, step.index, limit.parameter, extra, to, limit.unit, at_most=may_need_less)
        answer = replace(answer, raises=(raised,))
        if settings_of(step).get(USER_FIRST) is True and self._kind(answer.item) not in _OPENING:
            return unsure(answer, f"whether it would be kept then: {_A_REQUEST}")
        return answer

    def _with_increases(self, answer: Explanation) -> Explanation:
        """Add the smallest increase for each policy that drops the item, found by running the policies again.

        The policies are handled in their order; each runs with the increased limits of the earlier ones.
        """
        more: dict[int, int] = {}
        raises: list[LimitIncrease] = []
        for step in self.turn.steps:
            if self.chain.keeps(answer.item, more, step.index):
                continue
            limit = self.limit(step)
            extra = self._smallest_increase(answer.item, step, more) if limit is not None else None
            if limit is None or extra is None:
                ran = self.chain.run({**more, step.index: self._max_increase(step)} if limit else more, step.index)[-1]
                reason = _NEVER.get(ran.reason_for(answer.item) or "")
                return replace(answer, never=reason or f"{step.policy} would not have kept it under any limit")
            may_need_less = self.chain.may_keep(answer.item, {**more, step.index: extra - 1}, step.index)
            more[step.index] = extra
            self.chain.check_shortened(more, step.index)
            to = limit.setting + extra
            raised = LimitIncrease(
                step.policy, step.index, limit.parameter, extra, to, limit.unit, at_most=may_need_less
            )
            raises.append(raised)
        for step in self.turn.steps:
            if step.index > min(more) and step.index not in more and not self.chain.can_rerun(step):
                answer = unsure(answer, f"whether {step.policy}, which runs later, would have kept the item")
        return replace(answer, raises=tuple(raises))

    def _smallest_increase(self, item: str, step: ReportedStep, more: dict[int, int]) -> int | None:
        """Return the smallest increase of a policy's limit with which the policy keeps the item; None if there is none.

        In general, a larger limit keeps more items, so the search is binary. But content with precedence over older
        items (such as the newest tool call, or a summary) displaces them as soon as it fits. So the increases at which
        such content starts to fit are determined first, and the search is binary between two of them.

        Args:
            item: The item's id.
            step: The step of the policy.
            more: The increases of other policies' limits, by the policies' index.
        """

        def keeps(extra: int) -> bool:
            return self.chain.keeps(item, {**more, step.index: extra}, step.index)

        points = self._turning_points(item, step, more)
        points += self._summary_points(step, more, points)
        return _smallest_between(keeps, points, self._max_increase(step))

    def _max_increase(self, step: ReportedStep) -> int:
        """Return an increase of a policy's limit with which all items fit."""
        return self.chain.size("tokens" if self._counts_tokens(step) else "events")

    def _turning_points(self, item: str, step: ReportedStep, more: dict[int, int]) -> list[int]:
        """Return the increases at which an item with precedence over older items starts to fit, ascending."""
        excess = step.attributes.get(names.OVERFLOW_TOKENS)
        points = [excess] if isinstance(excess, int) and excess > 0 and self._counts_tokens(step) else []
        policy_limit = self.known.limit(step)
        if policy_limit is None or not policy_limit.first:
            return points
        for competitor, exit_ in self._exits.items():
            if exit_.index != step.index or competitor == item or self._kind(competitor) not in policy_limit.first:
                continue

            def keeps(extra: int, competitor: str = competitor) -> bool:
                return self.chain.keeps(competitor, {**more, step.index: extra}, step.index)

            point = _smallest_between(keeps, points, self._max_increase(step))
            points += [point] if point is not None else []
        return sorted(set(points))

    def _summary_points(self, step: ReportedStep, more: dict[int, int], points: Sequence[int]) -> list[int]:
        """Return the increases at which a summary starts to fit, and at which all items fit without a summary."""

        def reaches(state: SummaryState, extra: int) -> bool:
            ran = self.chain.run({**more, step.index: extra}, step.index)[-1]
            return ran.state is None or ran.state.value >= state.value

        if self.chain.run(more, step.index)[-1].state is None:
            return []
        increases: list[int] = []
        for state in (SummaryState.SUMMARY, SummaryState.ALL_FITS):
            for low, high in _segments(points, self._max_increase(step)):
                if not reaches(state, low) and reaches(state, high):
                    increases.append(_first_true(partial(reaches, state), low, high))
        return increases


def _segments(points: Iterable[int], most: int) -> Iterator[tuple[int, int]]:
    """Split the numbers from 0 on at `points`, and yield the first and the last number of each part.

    The last part has `most` + 1 numbers.
    """
    edges = sorted({0, *points})
    yield from zip(edges, [*(point - 1 for point in edges[1:]), edges[-1] + most], strict=True)


def _smallest_between(holds: Callable[[int], bool], points: Iterable[int], most: int) -> int | None:
    """Return the smallest number above 0 for which `holds` is true; None if there is none.

    Args:
        holds: The condition. Between two points, it changes at most once, from false to true.
        points: The numbers at which it may change from true to false.
        most: How far to search after the last point.
    """
    for low, high in _segments(points, most):
        if low and holds(low):
            return low
        if high > low and holds(high):
            return _first_true(holds, low, high)
    return None


def _first_true(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the smallest number for which `holds` is true, by binary search.

    `holds` must be false for `low` and true for `high`, and change only once between them.
    """
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
