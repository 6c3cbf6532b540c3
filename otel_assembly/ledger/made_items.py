"""Items that steps made: what they stand for, and how they are known again where they come in or are made again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.history.view import difference, is_in, merged
from otel_assembly.matching.event_index import EventMatcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from otel_assembly.history.view import Run
    from otel_assembly.ledger.snapshot import NumberedHistory, Snapshot, Step
    from otel_assembly.messages.event_facts import EventFacts

    Read = Callable[[Any], EventFacts | None]

#: Items that steps made whose own origins are remembered.
_SUMMARIES: Final = 64


class Leaves(dict[int, "tuple[Run, ...]"]):
    """What steps made of others, by its item id: theirs, of those that nobody made, as runs ``[first, last]``."""

    def remember(self, item: int, leaves: tuple[Run, ...]) -> None:
        """What an item that a step made stands for, for as long as it may come in and be compacted itself."""
        self[item] = leaves
        while len(self) > _SUMMARIES:
            del self[next(iter(self))]

    def of(self, runs: Iterable[Run]) -> list[Run]:
        """Items as runs ``[first, last]``: in the place of what steps made, what that stands for."""
        found = merged((first, last + 1) for first, last in runs)
        made = [item for item in self if is_in(found, item)]
        left = difference(found, merged((item, item + 1) for item in made))
        theirs = ((first, last + 1) for item in made for first, last in self[item])
        return [(start, stop - 1) for start, stop in merged([*left, *theirs])]


def created_by(last: Snapshot | None, step: Step, read: Read, *, observed: bool) -> Sequence[tuple[Any, int]]:
    """What a step put in in the last assembly, with the item ids, and what is not in yet and did not change."""
    if last is None or not last.did(step.index, step.policy):
        return ()
    before = last.steps[step.index]
    if not before.created:
        return ()
    there = step.numbered_in.among(before.injected).union(before.restored_items)  # what came in is found as such
    if observed and step.earlier:
        there |= step.earlier[0].numbered_in.among(before.injected)
    said = dict(before.created_texts)
    return [(event, item) for event, item in before.created if item not in there and _says(event, said[item], read)]


def _says(event: Any, texts: Sequence[str], read: Read) -> bool:
    """Whether an event still says what it said; a dict can be changed in place."""
    return not isinstance(event, dict) or ((facts := read(event)) is not None and facts.texts == texts)


def made_before(
    made: Sequence[tuple[Any, int]], numbered: NumberedHistory, events: Sequence[Any], read: Read
) -> list[int | None]:
    """The item ids of those events that a step of the last assembly made, and that are not in yet."""
    there = numbered.among(item for _, item in made)
    made = [one for one in made if one[1] not in there]
    found = EventMatcher([event for event, _ in made], read=read).match(events) if made else [None] * len(events)
    return [None if at is None else made[at][1] for at in found]


def changed_since_made(last: Snapshot | None, numbered: NumberedHistory, places: Mapping[int, int]) -> list[int]:
    """Of the items at these places those that the last assembly put in, and that say something else now."""
    said = (one for step in (last.steps if last is not None else ()) for one in step.created_texts)
    return [item for item, texts in said if item in places and texts != numbered.history.facts(places[item]).texts]
