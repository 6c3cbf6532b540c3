"""Drops passages and memories that are equal to another one, outdated, or an older version of another one."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final

from otel_assembly.budget.block import Block, BlockItem
from otel_assembly.budget.sections import item_text
from otel_assembly.decision import DecisionOutcome, DecisionReason
from otel_assembly.errors import ConfigurationError
from otel_assembly.messages.event_facts import EventKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.budget.allocation import ItemOutcome

#: The kinds of blocks that are checked: items of several sources may be equal. Turns are not checked, because a
#: conversation may repeat itself.
_GATHERED: Final = frozenset({EventKind.EVIDENCE, EventKind.MEMORY})

_Place = tuple[Block, int, BlockItem]
_Name = tuple[EventKind, str | None, str | None]


def duplicates(ordered: Sequence[Block]) -> dict[str, dict[int, ItemOutcome]]:
    """Find the passages and memories to drop because another item is equal or newer, or because they are outdated.

    Of the items with one id, the newest version is kept, even if an older one is in a block that cannot be cut. Of
    items with equal texts or versions, one is kept: preferably from a block that cannot be cut, then from the block of
    highest priority, then the first. An item whose `BlockItem.current` is False is always dropped.

    Args:
        ordered: Blocks, highest priority first.

    Returns:
        The outcomes of the dropped items by the block's name and the item's index, each with the reason and the item
        that is kept instead.
    """
    checked_blocks = [block for block in ordered if block.kind in _GATHERED and isinstance(block.content, tuple)]
    if not checked_blocks:
        return {}
    checked_blocks.sort(key=attrgetter("cuttable"))
    all_places = [(block, index, item) for block in checked_blocks for index, item in enumerate(block.items)]
    current_places = [place for place in all_places if place[2].current]
    outcomes: dict[str, dict[int, ItemOutcome]] = {}
    by_id: dict[_Name, _Place] = {}
    for place in current_places:
        if place[2].id is None:
            continue
        if not isinstance(place[2].id, str | int):
            raise ConfigurationError(
                f"block {place[0].name!r}: the id of an item must be a text, got a {type(place[2].id).__name__}"
            )
        name = _identity(place)
        first = by_id.setdefault(name, place)
        if first is not place:
            winner, loser = (place, first) if _is_newer(place, first) else (first, place)
            by_id[name] = winner
            reason = DecisionReason.STALE if _versions_differ(winner, loser) else DecisionReason.DUPLICATE
            _add_drop(outcomes, loser, winner, reason)
    for place in all_places if len(current_places) < len(all_places) else ():
        if not place[2].current:
            winner_or_none = by_id.get(_identity(place)) if place[2].id is not None else None
            _add_drop(outcomes, place, winner_or_none, DecisionReason.STALE)
    by_text: dict[str, _Place] = {}
    for place in current_places:
        if place[1] in outcomes.get(place[0].name, ()) or not isinstance(place[2].content, str):
            continue
        text = " ".join(item_text(place[2]).split())
        first = by_text.setdefault(text, place) if text else place
        if first is not place:
            _add_drop(outcomes, place, first, DecisionReason.DUPLICATE)
    return {name: _with_final_winners(block_outcomes, outcomes) for name, block_outcomes in outcomes.items()}


def _identity(place: _Place) -> _Name:
    return place[0].kind, place[2].source, place[2].id


def _add_drop(
    outcomes: dict[str, dict[int, ItemOutcome]], loser: _Place, winner: _Place | None, reason: DecisionReason
) -> None:
    kept = (winner[0].name, winner[1]) if winner is not None else None
    outcomes.setdefault(loser[0].name, {})[loser[1]] = DecisionOutcome.DROPPED, reason, kept


def _with_final_winners(
    block_outcomes: dict[int, ItemOutcome], outcomes: dict[str, dict[int, ItemOutcome]]
) -> dict[int, ItemOutcome]:
    """Return a block's outcomes; a winner that is itself dropped is replaced by its own winner."""
    final_outcomes: dict[int, ItemOutcome] = {}
    for index, (outcome, reason, winner) in block_outcomes.items():
        while winner is not None and (dropped := outcomes.get(winner[0], {}).get(winner[1])) is not None:
            winner = dropped[2]
        final_outcomes[index] = (outcome, reason, winner)
    return final_outcomes


def _is_newer(place: _Place, other: _Place) -> bool:
    version, other_version = place[2].version, other[2].version
    if version is None or other_version is None:
        return version is not None
    try:
        return bool(version > other_version)  # type: ignore[operator]  # other types raise the error below
    except TypeError as error:
        raise ConfigurationError(
            f"block {place[0].name!r}: two versions of one item cannot be compared ({type(version).__name__} and "
            f"{type(other_version).__name__}); use numbers, or datetimes that all have a time zone"
        ) from error


def _versions_differ(place: _Place, other: _Place) -> bool:
    return place[2].version != other[2].version
