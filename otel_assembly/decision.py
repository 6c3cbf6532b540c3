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
    """Why a limit could not hold."""

    FIXED = "fixed"
    NEWEST_ATOM = "newest_atom"
    FRAMEWORK = "framework"
    WINDOW = "window"
    PROVIDER = "provider"


class PrefixBreak(StrEnum):
    """Why a prompt did not begin with the whole of the previous one."""

    FIRST = "first"
    RESUMED = "resumed"
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
    """A limit that could not hold.

    Attributes:
        budget: The limit.
        needed: What was needed.
        cause: Why it could not hold.
        unit: What both count: ``tokens``, or, of a window, ``items``.
    """

    budget: int
    needed: int
    cause: OverflowCause
    unit: str = "tokens"

    @property
    def excess(self) -> int:
        """By how much the need is over the budget."""
        return self.needed - self.budget


@dataclass(frozen=True, slots=True)
class BudgetEntry:
    """What a budget had to do with one block.

    Attributes:
        name: The block's name.
        kind: Its kind.
        priority: 1 for what is never optional, up to 9.
        cuttable: Whether it may be cut, compacted or dropped.
        min_tokens: Its floor.
        tokens_in: Tokens that it takes whole, what joining its items adds included.
        tokens_out: Tokens that it takes in the prompt.
        outcome: ``kept`` (whole, or with some items cut), ``compacted`` or ``dropped``.
        reason: The rule.
        room: Tokens that were left for it when it was decided.
        items_in: Items that it holds.
        items_out: Items of it in the prompt, those that compaction made included.
        items_injected: Those that compaction made.
        compacted: Items for which those stand.
        cut: How it gives way, where it is cut item by item or compacted; empty where nobody says.
        items: Its items: by their place in the block, or, in a chain, the events that they are.
        order: Of those that are not out from the start, the places in `items`, the one that is cut last first.
        charges: What each of these is charged as it is taken in.
        atoms: How many of these are kept or dropped together, each time.
        cost: Tokens that it takes with all of these.
        enough: How many of these it takes to be worth its floor; 0 where it has none.
        events: How many of these are messages of their own, not texts.
        winners: Items that another stands for, each by its place, with that one's block and place there.
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
    """How a budget was given out, block by block, in the order in which they were decided.

    Attributes:
        window: The model's window, in tokens.
        output_reserve: Tokens kept free for the reply.
        fixed: Tokens of what may not be cut.
        used: Tokens of the whole prompt; 0 where nothing is sent.
        entries: One for each block.
        overflow: The limit that could not hold.
    """

    window: int
    output_reserve: int
    fixed: int
    used: int
    entries: Sequence[BudgetEntry]
    overflow: Overflow | None = None

    @property
    def utilization(self) -> float | None:
        """Tokens needed ÷ the budget, a ratio; needed is `used`, or what an overflow needed if that is more.

        None if the budget is 0, or if nothing is sent for another reason than an overflow.
        """
        budget = self.window - self.output_reserve
        needed = self.used if self.overflow is None else max(self.used, self.overflow.needed)
        return needed / budget if budget > 0 and needed else None


@dataclass(slots=True)
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
class Compaction:
    """Events for which a shorter one stands.

    Attributes:
        events: The events that it was made of.
        into: What stands for them now; None where every attempt failed.
        attempts: Every attempt, in order; none where an earlier assembly made it.
        reply: The assistant's message behind it, if the provider requires one between two messages of the user.
    """

    events: Sequence[Any]
    into: Any
    attempts: Sequence[Any] = ()
    reply: Any = None


@dataclass(slots=True)
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
        report: How the budget was given out, if the policy is an allocator.
        compactions: Events that it made of others, with what it took.
        framing: Tokens of messages that several events are joined to, which belong to no single one.
        separators: Tokens that joining events to messages added.
        around_in: What both would be if everything that came in stood in the prompt.
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
        item: The item's id in its conversation's ledger: ``0``, ``1``, … of what came in, ``m0``, ``m1``, … of what
            policies made.
        kind: The item's kind.
        tokens: What it costs, in tokens.
        outcome: What happened.
        reason: The rule.
        policy: The name of the policy that decided; None for an arrival that nothing touched.
        index: That policy's place in the chain.
        event: The event itself; None where the conversation no longer holds it.
    """

    item: str
    kind: str
    tokens: int
    outcome: DecisionOutcome
    reason: DecisionReason
    policy: str | None = None
    index: int | None = None
    event: Any = None
