"""What a step made that knows which of its events came in where, and for which of them a shorter one stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.chain.step_diff import put_back
from otel_assembly.history.history import ListHistory
from otel_assembly.history.view import View, to_runs
from otel_assembly.ledger.snapshot import ItemIds, NumberedHistory, StepCompaction, item_id_runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.decision import Compaction
    from otel_assembly.history.edited import Edited
    from otel_assembly.ledger.ledger import Ledger
    from otel_assembly.ledger.snapshot import Step


def write_edits(step: Step, events: Edited, ledger: Ledger) -> None:
    """Write down in `step` what came out, as a history of its own: nothing has to be looked for."""
    before = events.view.history
    placed = list(zip(events, events.positions, strict=True))
    facts = (ledger.facts(event) if position is None else before.facts(position) for event, position in placed)
    numbered = NumberedHistory(ListHistory(events, facts), ItemIds())
    known = {id(event): item_id for event, item_id in ledger.made_by(step)}
    new = [event for event, position in placed if position is None]
    known |= {event: items[0] for event, items in put_back(step, new, set()).items()}
    made: dict[int, tuple[Any, int]] = {}
    for place, (event, position) in enumerate(placed):
        if position is not None:
            item_id = step.numbered_in.item_ids.of(position)
        else:
            item_id = known[id(event)] if id(event) in known else ledger.take_made()
            made[place] = event, item_id
        numbered.item_ids.extend(1, item_id)
    step.numbered_out, step.view_out = numbered, numbered.history.view()
    step.created, step.created_positions = tuple(made.values()), tuple(made)


def write_compactions(step: Step, compactions: Sequence[Compaction], ledger: Ledger) -> None:
    """Write down in `step` the compactions of this assembly by item id; one that came to nothing stands for nothing."""
    made = {id(event): item_id for event, item_id in step.created}
    found: list[StepCompaction] = []
    for compaction in compactions:
        result, events = made.get(id(compaction.into)), compaction.events
        # What a summary that goes on standing stands for is known already, and is as long as the conversation.
        if result is not None and (compaction.attempts or result not in ledger.leaves):
            if not (isinstance(events, View) and events.history is step.view_in.history):
                wanted = set(map(id, events))
                events = step.view_in.pick(
                    to_runs(index for index, event in enumerate(step.view_in) if id(event) in wanted)
                )
            provenance = tuple(item_id_runs(events, step.numbered_in))
            ledger.leaves.remember(result, provenance)
            found.append(StepCompaction(provenance, result, tuple(compaction.attempts)))
    step.compactions = tuple(found)
