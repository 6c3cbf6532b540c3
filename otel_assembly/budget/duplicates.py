"""Items that say the same, or an older version of the same: one stands, and names the others' reason."""

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

#: What is gathered from several sources, so that two of them may bring the same. A turn may well be repeated.
_GATHERED: Final = frozenset({EventKind.EVIDENCE, EventKind.MEMORY})

_Place = tuple[Block, int, BlockItem]
_Name = tuple[EventKind, str | None, str | None]


def duplicates(ordered: Sequence[Block]) -> dict[str, dict[int, ItemOutcome]]:
    """Items that another stands for, by block and place, with what stands for them.

    Of items with one id the newest version stays, also against one that may not be cut: what is out of date is out of
    date. Of equal texts, and of equal versions, the one in a block that may not be cut stays, then the one in the block
    of higher priority, then the first. What no longer holds loses to what does, or to nobody.

    Args:
        ordered: Blocks, highest priority first.
    """
    gathered = [block for block in ordered if block.kind in _GATHERED and isinstance(block.content, tuple)]
    if not gathered:
        return {}
    gathered.sort(key=attrgetter("cuttable"))
    everything = [(block, index, item) for block in gathered for index, item in enumerate(block.items)]
    places = [place for place in everything if place[2].current]
    found: dict[str, dict[int, ItemOutcome]] = {}
    by_id: dict[_Name, _Place] = {}
    for place in places:
        if place[2].id is None:
            continue
        if not isinstance(place[2].id, str | int):
            raise ConfigurationError(
                f"block {place[0].name!r}: the id of an item must be a text, got a {type(place[2].id).__name__}"
            )
        name = _name(place)
        held = by_id.setdefault(name, place)
        if held is not place:
            winner, loser = (place, held) if _newer(place, held) else (held, place)
            by_id[name] = winner
            _lose(found, loser, winner, DecisionReason.STALE if _differ(winner, loser) else DecisionReason.DUPLICATE)
    for place in everything if len(places) < len(everything) else ():
        if not place[2].current:
            stands = by_id.get(_name(place)) if place[2].id is not None else None
            _lose(found, place, stands, DecisionReason.STALE)
    by_text: dict[str, _Place] = {}
    for place in places:
        if place[1] in found.get(place[0].name, ()) or not isinstance(place[2].content, str):
            continue
        text = " ".join(item_text(place[2]).split())
        held = by_text.setdefault(text, place) if text else place
        if held is not place:
            _lose(found, place, held, DecisionReason.DUPLICATE)
    return {name: _settled(outcomes, found) for name, outcomes in found.items()}


def _name(place: _Place) -> _Name:
    return place[0].kind, place[2].source, place[2].id


def _lose(
    found: dict[str, dict[int, ItemOutcome]], loser: _Place, winner: _Place | None, reason: DecisionReason
) -> None:
    stands = (winner[0].name, winner[1]) if winner is not None else None
    found.setdefault(loser[0].name, {})[loser[1]] = DecisionOutcome.DROPPED, reason, stands


def _settled(outcomes: dict[int, ItemOutcome], found: dict[str, dict[int, ItemOutcome]]) -> dict[int, ItemOutcome]:
    """Each loser names who stands in the end, not somebody who lost in turn."""
    settled: dict[int, ItemOutcome] = {}
    for index, (outcome, reason, winner) in outcomes.items():
        while winner is not None and (beyond := found.get(winner[0], {}).get(winner[1])) is not None:
            winner = beyond[2]
        settled[index] = (outcome, reason, winner)
    return settled


def _newer(one: _Place, other: _Place) -> bool:
    mine, theirs = one[2].version, other[2].version
    if mine is None or theirs is None:
        return mine is not None
    try:
        return bool(mine > theirs)  # type: ignore[operator]  # one id's versions are of one type, or the error says so
    except TypeError as error:
        raise ConfigurationError(
            f"block {one[0].name!r}: two versions of one item cannot be compared "
            f"({type(mine).__name__} and {type(theirs).__name__}); use numbers, or datetimes that all have a time zone"
        ) from error


def _differ(one: _Place, other: _Place) -> bool:
    return one[2].version != other[2].version
