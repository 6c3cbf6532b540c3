"""`Explanation` and the data classes that it contains."""

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
        tokens_before: The tokens before the item, including prompts and tool schemas; None if unknown.
        tokens_after: The tokens after the item, including those with which the provider begins the reply; None if
            unknown.
        cached: Whether the item is inside the stable prefix, so that a provider can cache it; None if unknown. The
            stable prefix is the leading content that equals the beginning of the previous turn's prompt.
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
        parameter: The name of the policy's setting, such as ``window``.
        setting: The value of the setting.
        limit: The usable limit: the setting minus the tokens reserved for the reply.
        fixed: How much of the limit the content uses that cannot be dropped; None if unknown.
        used: How much of the limit is used; None if unknown.
        step: If messages are dropped in steps, the size of a step in tokens (a part of the limit may then stay unused);
            otherwise 0.
        of: ``messages`` if prompts and tool schemas do not count towards the limit; None if they do.
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
    """A kept item that has precedence over the explained item, which was dropped.

    Attributes:
        item: The kept item's id.
        kind: The kept item's kind.
        tokens: The kept item's tokens; None if unknown.
    """

    item: str
    kind: str
    tokens: int | None


@dataclass(frozen=True, slots=True)
class LimitIncrease:
    """An increase of a policy's limit with which the policy keeps the item, if nothing else changes.

    It is the smallest such increase if `at_most` is False. Otherwise, a smaller one may suffice.

    Attributes:
        policy: The name of the policy.
        index: The policy's index in the chain.
        parameter: The name of the policy's setting that contains the limit, such as ``max_tokens``.
        extra: The increase of the setting.
        to: The increased value of the setting.
        unit: The unit of the setting.
        at_most: True if a smaller increase may suffice, because a compactor (code that shortens texts) would run again
            and the length of its result is unknown.
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
    """A part of the content that cannot be dropped, for a prompt that exceeded its budget.

    Attributes:
        name: ``prompts`` (including tool schemas and reply overhead), ``leading_system`` (system messages at the
            beginning), ``newest_request``, ``pending_calls`` (tool calls that await an approval), ``newest_atom`` (the
            newest tool call with its results, or the newest message), or the name of a block.
        tokens: The tokens of the part.
    """

    name: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Unsent:
    """Why a turn sent no prompt, and what would have allowed one.

    Attributes:
        error: ``context_overflow``, ``assembly_halt``, ``cancelled``, or the class of the exception.
        policy: The name of the policy that failed; None if no policy failed.
        index: The policy's index in the chain; None if no policy failed.
        cause: What exceeded the budget: ``fixed`` (the content that cannot be dropped), or ``newest_atom`` (this
            content together with the newest tool call and its results, or the newest message). None if no budget was
            exceeded.
        budget: The token limit that was exceeded; None if no limit was exceeded.
        needed: The tokens that had to fit in the budget; None if no limit was exceeded.
        fixed: How many of the needed tokens are content that cannot be dropped; None if unknown.
        parts: The parts of the needed tokens, as far as they are known.
        said: For a halted conversation, the source and the reason of the halt; otherwise None.
        raises: The smallest increase of the limit with which the policy does not fail; empty if there is none or it is
            unknown.
        without: The items that the setting ``on_overflow="drop"`` would have dropped to send a prompt.
        skip: Whether the setting ``on_policy_error="skip"`` would have continued the turn without the policy.
        never: Why no setting would have allowed a prompt; None if a setting would have.
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
    """A summary that replaced the explained item.

    Attributes:
        item: The summary's id.
        turn: The first turn that records the summary.
        in_prompt: Whether the summary is in the prompt of the explained turn.
        leaves: The number of items that the summary replaced.
    """

    item: str
    turn: int
    in_prompt: bool
    leaves: int


@dataclass(frozen=True, slots=True)
class BlockShare:
    """How many tokens of the budget a block uses.

    Attributes:
        name: The block's name.
        priority: The block's priority, 1 for the highest; None if unknown.
        tokens: The block's tokens in the prompt.
    """

    name: str
    priority: int | None
    tokens: int


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """The block that contains the explained item, for a prompt that the allocator built.

    Attributes:
        name: The block's name.
        kind: The block's kind.
        priority: The block's priority, 1 for the highest; None if unknown.
        remaining: The tokens that were available when the block was decided; None if unknown.
        floor: The block's reserved minimum in tokens; a block that would get less is dropped. 0 for none.
        before: The blocks that were decided before this one, with their tokens.
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
        turn: The number of the turn, from 0.
        item: The item's id.
        kind: The item's kind; None if the turn on which it arrived is not in the spans.
        tokens: The item's tokens; None if the turn on which it arrived is not in the spans.
        arrived: The number of the first turn that records the item; None if unknown.
        outcome: What happened to the item.
        reason: The reason of the outcome, such as ``over_budget``; None if unknown.
        policy: The name of the policy that decided; None if no policy did, or if it is unknown.
        index: That policy's index in the chain, from 0; None without a policy.
        since: The turn since which the outcome has been the same; None if unknown.
        since_known: False if the turn before `since` is not in the spans, so that the outcome may be older.
        standing: The item's position in the prompt; None if the item is not in the prompt.
        limit: The limit because of which the item was dropped; None if no limit was involved.
        competitors: The kept items that have precedence over this one, the largest first.
        competitors_tokens: The sum of the competitors' tokens; None if it is unknown.
        also_out: Other items that the same policy dropped and that are newer than this item or belong to the same tool
            call. A larger limit would restore them before this item or together with it.
        also_out_tokens: The sum of the tokens of `also_out`; None if it is unknown.
        raises: The smallest increases of limits that would have kept the item: one for each policy whose limit has to
            be increased, in the order of the policies.
        never: Why no limit would have kept the item; None if a limit would have, or if no limit was involved.
        winner: The id of the item that was kept instead, if this item is a duplicate or an older version of it; else
            None.
        holder: The summary that replaced the item; None if no summary did.
        block: The item's block, if the allocator built the prompt; else None.
        unsent: Why the turn sent no prompt; None if it sent one.
        part: The item's part in a turn that sent no prompt: the name of a `Part`; ``older`` for an item that could have
            been dropped; ``fixed_block`` or ``cuttable_block`` for an item of a block; ``taken`` if an earlier policy
            dropped the item; ``offered`` if no limit was involved; None if unknown.
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
        """Return the fields as a dictionary for ``json.dumps``."""
        plain = asdict(self)
        if self.limit is not None:
            plain["limit"]["left"] = self.limit.left
        return plain


@dataclass(frozen=True, slots=True)
class DroppedGroup:
    """Items that are not in a turn's prompt for the same reason.

    Attributes:
        reason: The reason; None if no span records it. If the turn sent no prompt, the error.
        policy: The name of the policy that decided; None if unknown.
        index: The policy's index in the chain.
        outcome: ``dropped``, ``compacted``, or ``not_sent`` if the turn sent no prompt.
        items: The ids of the items.
        tokens: The sum of the items' tokens; None if the tokens of an item are unknown.
        part: The items' part in a turn that sent no prompt, see `Explanation.part`; None for a turn with a prompt.
    """

    reason: str | None
    policy: str | None
    index: int | None
    outcome: str
    items: tuple[str, ...]
    tokens: int | None
    part: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the fields as a dictionary for ``json.dumps``."""
        return asdict(self)


def unsure(answer: Explanation, *sentences: str) -> Explanation:
    """Return a copy of the explanation with further sentences in `Explanation.unknown`."""
    return replace(answer, unknown=(*answer.unknown, *sentences))
