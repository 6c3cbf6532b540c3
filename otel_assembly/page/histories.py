"""What became of each item over a ledger's turns, as the changes that its spans state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from otel_assembly.page.fields import known
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.attributes import runs_in_order
from otel_assembly.telemetry.span_values import as_list, integer

if TYPE_CHECKING:
    from otel_assembly.page.fields import Texts
    from otel_assembly.telemetry.ledger_history import LedgerHistory, ReportedExit, ReportedTurn

IN_PROMPT = -1
"""Stands in an item's history where others have the number of the cause of its absence."""


@dataclass(slots=True)
class Histories:
    """The items of one ledger, turn after turn.

    Attributes:
        causes: Each different cause of an absence: its reason, policy, that policy's place, and the outcome; a reason
            of None is one that nobody stated.
        changes: By the turn's place in the ledger: which items came, left, and so on, as runs.
    """

    ledger: LedgerHistory
    texts: Texts
    causes: list[list[Any]] = field(default_factory=list)
    changes: list[dict[str, list[str]]] = field(default_factory=list)
    _items: dict[int, dict[str, Any]] = field(default_factory=dict)
    _history: dict[int, list[list[int]]] = field(default_factory=dict)
    _numbers: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _kept: set[int] = field(default_factory=set)
    _absent: set[int] = field(default_factory=set)

    def read(self, place: int, turn: ReportedTurn) -> None:
        """Go on by one turn."""
        if not turn.sent:
            self.changes.append({})
            return
        kept = set(turn.kept)
        self._meet(place, turn)
        touched = {item for step in turn.steps for item in (*step.exits, *step.withdrawn)}
        touched.update(turn.withdrawn, turn.arrived, self._kept)
        if not turn.follows:
            touched |= self._absent
        left: list[int] = []
        refused: list[int] = []
        for item in sorted(touched - kept):
            exit_ = self.ledger.exit(turn.number, item)
            if exit_ is None:
                continue
            self._put(place, item, self._cause(exit_))
            self._absent.add(item)
            if item in self._kept:
                left.append(item)
            elif item in turn.arrived:
                refused.append(item)
        for item in kept - self._kept:
            self._put(place, item, IN_PROMPT)
        injected = {item for step in turn.steps for item in step.injected} & kept
        came_back = (kept & self._absent).difference(turn.arrived)
        withdrawn = {*turn.withdrawn, *(item for step in turn.steps for item in step.withdrawn)}
        compacted = {item for step in turn.steps for item, exit_ in step.exits.items() if exit_.outcome == "compacted"}
        gone = compacted | withdrawn
        self.changes.append(
            known(
                {
                    "arrived": runs_in_order(sorted((set(turn.arrived) & kept) - injected)),
                    "left": runs_in_order(item for item in left if item not in gone),
                    "refused": runs_in_order(item for item in refused if item not in gone),
                    "replaced": runs_in_order(sorted(compacted.intersection((*left, *refused)))),
                    "returned": runs_in_order(sorted(came_back)),
                    "injected": runs_in_order(sorted(injected - self._kept)),
                    "withdrawn": runs_in_order(sorted(withdrawn - compacted)),
                }
            )
        )
        self._absent -= kept
        self._kept = kept

    def rows(self) -> list[dict[str, Any]]:
        """An object for each item, by its id."""
        return [self._items[item] | {"h": self._history.get(item, [])} for item in sorted(self._items)]

    def _meet(self, place: int, turn: ReportedTurn) -> None:
        contents = as_list(turn.attributes.get(names.ARRIVED_CONTENTS))
        for item in turn.arrived:
            first = self.ledger.items.get(item)
            if item not in self._items and first is not None:
                self._items[item] = {"o": item, "k": first.kind, "b": first.bytes, "a": first.atom, "t": first.turn}
        tokens = as_list(turn.attributes.get(names.ARRIVED_TOKENS))
        for item, count in zip(turn.arrived, tokens, strict=False):
            self._count(place, item, integer(count))
        # Redaction may have failed on one turn and not on another: only whole arrays can be told apart by place.
        if len(contents) == len(turn.arrived):
            for item, content in zip(turn.arrived, contents, strict=True):
                if item in self._items:
                    self._items[item]["x"] = self.texts.number(str(content))
        for item in (*turn.kept, *turn.counted):
            self._items.setdefault(item, {"o": item})
        for item, counted in turn.counted.items():
            self._count(place, item, counted)

    def _count(self, place: int, item: int, tokens: int | None) -> None:
        if item in self._items and tokens is not None and tokens >= 0:
            self._items[item].setdefault("n", []).append([place, tokens])

    def _put(self, place: int, item: int, cause: int) -> None:
        self._items.setdefault(item, {"o": item})
        history = self._history.setdefault(item, [])
        if not history or history[-1][1] != cause:
            history.append([place, cause])

    def _cause(self, exit_: ReportedExit) -> int:
        cause = (exit_.reason, exit_.policy, exit_.index, exit_.outcome)
        if cause not in self._numbers:
            self._numbers[cause] = len(self.causes)
            self.causes.append(list(cause))
        return self._numbers[cause]
