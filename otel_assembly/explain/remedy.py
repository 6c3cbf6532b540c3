"""Find the limit that dropped an item, the items that were kept instead, and the smallest limit that keeps the item."""

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

#: Why no larger limit keeps an item that was dropped for this reason.
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
#: The kinds that may start a prompt, and the kinds that are not part of the conversation.
_OPENING: Final = frozenset(EventKind) - {EventKind.RESPONSE, EventKind.TOOL_CALL, EventKind.TOOL_RESULT}
#: The reasons that depend on a limit.
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
    """The limits of one turn's policies, and the effect of larger ones."""

    def __init__(self, ledger: LedgerHistory, turn: ReportedTurn, known: KnownPolicies) -> None:
        self.ledger = ledger
        self.turn = turn
        self.known = known
        self.chain = ChainRun(ledger, turn, known)
        self._exits = ledger.exits(turn.number)

    @lazy_property
    def allocator(self) -> AllocatorRun:
        """The turn's allocator, if it is the only policy, for a rerun."""
        (step,) = self.turn.steps
        return AllocatorRun(self.ledger, self.turn, step)

    def limit(self, step: ReportedStep) -> Limit | None:
        """Return the limit of a policy; None if it has none, or if its settings are not in the spans."""
        bound = self.known.limit(step)
        if bound is None:
            return self._allocated(step) or self._framework_limit(step)
        parameter = bound.setting
        setting = self._setting(step, parameter)
        if setting is None:
            return None
        if bound.unit == "events":
            out = step.attributes.get(names.EVENTS_OUT)
            most = setting + (self._setting(step, bound.additional) or 0)
            return Limit("events", parameter, setting, most, None, int(out) if isinstance(out, int) else None)
        used = step.attributes.get(names.TOKENS_OUT)
        return Limit(
            "tokens",
            parameter,
            setting,
            setting - (self._setting(step, bound.reserve) or 0),
            self._fixed(step),
            used if isinstance(used, int) else None,
            self._setting(step, bound.step) or 0,
        )

    def _allocated(self, step: ReportedStep) -> Limit | None:
        """Return the limit of the allocator from its span."""
        allocation = step.allocation or {}
        keys = (names.BUDGET_WINDOW, names.BUDGET_LIMIT, names.BUDGET_FIXED, names.BUDGET_USED)
        window, tokens, fixed, used = (allocation.get(key) for key in keys)
        if not isinstance(window, int) or not isinstance(tokens, int):
            return None
        return Limit("tokens", "window", window, tokens, fixed, used)

    def _framework_limit(self, step: ReportedStep) -> Limit | None:
        """Return the limit of a framework's policy from the assembly's span; None if it may be another policy's."""
        attributes = self.turn.attributes
        budget, counted = (attributes.get(key) for key in (names.BUDGET_LIMIT, names.BUDGET_USED))
        if type(budget) is not int or not self.turn.sent or self.known.of(step) is not None:
            return None
        named = [
            (other, name) for other in self.turn.steps for name, value in settings_of(other).items() if value == budget
        ]
        if len(named) != 1 or named[0][0] is not step:
            return None
        used = step.attributes.get(names.TOKENS_OUT) if counted is None else counted
        used = used if isinstance(used, int) else None
        return Limit("tokens", named[0][1], budget, budget, None, used, of=None if counted is None else "messages")

    def _setting(self, step: ReportedStep, parameter: str) -> int | None:
        setting = settings_of(step).get(parameter)
        return setting if type(setting) is int else None

    def _fixed(self, step: ReportedStep) -> int | None:
        if self.turn.sent and self.chain.problem is None:
            outcome = self.chain.base[self.turn.steps.index(step)].outcome
            if outcome is not None and outcome.fixed is not None:
                return outcome.fixed
        holders = [other for other in self.turn.steps if self._counts_tokens(other)]
        fixed = self.turn.attributes.get(names.BUDGET_FIXED)
        return int(fixed) if isinstance(fixed, int) and len(holders) == 1 else None

    def _counts_tokens(self, step: ReportedStep) -> bool:
        bound = self.known.limit(step)
        return bound is not None and bound.unit == "tokens"

    def with_room(self, answer: Explanation, step: ReportedStep) -> Explanation:
        """Add the limit, and the items that were kept instead."""
        limit = self.limit(step)
        if limit is None or answer.reason not in _LIMITED:
            return answer
        in_blocks = step.policy == ALLOCATOR
        before = self._before(answer.item, step) if in_blocks else frozenset()
        newer = self._newer(answer.item)
        rivals = [
            Competitor(item, self._kind(item), self.ledger.tokens(self.turn.number, item))
            for item in reversed(list(self.turn.kept))
            if item in (before if in_blocks else newer)
        ]
        if limit.of is not None and self.tokens_of(self.turn.kept) != limit.used:
            rivals = []  # the limit does not apply to some of them, and the spans do not record to which
        rivals.sort(key=lambda rival: -(rival.tokens or 0))
        also_out = tuple(
            item
            for item, exit_ in self._exits.items()
            if exit_.index == step.index and exit_.reason in _LIMITED and item in newer and item != answer.item
        )
        return replace(
            answer,
            limit=limit,
            competitors=tuple(rivals),
            competitors_tokens=self.tokens_of(rival.item for rival in rivals),
            also_out=() if in_blocks else also_out,
            also_out_tokens=None if in_blocks else self.tokens_of(also_out),
        )

    def _before(self, item: str, step: ReportedStep) -> frozenset[str]:
        """Return the items of earlier blocks, and those of the item's own block that are cut after it."""
        before: set[str] = set()
        for block in step.blocks:
            if item in block.order:
                return frozenset(before.union(block.order[: block.order.index(item)]))
            before.update(block.items)
        return frozenset(before)

    def _newer(self, item: str) -> frozenset[str]:
        """Return the input items from the first item of its atom on, and the injected items."""
        known = self.ledger.items.get(item)
        atom = known.atom if known is not None else item
        offered = list(self.turn.offered or ())
        after = offered[offered.index(atom) :] if atom in offered else offered
        return frozenset(after).union(*(step.injected for step in self.turn.steps))

    def _kind(self, item: str) -> str:
        known = self.ledger.items.get(item)
        return known.kind if known is not None else "unknown"

    def tokens_of(self, items: Iterable[str]) -> int | None:
        """Return the sum of the items' tokens; None if one is unknown."""
        tokens = [self.ledger.tokens(self.turn.number, item) for item in items]
        return None if None in tokens else sum(filter(None, tokens))

    def with_raises(self, answer: Explanation, step: ReportedStep) -> Explanation:
        """Add the smallest larger limits that would have kept the item, or why there are none."""
        if self.known.limit(step) is None:
            if answer.reason == DecisionReason.BEFORE_USER_MESSAGE and step.policy == ALLOCATOR:
                return unsure(answer, f"what would have kept it: {_A_REQUEST}")
            if answer.reason in _NEVER:
                return replace(answer, never=_NEVER[answer.reason])
            if step.policy == ALLOCATOR:
                return self._allocated_more(answer, step)
            if self.known.of(step) is not None:
                return unsure(answer, f"what would have kept it: {step.policy} has no limit that could be raised")
            return unsure(answer, f"{step.policy} is not a built-in policy, so its rule is unknown")
        chain = self.chain
        problem = chain.problem
        if problem is None and not chain.is_ours(step):
            problem = f"{step.policy} cannot be run again on recorded token counts"
        if problem is not None:
            return unsure(answer, f"what would have kept it: {problem}")
        try:
            return self._searched(answer)
        except UnknownError as error:
            return unsure(answer, f"what would have kept it: {error}")

    def _allocated_more(self, answer: Explanation, step: ReportedStep) -> Explanation:
        """Add the smallest larger window with which the allocator keeps the item."""
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
            extra, less_might_do = self.allocator.smallest(answer.item)
        except UnknownError as error:
            return unsure(answer, f"what would have kept it: {error}")
        to = limit.setting + extra
        raised = LimitIncrease(step.policy, step.index, limit.parameter, extra, to, limit.unit, at_most=less_might_do)
        answer = replace(answer, raises=(raised,))
        if settings_of(step).get(USER_FIRST) is True and self._kind(answer.item) not in _OPENING:
            return unsure(answer, f"whether it would be kept then: {_A_REQUEST}")
        return answer

    def _searched(self, answer: Explanation) -> Explanation:
        """Raise the limit of each policy that drops the item, in chain order, until the item is in the prompt."""
        more: dict[int, int] = {}
        raises: list[LimitIncrease] = []
        for step in self.turn.steps:
            if self.chain.keeps(answer.item, more, step.index):
                continue
            limit = self.limit(step)
            extra = self._smallest(answer.item, step, more) if limit is not None else None
            if limit is None or extra is None:
                ran = self.chain.run({**more, step.index: self._most(step)} if limit else more, step.index)[-1]
                why = _NEVER.get(ran.reason_for(answer.item) or "")
                return replace(answer, never=why or f"{step.policy} would not have kept it under any limit")
            less_may_do = self.chain.may_keep(answer.item, {**more, step.index: extra - 1}, step.index)
            more[step.index] = extra
            self.chain.check_shortened(more, step.index)
            to = limit.setting + extra
            raised = LimitIncrease(step.policy, step.index, limit.parameter, extra, to, limit.unit, at_most=less_may_do)
            raises.append(raised)
        for step in self.turn.steps:
            if step.index > min(more) and step.index not in more and not self.chain.is_ours(step):
                answer = unsure(answer, f"whether {step.policy}, which runs later, would have kept the item")
        return replace(answer, raises=tuple(raises))

    def _smallest(self, item: str, step: ReportedStep, more: dict[int, int]) -> int | None:
        """Return the smallest raise of a policy's limit by which it keeps the item; None if there is none.

        A larger limit never keeps less, except at some points: content that has precedence over older items (the newest
        atom, a summary, the reserve of a new summary) displaces them as soon as it fits. Between two such points, the
        search is binary.
        """

        def keeps(extra: int) -> bool:
            return self.chain.keeps(item, {**more, step.index: extra}, step.index)

        points = self._turning_points(item, step, more)
        points += self._summary_points(step, more, points)
        return _smallest_between(keeps, points, self._most(step))

    def _most(self, step: ReportedStep) -> int:
        return self.chain.size("tokens" if self._counts_tokens(step) else "events")

    def _turning_points(self, item: str, step: ReportedStep, more: dict[int, int]) -> list[int]:
        """Return the increases at which content with precedence over older items starts to fit, ascending."""
        excess = step.attributes.get(names.OVERFLOW_TOKENS)
        points = [excess] if isinstance(excess, int) and excess > 0 and self._counts_tokens(step) else []
        bound = self.known.limit(step)
        if bound is None or not bound.first:
            return points
        for other, exit_ in self._exits.items():
            if exit_.index != step.index or other == item or self._kind(other) not in bound.first:
                continue

            def keeps(extra: int, other: str = other) -> bool:
                return self.chain.keeps(other, {**more, step.index: extra}, step.index)

            point = _smallest_between(keeps, points, self._most(step))
            points += [point] if point is not None else []
        return sorted(set(points))

    def _summary_points(self, step: ReportedStep, more: dict[int, int], points: Sequence[int]) -> list[int]:
        """Return the increases at which a summary starts to fit, and at which everything fits without one."""

        def reaches(state: SummaryState, extra: int) -> bool:
            ran = self.chain.run({**more, step.index: extra}, step.index)[-1]
            return ran.state is None or ran.state.value >= state.value

        if self.chain.run(more, step.index)[-1].state is None:
            return []
        found: list[int] = []
        for state in (SummaryState.SUMMARY, SummaryState.ALL_FITS):
            for low, high in _segments(points, self._most(step)):
                if not reaches(state, low) and reaches(state, high):
                    found.append(_first(partial(reaches, state), low, high))
        return found


def _segments(points: Iterable[int], most: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last number of each stretch between points, from 0 on."""
    edges = sorted({0, *points})
    yield from zip(edges, [*(point - 1 for point in edges[1:]), edges[-1] + most], strict=True)


def _smallest_between(holds: Callable[[int], bool], points: Iterable[int], most: int) -> int | None:
    """Return the smallest number above 0 with `holds`, if `holds` is monotone between points; None if there is none."""
    for low, high in _segments(points, most):
        if low and holds(low):
            return low
        if high > low and holds(high):
            return _first(holds, low, high)
    return None


def _first(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the smallest number with `holds` by binary search; it is false for `low` and true for `high`."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
