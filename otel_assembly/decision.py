"""Decisions are data: what happened to an item, which policy decided it, and by which rule."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


class DecisionOutcome(StrEnum):
    """What happened to an item."""

    KEPT = "kept"
    INJECTED = "injected"
    COMPACTED = "compacted"
    DROPPED = "dropped"
    REORDERED = "reordered"


class DecisionReason(StrEnum):
    """The rule that decided; a closed set."""

    NOT_CONVERSATION = "not_conversation"
    OUTSIDE_WINDOW = "outside_window"
    OVER_BUDGET = "over_budget"
    BELOW_FLOOR = "below_floor"
    LOW_RANK = "low_rank"
    ORPHANED_TOOL_RESULT = "orphaned_tool_result"
    ORPHANED_TOOL_CALL = "orphaned_tool_call"
    DUPLICATE = "duplicate"
    FORBIDDEN_SCOPE = "forbidden_scope"
    STALE = "stale"
    COMPACTED = "compacted"
    PINNED = "pinned"
    PENDING_TOOL_CALL = "pending_tool_call"
    FITS = "fits"
    WITHDRAWN = "withdrawn"
    POLICY = "policy"
    POLICY_ERROR = "policy_error"


class OverflowCause(StrEnum):
    """Why a budget could not hold."""

    FIXED = "fixed"
    NEWEST_ATOM = "newest_atom"
    FRAMEWORK = "framework"


class PrefixBreak(StrEnum):
    """Why a prompt did not begin with the whole of the previous one."""

    FIRST = "first"
    PROMPT_CHANGED = "prompt_changed"
    CUT_MOVED = "cut_moved"
    COMPACTED = "compacted"
    REORDERED = "reordered"
    EVENT_CHANGED = "event_changed"


class PromptPart(StrEnum):
    """What fills a prompt beside the kinds of events."""

    PROMPT = "prompt"
    TOOL_SCHEMAS = "tool_schemas"
    FRAMING = "framing"
    SEPARATORS = "separators"


@dataclass(frozen=True, slots=True)
class Overflow:
    """A limit that could not hold: by tokens (`unit` ``tokens``) or, for a window, by items (`unit` ``items``)."""

    budget: int
    needed: int
    cause: OverflowCause
    unit: str = "tokens"

    @property
    def excess(self) -> int:
        """By how much the need is over the budget."""
        return self.needed - self.budget


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a policy says of some of its input's events: one outcome, one reason.

    Attributes:
        events: The very events that went in; any number of them.
        outcome: What happens to them.
        reason: The rule.
        into: For ``compacted``, the event that stands for them now.
    """

    events: Sequence[Any]
    outcome: DecisionOutcome
    reason: DecisionReason
    into: Any = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What ``decide()`` returns: the policy's output, and why.

    Attributes:
        prompts: The prompts that go on.
        events: The events that go on.
        decisions: Verdicts on what left, and on what stayed although the rule would have taken it. What is in neither
            and left all the same gets the reason ``policy``.
        budget: The limit in tokens that this policy held, if it holds one.
        fixed: Tokens of what may not be dropped, if it knows.
        overflow: Set when the limit could not hold and no error was raised.
        alerts: Observer alerts that this policy delivered to the model.
    """

    prompts: Sequence[str]
    events: Sequence[Any]
    decisions: Sequence[Verdict] = ()
    budget: int | None = None
    fixed: int | None = None
    overflow: Overflow | None = None
    alerts: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """One change of one item's state in an assembly.

    Attributes:
        item: The item's ordinal in its conversation's ledger, from 0.
        kind: The item's kind.
        tokens: What it costs, in tokens; None while it has not been counted.
        outcome: What happened.
        reason: The rule.
        policy: The name of the policy that decided; None for an arrival that nothing touched.
        index: That policy's place in the chain.
        event: The event itself; None where the conversation no longer holds it.
    """

    item: int
    kind: str
    tokens: int | None
    outcome: DecisionOutcome
    reason: DecisionReason
    policy: str | None = None
    index: int | None = None
    event: Any = None
