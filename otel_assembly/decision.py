"""Decisions as data: the outcome of an item, the policy that decided, and the reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


class DecisionOutcome(StrEnum):
    """The outcome of an item."""

    KEPT = "kept"
    INJECTED = "injected"
    COMPACTED = "compacted"
    DROPPED = "dropped"
    REORDERED = "reordered"


class DecisionReason(StrEnum):
    """The reason for an outcome; a closed set."""

    NOT_CONVERSATION = "not_conversation"
    OUTSIDE_WINDOW = "outside_window"
    OVER_BUDGET = "over_budget"
    BELOW_FLOOR = "below_floor"
    LOW_RANK = "low_rank"
    ORPHANED_TOOL_RESULT = "orphaned_tool_result"
    ORPHANED_TOOL_CALL = "orphaned_tool_call"
    ORPHANED_REASONING = "orphaned_reasoning"
    BEFORE_USER_MESSAGE = "before_user_message"
    DUPLICATE = "duplicate"
    FORBIDDEN_SCOPE = "forbidden_scope"
    STALE = "stale"
    COMPACTED = "compacted"
    PINNED = "pinned"
    PENDING_TOOL_CALL = "pending_tool_call"
    FITS = "fits"
    POLICY = "policy"
    POLICY_ERROR = "policy_error"


class OverflowCause(StrEnum):
    """The cause of an exceeded limit."""

    FIXED = "fixed"
    NEWEST_ATOM = "newest_atom"
    FRAMEWORK = "framework"
    WINDOW = "window"
    PROVIDER = "provider"


class PrefixBreak(StrEnum):
    """Why a prompt does not start with the whole previous prompt."""

    FIRST = "first"
    RESUMED = "resumed"
    PROMPT_CHANGED = "prompt_changed"
    CUT_MOVED = "cut_moved"
    COMPACTED = "compacted"
    REORDERED = "reordered"
    EVENT_CHANGED = "event_changed"


class PromptPart(StrEnum):
    """The parts of a prompt that are not events."""

    PROMPT = "prompt"
    TOOL_SCHEMAS = "tool_schemas"
    FRAMING = "framing"
    SEPARATORS = "separators"


@dataclass(frozen=True, slots=True)
class Overflow:
    """An exceeded limit.

    Attributes:
        budget: The limit.
        needed: The needed amount.
        cause: Why the limit was exceeded.
        unit: The unit of both: ``tokens``, or ``items`` for a window.
    """

    budget: int
    needed: int
    cause: OverflowCause
    unit: str = "tokens"

    @property
    def excess(self) -> int:
        """The amount above the limit."""
        return self.needed - self.budget


@dataclass(frozen=True, slots=True)
class BudgetEntry:
    """The decision of a budget about one block.

    Attributes:
        name: The name of the block.
        kind: The kind of the block.
        priority: 1 is never optional, 9 is cut first.
        cuttable: Whether the block may be cut, compacted or dropped.
        min_tokens: The minimum of the block, in tokens.
        tokens_in: The tokens of the whole block, including those for joining its items.
        tokens_out: The tokens of the block in the prompt.
        outcome: ``kept`` (whole, or with some items cut), ``compacted`` or ``dropped``.
        reason: The reason for the outcome.
        room: The tokens that were available when the block was decided.
        items_in: The number of items in the block.
        items_out: The number of items in the prompt, including those that compaction made.
        items_injected: The number of items that compaction made.
        compacted: The number of items that compaction replaced.
        cut: The strategy by which the block is cut or compacted; empty if none is set.
        items: The items: positions in the block, or, in a chain, the events.
        order: The positions in `items` of the items that can be kept, by rank; the last one is cut first.
        charges: The tokens that keeping each of these adds.
        atoms: The numbers of consecutive ranked items that are kept or dropped together.
        cost: The tokens of the block with all ranked items.
        enough: The number of ranked items that reach the minimum; 0 without a minimum.
        events: The number of ranked items that are messages and not texts.
        winners: The superseded items, by position, each with the block and position of the item that supersedes it.
    """

    name: str
    kind: str
    priority: int
    cuttable: bool
    min_tokens: int
    tokens_in: int
    tokens_out: int
    outcome: DecisionOutcome
    reason: DecisionReason
    room: int
    items_in: int
    items_out: int
    items_injected: int = 0
    compacted: int = 0
    cut: str = ""
    items: Sequence[Any] = ()
    order: Sequence[int] = ()
    charges: Sequence[int] = ()
    atoms: Sequence[int] = ()
    cost: int | None = None
    enough: int = 0
    events: int = 0
    winners: Sequence[tuple[int, tuple[str, int]]] = ()


@dataclass(frozen=True, slots=True)
class BudgetReport:
    """The decisions of a budget about all blocks, in decision order.

    Attributes:
        window: The model's context window, in tokens.
        output_reserve: The tokens that are reserved for the reply.
        fixed: The tokens of content that must not be cut.
        used: The tokens of the whole prompt; 0 if nothing is sent.
        entries: One entry per block.
        overflow: The exceeded limit, if one was exceeded.
    """

    window: int
    output_reserve: int
    fixed: int
    used: int
    entries: Sequence[BudgetEntry]
    overflow: Overflow | None = None

    @property
    def utilization(self) -> float | None:
        """Tokens needed ÷ the budget, a ratio. Needed is `used`, or the need of an overflow if that is larger.

        None if the budget is 0, or if nothing is sent for a reason other than an overflow.
        """
        budget = self.window - self.output_reserve
        needed = self.used if self.overflow is None else max(self.used, self.overflow.needed)
        return needed / budget if budget > 0 and needed else None


@dataclass(slots=True)
class Verdict:
    """A policy's verdict on some events of its input: one outcome and one reason.

    Attributes:
        events: The same objects as in the input; any number of them.
        outcome: The outcome of these events.
        reason: The reason for the outcome.
        into: For ``compacted``, the event that replaces them.
    """

    events: Sequence[Any]
    outcome: DecisionOutcome
    reason: DecisionReason
    into: Any = None


@dataclass(frozen=True, slots=True)
class Compaction:
    """Events that a shorter event replaces.

    Attributes:
        events: The replaced events.
        into: The replacement; None if every attempt failed.
        attempts: The attempts, in order; empty if an earlier assembly made the replacement.
        reply: The assistant's message after the replacement, if the provider requires one between two user messages.
    """

    events: Sequence[Any]
    into: Any
    attempts: Sequence[Any] = ()
    reply: Any = None


@dataclass(slots=True)
class Outcome:
    """The result of ``decide()``: the policy's output and the reasons.

    Attributes:
        prompts: The prompts of the output.
        events: The events of the output.
        decisions: Verdicts on dropped events, and on kept events that the rule would have dropped. A dropped event
            without a verdict gets the reason ``policy``.
        budget: The token limit that this policy enforces, if it has one.
        fixed: The tokens of content that must not be dropped, if the policy knows them.
        overflow: Set if the limit was exceeded and no error was raised.
        alerts: The observer alerts that this policy delivered to the model.
        report: The decisions about blocks, if the policy is an allocator.
        compactions: The events that the policy compacted, with the attempts.
        framing: The tokens of messages that several events are joined to, which belong to no single event.
        separators: The tokens that joining events to messages added.
        around_in: The sum of both if the whole input were in the prompt.
    """

    prompts: Sequence[str]
    events: Sequence[Any]
    decisions: Sequence[Verdict] = ()
    budget: int | None = None
    fixed: int | None = None
    overflow: Overflow | None = None
    alerts: Sequence[Any] = ()
    report: BudgetReport | None = None
    compactions: Sequence[Compaction] = ()
    framing: int = 0
    separators: int = 0
    around_in: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """One change of one item's state in an assembly.

    Attributes:
        item: The id of the item in its ledger: ``0``, ``1``, … for the input, ``m0``, ``m1``, … for events that
            policies made.
        kind: The kind of the item.
        tokens: The tokens of the item.
        outcome: The outcome.
        reason: The reason for the outcome.
        policy: The name of the policy that decided; None for a new item that no policy changed.
        index: The position of that policy in the chain.
        event: The event; None if the conversation no longer has it.
    """

    item: str
    kind: str
    tokens: int
    outcome: DecisionOutcome
    reason: DecisionReason
    policy: str | None = None
    index: int | None = None
    event: Any = None
