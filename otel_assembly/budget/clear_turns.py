"""A task's turns as items of blocks: what repeats another takes no tokens, and a tool call stays with its results."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from otel_assembly.budget.allocation import pairing_of
from otel_assembly.budget.block import BlockItem
from otel_assembly.pairing import ECHO

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    pairing = pairing_of(items)
    first, border = len(examples), len(examples) + len(older)
    while (atom := min(pairing.atoms[border:], default=border)) < border and border > first:
        border = max(atom, first)
    items = [replace(item, echo=True) if pairing.flags[at] & ECHO else item for at, item in enumerate(items)]
    return items[first:border], items[border:]
