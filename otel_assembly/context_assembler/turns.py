"""A task's turns as items of blocks.

Echoes take no tokens, and a tool call stays in one block with its results.
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

#: The prefix of the group that the turns of one step have.
STEP: Final = "step "


def as_items(turns: Sequence[Any]) -> list[BlockItem]:
    """Return turns, texts or items as items."""
    return [turn if isinstance(turn, BlockItem) else BlockItem(turn) for turn in turns]


def split_turns(
    examples: Sequence[BlockItem], older: Sequence[Any], recent: Sequence[Any]
) -> tuple[list[BlockItem], list[BlockItem]]:
    """Return the older and the recent turns, without separating a tool call from a result.

    Args:
        examples: The items in front of the turns in the prompt.
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
    """Return the turns grouped by steps.

    A cut removes a whole step and then stays for many turns. A step's start depends only on the turns, counted from the
    first one. So it needs no memory, and does not depend on the budget. The newest step and the one before are not
    grouped. Otherwise, a step that has just begun could be all that is left.

    Args:
        turns: All turns of the conversation, oldest first.
        step_tokens: The tokens of a step, of four bytes each; 0 groups nothing.
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
    pending = {pairing.atoms[at] for at in pairing.pending_calls(-1)}
    items: list[BlockItem] = []
    for at, turn in enumerate(turns):
        step = starts[pairing.atoms[at]] // step_bytes
        is_grouped = turn.group is None and step < newest - 1 and pairing.atoms[at] not in pending
        items.append(replace(turn, group=f"{STEP}{step}") if is_grouped else turn)
    return items


def _bytes(item: BlockItem) -> int:
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts_of(item))


def facts_of(item: BlockItem) -> EventFacts | None:
    """Return the facts of an item; None for a text."""
    return None if is_text(item) else describe(item.content)
