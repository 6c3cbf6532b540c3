"""A task's turns as items of blocks: what repeats another takes no tokens, and a tool call stays with its results."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.budget.allocation import texts_of
from otel_assembly.budget.block import BlockItem
from otel_assembly.budget.keep_order import pairing_of
from otel_assembly.budget.rule import BYTES_PER_TOKEN
from otel_assembly.budget.sections import is_text
from otel_assembly.history.tool_pairs import ECHO
from otel_assembly.messages.event_facts import EventFacts, describe

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Names the turns of one step as a group.
STEP: Final = "step "


def as_items(turns: Sequence[Any]) -> list[BlockItem]:
    """Turns, texts or items as items."""
    return [turn if isinstance(turn, BlockItem) else BlockItem(turn) for turn in turns]


def split_turns(
    examples: Sequence[BlockItem], older: Sequence[Any], recent: Sequence[Any]
) -> tuple[list[BlockItem], list[BlockItem]]:
    """The older turns and the recent ones, with the border between them where it parts no tool call from a result.

    Args:
        examples: What stands before them in the prompt.
        older: The older turns, oldest first.
        recent: The turns after those.
    """
    items = [*examples, *as_items(older), *as_items(recent)]
    pairing = pairing_of(map(facts_of, items))
    first, border = len(examples), len(examples) + len(older)
    while (atom := min(pairing.atoms[border:], default=border)) < border and border > first:
        border = max(atom, first)
    items = [replace(item, echo=True) if pairing.flags[at] & ECHO else item for at, item in enumerate(items)]
    return items[first:border], items[border:]


def in_steps(turns: Sequence[BlockItem], step_tokens: int) -> list[BlockItem]:
    """The turns grouped by where they begin, so that a cut takes a whole step and then stands still for many turns.

    Where a step begins depends on the turns alone, counted from the first one, so nothing is remembered between turns,
    and another budget would find the same steps. The newest step, and the one before it, are cut at any turn: else one
    that has just begun would be all that is left.

    Args:
        turns: All turns of the conversation, oldest first.
        step_tokens: Tokens of a step, of four bytes; 0 groups nothing.
    """
    step_bytes = BYTES_PER_TOKEN * step_tokens
    if not step_bytes:
        return list(turns)
    starts: list[int] = []
    end = 0
    for turn in turns:
        starts.append(end)
        end += _bytes(turn)
    newest = end // step_bytes
    pairing = pairing_of(map(facts_of, turns))
    waiting = set(pairing.pending_calls(-1))
    waiting = {pairing.atoms[at] for at in waiting}
    made: list[BlockItem] = []
    for at, turn in enumerate(turns):
        step = starts[pairing.atoms[at]] // step_bytes
        whole = turn.group is None and step < newest - 1 and pairing.atoms[at] not in waiting
        made.append(replace(turn, group=f"{STEP}{step}") if whole else turn)
    return made


def _bytes(item: BlockItem) -> int:
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts_of(item))


def facts_of(item: BlockItem) -> EventFacts | None:
    """What an item says; None of a text."""
    return None if is_text(item) else describe(item.content)
