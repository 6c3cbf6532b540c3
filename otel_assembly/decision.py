"""Decisions as data: the outcome of an item, the policy that decided, and the reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


class DecisionOutcome(StrEnum):
    """What happened to an item (an event of the conversation) in an assembly."""

    KEPT = "kept"
    INJECTED = "injected"
    COMPACTED = "compacted"
    DROPPED = "dropped"
    REORDERED = "reordered"


class DecisionReason(StrEnum):
    """Why an item has its outcome; policies use only these values.

    Below, a block is a named part of a prompt, as in `allocate`.
    """

    NOT_CONVERSATION = "not_conversation"  # not part of the conversation, such as a lifecycle event
    OUTSIDE_WINDOW = "outside_window"  # older than the newest events that a window keeps
    OVER_BUDGET = "over_budget"  # newer items used the budget
    BELOW_FLOOR = "below_floor"  # the rest of the block would have been below its minimum
    LOW_RANK = "low_rank"  # other items of the block have a higher rank
    ORPHANED_TOOL_RESULT = "orphaned_tool_result"  # a tool result without its call
    ORPHANED_TOOL_CALL = "orphaned_tool_call"  # a tool call without its result
    ORPHANED_REASONING = "orphaned_reasoning"  # reasoning without its following item, or such an item without it
    BEFORE_USER_MESSAGE = "before_user_message"  # before the user message that the provider requires first
    DUPLICATE = "duplicate"  # another item has the same content
    FORBIDDEN_SCOPE = "forbidden_scope"  # its scope is not allowed in this prompt
    STALE = "stale"  # a newer version of it exists
    COMPACTED = "compacted"
    PINNED = "pinned"  # it must not be dropped
    PENDING_TOOL_CALL = "pending_tool_call"  # a tool call that has no result yet
    FITS = "fits"
    NOT_SENT = "not_sent"  # the calling program left it out of its request
    POLICY = "policy"  # the policy gave no reason
    POLICY_ERROR = "policy_error"


class OverflowCause(StrEnum):
    """The cause of an exceeded limit."""

    FIXED = "fixed"  # content that must not be dropped exceeds the limit alone
    NEWEST_ATOM = "newest_atom"  # the newest tool call with its results, or the newest message, does not fit as well
    FRAMEWORK = "framework"  # the framework's own limit was exceeded
    WINDOW = "window"  # the prompt exceeds the model's context window
    PROVIDER = "provider"  # the provider refused the prompt as too long


class PrefixBreak(StrEnum):
    """Why a prompt does not start with the whole previous prompt."""

    FIRST = "first"  # there is no previous prompt
    RESUMED = "resumed"  # another process or another assembler made the previous prompt
    PROMPT_CHANGED = "prompt_changed"  # a system-level text or a tool schema changed
    CUT_MOVED = "cut_moved"  # events at the beginning were dropped
    COMPACTED = "compacted"  # a summary replaced events
    REORDERED = "reordered"  # the same events are in another order
    EVENT_CHANGED = "event_changed"  # an event changed, or another event replaced it


class PromptPart(StrEnum):
    """The parts of a prompt that are not events."""

    PROMPT = "prompt"  # a system-level text
    TOOL_SCHEMAS = "tool_schemas"
    FRAMING = "framing"  # tokens that the provider adds to messages, such as roles
    SEPARATORS = "separators"  # texts between items that are joined to one message


@dataclass(frozen=True, slots=True)
class Overflow:
    """An exceeded limit.

    Attributes:
        budget: The limit.
        needed: The amount that did not fit in the limit.
        cause: Why the limit was exceeded.
        unit: The unit of both amounts: ``tokens``, or ``items`` for a limit on the number of events.
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
    """What a budget policy or `allocate` decided about one block, a named part of the prompt.

    Attributes:
        name: The name of the block.
        kind: The kind of the block, an `EventKind`.
        priority: 1 (never optional) to 9 (dropped first).
        cuttable: Whether the block may be cut, compacted or dropped.
        min_tokens: The minimum of the block, in tokens.
        tokens_in: The tokens of the whole block, including those for joining its items.
        tokens_out: The tokens of the block in the prompt.
        outcome: ``kept`` (whole, or with some items cut), ``compacted`` or ``dropped``.
        reason: The reason for the outcome.
        room: The tokens that were still free when the block was decided.
        items_in: The number of items in the block.
        items_out: The number of the block's items in the prompt, including those that compaction made.
        items_injected: The number of items that compaction made.
        compacted: The number of items that compaction replaced.
        cut: The strategy by which the block is cut or compacted; empty if none is set.
        items: The block's items: their positions in the block, or, in a chain of policies, the events.
        order: The ranked items: positions in `items` of those that can be kept, best first. The last is cut first.
        charges: For each item in `order`, the tokens that keeping it adds.
        atoms: The sizes of the groups of consecutive items in `order` that are kept or dropped together.
        cost: The tokens of the block with all ranked items; None if unknown.
        enough: The number of ranked items that are needed to reach `min_tokens`; 0 without a minimum.
        events: The number of ranked items that are messages and not texts.
        winners: The items that another item supersedes (such as a newer version): the position of each, and the block
            and position of the item that supersedes it.
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
    """What a budget policy or `allocate` decided about the blocks (named parts) of a prompt.

    The budget is `window` minus `output_reserve`: the most tokens that the prompt may have.

    Attributes:
        window: The model's context window, in tokens.
        output_reserve: The tokens that are reserved for the model's reply.
        fixed: The tokens of content that must not be dropped.
        used: The tokens of the whole prompt; 0 if no prompt was sent.
        entries: One entry per block, in the order in which the blocks were decided.
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
        """The needed tokens divided by the budget; above 1 if the budget was exceeded.

        The needed tokens are `used`, or `overflow.needed` if that is larger. None if the budget is 0, or if no prompt
        was sent for a reason other than an overflow.
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
        into: For ``compacted``, the event that replaces the events; None for other outcomes.
    """

    events: Sequence[Any]
    outcome: DecisionOutcome
    reason: DecisionReason
    into: Any = None


@dataclass(frozen=True, slots=True)
class Compaction:
    """The replacement of events by one shorter event, such as a summary.

    Attributes:
        events: The replaced events.
        into: The shorter event; None if every attempt to make one failed.
        attempts: The attempts, in order; empty if an earlier assembly made the replacement.
        reply: The assistant's message after the replacement, if the provider requires one between two user messages.
    """

    events: Sequence[Any]
    into: Any
    attempts: Sequence[Any] = ()
    reply: Any = None


@dataclass(slots=True)
class Outcome:
    """The result of a policy's ``decide()``: its output, and the reasons for its changes.

    Attributes:
        prompts: The prompts of the output.
        events: The events of the output.
        decisions: Verdicts on dropped events, and on events that were kept as an exception to the policy's rule. A
            dropped event without a verdict gets the reason ``policy``.
        budget: The token limit that this policy enforces, if it has one.
        fixed: The tokens of content that must not be dropped, if the policy knows them.
        overflow: Set if the limit was exceeded and no error was raised.
        alerts: The observer alerts that this policy delivered to the model.
        report: The decisions about blocks, if the policy divides the prompt into blocks.
        compactions: The events that the policy compacted, with the attempts.
        framing: The framing tokens of messages that consist of several joined events; no single event has these tokens.
        separators: The tokens of the separators between joined events.
        around_in: What `framing` and `separators` together would be if the prompt contained the whole input.
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
    """A change of one item's state since the previous assembly, such as kept to dropped, with its reason.

    Attributes:
        item: The id of the item in its ledger: ``0``, ``1``, … for the input, ``m0``, ``m1``, … for events that
            policies made.
        kind: The kind of the item.
        tokens: The tokens of the item.
        outcome: The outcome.
        reason: The reason for the outcome.
        policy: The name of the policy that decided; None for a new item that no policy changed.
        index: The position of that policy in the chain, from 0; None without a policy.
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
