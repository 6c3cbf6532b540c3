"""A turn that sent nothing: why, what each item was to it, and what would have let a prompt be sent.

Where a budget could not hold, its policy is run again on what the turn's spans state of its input: first with the limit
as it was, which has to fail by exactly as many tokens as the spans say; then with so many more, with which it does not,
and with one less, with which it does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.forks import worked_out_once
from otel_assembly.chain.config import policy_of
from otel_assembly.decision import OverflowCause
from otel_assembly.errors import ConfigurationError, ContextOverflowError
from otel_assembly.explain.chain import KnownPolicies, context_of, finished, settings_of
from otel_assembly.explain.explanation import Part, Raise, Unsent
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

#: The parts of what a budget could not hold, by the names that its error has for them.
_PARTS: Final = {
    "leading_system": "leading_system",
    "pending_tool_calls": "pending_calls",
    "newest_request": "newest_request",
    "newest_atom": "newest_atom",
}
_HALTED: Final = "a conversation that was halted stays so; a new one, with a Context of its own, is not"
_CANCELLED: Final = "nobody waited for its prompt any more"


def sent_nothing(turn: ReportedTurn) -> bool:
    """Whether no prompt of a turn was sent: none came out of it, or the conversation was halted before it was."""
    return not turn.sent or turn.attributes.get(names.ERROR_TYPE) == names.ERROR_ASSEMBLY_HALT


class UnsentTurn:
    """A turn that sent nothing."""

    def __init__(self, ledger: LedgerHistory, turn: ReportedTurn, known: KnownPolicies) -> None:
        self.ledger = ledger
        self.turn = turn
        self.known = known
        failed = (step for step in turn.steps if names.EXCEPTION_TYPE in step.attributes)
        overflowed = (step for step in turn.steps if step.attributes.get(names.OVERFLOWED) is True)
        self.error = str(turn.attributes.get(names.ERROR_TYPE, "not known"))
        #: The policy that failed; None where its span is missing, or where none did.
        self.step = next(overflowed if self.error == names.ERROR_CONTEXT_OVERFLOW else failed, None)

    @worked_out_once
    def why(self) -> Unsent:
        """Why nothing was sent, and what would have let a prompt be sent."""
        held, step = self.turn.attributes, self.step
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
        excess, cause = held.get(names.OVERFLOW_TOKENS), held.get(names.OVERFLOW_CAUSE)
        budget = step.attributes.get(names.BUDGET_LIMIT, held.get(names.BUDGET_LIMIT))
        unsent = replace(unsent, cause=cause)
        if not isinstance(excess, int) or not isinstance(budget, int):
            return replace(unsent, unknown=("by how much it did not fit: the spans do not say",))
        unsent = replace(unsent, budget=budget, needed=budget + excess)
        try:
            return self._allocated(unsent, step) if step.policy == ALLOCATOR else self._rerun(unsent, step)
        except UnknownError as error:
            return replace(unsent, unknown=(f"what would let a prompt be sent: {error}",))

    def part(self, item: str) -> str | None:
        """What an item was to the turn; None where that is not known, or where it did not come in."""
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
        """By the item's kind, for where nothing was sent the spans of blocks do not list their items."""
        known = self.ledger.item(self.turn.number, item)
        kind = known.kind if known is not None else None
        cuttable = {block.attributes.get(names.BLOCK_CUTTABLE) for block in step.blocks if block.kind == kind}
        if len(cuttable) != 1 or None in cuttable:
            return None
        return "cuttable_block" if True in cuttable else "fixed_block"

    def keeps(self, item: str) -> Raise | None:
        """The smallest limit of the policy that failed with which a prompt is sent and the item is in it."""
        step, why = self.step, self.why
        if step is None or not why.raises or self.part(item) in {None, "taken", "offered"}:
            return None
        (least,) = why.raises
        bound = self.known.limit(step)
        if step.policy == ALLOCATOR or (bound is not None and any(e.kind in bound.first for e in self._input)):
            return None
        if self._compacts(step) and self.part(item) == "older":
            return None  # a summary might stand for it

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
        """Who halted the conversation, and why: on this turn, or on one before it."""
        earlier = (turn for turn in reversed(self.ledger.turns) if turn.number <= self.turn.number)
        return next((": ".join(filter(None, halt)) for turn in earlier for halt in turn.halts), None)

    # A budget's policy, run again

    @worked_out_once
    def _input(self) -> list[Any]:
        """The events that came to the policy that failed, as stand-ins."""
        step, turn = self._failed, self.turn
        if turn.offered is None:
            raise UnknownError("what came in could not be known")
        before = [one for one in turn.steps if one.index < step.index]
        if any(one.rest for one in before) or turn.missing:
            raise UnknownError("the spans do not list all that the policies before it left out")
        made = [item for one in before for item in one.injected]
        items = [*made, *(item for item in turn.offered if self._taken(item) is None)]
        items = [item for item in items if not any(one.exit(item) for one in before)]
        if step.attributes.get(names.EVENTS_IN) != len(items):
            raise UnknownError(f"the spans tell of {len(items)} of its events, and not of all that came to it")
        events = stand_ins(self.ledger, turn, items, frozenset())
        if self.error == names.ERROR_CONTEXT_OVERFLOW and self._misses(list(events.values())):
            # Which calls await an approval is not told: those that nobody has answered.
            asked = frozenset(item for item, event in events.items() if event.opens)
            waiting = stand_ins(self.ledger, turn, items, asked)
            if not self._misses(list(waiting.values())):
                events = waiting
        return list(events.values())

    def _misses(self, events: Sequence[Any]) -> bool:
        """Whether the policy, run again on these, does not fail by as much as the spans say."""
        step = self._failed
        error = self._overflow(step, 0, events)
        return error is None or error.needed - error.budget != self.turn.attributes.get(names.OVERFLOW_TOKENS)

    @property
    def _failed(self) -> ReportedStep:
        if self.step is None:
            raise UnknownError("the span of the policy that failed is missing")
        return self.step

    def _taken(self, item: str) -> ReportedStep | None:
        """The policy that had left an item out before the one that failed."""
        before = [one for one in self.turn.steps if self.step is None or one.index < self.step.index]
        return next((one for one in before if one.exit(item) is not None), None)

    def _rerun(self, unsent: Unsent, step: ReportedStep) -> Unsent:
        bound = self.known.limit(step)
        if bound is None or bound.unit != "tokens":
            raise UnknownError(f"{step.policy} is not one of our policies: what it goes by is not known")
        excess = (unsent.needed or 0) - (unsent.budget or 0)
        error = self._overflow(step, 0, self._input)
        if error is None or self._misses(self._input):
            raise UnknownError(f"{step.policy}, run again on what the spans state, does not fail as it did")
        parts = tuple(Part(_PARTS.get(name, "prompts"), tokens) for name, tokens in error.costs.items())
        newest = error.costs.get("newest_atom", 0)
        unsent = replace(unsent, parts=parts, fixed=error.needed - newest, budget=error.budget, needed=error.needed)
        more = excess
        if (behind := self._overflow(step, more, self._input)) is not None:  # the newest atom beside what is fixed
            more += behind.needed - behind.budget
        outcome = self._run(step, more)
        if outcome is None or self._run(step, more - 1) is not None:
            raise UnknownError(f"{step.policy}, run again with {more:,} tokens more, does not do what it should")
        setting = settings_of(step)[bound.setting]
        # A compactor may shorten a result of the newest atom so far that less is enough.
        shortens = self._compacts(step) and any(
            event.kind == EventKind.TOOL_RESULT and self._parts.get(event.item) == "newest_atom"
            for event in self._input
        )
        raised = Raise(step.policy, step.index, bound.setting, more, setting + more, "tokens", at_most=shortens)
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
                raise UnknownError(f"{step.policy} cannot be run again on the tokens of the ledger")
            settings = {name: stated[name] for name in parameters_of(policy) if name in stated} | changes
            if more and bound is not None:
                settings[bound.setting] += more
            made = policy_of(policy, settings, step.policy, step.policy)
        except (ValueError, TypeError, KeyError, ConfigurationError):
            raise UnknownError(f"the settings of {step.policy} are not in the spans") from None
        if not isinstance(made, DecidingPolicy):
            raise UnknownError(f"{step.policy} cannot be run again on the tokens of the ledger")
        return made

    def _decided(self, step: ReportedStep, policy: DecidingPolicy, events: Sequence[Any], prompts: int) -> Any:
        rows = PromptsOfTurn([("caller", "prompt 0", prompts)])
        meter = SkeletonMeter(self.turn, rows, note_tokens(self.ledger))
        try:
            context = context_of(step, meter)
            return finished(policy.decide(["prompt 0"], as_view(History(events).view()), context))
        except (ContextOverflowError, UnknownError):
            raise
        except Exception as error:  # it may be anybody's, and is shown events without a word in them
            raise UnknownError(f"a policy cannot be run again: {type(error).__name__}") from error

    def _around(self, events: Sequence[Any]) -> int:
        """Tokens of what came to the failing policy beside its events: prompts, tool schemas, the reply's beginning."""
        came = self._failed.attributes.get(names.TOKENS_IN)
        around = came - sum(event.tokens for event in events) if isinstance(came, int) else -1
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
        """What the policy decides with a larger limit; None where it still cannot hold it."""
        try:
            return self._decided(step, self._policy(step, more, **changes), self._input, self._around(self._input))
        except ContextOverflowError:
            return None

    def _after_all(self) -> tuple[str, ...]:
        """What is not known of the policies behind one that is left out."""
        try:
            return self._behind(self._input)
        except UnknownError:
            rest = ", ".join(step.policy for step in self._later())
            return (f"whether {rest} would have let a prompt pass",) if rest else ()

    def _behind(self, events: Sequence[Any]) -> tuple[str, ...]:
        """Whether the policies behind the one that failed, as another turn has them, would have let a prompt pass."""
        around = self._around(self._input)
        for step in self._later():
            if step.attributes.get(names.POLICY_KIND) == INJECTION:
                return (f"what {step.policy}, which comes after it, would have put in",)
            try:
                events = self._decided(step, self._policy(step, 0), list(events), around).events
            except (ContextOverflowError, UnknownError):
                return (f"whether {step.policy}, which comes after it, would have let a prompt pass",)
        return ()

    def _later(self) -> list[ReportedStep]:
        """The policies behind the one that failed, of the nearest turn that came to its end."""
        whole = [turn for turn in self.ledger.turns if turn.sent]
        nearest = min(whole, key=lambda turn: abs(turn.number - self.turn.number), default=None)
        return [step for step in nearest.steps if step.index > self._failed.index] if nearest is not None else []

    @worked_out_once
    def _parts(self) -> Mapping[str, str]:
        """The items that the policy could not do without, with what they are."""
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
        held = step.allocation or {}
        window, reserve, fixed = (
            held.get(key) for key in (names.BUDGET_WINDOW, names.BUDGET_OUTPUT_RESERVE, names.BUDGET_FIXED)
        )
        if not isinstance(window, int) or not isinstance(reserve, int) or not isinstance(fixed, int):
            raise UnknownError("the allocator's span does not state its limits")
        excess = fixed - (window - reserve)
        if fixed != unsent.needed or excess != fixed - (unsent.budget or 0):
            raise UnknownError("the rule, run again on what the spans state, does not fail as it did")
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
            raises=(Raise(step.policy, step.index, "window", excess, window + excess, "tokens"),),
        )
