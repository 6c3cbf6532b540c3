"""Items that steps created: the items that they replace, and how they are recognized in later inputs and outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.history.view import difference, is_in, merged, to_runs
from otel_assembly.matching.event_index import EventMatcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from otel_assembly.history.view import Run
    from otel_assembly.ledger.snapshot import NumberedHistory, Snapshot, Step
    from otel_assembly.messages.event_facts import EventFacts

    Read = Callable[[Any], EventFacts | None]

#: The maximum number of created items whose leaf items are stored.
_MAX_ITEMS: Final = 64


class Leaves(dict[int, "tuple[Run, ...]"]):
    """The leaf items that each created item replaces, by its item id, as runs ``[first, last]``.

    Leaf items are items of the input. A summary of summaries replaces the leaf items of those summaries.
    """

    def remember(self, item: int, leaves: tuple[Run, ...]) -> None:
        """Store the leaf items of a created item, which may be compacted itself later; the oldest entry is removed."""
        self[item] = leaves
        while len(self) > _MAX_ITEMS:
            del self[next(iter(self))]

    def of(self, runs: Iterable[Run]) -> list[Run]:
        """Return items, as runs ``[first, last]``, with each created item replaced by its leaf items."""
        items = merged((first, last + 1) for first, last in runs)
        created = [item for item in self if is_in(items, item)]
        rest = difference(items, merged((item, item + 1) for item in created))
        leaves = ((first, last + 1) for item in created for first, last in self[item])
        return [(start, stop - 1) for start, stop in merged([*rest, *leaves])]


def created_by(last: Snapshot | None, step: Step, read: Read, *, observed: bool) -> Sequence[tuple[Any, int]]:
    """Return the events that a step created in the last assembly, with their item ids, to recognize them in its output.

    Left out are dicts that changed in place since, and events that the step's input, or, if `observed`, the assembly's
    input, has now: the output of a framework's own code can be its next input.
    """
    before = last.step_like(step) if last is not None else None
    if before is None or not before.created:
        return ()
    present = step.numbered_in.among(before.injected).union(before.restored_items)  # those are matched as input
    if observed and step.earlier:
        present |= step.earlier[0].numbered_in.among(before.injected)
    texts = dict(before.created_texts)

    def is_changed(event: Any, item: int) -> bool:
        return isinstance(event, dict) and ((facts := read(event)) is None or facts.texts != texts[item])

    return [(event, item) for event, item in before.created if item not in present and not is_changed(event, item)]


def created_ids(
    created: Sequence[tuple[Any, int]], numbered: NumberedHistory, events: Sequence[Any], read: Read
) -> list[int | None]:
    """Return the item id of each event that is one of the `created` events of the last assembly; None for others.

    Items that the input `numbered` has already are not matched again.
    """
    present = numbered.among(item for _, item in created)
    created = [(event, item) for event, item in created if item not in present]
    if not created:
        return [None] * len(events)
    matches = EventMatcher([event for event, _ in created], read=read).match(events)
    return [None if at is None else created[at][1] for at in matches]


def changed_created_items(last: Snapshot | None, numbered: NumberedHistory, places: Mapping[int, int]) -> list[Run]:
    """Return, as runs, the items that the last assembly created and that have other texts in the input now.

    `places` has the positions in the input, by item id, of the items to check.
    """
    created = (pair for step in (last.steps if last is not None else ()) for pair in step.created_texts)
    facts = numbered.history.facts
    return to_runs(sorted({item for item, texts in created if item in places and texts != facts(places[item]).texts}))
