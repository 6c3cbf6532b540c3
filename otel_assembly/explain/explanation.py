"""What an explanation says, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

__all__ = [
    "Absence",
    "BlockPlace",
    "BlockShare",
    "Competitor",
    "Explanation",
    "Holder",
    "Limit",
    "Part",
    "Raise",
    "Standing",
    "Unsent",
    "unsure",
]

Outcome: TypeAlias = Literal["kept", "dropped", "compacted", "not_offered", "not_arrived", "not_sent", "unknown"]
Unit: TypeAlias = Literal["tokens", "events"]


@dataclass(frozen=True, slots=True)
class Standing:
    """Where an item stands in the prompt.

    Attributes:
        position: Its place among the prompt's items, from 1.
        of: How many items the prompt has.
        prompts: How many prompts (system-level texts) stand in front of the items.
        tokens_before: Tokens in front of it, prompts and tool schemas included; None where those of one are not known.
        tokens_after: Tokens behind it, the reply's priming included; None where those of one are not known.
        cached: Whether all of it lies in the stable prefix, which equals the beginning of the last prompt.
    """

    position: int
    of: int
    prompts: int
    tokens_before: int | None
    tokens_after: int | None
    cached: bool | None


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit by which a policy decided, and how full it was.

    Attributes:
        unit: What it counts.
        parameter: The setting that sets it, by its name in the policy's configuration.
        setting: That setting.
        limit: The most that may be used; for a budget with an output reserve, less than the setting.
        fixed: What may not be dropped takes so much; None where that is not known.
        used: What the policy let out takes so much.
        step: Tokens by which the cut moves at a time, so that more may be left than the next item takes; 0: none.
        of: What of the prompt it is a limit of: ``messages`` where prompts, tool schemas and the like are beside it;
            None where it is of all.
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
        """What was left when all that was kept had its place."""
        return None if self.used is None else self.limit - self.used


@dataclass(frozen=True, slots=True)
class Competitor:
    """An item that has the room that this one did not get."""

    item: str
    kind: str
    tokens: int | None


@dataclass(frozen=True, slots=True)
class Raise:
    """The smallest change of one limit by which a policy keeps the item, everything else as it was.

    Attributes:
        policy: The policy.
        index: Its place in the chain.
        parameter: Its setting.
        extra: How much more.
        to: The setting then.
        unit: What the setting counts.
        at_most: True where less may do, if a compactor answers with less than it was asked for.
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
    """What a part of the content takes that may not be dropped.

    Attributes:
        name: ``prompts`` (with tool schemas and the reply's beginning), ``leading_system``, ``newest_request``,
            ``pending_calls``, ``newest_atom`` (the newest tool call with its results, or the newest message), or the
            name of a block.
        tokens: Its tokens.
    """

    name: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Unsent:
    """Why a turn sent nothing, and what would have let it send a prompt.

    Attributes:
        error: ``context_overflow``, ``assembly_halt``, ``cancelled``, or the class of the exception.
        policy: The policy that failed.
        index: Its place in the chain.
        cause: Of an overflow, what did not fit: ``fixed`` content alone, or the ``newest_atom`` beside it.
        budget: The tokens that there were.
        needed: Those that what may not be dropped takes.
        fixed: Those of them that are fixed; None where that is not known.
        parts: What takes them, as far as that is known.
        said: Of a halt, who brought it about and why.
        raises: The smallest larger limit with which the policy does not fail.
        without: The items that ``on_overflow="drop"`` would have left out, so that a prompt is sent.
        skip: Whether ``on_policy_error="skip"`` lets the turn go on without what the policy would have done.
        never: Why nothing would have let a prompt be sent.
        unknown: What the traces do not tell, a sentence each.
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
    raises: tuple[Raise, ...] = ()
    without: tuple[str, ...] = ()
    skip: bool = False
    never: str | None = None
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Holder:
    """A summary that stands for the item.

    Attributes:
        item: The summary's own id.
        turn: The turn that first told of it.
        in_prompt: Whether it is in the prompt of the turn in question.
        leaves: How many items it stands for in all.
    """

    item: str
    turn: int
    in_prompt: bool
    leaves: int


@dataclass(frozen=True, slots=True)
class BlockShare:
    """What a block takes of the budget.

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
    """The block that holds an item, where an allocator decided.

    Attributes:
        name: The block's name.
        kind: Its kind.
        priority: Its priority, 1 the highest.
        remaining: Tokens of the budget that were left when the block was decided.
        floor: Tokens that are reserved for it, or it is dropped; 0 where nothing is.
        before: The blocks that were decided before it, with what they take.
    """

    name: str
    kind: str
    priority: int | None
    remaining: int | None
    floor: int = 0
    before: tuple[BlockShare, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """What happened to one item at one turn, as far as the traces tell.

    Attributes:
        ledger: The ledger's id.
        conversation: The conversation's id, if it has one.
        turn: The turn.
        item: The item's id.
        kind: Its kind; None where its arrival is not in the traces.
        tokens: Its tokens; None where its arrival is not in the traces.
        arrived: The turn that first told of it.
        outcome: What happened to it.
        reason: The rule.
        policy: The policy that decided.
        index: Its place in the chain, from 0.
        since: Since which turn that is so, as far as no turn between is missing.
        since_known: Whether it was not so before; False where the turn before is not in the traces.
        standing: Where it stands, if it was kept.
        limit: The limit that was decided by.
        competitors: Who has the room: the kept items that come before it, the largest first.
        competitors_tokens: Their tokens together; None where those of one are not known.
        also_out: Newer items, or items of its own tool call, that this policy took as well: with more room they are
            back before it, or with it.
        also_out_tokens: Their tokens together; None where those of one are not known.
        raises: The smallest extra budget: one entry for each policy whose limit has to be raised, in chain order.
        never: Why no limit would have kept it.
        winner: The item that stands for it, where it is out as a duplicate or as an older version.
        holder: The summary that stands for it.
        block: Its block, where an allocator decided.
        unsent: Where the turn sent nothing, why.
        part: Then, what the item was to the turn: the name of a `Part` of an event, ``older`` for what may be dropped,
            ``fixed_block`` or ``cuttable_block``, ``taken`` for what an earlier policy had left out, ``offered`` where
            no limit decided; None where that is not known.
        unknown: What the traces do not tell, a sentence each.
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
    standing: Standing | None = None
    limit: Limit | None = None
    competitors: tuple[Competitor, ...] = ()
    competitors_tokens: int | None = None
    also_out: tuple[str, ...] = ()
    also_out_tokens: int | None = None
    raises: tuple[Raise, ...] = ()
    never: str | None = None
    winner: str | None = None
    holder: Holder | None = None
    block: BlockPlace | None = None
    unsent: Unsent | None = None
    part: str | None = None
    unknown: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain values, for ``json.dumps``."""
        plain = asdict(self)
        if self.limit is not None:
            plain["limit"]["left"] = self.limit.left
        return plain


@dataclass(frozen=True, slots=True)
class Absence:
    """Items that are out of a turn's prompt for one reason.

    Attributes:
        reason: The rule; None where no span says. Of a turn that sent nothing, what it failed of.
        policy: The policy that took them; None where it is not known.
        index: Its place in the chain.
        outcome: ``dropped``, ``compacted``, or ``not_sent`` where nothing was sent.
        items: Their ids.
        tokens: Their tokens; None where those of one are not known, for its arrival is not in the traces.
        part: Where nothing was sent, what they were to the turn, as in an `Explanation`.
    """

    reason: str | None
    policy: str | None
    index: int | None
    outcome: str
    items: tuple[str, ...]
    tokens: int | None
    part: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain values, for ``json.dumps``."""
        return asdict(self)


def unsure(answer: Explanation, *sentences: str) -> Explanation:
    """The answer, with more that is not known."""
    return replace(answer, unknown=(*answer.unknown, *sentences))
