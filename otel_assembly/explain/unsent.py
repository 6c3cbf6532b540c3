"""Explains a turn that sent no prompt: the error, each item's part in it, and what would have allowed a prompt.

If a budget was exceeded, its policy is run again on the recorded numbers of its input. The explanation is given only if
the rerun exceeds the recorded limit by the recorded number of tokens, succeeds with the reported larger limit, and
fails with one token less.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.fork_safety import lazy_property
from otel_assembly.chain.config import policy_of
from otel_assembly.decision import OverflowCause
from otel_assembly.errors import ConfigurationError, ContextOverflowError
from otel_assembly.explain.chain import KnownPolicies, context_of, result_of, settings_of
from otel_assembly.explain.explanation import LimitIncrease, Part, Unsent
from otel_assembly.explain.skeleton import PromptsOfTurn, SkeletonMeter, UnknownError, note_tokens, stand_ins
from otel_assembly.history.first_message import essential_events, leading
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
    """Return whether a turn sent no prompt, because it failed or because the conversation had been halted."""
    return not turn.sent or turn.attributes.get(names.ERROR_TYPE) == names.ERROR_ASSEMBLY_HALT


class UnsentTurn:
    """Explains why a turn sent no prompt, and the part of each item in it.

    Args:
        ledger: The ledger that contains the turn.
        turn: The turn.
        known: The classes of the chain's policies.
    """

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
        """The reason why the turn sent no prompt, and what would have allowed one."""
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
            return replace(unsent, skip=True, unknown=self._unknown_if_skipped())
        excess, cause = attributes.get(names.OVERFLOW_TOKENS), attributes.get(names.OVERFLOW_CAUSE)
        budget = step.attributes.get(names.BUDGET_LIMIT, attributes.get(names.BUDGET_LIMIT))
        unsent = replace(unsent, cause=cause)
        if not isinstance(excess, int) or not isinstance(budget, int):
            return replace(unsent, unknown=("by how much the budget was exceeded: the spans do not record it",))
        unsent = replace(unsent, budget=budget, needed=budget + excess)
        try:
            return self._explained_allocator(unsent, step) if step.policy == ALLOCATOR else self._rerun(unsent, step)
        except UnknownError as error:
            return replace(unsent, unknown=(f"what would allow a prompt: {error}",))

    def part(self, item: str) -> str | None:
        """Return an item's part in the failure (see `Explanation.part`); None if it is unknown or not in the input."""
        if item not in (self.turn.offered or ()):
            return None
        if self._dropping_step(item) is not None:
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
        """Return ``fixed_block`` or ``cuttable_block`` from the item's kind; None if blocks of this kind differ.

        Spans of blocks do not list their items if no prompt was sent.
        """
        known = self.ledger.item(self.turn.number, item)
        kind = known.kind if known is not None else None
        cuttable = {block.attributes.get(names.BLOCK_CUTTABLE) for block in step.blocks if block.kind == kind}
        if len(cuttable) != 1 or None in cuttable:
            return None
        return "cuttable_block" if True in cuttable else "fixed_block"

    def increase_to_keep(self, item: str) -> LimitIncrease | None:
        """Return the smallest increase of the failed policy's limit with which the prompt contains the item.

        None if this is unknown, or if no limit is responsible.
        """
        step, why = self.step, self.why
        if step is None or not why.raises or self.part(item) in {None, "taken", "offered"}:
            return None
        (least,) = why.raises
        limit = self.known.limit(step)
        if step.policy == ALLOCATOR or (limit is not None and any(event.kind in limit.first for event in self._input)):
            return None
        if self._has_compactor(step) and self.part(item) == "older":
            return None  # a summary might replace it

        def is_kept(more: int) -> bool:
            outcome = self._run(step, more)
            return outcome is not None and any(event.item == item for event in outcome.events)

        low, high = least.extra - 1, least.extra
        most = least.extra + sum(event.tokens for event in self._input)
        while not is_kept(high):
            if high > most:
                return None
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if is_kept(middle) else (middle, high)
        return replace(least, extra=high, to=least.to - least.extra + high)

    def _halt(self) -> str | None:
        """Return the source and the reason of the latest halt up to this turn; None if no turn records one."""
        earlier = (turn for turn in reversed(self.ledger.turns) if turn.number <= self.turn.number)
        return next((": ".join(filter(None, halt)) for turn in earlier for halt in turn.halts), None)

    # Rerun of a policy with a budget

    @lazy_property
    def _input(self) -> list[Any]:
        """The rebuilt events of the failed policy's input.

        Raises:
            UnknownError: The spans do not record the whole input.
        """
        step, turn = self._failed_step, self.turn
        if turn.offered is None:
            raise UnknownError("the input is unknown")
        earlier_steps = [earlier for earlier in turn.steps if earlier.index < step.index]
        if any(earlier.rest for earlier in earlier_steps) or turn.missing:
            raise UnknownError("the spans do not list all items that earlier policies dropped")
        injected_items = [item for earlier in earlier_steps for item in earlier.injected]
        items = [*injected_items, *(item for item in turn.offered if self._dropping_step(item) is None)]
        items = [item for item in items if not any(earlier.exit(item) for earlier in earlier_steps)]
        if step.attributes.get(names.EVENTS_IN) != len(items):
            raise UnknownError(
                f"{step.policy} had {step.attributes.get(names.EVENTS_IN, 'an unknown number of')} input events, but"
                f" the spans record {len(items)}"
            )
        events = stand_ins(self.ledger, turn, items, frozenset())
        if self.error == names.ERROR_CONTEXT_OVERFLOW and self._fails_differently(list(events.values())):
            # The spans do not record which calls await an approval; assume that all unanswered calls do.
            calling_items = frozenset(item for item, event in events.items() if event.opens)
            events_awaiting = stand_ins(self.ledger, turn, items, calling_items)
            if not self._fails_differently(list(events_awaiting.values())):
                events = events_awaiting
        return list(events.values())

    def _fails_differently(self, events: Sequence[Any]) -> bool:
        """Return whether the failed policy, run again on these events, does not exceed its limit as recorded."""
        step = self._failed_step
        error = self._overflow(step, 0, events)
        return error is None or error.needed - error.budget != self.turn.attributes.get(names.OVERFLOW_TOKENS)

    @property
    def _failed_step(self) -> ReportedStep:
        if self.step is None:
            raise UnknownError("the span of the policy that failed is missing")
        return self.step

    def _dropping_step(self, item: str) -> ReportedStep | None:
        """Return the step of an earlier policy that dropped the item; None if the item reached the failed policy."""
        earlier_steps = [step for step in self.turn.steps if self.step is None or step.index < self.step.index]
        return next((step for step in earlier_steps if step.exit(item) is not None), None)

    def _rerun(self, unsent: Unsent, step: ReportedStep) -> Unsent:
        """Add the parts of the needed tokens, and what would have allowed a prompt, by running the policy again.

        Raises:
            UnknownError: The policy is unknown, or its rerun does not fail as recorded.
        """
        limit = self.known.limit(step)
        if limit is None or limit.unit != "tokens":
            raise UnknownError(f"{step.policy} is not a built-in policy, so its rule is unknown")
        excess = (unsent.needed or 0) - (unsent.budget or 0)
        error = self._overflow(step, 0, self._input)
        if error is None or self._fails_differently(self._input):
            raise UnknownError(f"{step.policy}, run again on the recorded numbers, does not fail in the same way")
        parts = tuple(Part(_PARTS.get(name, "prompts"), tokens) for name, tokens in error.costs.items())
        newest = error.costs.get("newest_atom", 0)
        unsent = replace(unsent, parts=parts, fixed=error.needed - newest, budget=error.budget, needed=error.needed)
        more = excess
        # With room for the fixed content alone, the newest atom may exceed the limit.
        if (second_error := self._overflow(step, more, self._input)) is not None:
            more += second_error.needed - second_error.budget
        outcome = self._run(step, more)
        if outcome is None or self._run(step, more - 1) is not None:
            raise UnknownError(f"{step.policy}, run again with {more:,} more tokens, gives an inconsistent result")
        setting = settings_of(step)[limit.setting]
        # With a smaller limit, a compactor might shorten a tool result of the newest atom, so that the atom fits.
        may_shorten = self._has_compactor(step) and any(
            event.kind == EventKind.TOOL_RESULT and self._parts.get(event.item) == "newest_atom"
            for event in self._input
        )
        raised = LimitIncrease(
            step.policy, step.index, limit.setting, more, setting + more, "tokens", at_most=may_shorten
        )
        unsent = replace(unsent, raises=(raised,), unknown=self._unknown_after(outcome.events))
        if unsent.cause == OverflowCause.NEWEST_ATOM:
            outcome_with_drop = self._run(step, 0, on_overflow="drop")
            if outcome_with_drop is not None:
                unsent = replace(
                    unsent, without=tuple(item for item, part in self._parts.items() if part == "newest_atom")
                )
        return unsent

    @staticmethod
    def _has_compactor(step: ReportedStep) -> bool:
        # Only policies with a compactor record this setting.
        return "summary_tokens" in settings_of(step)

    def _policy(self, step: ReportedStep, more: int, **changes: Any) -> DecidingPolicy:
        """Create a step's policy with its recorded settings.

        Args:
            step: The step.
            more: The increase of the policy's limit.
            changes: Settings that replace the recorded ones.

        Raises:
            UnknownError: The policy needs more than the spans record.
        """
        policy = self.known.of(step)
        limit = self.known.limit(step)
        try:
            recorded_settings = policy.settings_to_rerun(settings_of(step)) if policy is not None else None
            if policy is None or recorded_settings is None:
                raise UnknownError(f"{step.policy} cannot be run again on recorded token counts")
            settings = {
                name: recorded_settings[name] for name in parameters_of(policy) if name in recorded_settings
            } | changes
            if more and limit is not None:
                settings[limit.setting] += more
            new_policy = policy_of(policy, settings, step.policy, step.policy)
        except (ValueError, TypeError, KeyError, ConfigurationError):
            raise UnknownError(f"the settings of {step.policy} are not in the spans") from None
        if not isinstance(new_policy, DecidingPolicy):
            raise UnknownError(f"{step.policy} cannot be run again on recorded token counts")
        return new_policy

    def _outcome_of(self, step: ReportedStep, policy: DecidingPolicy, events: Sequence[Any], prompts: int) -> Any:
        """Run a policy on rebuilt events, and return its outcome.

        Args:
            step: The step with the provider's rules.
            policy: The policy.
            events: The rebuilt events.
            prompts: The tokens of the input other than its events; they are passed as one prompt.

        Raises:
            ContextOverflowError: The policy's limit is exceeded.
            UnknownError: The policy needs the content of events.
        """
        rows = PromptsOfTurn([("caller", "prompt 0", prompts)])
        meter = SkeletonMeter(self.turn, rows, note_tokens(self.ledger))
        try:
            context = context_of(step, meter)
            return result_of(policy.decide(["prompt 0"], as_view(History(events).view()), context))
        except (ContextOverflowError, UnknownError):
            raise
        except Exception as error:  # a custom policy may need the content of events
            raise UnknownError(f"a policy cannot be run again: {type(error).__name__}") from error

    def _tokens_without_events(self, events: Sequence[Any]) -> int:
        """Return the tokens of the failed policy's input other than its events: prompts, tool schemas, framing."""
        total = self._failed_step.attributes.get(names.TOKENS_IN)
        other_tokens = total - sum(event.tokens for event in events) if isinstance(total, int) else -1
        if other_tokens < 0:
            raise UnknownError("the tokens of its prompts are not in the spans")
        return other_tokens

    def _overflow(self, step: ReportedStep, more: int, events: Sequence[Any]) -> ContextOverflowError | None:
        """Return the error of a rerun with a limit increased by `more`; None if the limit is not exceeded."""
        try:
            self._outcome_of(step, self._policy(step, more), events, self._tokens_without_events(events))
        except ContextOverflowError as error:
            return error
        return None

    def _run(self, step: ReportedStep, more: int, **changes: Any) -> Any:
        """Return the outcome of a rerun with a limit increased by `more`; None if the limit is still exceeded."""
        try:
            return self._outcome_of(
                step, self._policy(step, more, **changes), self._input, self._tokens_without_events(self._input)
            )
        except ContextOverflowError:
            return None

    def _unknown_if_skipped(self) -> tuple[str, ...]:
        """Return what is unknown about the policies that would have run if the failed policy had been skipped."""
        try:
            return self._unknown_after(self._input)
        except UnknownError:
            rest = ", ".join(step.policy for step in self._later_steps())
            return (f"whether {rest} would have allowed a prompt",) if rest else ()

    def _unknown_after(self, events: Sequence[Any]) -> tuple[str, ...]:
        """Return what is unknown about the policies that would have run after the failed one.

        These policies are run with the settings of the nearest turn that sent a prompt.

        Args:
            events: The output of the failed policy.
        """
        other_tokens = self._tokens_without_events(self._input)
        for step in self._later_steps():
            if step.attributes.get(names.POLICY_KIND) == INJECTION:
                return (f"what {step.policy}, which runs later, would have injected",)
            try:
                events = self._outcome_of(step, self._policy(step, 0), list(events), other_tokens).events
            except (ContextOverflowError, UnknownError):
                return (f"whether {step.policy}, which runs later, would have allowed a prompt",)
        return ()

    def _later_steps(self) -> list[ReportedStep]:
        """Return the steps after the failed policy, from the nearest turn that sent a prompt."""
        sent_turns = [turn for turn in self.ledger.turns if turn.sent]
        nearest = min(sent_turns, key=lambda turn: abs(turn.number - self.turn.number), default=None)
        return [step for step in nearest.steps if step.index > self._failed_step.index] if nearest is not None else []

    @lazy_property
    def _parts(self) -> Mapping[str, str]:
        """The names of the parts (see `Part`) of the items that the policy cannot drop, by item."""
        view = as_view(History(self._input).view())
        history = view.history
        essential = essential_events(view)
        parts = dict.fromkeys(essential.newest, "newest_atom")
        parts |= dict.fromkeys(essential.request, "newest_request")
        parts |= dict.fromkeys(essential.pending, "pending_calls")
        parts |= dict.fromkeys((view.position(index) for index in range(leading(view))), "leading_system")
        return {history.events[position].item: part for position, part in parts.items() if view.holds(position)}

    # The allocator

    def _explained_allocator(self, unsent: Unsent, step: ReportedStep) -> Unsent:
        """Add the parts of the needed tokens, and the smallest window that allows a prompt, for the allocator.

        No rerun is needed: the allocator fails if the content that cannot be dropped has more tokens than the window
        minus the output reserve, and its span records these three numbers.
        """
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
