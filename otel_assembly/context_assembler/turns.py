"""Converts a task's turns to items of blocks.

A turn that only repeats an earlier one (an echo) is marked, so that it is counted as 0 tokens. A tool call and its
results are put in the same block.
"""

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

#: The prefix of `BlockItem.group` for the turns of one step.
STEP: Final = "step "


def as_items(turns: Sequence[Any]) -> list[BlockItem]:
    """Return the turns as `BlockItem` objects."""
    return [turn if isinstance(turn, BlockItem) else BlockItem(turn) for turn in turns]


def split_turns(
    examples: Sequence[BlockItem], older: Sequence[Any], recent: Sequence[Any]
) -> tuple[list[BlockItem], list[BlockItem]]:
    """Return the older and the recent turns as items, with each tool call and its results on the same side.

    If a pair is split between `older` and `recent`, the border is moved to before the call.

    Args:
        examples: The few-shot examples, which precede the turns and may contain calls or results of their own.
        older: The older turns, oldest first.
        recent: The turns after the older ones.
    """
    items = [*examples, *as_items(older), *as_items(recent)]
    pairing = pairing_of(map(facts_of, items))
    first, border = len(examples), len(examples) + len(older)
    while (atom := min(pairing.atoms[border:], default=border)) < border and border > first:
        border = max(atom, first)
    items = [replace(item, echo=True) if pairing.flags[index] & ECHO else item for index, item in enumerate(items)]
    return items[first:border], items[border:]


def in_steps(turns: Sequence[BlockItem], step_tokens: int) -> list[BlockItem]:
    """Return the turns as items, grouped into steps of about equal size.

    The items of a step are dropped together. So the oldest turn in the prompt changes rarely, and the provider's cache
    of the prompt stays valid for many turns. The borders of the steps depend only on the sizes of the turns, from the
    first one on, and not on the budget. The turns of the newest two steps are not grouped; otherwise, only the few
    turns of a step that has just begun could remain.

    Args:
        turns: All turns of the conversation, oldest first.
        step_tokens: The size of a step in tokens, of 4 bytes each; 0 to group no turns.
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
    pending = {pairing.atoms[index] for index in pairing.pending_calls(-1)}
    items: list[BlockItem] = []
    for index, turn in enumerate(turns):
        step = starts[pairing.atoms[index]] // step_bytes
        is_grouped = turn.group is None and step < newest - 1 and pairing.atoms[index] not in pending
        items.append(replace(turn, group=f"{STEP}{step}") if is_grouped else turn)
    return items


def _bytes(item: BlockItem) -> int:
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts_of(item))


def facts_of(item: BlockItem) -> EventFacts | None:
    """Return the result of ``describe()`` for an item that is a message; None for a text."""
    return None if is_text(item) else describe(item.content)
