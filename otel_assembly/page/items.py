"""The items of a ledger, and what is new on a turn: the difference of its state and that of the turn before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.decision import DecisionOutcome
from otel_assembly.page.fields import known
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.span_values import as_list, item_key, runs_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_assembly.page.fields import Texts
    from otel_assembly.telemetry.ledger_history import LedgerHistory, ReportedTurn


def changes(ledger: LedgerHistory, turn: ReportedTurn, before: ReportedTurn | None) -> dict[str, Any]:
    """Which items came, left, and so on, as runs; `before` is the last turn that sent a prompt."""
    if not turn.sent:
        return {}
    kept, was = set(turn.kept), set(before.kept) if before is not None else set()
    new = {item for item in turn.arrived if ledger.items[item].turn == turn.number}
    injected = {item for step in turn.steps for item in step.injected} & kept
    out = {item: ledger.exit(turn.number, item) for item in (was | new) - kept}
    compacted = {
        item for item, exit_ in out.items() if exit_ is not None and exit_.outcome == DecisionOutcome.COMPACTED
    }
    gone = {item for item in was & out.keys() if out[item] is None and turn.offered is not None}
    left = out.keys() - compacted - gone
    came = kept - was
    return known(
        {
            "after": before.number if before is not None and before.number != turn.number - 1 else None,
            "arrived": _runs(came & new - injected),
            "injected": _runs(came & injected),
            "returned": _runs(came - new - injected),
            "left": _runs(left & was),
            "refused": _runs(left - was),
            "replaced": _runs(compacted),
            "gone": _runs(gone),
        }
    )


def item_rows(ledger: LedgerHistory, texts: Texts) -> list[dict[str, Any]]:
    """An object for each item, by its id; where it arrived once more, its tokens by the place of the turn."""
    rows: dict[str, dict[str, Any]] = {}
    for place, turn in enumerate(ledger.turns):
        for item, one in turn.arrived.items():
            first = {"o": item, "k": one.kind, "b": one.bytes, "a": one.atom, "t": one.turn, "s": one.sources.texts}
            rows.setdefault(item, known(first) | {"n": []})["n"].append([place, one.tokens])
        contents = as_list(turn.attributes.get(names.ARRIVED_CONTENTS))
        # Redaction may have failed on one turn and not on another: only whole arrays can be told apart by place.
        if len(contents) == len(turn.arrived):
            for item, content in zip(turn.arrived, contents, strict=True):
                rows[item]["x"] = texts.number(str(content))
    return [rows[item] for item in sorted(rows, key=item_key)]


def _runs(items: Iterable[str]) -> list[str]:
    return runs_of(sorted(items, key=item_key))
