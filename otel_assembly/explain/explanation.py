"""The parts of an explanation, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

__all__ = [
    "BlockPlace",
    "BlockShare",
    "Competitor",
    "CoveringSummary",
    "DroppedGroup",
    "Explanation",
    "ItemPosition",
    "Limit",
    "LimitIncrease",
    "Part",
    "Unsent",
    "unsure",
]

Outcome: TypeAlias = Literal["kept", "dropped", "compacted", "not_offered", "not_arrived", "not_sent", "unknown"]
Unit: TypeAlias = Literal["tokens", "events"]


@dataclass(frozen=True, slots=True)
class ItemPosition:
    """The position of a kept item in the prompt.

    Attributes:
        position: The item's position among the prompt's items, from 1.
        of: The number of items in the prompt.
        prompts: The number of prompts (system-level texts) before the items.
        tokens_before: Tokens before the item, with prompts and tool schemas; None if unknown.
        tokens_after: Tokens after the item, with the reply overhead; None if unknown.
        cached: Whether the item is inside the stable prefix; None if unknown.
    """

    position: int
    of: int
    prompts: int
    tokens_before: int | None
    tokens_after: int | None
    cached: bool | None


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit of a policy, and how much of it was used.

    Attributes:
        unit: The unit of the limit.
        parameter: The name of the policy's setting.
        setting: The value of the setting.
        limit: The usable limit: the setting, less an output reserve.
        fixed: The part of the limit for content that cannot be dropped; None if unknown.
        used: The used part of the limit; None if unknown.
        step: The step of stepwise cutting, in tokens, which can leave a part of the limit unused; 0 for none.
        of: ``messages`` if the limit does not apply to prompts and tool schemas; None if it applies to everything.
    """

    unit: Unit
    parameter: str
    setting: int
    limit: int
    fixed: int | None
    used: int | None
    step: int = 0
    of: str | None = None

    @property
    def left(self) -> int | None:
        """The unused part of the limit; negative if it was exceeded."""
        return None if self.used is None else self.limit - self.used


@dataclass(frozen=True, slots=True)
class Competitor:
    """A kept item that has precedence over the dropped one."""

    item: str
    kind: str
    tokens: int | None


@dataclass(frozen=True, slots=True)
class LimitIncrease:
    """The smallest increase of one limit with which a policy keeps the item, with everything else unchanged.

    Attributes:
        policy: The policy.
        index: The policy's index in the chain.
        parameter: The name of the setting.
        extra: The increase.
        to: The new value of the setting.
        unit: The unit of the setting.
        at_most: Whether a smaller increase may suffice, if a compactor returns a shorter summary than its target.
    """

    policy: str
    index: int
    parameter: str
    extra: int
    to: int
    unit: Unit
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the content that cannot be dropped.

    Attributes:
        name: ``prompts`` (with tool schemas and reply overhead), ``leading_system``, ``newest_request``,
            ``pending_calls``, ``newest_atom`` (the newest tool call with its results, or the newest message), or the
            name of a block.
        tokens: Its tokens.
    """

    name: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Unsent:
    """Why a turn sent nothing, and what would have allowed a prompt.

    Attributes:
        error: ``context_overflow``, ``assembly_halt``, ``cancelled``, or the class of the exception.
        policy: The policy that failed.
        index: The policy's index in the chain.
        cause: The cause of an overflow: ``fixed`` content alone, or the ``newest_atom`` in addition to it.
        budget: The token limit.
        needed: Tokens of the content that cannot be dropped.
        fixed: Tokens of the fixed content among them; None if unknown.
        parts: The parts of the needed tokens, as far as they are known.
        said: The source and the reason of a halt.
        raises: The smallest increase of the limit with which the policy does not fail.
        without: The items that ``on_overflow="drop"`` would have dropped, so that a prompt is sent.
        skip: Whether ``on_policy_error="skip"`` would have continued the turn without the policy.
        never: Why no setting would have allowed a prompt.
        unknown: What the spans do not record, one sentence each.
    """

    error: str
    policy: str | None = None
    index: int | None = None
    cause: str | None = None
    budget: int | None = None
    needed: int | None = None
    fixed: int | None = None
    parts: tuple[Part, ...] = ()
    said: str | None = None
    raises: tuple[LimitIncrease, ...] = ()
    without: tuple[str, ...] = ()
    skip: bool = False
    never: str | None = None
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CoveringSummary:
    """A summary that covers the item.

    Attributes:
        item: The summary's id.
        turn: The first turn that records the summary.
        in_prompt: Whether the summary is in the prompt of the explained turn.
        leaves: The number of items that the summary covers.
    """

    item: str
    turn: int
    in_prompt: bool
    leaves: int


@dataclass(frozen=True, slots=True)
class BlockShare:
    """The share of a block in the budget.

    Attributes:
        name: The block's name.
        priority: Its priority, 1 the highest.
        tokens: Its tokens in the prompt.
    """

    name: str
    priority: int | None
    tokens: int


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """The block of an item, if an allocator decided.

    Attributes:
        name: The block's name.
        kind: Its kind.
        priority: Its priority, 1 the highest.
        remaining: Tokens of the budget that were left when the block was decided.
        floor: The block's reserved minimum, in tokens, below which it is dropped; 0 for none.
        before: The blocks that were decided before it, with their tokens.
    """

    name: str
    kind: str
    priority: int | None
    remaining: int | None
    floor: int = 0
    before: tuple[BlockShare, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """What happened to one item on one turn, as far as the spans record it.

    Attributes:
        ledger: The ledger's id.
        conversation: The conversation's id, if it has one.
        turn: The turn.
        item: The item's id.
        kind: Its kind; None if its arrival is not in the spans.
        tokens: Its tokens; None if its arrival is not in the spans.
        arrived: The first turn that records the item.
        outcome: What happened to the item.
        reason: The reason, such as ``over_budget``.
        policy: The policy that decided.
        index: The policy's index in the chain, from 0.
        since: The first turn of this outcome, in the unbroken sequence of recorded turns.
        since_known: False if the turn before `since` is not in the spans, so that the outcome may be older.
        standing: The item's position, if it was kept.
        limit: The limit that decided.
        competitors: The kept items that have precedence over this one, the largest first.
        competitors_tokens: Their tokens; None if one is unknown.
        also_out: Newer items, and items of the same tool call, that this policy also dropped; a larger limit restores
            them before this item, or together with it.
        also_out_tokens: Their tokens; None if one is unknown.
        raises: The smallest increases: one for each policy whose limit has to be raised, in chain order.
        never: Why no limit would have kept the item.
        winner: The kept item, if this one was dropped as its duplicate or older version.
        holder: The summary that covers the item.
        block: The item's block, if an allocator decided.
        unsent: Why the turn sent nothing, if so.
        part: The item's part in a turn that sent nothing: the name of a `Part`; ``older`` for an item that can be
            dropped; ``fixed_block`` or ``cuttable_block``; ``taken`` if an earlier policy dropped it; ``offered`` if no
            limit was involved; None if unknown.
        unknown: What the spans do not record, one sentence each.
    """

    ledger: str
    conversation: str | None
    turn: int
    item: str
    kind: str | None = None
    tokens: int | None = None
    arrived: int | None = None
    outcome: Outcome = "unknown"
    reason: str | None = None
    policy: str | None = None
    index: int | None = None
    since: int | None = None
    since_known: bool = True
    standing: ItemPosition | None = None
    limit: Limit | None = None
    competitors: tuple[Competitor, ...] = ()
    competitors_tokens: int | None = None
    also_out: tuple[str, ...] = ()
    also_out_tokens: int | None = None
    raises: tuple[LimitIncrease, ...] = ()
    never: str | None = None
    winner: str | None = None
    holder: CoveringSummary | None = None
    block: BlockPlace | None = None
    unsent: Unsent | None = None
    part: str | None = None
    unknown: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return a dictionary for ``json.dumps``."""
        plain = asdict(self)
        if self.limit is not None:
            plain["limit"]["left"] = self.limit.left
        return plain


@dataclass(frozen=True, slots=True)
class DroppedGroup:
    """Items that are not in a turn's prompt for the same reason.

    Attributes:
        reason: The reason; None if no span records it. For a turn that sent nothing, its error.
        policy: The policy that decided; None if unknown.
        index: The policy's index in the chain.
        outcome: ``dropped``, ``compacted``, or ``not_sent`` if nothing was sent.
        items: Their ids.
        tokens: Their tokens; None if one is unknown, because its arrival is not in the spans.
        part: Their part in a turn that sent nothing, as in `Explanation`.
    """

    reason: str | None
    policy: str | None
    index: int | None
    outcome: str
    items: tuple[str, ...]
    tokens: int | None
    part: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return a dictionary for ``json.dumps``."""
        return asdict(self)


def unsure(answer: Explanation, *sentences: str) -> Explanation:
    """Return the answer with further unknowns."""
    return replace(answer, unknown=(*answer.unknown, *sentences))
