"""Converts an explanation to lines of English text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_assembly.decision import DecisionReason, OverflowCause
from otel_assembly.errors import ERROR_ASSEMBLY_HALT, ERROR_CANCELLED, ERROR_CONTEXT_OVERFLOW
from otel_assembly.telemetry.ledger_history import ALLOCATOR
from otel_assembly.telemetry.span_values import item_key, ranges_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_assembly.explain.explanation import Competitor, Explanation, Limit, LimitIncrease, Unsent

__all__ = ["PARTS", "RULES", "detail_lines", "headline", "unsent_lines"]

#: The text that describes each reason.
RULES: Final = {
    DecisionReason.NOT_CONVERSATION: "it is not part of the conversation",
    DecisionReason.OUTSIDE_WINDOW: "it is older than the newest events that the window keeps",
    DecisionReason.OVER_BUDGET: "newer items used the budget",
    DecisionReason.BELOW_FLOOR: "the rest of the block would have been below its minimum",
    DecisionReason.LOW_RANK: "other items of its block have a higher rank",
    DecisionReason.ORPHANED_TOOL_RESULT: "it is a tool result without its call",
    DecisionReason.ORPHANED_TOOL_CALL: "it is a tool call without its result",
    DecisionReason.ORPHANED_REASONING: (
        "it is reasoning without the item that followed it, or such an item without its reasoning"
    ),
    DecisionReason.BEFORE_USER_MESSAGE: (
        "it was before the user message that the provider requires as the first message"
    ),
    DecisionReason.DUPLICATE: "another item has the same content",
    DecisionReason.FORBIDDEN_SCOPE: "its scope is not allowed in this prompt",
    DecisionReason.STALE: "a newer version of it exists",
    DecisionReason.COMPACTED: "a summary replaced it",
    DecisionReason.PINNED: "it must not be dropped",
    DecisionReason.PENDING_TOOL_CALL: "it is a tool call without a result yet",
    DecisionReason.FITS: "it fits",
    DecisionReason.NOT_SENT: "the program left it out of its request",
    DecisionReason.POLICY: "the policy gave no reason",
    DecisionReason.POLICY_ERROR: "the policy failed",
}
#: The texts that describe `Explanation.part`.
PARTS: Final = {
    "leading_system": "a system message at the beginning: fixed content, which may not be dropped",
    "newest_request": "the newest request: fixed content, which may not be dropped",
    "pending_calls": "a tool call that awaits approval: fixed content, which may not be dropped",
    "newest_atom": "of the newest tool call with its results, or the newest message: it is dropped whole or not at all",
    "older": "older than the newest tool call or message: it could have been dropped, and did not cause the overflow",
    "fixed_block": "of a block that may not be cut: fixed content",
    "cuttable_block": "of a block that may be cut: it did not cause the overflow",
    "offered": "part of the input: no limit applied to it",
    "taken": "dropped by an earlier policy: it did not cause the overflow",
}
_PART_NAMES: Final = {
    "prompts": "prompts, tool schemas and reply overhead",
    "leading_system": "system messages",
    "newest_request": "the newest request",
    "pending_calls": "calls that await approval",
    "newest_atom": "the newest tool call with its results, or message",
}
#: The maximum number of competitors that are listed.
_NAMED: Final = 4


def headline(about: Explanation) -> str:
    """Return one sentence that states whether the item is in the turn's prompt."""
    item = f"Item {about.item}{_kind_and_tokens(about)}"
    turn = f"turn {about.turn}"
    if about.outcome == "kept":
        return f"{item} is in the prompt of {turn}."
    if about.outcome == "compacted":
        return f"{item} is in the prompt of {turn} only as part of a summary."
    if about.outcome == "not_offered":
        return f"{item} was not offered on {turn}: it is not in the input."
    if about.outcome == "not_arrived":
        return f"{item} had not arrived by {turn}: it is first recorded on turn {about.arrived}."
    if about.outcome == "not_sent":
        return f"{item} was in no prompt on {turn}: nothing was sent."
    if about.outcome == "dropped":
        return f"{item} is not in the prompt of {turn}."
    return f"What happened to {item[:1].lower()}{item[1:]} on {turn} is not known."


def _kind_and_tokens(about: Explanation) -> str:
    if about.kind is None:
        return ""
    tokens = f", {_token_count(about.tokens)}" if about.tokens is not None else ""
    return f" ({about.kind}{tokens})"


def detail_lines(about: Explanation) -> Iterator[tuple[str, str]]:
    """Yield the details of an explanation as pairs of a label and a text, such as ``("since", "turn 3")``."""
    if about.unsent is not None:
        yield from _error_lines(about.unsent)
        yield from [("what it is", PARTS[about.part])] if about.part in PARTS else ()
        yield from _ways_to_send(about.unsent)
    yield from _decision_lines(about)
    if about.holder is not None:
        holder = about.holder
        where = "which is in this prompt" if holder.in_prompt else "which is not in this prompt"
        yield "summary", f"item {holder.item}, made on turn {holder.turn} of {_item_count(holder.leaves)}, {where}"
    if about.raises:
        yield "to keep it", _increases_text(about)
    if about.never is not None:
        yield "to keep it", f"no limit would: {about.never}"
    for sentence in about.unknown:
        yield "not known", sentence


def _decision_lines(about: Explanation) -> Iterator[tuple[str, str]]:
    """Yield the lines on the decision: reason, first turn, position, block, limit, and items that were kept instead."""
    if about.reason is not None and (about.unsent is None or about.part == "taken"):
        policy = f"{about.policy} (policy {about.index})" if about.policy is not None else ""
        rule = RULES.get(about.reason, "")  # type: ignore[call-overload]  # a StrEnum's members equal their strings
        rule = f"{about.reason}: {rule}" if rule else about.reason
        yield "rule", f"{policy}, {rule}" if policy else rule
    if about.since is not None:
        since = "this turn" if about.since == about.turn else f"turn {about.since}"
        yield "since", since if about.since_known else f"{since} or before: turn {about.since - 1} is not in the spans"
    if about.standing is not None:
        yield from _position_lines(about)
    if about.block is not None:
        block = about.block
        remaining = f", {_token_count(block.remaining)} left before it" if block.remaining is not None else ""
        floor = f", floor {block.floor:,}" if block.floor else ""
        yield "block", f"{block.name} ({block.kind}, priority {block.priority}{floor}){remaining}"
        if block.before and about.outcome in {"dropped", "compacted"} and about.limit is not None:
            shares = ", ".join(f"{share.name} {share.tokens:,}" for share in block.before)
            yield "blocks before it", f"{_token_count(sum(share.tokens for share in block.before))}: {shares}"
    if about.limit is not None:
        yield "limit", _limit_text(about.limit)
    if about.competitors:
        noun = "item" if about.policy == ALLOCATOR else "newer item"
        yield "kept instead", _competitors_text(about.competitors, about.competitors_tokens, noun)
    if about.also_out:
        tokens = f", {_token_count(about.also_out_tokens)}" if about.also_out_tokens is not None else ""
        items = f"{_item_count(len(about.also_out))}, newer or of the same tool call{tokens}"
        yield "also dropped", f"{items}; a larger limit restores them first"
    if about.winner is not None:
        yield "kept copy", f"item {about.winner}"


def unsent_lines(unsent: Unsent) -> Iterator[tuple[str, str]]:
    """Yield why no prompt was sent and what would have allowed one, as pairs of a label and a text."""
    yield from _error_lines(unsent)
    yield from _ways_to_send(unsent)


def _error_lines(unsent: Unsent) -> Iterator[tuple[str, str]]:
    """Yield the lines on the error: which policy failed and why, and the parts of an exceeded budget."""
    policy = f"{unsent.policy} (policy {unsent.index})" if unsent.policy is not None else "a policy"
    if unsent.error == ERROR_ASSEMBLY_HALT:
        yield "nothing sent", f"the conversation was halted{f' by {unsent.said}' if unsent.said else ''}"
    elif unsent.error == ERROR_CANCELLED:
        yield "nothing sent", "the turn was cancelled"
    elif unsent.error != ERROR_CONTEXT_OVERFLOW:
        yield "nothing sent", f"{policy} failed: {unsent.error}"
    elif unsent.needed is None or unsent.budget is None:
        yield "nothing sent", f"{policy}: the fixed content exceeds the budget"
    else:
        excess = f"takes {unsent.needed:,} of {_token_count(unsent.budget)}, {unsent.needed - unsent.budget:,} too many"
        is_newest_atom = unsent.cause == OverflowCause.NEWEST_ATOM
        fixed = f"fixed content ({unsent.fixed:,})" if is_newest_atom and unsent.fixed is not None else "fixed content"
        content = f"{fixed} with the newest tool call or message" if is_newest_atom else fixed
        yield "nothing sent", f"{policy}: {content} {excess}"
        if unsent.parts:
            yield (
                "made up of",
                ", ".join(f"{_PART_NAMES.get(part.name, part.name)} {part.tokens:,}" for part in unsent.parts),
            )


def _ways_to_send(unsent: Unsent) -> Iterator[tuple[str, str]]:
    """Yield the lines on what would have allowed a prompt, and on what is unknown about it."""
    ways = [_increase_text(change) for change in unsent.raises]
    if unsent.without:
        item_ids = ", ".join(ranges_of(sorted(unsent.without, key=item_key)))
        noun = "item" if len(unsent.without) == 1 else "items"
        ways.append(f"{unsent.policy} with on_overflow='drop', which drops {noun} {item_ids}")
    if unsent.skip:
        ways.append(f"fix the error in {unsent.policy}, or set on_policy_error='skip' to continue without it")
    if ways:
        yield "to send a prompt", "; or ".join(ways)
    if unsent.never is not None:
        yield "to send a prompt", f"nothing would: {unsent.never}"
    for sentence in unsent.unknown:
        yield "not known", sentence


def _position_lines(about: Explanation) -> Iterator[tuple[str, str]]:
    """Yield the lines on a kept item's place in the prompt, and whether the provider's cache can serve it."""
    standing = about.standing
    if standing is None:
        return
    prompts = f", after {standing.prompts} prompt{'s' * (standing.prompts != 1)}" if standing.prompts else ""
    yield "position", f"{standing.position} of {_item_count(standing.of)}{prompts}"
    if standing.tokens_before is not None and standing.tokens_after is not None:
        yield "tokens", f"{standing.tokens_before:,} before it, {standing.tokens_after:,} after it"
    if standing.cached is not None:
        where = "inside the stable prefix: it can be read from the provider's cache"
        yield (
            "cache",
            where if standing.cached else "outside the stable prefix: it cannot be read from the provider's cache",
        )


def _limit_text(limit: Limit) -> str:
    parts = [f"{limit.limit:,} {limit.unit}" + (f" of the {limit.of} alone" if limit.of is not None else "")]
    if limit.fixed is not None:
        parts.append(f"{limit.fixed:,} fixed")
    if limit.used is not None and limit.left is not None:
        parts.append(f"{limit.used:,} used")
        parts.append(f"{limit.left:,} left" if limit.left >= 0 else f"{-limit.left:,} over")
    step = f"; the cut moves in steps of {limit.step:,}" if limit.step else ""
    return ", ".join(parts) + step


def _competitors_text(competitors: Sequence[Competitor], tokens: int | None, noun: str) -> str:
    """Return the number and the tokens of the items that were kept instead, and the largest of them by name."""
    total = f", {_token_count(tokens)}" if tokens is not None else ""
    examples = ", ".join(
        f"{item.item} {item.kind} {item.tokens:,}" for item in competitors[:_NAMED] if item.tokens is not None
    )
    rest = len(competitors) - _NAMED
    others = f", and {rest} more" if rest > 0 else ""
    return f"{_item_count(len(competitors), noun)}{total}" + (f": {examples}{others}" if examples else "")


def _increases_text(about: Explanation) -> str:
    return ", and ".join(map(_increase_text, about.raises))


def _increase_text(change: LimitIncrease) -> str:
    unit = change.unit if change.extra != 1 else change.unit[:-1]
    prefix = "at most " if change.at_most else ""
    return f"{prefix}{change.extra:,} more {unit}: {change.policy} with {change.parameter}={change.to}"


def _item_count(count: int, noun: str = "item") -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _token_count(count: int | None) -> str:
    return f"{count:,} token" if count == 1 else f"{count:,} tokens"
