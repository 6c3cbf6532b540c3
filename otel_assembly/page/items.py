"""The items of a ledger on the page, and how the prompt of each turn differs from the previous prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from otel_assembly.decision import DecisionOutcome
from otel_assembly.page.fields import nonempty
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.span_values import ItemRanges, as_list, item_key, ranges_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_assembly.page.fields import Texts
    from otel_assembly.telemetry.ledger_history import LedgerHistory, ReportedTurn


class SentPrompt(Protocol):
    """The prompt of a turn: the turn's number, and the prompt's items."""

    @property
    def number(self) -> int: ...
    @property
    def kept(self) -> ItemRanges: ...


def changes(ledger: LedgerHistory, turn: ReportedTurn, before: SentPrompt | None) -> dict[str, Any]:
    """Return how a turn's prompt differs from the previous one: items that arrived, were injected, dropped and so on.

    Each list contains item ids and ranges of them, such as ``3-7``. `before` is the last earlier turn with a prompt.
    """
    if not turn.sent:
        return {}
    kept, kept_before = turn.kept, before.kept if before is not None else ItemRanges()
    added, removed = kept.without(kept_before), kept_before.without(kept)
    new = {item for item in turn.arrived if ledger.items[item].turn == turn.number}
    injected = {item for step in turn.steps for item in step.injected if item in kept}
    refused = {item for item in new if item not in kept}
    exits = {item: ledger.exit(turn.number, item) for item in removed | refused}
    compacted = {
        item for item, exit_ in exits.items() if exit_ is not None and exit_.outcome == DecisionOutcome.COMPACTED
    }
    not_offered = {item for item in removed if exits[item] is None and turn.offered is not None}
    dropped = exits.keys() - compacted - not_offered
    return nonempty(
        {
            "after": before.number if before is not None and before.number != turn.number - 1 else None,
            "arrived": _runs(added & new - injected),
            "injected": _runs(added & injected),
            "returned": _runs(added - new - injected),
            "left": _runs(dropped & removed),
            "refused": _runs(dropped - removed),
            "replaced": _runs(compacted),
            "gone": _runs(not_offered),
        }
    )


def item_rows(ledger: LedgerHistory, texts: Texts) -> list[dict[str, Any]]:
    """Return a JSON object for each item of a ledger, sorted by item id, with the values that its first turn recorded.

    The field `n` has a pair `[number of the turn, tokens]` for each turn in which the item was new or changed.
    """
    rows: dict[str, dict[str, Any]] = {}
    for turn in ledger.turns:
        for item, arrival in turn.arrived.items():
            first = {
                "o": item,
                "k": arrival.kind,
                "b": arrival.bytes,
                "a": arrival.atom,
                "t": arrival.turn,
                "s": arrival.sources.texts,
            }
            rows.setdefault(item, nonempty(first) | {"n": []})["n"].append([turn.number, arrival.tokens])
        contents = as_list(turn.attributes.get(names.ARRIVED_CONTENTS))
        # A text belongs to the item at the same index. If redaction removed some texts, the indexes are wrong.
        if len(contents) == len(turn.arrived):
            for item, content in zip(turn.arrived, contents, strict=True):
                rows[item]["x"] = texts.number(str(content))
    return [rows[item] for item in sorted(rows, key=item_key)]


def _runs(items: Iterable[str]) -> list[str]:
    return ranges_of(sorted(items, key=item_key))
