"""Explain a turn that sent nothing: the error, each item's part in it, and what would have allowed a prompt.

If a budget was exceeded, its policy is run again on the recorded numbers of its input. With the recorded limit, it has
to fail by exactly the recorded excess. With the increased limit it has to succeed, and with one token less to fail.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.fork_safety import lazy_property
from otel_assembly.chain.config import policy_of
from otel_assembly.decision import OverflowCause
from otel_assembly.errors import ConfigurationError, ContextOverflowError
from otel_assembly.explain.chain import KnownPolicies, context_of, finished, settings_of
from otel_assembly.explain.explanation import LimitIncrease, Part, Unsent
from otel_assembly.explain.skeleton import PromptsOfTurn, SkeletonMeter, UnknownError, note_tokens, stand_ins
from otel_assembly.history.first_message import leading, newest_atom, newest_request, newest_response
from otel_assembly.history.history import History
from otel_assembly.messages.event_facts import EventKind
from otel_assembly.policies import DecidingPolicy
from otel_assembly.policies.base import INJECTION, as_view, parameters_of
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.ledger_history import ALLOCATOR

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.telemetry.ledger_history import LedgerHistory, ReportedStep, ReportedTurn

__all__ = ["UnsentTurn", "sent_nothing"]

#: The parts of the content that cannot be dropped, by their names in `ContextOverflowError`.
_PARTS: Final = {
    "leading_system": "leading_system",
    "pending_tool_calls": "pending_calls",
    "newest_request": "newest_request",
    "newest_atom": "newest_atom",
}
_HALTED: Final = "a halted conversation stays halted; start a new one with a new Context"
_CANCELLED: Final = "the caller cancelled it"


def sent_nothing(turn: ReportedTurn) -> bool:
    """Return whether a turn sent no prompt, because it failed or because the conversation was halted before."""
    return not turn.sent or turn.attributes.get(names.ERROR_TYPE) == names.ERROR_ASSEMBLY_HALT


class UnsentTurn:
    """The explanation of a turn that sent nothing."""

    def __init__(self, ledger: LedgerHistory, turn: ReportedTurn, known: KnownPolicies) -> None:
        self.ledger = ledger
        self.turn = turn
        self.known = known
        failed = (step for step in turn.steps if names.EXCEPTION_TYPE in step.attributes)
        overflowed = (step for step in turn.steps if step.attributes.get(names.OVERFLOWED) is True)
        self.error = str(turn.attributes.get(names.ERROR_TYPE, "not known"))
        #: The step of the policy that failed; None if its span is missing, or if no policy failed.
        self.step = next(overflowed if self.error == names.ERROR_CONTEXT_OVERFLOW else failed, None)

    @lazy_property
    def why(self) -> Unsent:
        """Why nothing was sent, and what would have allowed a prompt."""
        attributes, step = self.turn.attributes, self.step
        unsent = Unsent(self.error)
        if self.error == names.ERROR_ASSEMBLY_HALT:
            return replace(unsent, said=self._halt(), never=_HALTED)
        if self.error == names.ERROR_CANCELLED:
            return replace(unsent, never=_CANCELLED)
        if step is None:
            return replace(unsent, unknown=("which policy failed: its span is missing",))
        unsent = replace(unsent, policy=step.policy, index=step.index)
        if self.error != names.ERROR_CONTEXT_OVERFLOW:
            return replace(unsent, skip=True, unknown=self._after_all())
        excess, cause = attributes.get(names.OVERFLOW_TOKENS), attributes.get(names.OVERFLOW_CAUSE)
        budget = step.attributes.get(names.BUDGET_LIMIT, attributes.get(names.BUDGET_LIMIT))
        unsent = replace(unsent, cause=cause)
        if not isinstance(excess, int) or not isinstance(budget, int):
            return replace(unsent, unknown=("by how much the budget was exceeded: the spans do not record it",))
        unsent = replace(unsent, budget=budget, needed=budget + excess)
        try:
            return self._allocated(unsent, step) if step.policy == ALLOCATOR else self._rerun(unsent, step)
        except UnknownError as error:
            return replace(unsent, unknown=(f"what would allow a prompt: {error}",))

    def part(self, item: str) -> str | None:
        """Return an item's part in the turn; None if it is unknown, or if the item is not in the input."""
        if item not in (self.turn.offered or ()):
            return None
        if self._taken(item) is not None:
            return "taken"
        if self.error != names.ERROR_CONTEXT_OVERFLOW:
            return "offered"
        if self.step is None:
            return None
        if self.step.policy == ALLOCATOR:
            return self._part_of_block(item, self.step)
        try:
            return self._parts.get(item, "older")
        except UnknownError:
            return None

    def _part_of_block(self, item: str, step: ReportedStep) -> str | None:
        """Return the part by the item's kind, because blocks do not list their items if nothing was sent."""
        known = self.ledger.item(self.turn.number, item)
        kind = known.kind if known is not None else None
        cuttable = {block.attributes.get(names.BLOCK_CUTTABLE) for block in step.blocks if block.kind == kind}
        if len(cuttable) != 1 or None in cuttable:
            return None
        return "cuttable_block" if True in cuttable else "fixed_block"

    def keeps(self, item: str) -> LimitIncrease | None:
        """Return the smallest increase of the failed policy's limit with which a prompt with the item is sent."""
        step, why = self.step, self.why
        if step is None or not why.raises or self.part(item) in {None, "taken", "offered"}:
            return None
        (least,) = why.raises
        bound = self.known.limit(step)
        if step.policy == ALLOCATOR or (bound is not None and any(e.kind in bound.first for e in self._input)):
            return None
        if self._compacts(step) and self.part(item) == "older":
            return None  # a summary might replace it

        def kept(more: int) -> bool:
            outcome = self._run(step, more)
            return outcome is not None and any(event.item == item for event in outcome.events)

        low, high = least.extra - 1, least.extra
        most = least.extra + sum(event.tokens for event in self._input)
        while not kept(high):
            if high > most:
                return None
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if kept(middle) else (middle, high)
        return replace(least, extra=high, to=least.to - least.extra + high)

    def _halt(self) -> str | None:
        """Return the source and reason of the halt, from this turn or an earlier one."""
        earlier = (turn for turn in reversed(self.ledger.turns) if turn.number <= self.turn.number)
        return next((": ".join(filter(None, halt)) for turn in earlier for halt in turn.halts), None)

    # A budget's policy, run again

    @lazy_property
    def _input(self) -> list[Any]:
        """The input of the policy that failed, as stand-ins."""
        step, turn = self._failed, self.turn
        if turn.offered is None:
            raise UnknownError("the input is unknown")
        before = [earlier for earlier in turn.steps if earlier.index < step.index]
        if any(earlier.rest for earlier in before) or turn.missing:
            raise UnknownError("the spans do not list all items that earlier policies dropped")
        made = [item for earlier in before for item in earlier.injected]
        items = [*made, *(item for item in turn.offered if self._taken(item) is None)]
        items = [item for item in items if not any(earlier.exit(item) for earlier in before)]
        if step.attributes.get(names.EVENTS_IN) != len(items):
            raise UnknownError(f"the spans tell of {len(items)} of its input events, not all")
        events = stand_ins(self.ledger, turn, items, frozenset())
        if self.error == names.ERROR_CONTEXT_OVERFLOW and self._misses(list(events.values())):
            # The spans do not record which calls await approval: assume it of all unanswered calls.
            asked = frozenset(item for item, event in events.items() if event.opens)
            waiting = stand_ins(self.ledger, turn, items, asked)
            if not self._misses(list(waiting.values())):
                events = waiting
        return list(events.values())

    def _misses(self, events: Sequence[Any]) -> bool:
        """Return whether the policy, run again on these events, does not fail by the recorded excess."""
        step = self._failed
        error = self._overflow(step, 0, events)
        return error is None or error.needed - error.budget != self.turn.attributes.get(names.OVERFLOW_TOKENS)

    @property
    def _failed(self) -> ReportedStep:
        if self.step is None:
            raise UnknownError("the span of the policy that failed is missing")
        return self.step

    def _taken(self, item: str) -> ReportedStep | None:
        """Return the step that dropped an item before the policy that failed; None if there is none."""
        before = [step for step in self.turn.steps if self.step is None or step.index < self.step.index]
        return next((step for step in before if step.exit(item) is not None), None)

    def _rerun(self, unsent: Unsent, step: ReportedStep) -> Unsent:
        bound = self.known.limit(step)
        if bound is None or bound.unit != "tokens":
            raise UnknownError(f"{step.policy} is not a built-in policy, so its rule is unknown")
        excess = (unsent.needed or 0) - (unsent.budget or 0)
        error = self._overflow(step, 0, self._input)
        if error is None or self._misses(self._input):
            raise UnknownError(f"{step.policy}, run again on the recorded numbers, does not fail in the same way")
        parts = tuple(Part(_PARTS.get(name, "prompts"), tokens) for name, tokens in error.costs.items())
        newest = error.costs.get("newest_atom", 0)
        unsent = replace(unsent, parts=parts, fixed=error.needed - newest, budget=error.budget, needed=error.needed)
        more = excess
        if (second := self._overflow(step, more, self._input)) is not None:  # now with the newest atom
            more += second.needed - second.budget
        outcome = self._run(step, more)
        if outcome is None or self._run(step, more - 1) is not None:
            raise UnknownError(f"{step.policy}, run again with {more:,} more tokens, gives an inconsistent result")
        setting = settings_of(step)[bound.setting]
        # A compactor may shorten a tool result of the newest atom, so that a smaller limit suffices.
        shortens = self._compacts(step) and any(
            event.kind == EventKind.TOOL_RESULT and self._parts.get(event.item) == "newest_atom"
            for event in self._input
        )
        raised = LimitIncrease(step.policy, step.index, bound.setting, more, setting + more, "tokens", at_most=shortens)
        unsent = replace(unsent, raises=(raised,), unknown=self._behind(outcome.events))
        if unsent.cause == OverflowCause.NEWEST_ATOM:
            left = self._run(step, 0, on_overflow="drop")
            if left is not None:
                unsent = replace(unsent, without=tuple(i for i, part in self._parts.items() if part == "newest_atom"))
        return unsent

    @staticmethod
    def _compacts(step: ReportedStep) -> bool:
        return "summary_tokens" in settings_of(step)

    def _policy(self, step: ReportedStep, more: int, **changes: Any) -> DecidingPolicy:
        policy = self.known.of(step)
        bound = self.known.limit(step)
        try:
            stated = policy.settings_to_rerun(settings_of(step)) if policy is not None else None
            if policy is None or stated is None:
                raise UnknownError(f"{step.policy} cannot be run again on recorded token counts")
            settings = {name: stated[name] for name in parameters_of(policy) if name in stated} | changes
            if more and bound is not None:
                settings[bound.setting] += more
            made = policy_of(policy, settings, step.policy, step.policy)
        except (ValueError, TypeError, KeyError, ConfigurationError):
            raise UnknownError(f"the settings of {step.policy} are not in the spans") from None
        if not isinstance(made, DecidingPolicy):
            raise UnknownError(f"{step.policy} cannot be run again on recorded token counts")
        return made

    def _decided(self, step: ReportedStep, policy: DecidingPolicy, events: Sequence[Any], prompts: int) -> Any:
        rows = PromptsOfTurn([("caller", "prompt 0", prompts)])
        meter = SkeletonMeter(self.turn, rows, note_tokens(self.ledger))
        try:
            context = context_of(step, meter)
            return finished(policy.decide(["prompt 0"], as_view(History(events).view()), context))
        except (ContextOverflowError, UnknownError):
            raise
        except Exception as error:  # a custom policy may need the content of events
            raise UnknownError(f"a policy cannot be run again: {type(error).__name__}") from error

    def _around(self, events: Sequence[Any]) -> int:
        """Return the input tokens of the failed policy besides its events: prompts, tool schemas, reply overhead."""
        total = self._failed.attributes.get(names.TOKENS_IN)
        around = total - sum(event.tokens for event in events) if isinstance(total, int) else -1
        if around < 0:
            raise UnknownError("the tokens of its prompts are not in the spans")
        return around

    def _overflow(self, step: ReportedStep, more: int, events: Sequence[Any]) -> ContextOverflowError | None:
        try:
            self._decided(step, self._policy(step, more), events, self._around(events))
        except ContextOverflowError as error:
            return error
        return None

    def _run(self, step: ReportedStep, more: int, **changes: Any) -> Any:
        """Return the policy's outcome with a larger limit; None if the limit is still exceeded."""
        try:
            return self._decided(step, self._policy(step, more, **changes), self._input, self._around(self._input))
        except ContextOverflowError:
            return None

    def _after_all(self) -> tuple[str, ...]:
        """Return the unknowns of the policies after a skipped one."""
        try:
            return self._behind(self._input)
        except UnknownError:
            rest = ", ".join(step.policy for step in self._later())
            return (f"whether {rest} would have allowed a prompt",) if rest else ()

    def _behind(self, events: Sequence[Any]) -> tuple[str, ...]:
        """Return the unknowns of the policies after the failed one, with their settings from another turn."""
        around = self._around(self._input)
        for step in self._later():
            if step.attributes.get(names.POLICY_KIND) == INJECTION:
                return (f"what {step.policy}, which runs later, would have injected",)
            try:
                events = self._decided(step, self._policy(step, 0), list(events), around).events
            except (ContextOverflowError, UnknownError):
                return (f"whether {step.policy}, which runs later, would have allowed a prompt",)
        return ()

    def _later(self) -> list[ReportedStep]:
        """Return the steps after the failed policy, from the nearest turn that sent a prompt."""
        whole = [turn for turn in self.ledger.turns if turn.sent]
        nearest = min(whole, key=lambda turn: abs(turn.number - self.turn.number), default=None)
        return [step for step in nearest.steps if step.index > self._failed.index] if nearest is not None else []

    @lazy_property
    def _parts(self) -> Mapping[str, str]:
        """The part of each item that the policy cannot drop."""
        view = as_view(History(self._input).view())
        history = view.history
        response, request = newest_response(view), newest_request(view)
        found = dict.fromkeys(newest_atom(view, response), "newest_atom")
        found |= dict.fromkeys(request, "newest_request")
        found |= dict.fromkeys(history.pairing.pending_calls(response), "pending_calls")
        found |= dict.fromkeys((view.position(index) for index in range(leading(view))), "leading_system")
        return {history.event(at).item: part for at, part in found.items() if view.holds(at)}

    # The allocator's rule, run again

    def _allocated(self, unsent: Unsent, step: ReportedStep) -> Unsent:
        allocation = step.allocation or {}
        window, reserve, fixed = (
            allocation.get(key) for key in (names.BUDGET_WINDOW, names.BUDGET_OUTPUT_RESERVE, names.BUDGET_FIXED)
        )
        if not isinstance(window, int) or not isinstance(reserve, int) or not isinstance(fixed, int):
            raise UnknownError("the allocator's span lacks its limits")
        excess = fixed - (window - reserve)
        if fixed != unsent.needed or excess != fixed - (unsent.budget or 0):
            raise UnknownError("the rule, run again on the recorded numbers, does not fail in the same way")
        costs = {
            block.name: int(block.attributes.get(names.TOKENS_IN, 0))
            for block in step.blocks
            if block.attributes.get(names.BLOCK_CUTTABLE) is False
        }
        costs["framing"] = fixed - sum(costs.values())
        return replace(
            unsent,
            fixed=fixed,
            parts=tuple(Part(name, tokens) for name, tokens in costs.items() if tokens > 0),
            raises=(LimitIncrease(step.policy, step.index, "window", excess, window + excess, "tokens"),),
        )
