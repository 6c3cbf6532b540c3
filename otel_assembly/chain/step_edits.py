"""Record the output of a policy that states the input position of each event, and the compactions that it made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.chain.step_diff import find_restored
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
    """Record an edited view in `step` as a new history; no search is needed, because the view has the positions."""
    source = events.view.history
    placed = list(zip(events, events.positions, strict=True))
    facts = (ledger.facts(event) if position is None else source.facts(position) for event, position in placed)
    numbered = NumberedHistory(ListHistory(events, facts), ItemIds())
    known = {id(event): item_id for event, item_id in ledger.created_by(step)}
    new = [event for event, position in placed if position is None]
    known |= {identity: items[0] for identity, items in find_restored(step, new, set()).items()}
    created: dict[int, tuple[Any, int]] = {}
    for place, (event, position) in enumerate(placed):
        if position is not None:
            item_id = step.numbered_in.item_ids.of(position)
        else:
            item_id = known[id(event)] if id(event) in known else ledger.new_created_id()
            created[place] = event, item_id
        numbered.item_ids.extend(1, item_id)
    step.numbered_out, step.view_out = numbered, numbered.history.view()
    step.created, step.created_positions = tuple(created.values()), tuple(created)


def write_compactions(step: Step, compactions: Sequence[Compaction], ledger: Ledger) -> None:
    """Record the step's successful compactions in `step` by item id, and the items that each summary replaces."""
    created = {id(event): item_id for event, item_id in step.created}
    recorded: list[StepCompaction] = []
    for compaction in compactions:
        result, events = created.get(id(compaction.into)), compaction.events
        # A summary that was only used again is skipped: its provenance is known, and as long as the conversation.
        if result is not None and (compaction.attempts or result not in ledger.leaves):
            if not (isinstance(events, View) and events.history is step.view_in.history):
                wanted = set(map(id, events))
                events = step.view_in.pick(
                    to_runs(index for index, event in enumerate(step.view_in) if id(event) in wanted)
                )
            provenance = tuple(item_id_runs(events, step.numbered_in))
            ledger.leaves.remember(result, provenance)
            recorded.append(StepCompaction(provenance, result, tuple(compaction.attempts)))
    step.compactions = tuple(recorded)
